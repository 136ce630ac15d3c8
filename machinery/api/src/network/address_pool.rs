//! AddressPool: a pool of addresses of Services of type LoadBalancer, as the controllers and the nodes read it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use corten_meta::{Selector, Value};

use super::AddressRange;

/// The plural name of the resource.
pub const ADDRESS_POOLS: &str = "addresspools";

#[derive(Clone, Debug)]
pub struct AddressPool {
    pub name: String,
    pub ranges: Vec<AddressRange>,
    /// Whether Services that name neither the pool nor an address may get one.
    pub auto_assign: bool,
    /// The order among pools: lower numbers first, 0 last.
    pub priority: u64,
    namespaces: BTreeSet<String>,
    namespace_selectors: Vec<Selector>,
    service_selectors: Vec<Selector>,
    /// Whether nodes answer ARP and neighbour solicitations for the addresses.
    pub l2: bool,
    /// Whether nodes announce the addresses to BGP peers.
    pub bgp: bool,
    pub advertisement: Advertisement,
    /// Whether the pool's controller found no fault in it.
    pub is_accepted: bool,
}

/// The attributes of the routes of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Advertisement {
    /// The names of the peers; empty for all.
    pub peers: BTreeSet<String>,
    /// Communities of two numbers.
    pub communities: BTreeSet<u32>,
    /// Large communities, of three numbers.
    pub large_communities: BTreeSet<[u32; 3]>,
    pub local_preference: Option<u32>,
    /// The length of the announced prefix, by family; whole addresses without it.
    pub length_v4: Option<u8>,
    pub length_v6: Option<u8>,
}

impl AddressPool {
    /// Reads a pool; an error names the first field that has no meaning.
    pub fn of(object: &Value) -> Result<AddressPool, String> {
        let spec = &object["spec"];
        let strings = |value: &Value| -> Vec<String> {
            value.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
        };
        let selectors = |field: &str| -> Result<Vec<Selector>, String> {
            let list = spec["serviceAllocation"][field].as_array().into_iter().flatten();
            list.map(Selector::from_label_selector)
                .collect::<Result<_, _>>()
                .map_err(|error| format!("spec.serviceAllocation.{field}: {error}"))
        };
        let range = |text: String| {
            let wanted = "is neither an address nor FIRST-LAST nor a CIDR";
            AddressRange::parse(&text)
                .ok_or_else(|| format!("spec.addresses: {} {wanted}", corten_meta::quote::quote(&text)))
        };
        let ranges: Vec<AddressRange> = strings(&spec["addresses"]).into_iter().map(range).collect::<Result<_, _>>()?;
        let protocols = strings(&spec["protocols"]);
        let announces = |protocol: &str| protocols.is_empty() || protocols.iter().any(|one| one == protocol);
        Ok(AddressPool {
            name: corten_meta::name(object).to_owned(),
            ranges,
            auto_assign: spec["autoAssign"].as_bool().unwrap_or(true),
            priority: spec["serviceAllocation"]["priority"].as_u64().unwrap_or(0),
            namespaces: strings(&spec["serviceAllocation"]["namespaces"]).into_iter().collect(),
            namespace_selectors: selectors("namespaceSelectors")?,
            service_selectors: selectors("serviceSelectors")?,
            l2: announces("L2"),
            bgp: announces("BGP"),
            advertisement: Advertisement::of(&spec["bgp"])?,
            is_accepted: is_accepted(object),
        })
    }

    /// Returns the pool of the flag `--load-balancer-pool`, for all Services.
    pub fn of_ranges(name: &str, ranges: Vec<AddressRange>) -> AddressPool {
        AddressPool {
            name: name.to_owned(),
            ranges,
            auto_assign: true,
            priority: 0,
            namespaces: BTreeSet::new(),
            namespace_selectors: Vec::new(),
            service_selectors: Vec::new(),
            l2: true,
            bgp: true,
            advertisement: Advertisement::default(),
            is_accepted: true,
        }
    }

    pub fn contains(&self, address: IpAddr) -> bool {
        self.ranges.iter().any(|range| range.contains(address))
    }

    /// Returns a range that both pools have addresses of.
    pub fn overlap(&self, other: &AddressPool) -> Option<AddressRange> {
        self.ranges.iter().find(|range| other.ranges.iter().any(|one| one.overlaps(range))).copied()
    }

    /// Returns the number of addresses.
    pub fn size(&self) -> u128 {
        self.ranges.iter().fold(0, |sum, range| sum.saturating_add(range.size()))
    }

