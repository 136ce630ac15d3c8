//! Changes, applied one after the other to a model of the kernel, must end in the same state as the full change.

use std::net::Ipv4Addr;

use corten_nftables::{Index, Port, Protocol};
use proptest::prelude::*;

use super::*;
use crate::chains::{Entry as PacketEntry, Pick};

fn key(name: &str) -> ServiceKey {
    ServiceKey { namespace: "default".to_owned(), name: name.to_owned() }
}

fn lead(last: u8, count: u32) -> (Name, Element) {
    let service = (Ipv4Addr::new(10, 96, 0, last), Protocol::Tcp, Port(80));
    (Name::Services, Element::value(service, Index(count)))
}

fn shape(count: u32) -> Shape {
    Shape::Pick(Pick { entry: PacketEntry::Address, local: false, count, affinity: None })
}

/// Makes a Service with these (address, count) pairs.
fn rules(pairs: &[(u8, u32)]) -> Rules {
    Rules {
        // One element per key, as the rules of one Service have it.
        elements: pairs.iter().copied().collect::<BTreeMap<_, _>>().into_iter().map(|(l, c)| lead(l, c)).collect(),
        shapes: pairs.iter().map(|(_, count)| shape(*count)).collect(),
    }
}

/// A model of the kernel: refuses to delete a missing element and to add an existing one.
#[derive(Default, PartialEq, Eq, Debug)]
struct Kernel {
    elements: BTreeMap<(Name, Value), Element>,
    shapes: BTreeSet<Shape>,
}

impl Kernel {
    fn apply(&mut self, change: &Change) {
        for shape in &change.add_shapes {
            assert!(self.shapes.insert(*shape), "the chain exists already");
        }
        for (name, element) in &change.delete {
            let deleted = self.elements.remove(&(*name, element.key.clone()));
            assert_eq!(deleted.as_ref(), Some(&**element), "only an existing element can be deleted");
        }
        for (name, element) in &change.add {
            let existing = self.elements.insert((*name, element.key.clone()), Element::clone(element));
            assert_eq!(existing, None, "an added element must not exist");
        }
        for shape in &change.delete_shapes {
            assert!(self.shapes.remove(shape), "the chain does not exist");
        }
    }
}

fn change(claims: &mut Claims, name: &str, rules: Option<Rules>) -> Change {
    let mut change = Change::default();
    claims.replace(&key(name), rules, &mut change);
    change
}

#[test]
fn the_same_rules_again_are_no_change() {
    let mut claims = Claims::default();
    assert!(!change(&mut claims, "a", Some(rules(&[(1, 2)]))).is_empty());
    assert!(change(&mut claims, "a", Some(rules(&[(1, 2)]))).is_empty());
}

#[test]
fn the_first_by_name_wins_a_conflict_in_any_order() {
    for order in [["a", "b"], ["b", "a"]] {
        let mut claims = Claims::default();
        let mut kernel = Kernel::default();
        for name in order {
            kernel.apply(&change(&mut claims, name, Some(rules(&[(1, if name == "a" { 1 } else { 2 })]))));
        }
        assert_eq!(kernel.elements.values().collect::<Vec<_>>(), [&lead(1, 1).1]);
        kernel.apply(&change(&mut claims, "a", None));
        assert_eq!(kernel.elements.values().collect::<Vec<_>>(), [&lead(1, 2).1]);
        kernel.apply(&change(&mut claims, "b", None));
        assert_eq!(kernel, Kernel::default());
    }
}

proptest! {
    #[test]
    fn changes_end_in_the_state_of_the_full_change(
        steps in prop::collection::vec(
            prop::collection::vec((0u8..4, prop::option::of(prop::collection::vec((0u8..5, 1u32..4), 0..4))), 1..4),
            1..12,
        )
    ) {
        let mut claims = Claims::default();
        let mut kernel = Kernel::default();
        for step in steps {
            let mut change = Change::default();
            for (service, pairs) in step {
                claims.replace(&key(&service.to_string()), pairs.map(|pairs| rules(&pairs)), &mut change);
            }
            kernel.apply(&change);
            let mut expected = Kernel::default();
            expected.apply(&claims.full());
            prop_assert_eq!(&kernel, &expected);
        }
    }
}
