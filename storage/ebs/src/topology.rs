//! The topology of volumes: one zone, by the key of AWS's driver and by Kubernetes' own. Pure.

use std::collections::HashMap;

use corten_plugins::csi;

/// The key of AWS's driver.
const ZONE: &str = "topology.ebs.csi.aws.com/zone";
/// The key of Kubernetes.
const WELL_KNOWN_ZONE: &str = "topology.kubernetes.io/zone";

/// Returns the topology of a volume.
pub fn of_volume(zone: &str) -> csi::Topology {
    csi::Topology { segments: HashMap::from([(ZONE.to_owned(), zone.to_owned())]) }
}

/// Returns the topology of a node, by both keys: volumes and classes may name either.
pub fn of_node(zone: &str) -> csi::Topology {
    let segments = [ZONE, WELL_KNOWN_ZONE].map(|key| (key.to_owned(), zone.to_owned()));
    csi::Topology { segments: HashMap::from(segments) }
}

/// Returns the zone of a topology.
fn zone(topology: &csi::Topology) -> Option<&str> {
    let segments = &topology.segments;
    segments.get(ZONE).or_else(|| segments.get(WELL_KNOWN_ZONE)).map(String::as_str).filter(|zone| !zone.is_empty())
}

/// The zones that a request allows, the most wanted first; none if it allows all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Zones(Vec<String>);

impl Zones {
    /// Reads the requirement of a request.
    pub fn read(requirement: Option<&csi::TopologyRequirement>) -> Zones {
        let Some(requirement) = requirement else { return Zones::default() };
        let mut zones: Vec<String> = Vec::new();
        for topology in requirement.preferred.iter().chain(&requirement.requisite) {
            if let Some(zone) = zone(topology)
                && !zones.iter().any(|known| known == zone)
            {
                zones.push(zone.to_owned());
            }
        }
        Zones(zones)
    }

    /// Returns the most wanted zone.
    pub fn first(&self) -> Option<&str> {
        self.0.first().map(String::as_str)
    }

    /// Reports whether a volume of this zone satisfies the request.
    pub fn allow(&self, zone: &str) -> bool {
        self.0.is_empty() || self.0.iter().any(|known| known == zone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_preferred_zone_comes_first_by_either_key() {
        let topology = |key: &str, zone: &str| csi::Topology { segments: HashMap::from([(key.into(), zone.into())]) };
        let requirement = csi::TopologyRequirement {
            requisite: vec![topology(ZONE, "a"), topology("other", "x"), topology(ZONE, "b")],
            preferred: vec![topology(WELL_KNOWN_ZONE, "b")],
        };
        let zones = Zones::read(Some(&requirement));
        assert_eq!(zones, Zones(vec!["b".into(), "a".into()]));
        assert!(zones.allow("a") && !zones.allow("c"));
        assert!(Zones::read(None).allow("c") && Zones::read(None).first().is_none());
    }
}
