//! The routes that a speaker announces to one peer, and the UPDATE messages from one set of routes to the next. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::message::{AsWidth, Attribute, HEADER, LargeCommunity, MOST, Message, Segment, Update};
use crate::prefix::{Family, Prefix};

/// The origin of a route that was configured: IGP.
const ORIGIN_IGP: u8 = 0;
/// The preference inside an AS without a configured one.
const DEFAULT_PREFERENCE: u32 = 100;

/// The attributes of a route, as the user configured them.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Path {
    pub communities: BTreeSet<u32>,
    pub large_communities: BTreeSet<LargeCommunity>,
    /// The preference inside the AS; peers of another AS never see it.
    pub local_preference: Option<u32>,
}

/// Routes by their prefix.
pub type Routes = BTreeMap<Prefix, Path>;

/// The facts of an established session that its UPDATE messages depend on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Terms {
    pub local_as: u32,
    /// Whether the peer is in the same AS.
    pub is_internal: bool,
    pub width: AsWidth,
    /// The speaker's own address for each family that the peer takes.
    pub next_hop_v4: Option<Ipv4Addr>,
    pub next_hop_v6: Option<Ipv6Addr>,
}

impl Terms {
    /// Reports whether routes of a family can be announced: the peer takes them, and there is a next hop.
    fn carries(&self, family: Family) -> bool {
        match family {
            Family::Ipv4 => self.next_hop_v4.is_some(),
            Family::Ipv6 => self.next_hop_v6.is_some(),
        }
    }

    /// Returns the attributes of routes with a path, without those that hold prefixes.
    fn attributes(&self, path: &Path) -> Vec<Attribute> {
        let as_path = match self.is_internal {
            true => Vec::new(),
            false => vec![Segment { is_sequence: true, numbers: vec![self.local_as] }],
        };
        let mut attributes = vec![Attribute::Origin(ORIGIN_IGP), Attribute::AsPath(as_path.clone())];
        if self.is_internal {
            attributes.push(Attribute::LocalPref(path.local_preference.unwrap_or(DEFAULT_PREFERENCE)));
        }
        if !path.communities.is_empty() {
            attributes.push(Attribute::Communities(path.communities.iter().copied().collect()));
        }
        if self.width == AsWidth::Two && !self.is_internal && u16::try_from(self.local_as).is_err() {
            attributes.push(Attribute::As4Path(as_path));
        }
        if !path.large_communities.is_empty() {
            attributes.push(Attribute::LargeCommunities(path.large_communities.iter().copied().collect()));
        }
        attributes
    }
}

/// Returns the messages that turn the announced routes into the wanted ones: withdrawals first.
pub fn updates(announced: &Routes, wanted: &Routes, terms: &Terms) -> Vec<Message> {
    let mut messages = Vec::new();
    for family in Family::ALL.into_iter().filter(|family| terms.carries(*family)) {
        let of_family = |prefix: &&Prefix| prefix.family() == family;
        let gone: Vec<Prefix> =
            announced.keys().filter(of_family).filter(|prefix| !wanted.contains_key(prefix)).copied().collect();
        messages.extend(packed(&gone, terms.width, |prefixes| withdrawal(family, prefixes)));
        let mut by_path: BTreeMap<&Path, Vec<Prefix>> = BTreeMap::new();
        for (prefix, path) in wanted.iter().filter(|(prefix, _)| prefix.family() == family) {
            if announced.get(prefix) != Some(path) {
                by_path.entry(path).or_default().push(*prefix);
            }
        }
        for (path, prefixes) in by_path {
            messages.extend(packed(&prefixes, terms.width, |prefixes| announcement(terms, path, family, prefixes)));
        }
    }
    messages
}

/// Returns the markers that all routes were announced.
pub fn end_of_rib(terms: &Terms) -> Vec<Message> {
    let carried = Family::ALL.into_iter().filter(|family| terms.carries(*family));
    carried.map(|family| Message::Update(Update::end_of_rib(family))).collect()
}

fn withdrawal(family: Family, prefixes: Vec<Prefix>) -> Update {
    match family {
        Family::Ipv4 => Update { withdrawn: prefixes, ..Update::default() },
        Family::Ipv6 => Update { attributes: vec![Attribute::Unreach(prefixes)], ..Update::default() },
    }
}

fn announcement(terms: &Terms, path: &Path, family: Family, prefixes: Vec<Prefix>) -> Update {
    let mut attributes = terms.attributes(path);
    match family {
        Family::Ipv4 => {
            attributes.insert(2, Attribute::NextHop(terms.next_hop_v4.unwrap_or(Ipv4Addr::UNSPECIFIED)));
            Update { attributes, announced: prefixes, ..Update::default() }
        }
        Family::Ipv6 => {
            let next_hop = terms.next_hop_v6.unwrap_or(Ipv6Addr::UNSPECIFIED);
            // RFC 7606 wants this attribute first.
            attributes.insert(0, Attribute::Reach { next_hop, prefixes });
            Update { attributes, ..Update::default() }
        }
    }
}