    /// Reports whether a Service may have addresses of the pool: its namespace is named or selected, and so is the
    /// Service, unless nothing is named or selected.
    pub fn serves(
        &self,
        namespace: &str,
        namespace_labels: &BTreeMap<String, String>,
        service_labels: &BTreeMap<String, String>,
    ) -> bool {
        let any_namespace = self.namespaces.is_empty() && self.namespace_selectors.is_empty();
        let in_namespace = any_namespace
            || self.namespaces.contains(namespace)
            || self.namespace_selectors.iter().any(|selector| selector.matches(namespace_labels));
        let is_selected = self.service_selectors.is_empty()
            || self.service_selectors.iter().any(|selector| selector.matches(service_labels));
        in_namespace && is_selected
    }
}

impl Advertisement {
    fn of(bgp: &Value) -> Result<Advertisement, String> {
        let list = |field: &str| bgp[field].as_array().into_iter().flatten().filter_map(Value::as_str);
        let mut advertisement = Advertisement {
            peers: list("peers").map(str::to_owned).collect(),
            local_preference: bgp["localPref"].as_u64().and_then(|number| u32::try_from(number).ok()),
            length_v4: bgp["aggregationLength"].as_u64().and_then(|length| u8::try_from(length).ok()),
            length_v6: bgp["aggregationLengthV6"].as_u64().and_then(|length| u8::try_from(length).ok()),
            ..Advertisement::default()
        };
        for text in list("communities") {
            let numbers: Result<Vec<u32>, _> = text.split(':').map(str::parse).collect();
            match numbers.as_deref() {
                Ok(&[high, low]) if high <= 0xffff && low <= 0xffff => {
                    advertisement.communities.insert(high << 16 | low);
                }
                Ok(&[global, first, second]) => {
                    advertisement.large_communities.insert([global, first, second]);
                }
                _ => {
                    let shown = corten_meta::quote::quote(text);
                    return Err(format!("spec.bgp.communities: {shown} is neither A:B below 65536 nor A:B:C"));
                }
            }
        }
        Ok(advertisement)
    }
}

fn is_accepted(object: &Value) -> bool {
    let conditions = object.pointer("/status/conditions").and_then(Value::as_array);
    !conditions.into_iter().flatten().any(|one| one["type"] == "Accepted" && one["status"] == "False")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pool(spec: Value) -> Result<AddressPool, String> {
        AddressPool::of(&json!({"metadata": {"name": "p"}, "spec": spec}))
    }

    #[test]
    fn selectors_choose_namespaces_and_services() {
        let labels = |key: &str| BTreeMap::from([(key.to_owned(), "yes".to_owned())]);
        let none = BTreeMap::new();
        let all = pool(json!({"addresses": ["192.0.2.0/30"]})).unwrap();
        assert!(all.serves("a", &none, &none));
        let some = pool(json!({"addresses": [], "serviceAllocation": {
            "namespaces": ["a"],
            "namespaceSelectors": [{"matchLabels": {"team": "yes"}}],
            "serviceSelectors": [{"matchLabels": {"public": "yes"}}],
        }}))
        .unwrap();
        assert!(some.serves("a", &none, &labels("public")));
        assert!(some.serves("b", &labels("team"), &labels("public")));
        assert!(!some.serves("b", &none, &labels("public")));
        assert!(!some.serves("a", &none, &none));
    }

    #[test]
    fn a_bad_field_is_named() {
        let error = |spec: Value| pool(spec).unwrap_err();
        assert_eq!(
            error(json!({"addresses": ["192.0.2.300"]})),
            "spec.addresses: \"192.0.2.300\" is neither an address nor FIRST-LAST nor a CIDR"
        );
        assert_eq!(
            error(json!({"addresses": [], "bgp": {"communities": ["70000:1"]}})),
            "spec.bgp.communities: \"70000:1\" is neither A:B below 65536 nor A:B:C"
        );
    }

    #[test]
    fn communities_are_read_by_their_form() {
        let read =
            pool(json!({"addresses": [], "bgp": {"communities": ["65000:7", "1:2:3"], "localPref": 200}})).unwrap();
        assert_eq!(read.advertisement.communities, BTreeSet::from([65_000 << 16 | 7]));
        assert_eq!(read.advertisement.large_communities, BTreeSet::from([[1, 2, 3]]));
        assert_eq!(read.advertisement.local_preference, Some(200));
    }
}
