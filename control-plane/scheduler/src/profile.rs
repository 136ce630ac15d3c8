//! A profile: the plugins of one scheduler name at each extension point, with their weights.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crate::config::ProfileSpec;
use crate::framework::{Loaded, Point};
use crate::metrics::{Metrics, ProfileSeries};
use crate::plugins::registered;

pub struct Profile {
    pub name: String,
    plugins: Vec<Loaded>,
    at: HashMap<Point, Vec<usize>>,
    weights: Vec<i64>,
    percentage_of_nodes_to_score: usize,
    pub series: ProfileSeries,
}

impl Profile {
    /// Makes the plugins of a specification, which was validated when it was read.
    pub fn new(spec: &ProfileSpec, metrics: &Arc<Metrics>) -> Profile {
        let mut profile = Profile {
            name: spec.scheduler_name.clone(),
            plugins: Vec::new(),
            at: HashMap::new(),
            weights: Vec::new(),
            percentage_of_nodes_to_score: spec.percentage_of_nodes_to_score,
            series: ProfileSeries::new(metrics, &spec.scheduler_name, &counted_points(spec)),
        };
        for point in Point::ALL {
            for enabled in spec.points.get(&point).into_iter().flatten() {
                let number = profile.number(&enabled.name, spec);
                if point == Point::Score {
                    profile.weights[number] = enabled.weight;
                }
                profile.at.entry(point).or_default().push(number);
            }
        }
        profile
    }

    #[cfg(test)]
    pub fn by_default() -> Profile {
        Profile::new(&ProfileSpec::default(), &Arc::default())
    }

    fn number(&mut self, name: &str, spec: &ProfileSpec) -> usize {
        if let Some(known) = self.plugins.iter().position(|plugin| plugin.name == name) {
            return known;
        }
        if let Some(registered) = registered(name) {
            self.plugins.push(Loaded { name: registered.name, plugin: (registered.make)(&spec.args) });
            self.weights.push(0);
        }
        self.plugins.len().saturating_sub(1)
    }

    /// Returns the plugins of an extension point, in order.
    pub fn at(&self, point: Point) -> impl Iterator<Item = &Loaded> {
        self.at.get(&point).into_iter().flatten().map(|number| &self.plugins[*number])
    }

    /// Returns the plugins that filter, including those that are enabled at pre-filter only.
    pub fn filters(&self) -> impl Iterator<Item = &Loaded> {
        let (prepare, filter) = (self.numbers(Point::PreFilter), self.numbers(Point::Filter));
        let alone = filter.iter().filter(|number| !prepare.contains(number));
        let mut all: Vec<usize> = prepare.iter().chain(alone).copied().collect();
        // In the order of filtering; plugins that only pre-filter may still reject, and keep their position.
        all.sort_by_key(|number| filter.iter().position(|other| other == number).unwrap_or(usize::MAX));
        all.into_iter().map(|number| &self.plugins[number])
    }

    /// Returns the plugins that score, with their weights.
    pub fn scorers(&self) -> impl Iterator<Item = (&Loaded, i64)> {
        let numbers = self.numbers(Point::Score).iter();
        numbers.map(|number| (&self.plugins[*number], self.weights[*number])).filter(|(_, weight)| *weight > 0)
    }

    fn numbers(&self, point: Point) -> &[usize] {
        self.at.get(&point).map_or(&[], Vec::as_slice)
    }

    pub fn plugin(&self, name: &str) -> Option<&Loaded> {
        self.plugins.iter().find(|plugin| plugin.name == name)
    }

    pub fn patience(&self) -> Duration {
        self.at(Point::PreBind).find_map(|plugin| plugin.patience()).unwrap_or(Duration::from_secs(600))
    }

    /// Returns how many feasible nodes are enough: in a large cluster a good node among some is found sooner than the
    /// best among all.
    pub fn feasible_to_find(&self, nodes: usize) -> usize {
        const MIN_FEASIBLE: usize = 100;
        const MIN_PERCENT: usize = 5;
        if nodes < MIN_FEASIBLE || self.percentage_of_nodes_to_score >= 100 {
            return nodes;
        }
        let percent = match self.percentage_of_nodes_to_score {
            0 => 50usize.saturating_sub(nodes / 125).max(MIN_PERCENT),
            percent => percent,
        };
        (nodes * percent / 100).max(MIN_FEASIBLE)
    }
}

/// Returns the plugins whose evaluations are counted, by extension point.
fn counted_points(spec: &ProfileSpec) -> Vec<(&'static str, Point)> {
    let counted = [Point::PreFilter, Point::Filter, Point::PreScore, Point::Score];
    let at = |point: Point| {
        let enabled = spec.points.get(&point).into_iter().flatten();
        enabled.filter_map(move |plugin| Some((registered(&plugin.name)?.name, point)))
    };
    counted.into_iter().flat_map(at).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_large_clusters_a_share_of_the_nodes_is_enough() {
        let profile = Profile::by_default();
        for (nodes, expected) in [(50, 50), (100, 100), (1000, 420), (5000, 500), (10_000, 500)] {
            assert_eq!(profile.feasible_to_find(nodes), expected, "{nodes} nodes");
        }
        let half = ProfileSpec { percentage_of_nodes_to_score: 50, ..ProfileSpec::default() };
        let half = Profile::new(&half, &Arc::default());
        assert_eq!(half.feasible_to_find(5000), 2500);
    }

    #[test]
    fn the_default_profile_filters_and_scores_in_upstreams_order() {
        let profile = Profile::by_default();
        let filters: Vec<&str> = profile.filters().map(Plugin::name).collect();
        assert_eq!(filters[..4], ["NodeUnschedulable", "NodeName", "TaintToleration", "NodeAffinity"]);
        assert_eq!(filters[filters.len() - 2..], ["DynamicResources", "NodeDeclaredFeatures"]);
        let scorers: Vec<(&str, i64)> = profile.scorers().map(|(plugin, weight)| (plugin.name, weight)).collect();
        let expected = [
            ("TaintToleration", 3),
            ("NodeAffinity", 2),
            ("NodeResourcesFit", 1),
            ("PodTopologySpread", 2),
            ("InterPodAffinity", 2),
            ("DynamicResources", 2),
            ("NodeResourcesBalancedAllocation", 1),
            ("ImageLocality", 1),
        ];
        assert_eq!(scorers, expected);
    }
}