/// Spreads prefixes over as few messages as their size allows.
fn packed(prefixes: &[Prefix], width: AsWidth, make: impl Fn(Vec<Prefix>) -> Update) -> Vec<Message> {
    // The longest prefix has 17 bytes; attributes are bounded by the configuration.
    const LONGEST: usize = 17;
    let empty = Message::Update(make(Vec::new())).encode(width).len();
    let room = (MOST - HEADER).saturating_sub(empty) / LONGEST;
    prefixes.chunks(room.max(1)).map(|part| Message::Update(make(part.to_vec()))).collect()
}

/// Returns the speaker's address of each family for a session: its own end of the connection, else the node's address.
pub fn next_hops(local: IpAddr, node: &[IpAddr]) -> (Option<Ipv4Addr>, Option<Ipv6Addr>) {
    let all = || std::iter::once(local).chain(node.iter().copied());
    let ipv4 = all().find_map(|address| match address {
        IpAddr::V4(address) => Some(address),
        IpAddr::V6(address) => address.to_ipv4_mapped(),
    });
    let ipv6 = all().find_map(|address| match address {
        IpAddr::V6(address) if address.to_ipv4_mapped().is_none() => Some(address),
        _ => None,
    });
    (ipv4, ipv6)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terms() -> Terms {
        Terms {
            local_as: 64_512,
            is_internal: false,
            width: AsWidth::Four,
            next_hop_v4: Some(Ipv4Addr::new(10, 0, 0, 1)),
            next_hop_v6: Some("fd00::1".parse().unwrap()),
        }
    }

    fn routes(addresses: &[&str]) -> Routes {
        addresses.iter().map(|one| (Prefix::host(one.parse().unwrap()), Path::default())).collect()
    }

    /// Applies messages to a table, as a peer does.
    fn received(table: &mut BTreeSet<Prefix>, messages: &[Message]) {
        for message in messages {
            assert!(message.encode(AsWidth::Four).len() <= MOST);
            let Message::Update(update) = message else { panic!("an UPDATE") };
            table.retain(|prefix| !update.withdrawn.contains(prefix));
            table.extend(&update.announced);
            for attribute in &update.attributes {
                match attribute {
                    Attribute::Unreach(prefixes) => table.retain(|prefix| !prefixes.contains(prefix)),
                    Attribute::Reach { prefixes, .. } => table.extend(prefixes),
                    _ => {}
                }
            }
        }
    }

    #[test]
    fn a_peer_that_applies_the_messages_has_the_wanted_routes() {
        let before = routes(&["192.0.2.1", "192.0.2.2", "2001:db8::1"]);
        let after = routes(&["192.0.2.2", "192.0.2.3", "2001:db8::2"]);
        let mut table = BTreeSet::new();
        received(&mut table, &updates(&Routes::new(), &before, &terms()));
        assert_eq!(table, before.keys().copied().collect());
        let messages = updates(&before, &after, &terms());
        assert_eq!(messages.len(), 4, "a withdrawal and an announcement for each family");
        received(&mut table, &messages);
        assert_eq!(table, after.keys().copied().collect());
        assert_eq!(updates(&after, &after, &terms()), []);
    }

    #[test]
    fn many_routes_are_spread_over_messages() {
        let many: Routes =
            (0..5000_u32).map(|bits| (Prefix::host(Ipv4Addr::from(bits).into()), Path::default())).collect();
        let messages = updates(&Routes::new(), &many, &terms());
        assert!(messages.len() > 1);
        let mut table = BTreeSet::new();
        received(&mut table, &messages);
        assert_eq!(table.len(), 5000);
    }

    #[test]
    fn a_changed_path_is_announced_again() {
        let before = routes(&["192.0.2.1"]);
        let mut after = before.clone();
        let path = Path { communities: BTreeSet::from([0xfde8_0001]), ..Path::default() };
        after.values_mut().for_each(|old| old.clone_from(&path));
        let [Message::Update(update)] = &updates(&before, &after, &terms())[..] else { panic!("one UPDATE") };
        assert!(update.attributes.contains(&Attribute::Communities(vec![0xfde8_0001])));
        assert!(update.withdrawn.is_empty());
    }

    #[test]
    fn preferences_stay_inside_the_as() {
        let path = Path { local_preference: Some(200), ..Path::default() };
        let outside = terms().attributes(&path);
        assert!(!outside.iter().any(|one| matches!(one, Attribute::LocalPref(_))));
        let inside = Terms { is_internal: true, ..terms() }.attributes(&path);
        assert!(inside.contains(&Attribute::LocalPref(200)));
        assert!(inside.contains(&Attribute::AsPath(Vec::new())));
    }

    #[test]
    fn a_family_without_a_next_hop_is_not_announced() {
        let terms = Terms { next_hop_v6: None, ..terms() };
        let messages = updates(&Routes::new(), &routes(&["192.0.2.1", "2001:db8::1"]), &terms);
        assert_eq!(messages.len(), 1);
        assert_eq!(end_of_rib(&terms).len(), 1);
    }
}
