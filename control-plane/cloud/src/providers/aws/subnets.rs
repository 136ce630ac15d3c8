//! The subnets of a load balancer: those that its Service names, or those with the cluster's tags, one in each zone.

use std::collections::BTreeMap;
use std::sync::Arc;

use corten_aws::call::{Call, NEXT_TOKEN};
use corten_outbound::xml::Element;
use tokio::time::Instant;

use super::super::batch::Fetched;
use super::options::Options;
use super::{Aws, tag};
use crate::provider::Error;

/// A subnet of a load balancer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subnet {
    pub id: String,
    pub cidr: String,
}

impl Aws {
    /// Returns the subnets of a load balancer in a VPC.
    pub(super) async fn subnets(&self, vpc: &str, options: &Options, since: Instant) -> Result<Vec<Subnet>, Error> {
        let all = self.shared.subnets.get_since(vpc, since, |vpcs| Box::pin(self.subnets_of(vpcs))).await?;
        let all = all.unwrap_or_default();
        let chosen = match options.subnets.as_slice() {
            [] => discovered(&all, &self.cluster_tag(), options.is_internal),
            names => named(&all, names, vpc)?,
        };
        if chosen.is_empty() {
            return Err(Error::Invalid(format!("{vpc} has no subnet for the load balancer")));
        }
        let addresses = options.elastic_addresses.len();
        if addresses > 0 && addresses != chosen.len() {
            let subnets = chosen.len();
            return Err(Error::Invalid(format!(
                "eip-allocations has {addresses} addresses, and the load balancer {subnets} subnets; name as many by the \
                 annotation subnets"
            )));
        }
        Ok(chosen)
    }

    async fn subnets_of(&self, vpcs: Vec<String>) -> Fetched<Arc<Vec<Element>>> {
        let mut all = BTreeMap::new();
        for vpc in vpcs {
            let call = Call::new("DescribeSubnets").filter("vpc-id", [vpc.as_str()]);
            let found = self.ec2.pages(&call, "subnetSet/item", NEXT_TOKEN).await?;
            all.insert(vpc, Arc::new(found));
        }
        Ok(all)
    }
}

fn subnet(element: &Element) -> Subnet {
    Subnet { id: element.get("subnetId").to_owned(), cidr: element.get("cidrBlock").to_owned() }
}

/// Returns the subnets of a list of IDs and names.
fn named(all: &[Element], names: &[String], vpc: &str) -> Result<Vec<Subnet>, Error> {
    let find = |name: &String| {
        let is_named = |one: &&Element| one.get("subnetId") == name || tag(one, "Name") == Some(name);
        let found = all.iter().find(is_named).map(subnet);
        found.ok_or_else(|| Error::Invalid(format!("{vpc} has no subnet {name:?}")))
    };
    names.iter().map(find).collect()
}

/// Returns one subnet in each zone. Those with the tag of the role win over others, and those with the tag of the
/// cluster over those without; subnets of other clusters are left out.
fn discovered(all: &[Element], cluster_tag: &str, is_internal: bool) -> Vec<Subnet> {
    let role = if is_internal { "kubernetes.io/role/internal-elb" } else { "kubernetes.io/role/elb" };
    let has_role = |one: &Element| tag(one, role).is_some_and(|value| value != "0");
    let is_ours = |one: &Element| tag(one, cluster_tag).is_some();
    let is_foreign = |one: &Element| {
        let mut tags = one.all("tagSet/item");
        !is_ours(one) && tags.any(|tag| tag.get("key").starts_with("kubernetes.io/cluster/"))
    };
    let mut candidates: Vec<&Element> = all.iter().filter(|one| !is_foreign(one)).collect();
    if candidates.iter().any(|one| has_role(one)) {
        candidates.retain(|one| has_role(one));
    }
    if candidates.iter().any(|one| is_ours(one)) {
        candidates.retain(|one| is_ours(one));
    }
    candidates.sort_by_key(|one| one.get("subnetId"));
    let mut zones: BTreeMap<&str, Subnet> = BTreeMap::new();
    for one in candidates {
        zones.entry(one.get("availabilityZone")).or_insert_with(|| subnet(one));
    }
    zones.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn element(id: &str, zone: &str, tags: &[&str]) -> Element {
        let tags: String = tags.iter().map(|key| format!("<item><key>{key}</key><value>1</value></item>")).collect();
        let document = format!(
            "<subnet><subnetId>{id}</subnetId><availabilityZone>{zone}</availabilityZone><tagSet>{tags}</tagSet></subnet>"
        );
        corten_outbound::xml::parse(&document).unwrap().children.remove(0)
    }

    #[test]
    fn subnets_are_discovered_by_their_tags() {
        let own = "kubernetes.io/cluster/c";
        let all = [
            element("s3", "a", &[own, "kubernetes.io/role/elb"]),
            element("s1", "a", &[own, "kubernetes.io/role/internal-elb"]),
            element("s2", "b", &[own, "kubernetes.io/role/elb"]),
            element("s4", "b", &[own, "kubernetes.io/role/elb"]),
            element("s0", "c", &["kubernetes.io/cluster/other", "kubernetes.io/role/elb"]),
        ];
        let ids = |subnets: Vec<Subnet>| subnets.into_iter().map(|one| one.id).collect::<Vec<_>>();
        assert_eq!(ids(discovered(&all, own, false)), ["s3", "s2"]);
        assert_eq!(ids(discovered(&all, own, true)), ["s1"]);
        assert_eq!(ids(discovered(&all[..0], own, true)), Vec::<String>::new());
        assert_eq!(ids(named(&all, &["s4".to_owned()], "v").unwrap()), ["s4"]);
        assert_eq!(named(&all, &["x".to_owned()], "v").unwrap_err().to_string(), "v has no subnet \"x\"");
    }
}
