//! Chooses the pods that a critical pod preempts: pods of lower priority, the lowest QoS class first, and as few and as
//! small as suffice. Pure.

use std::collections::{BTreeMap, HashMap};

use super::Holding;
use crate::pod::resources::{self, QosClass, ResourceList};

/// The missing quantities, by resource.
type Shortage = BTreeMap<String, i64>;

/// Returns the uids of the pods to preempt, or `None` if all of them together would not make enough room.
pub fn victims(wanted: &Holding, others: &HashMap<&str, &Holding>, allocatable: &ResourceList) -> Option<Vec<String>> {
    let shortage = shortage(wanted, others, allocatable);
    let candidates = |class: QosClass| -> Vec<(&str, &Holding)> {
        let lower = |held: &Holding| !held.critical && held.priority < wanted.priority && held.class == class;
        let mut list: Vec<_> = others.iter().filter(|(_, held)| lower(held)).map(|(uid, held)| (*uid, *held)).collect();
        list.sort_unstable_by_key(|(uid, _)| *uid);
        list
    };
    let best_effort = candidates(QosClass::BestEffort);
    let burstable = candidates(QosClass::Burstable);
    let guaranteed = candidates(QosClass::Guaranteed);
    let freed = |lists: &[&[(&str, &Holding)]]| {
        lists.iter().fold(shortage.clone(), |left, list| list.iter().fold(left, |left, (_, held)| less(&left, held)))
    };
    if !freed(&[&best_effort, &burstable, &guaranteed]).is_empty() {
        return None;
    }
    // A class gives only what the classes below it cannot.
    let from_guaranteed = fewest(&guaranteed, freed(&[&best_effort, &burstable]));
    let from_burstable = fewest(&burstable, freed(&[&best_effort, &from_guaranteed]));
    let from_best_effort = fewest(&best_effort, freed(&[&from_burstable, &from_guaranteed]));
    let all = [from_best_effort, from_burstable, from_guaranteed].concat();
    Some(all.into_iter().map(|(uid, _)| uid.to_owned()).collect())
}

fn shortage(wanted: &Holding, others: &HashMap<&str, &Holding>, allocatable: &ResourceList) -> Shortage {
    let mut lacking = Shortage::new();
    for (name, quantity) in allocatable {
        let capacity = resources::counted_value(name, quantity);
        let (requested, used) = match name.as_str() {
            "pods" => (1, i64::try_from(others.len()).unwrap_or(i64::MAX)),
            _ => {
                let of = |held: &Holding| held.requests.get(name).copied().unwrap_or(0);
                (of(wanted), others.values().map(|held| of(held)).sum())
            }
        };
        let over = requested - (capacity - used);
        if requested > 0 && over > 0 {
            lacking.insert(name.clone(), over);
        }
    }
    lacking
}

/// Returns the shortage after the pod has gone.
fn less(lacking: &Shortage, held: &Holding) -> Shortage {
    let freed = |name: &str| if name == "pods" { 1 } else { held.requests.get(name).copied().unwrap_or(0) };
    lacking.iter().map(|(name, lack)| (name.clone(), lack - freed(name))).filter(|(_, left)| *left > 0).collect()
}

/// Takes the pod that leaves the smallest shortage, and of such the smallest, until nothing is missing.
fn fewest<'a>(candidates: &[(&'a str, &'a Holding)], mut lacking: Shortage) -> Vec<(&'a str, &'a Holding)> {
    let mut left = candidates.to_vec();
    let mut chosen = Vec::new();
    while !lacking.is_empty() && !left.is_empty() {
        let distance = |held: &Holding| -> f64 {
            let rest = less(&lacking, held);
            lacking
                .iter()
                .map(|(name, lack)| (rest.get(name).copied().unwrap_or(0) as f64 / *lack as f64).powi(2))
                .sum()
        };
        let size = |held: &Holding| held.requests.values().sum::<i64>();
        let best = (0..left.len()).min_by(|a, b| {
            let a = left[*a].1;
            let b = left[*b].1;
            distance(a).total_cmp(&distance(b)).then(size(a).cmp(&size(b)))
        });
        let Some(best) = best else { break };
        let (uid, held) = left.remove(best);
        lacking = less(&lacking, held);
        chosen.push((uid, held));
    }
    chosen
}

#[cfg(test)]
mod tests {
    use corten_api::k8s_openapi::apimachinery::pkg::api::resource::Quantity;

    use super::*;

    fn held(class: QosClass, priority: i32, cpu: i64) -> Holding {
        Holding { requests: [("cpu".to_owned(), cpu)].into(), class, priority, ..Holding::default() }
    }

    fn check(wanted: i64, others: &[(&str, Holding)], expected: Option<&[&str]>) {
        let allocatable =
            [("cpu", "1"), ("pods", "5")].map(|(name, text)| (name.to_owned(), Quantity(text.into()))).into();
        let others: HashMap<&str, &Holding> = others.iter().map(|(uid, held)| (*uid, held)).collect();
        let wanted = held(QosClass::Guaranteed, 2_000_000_000, wanted);
        let found = victims(&wanted, &others, &allocatable);
        let expected = expected.map(|list| list.iter().map(|uid| (*uid).to_owned()).collect::<Vec<_>>());
        assert_eq!(found, expected);
    }

    #[test]
    fn as_few_and_as_unimportant_pods_as_suffice_are_preempted() {
        use QosClass::{BestEffort, Burstable, Guaranteed};
        let small = ("small", held(Burstable, 0, 200));
        let large = ("large", held(Burstable, 0, 600));
        let sure = ("sure", held(Guaranteed, 0, 200));
        check(500, &[small.clone(), large.clone(), sure.clone()], Some(&["large"]));
        check(100, &[small.clone(), large.clone(), sure.clone()], Some(&["small"]));
        check(1000, &[small.clone(), large, sure], Some(&["large", "small", "sure"]));
        let mut critical = held(Guaranteed, 0, 900);
        critical.critical = true;
        check(500, &[small.clone(), ("critical", critical)], None);
        let idle = |uid| (uid, held(BestEffort, 0, 0));
        check(100, &[idle("a"), idle("b"), idle("c"), idle("d"), small], Some(&["a"]));
    }
}
