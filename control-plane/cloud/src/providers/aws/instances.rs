//! The instances of EC2 behind the nodes.

use std::collections::BTreeMap;

use corten_aws::call::{Call, NEXT_TOKEN};
use corten_outbound::xml::Element;
use tokio::time::Instant;

use super::super::batch::Fetched;
use super::{Aws, NAME};
use crate::provider::{BalancerNode, Error, Instance, NodeAddress, NodeReference};

/// The states of instances that exist.
const STATES: [&str; 5] = ["pending", "running", "shutting-down", "stopping", "stopped"];

impl Aws {
    /// Returns the instance of a node: by its provider ID, else by its name, which is an instance ID or a private DNS
    /// name.
    pub(super) async fn instance_of(&self, node: &NodeReference) -> Result<Option<Instance>, Error> {
        let found = match node.provider_id.as_str() {
            "" if node.name.starts_with("i-") => self.instance(&node.name).await?,
            "" => self.named_instance(&node.name).await?,
            id => self.instance(instance_id(id)?).await?,
        };
        Ok(found.map(|one| self.instance_from(&one)))
    }

    async fn instance(&self, id: &str) -> Result<Option<Element>, Error> {
        let found = self.shared.instances.get(id, |ids| Box::pin(self.by_id(ids))).await?;
        Ok(found.filter(exists))
    }

    async fn by_id(&self, ids: Vec<String>) -> Fetched<Element> {
        // A filter leaves out the instances that are gone, where a list of IDs would be refused.
        let call = Call::new("DescribeInstances").filter("instance-id", ids);
        let found = self.instances(&call).await?;
        Ok(found.into_iter().map(|one| (one.get("instanceId").to_owned(), one)).collect())
    }

    async fn named_instance(&self, name: &str) -> Result<Option<Element>, Error> {
        let found = self.shared.named_instances.get(name, |names| Box::pin(self.by_name(names))).await?;
        let mut found = found.unwrap_or_default();
        match found.len() {
            0 | 1 => Ok(found.pop()),
            _ => Err(Error::Invalid(format!("several instances have the private DNS name {name}"))),
        }
    }

    async fn by_name(&self, names: Vec<String>) -> Fetched<Vec<Element>> {
        let call =
            Call::new("DescribeInstances").filter("private-dns-name", names).filter("instance-state-name", STATES);
        let mut all: BTreeMap<String, Vec<Element>> = BTreeMap::new();
        for one in self.instances(&call).await?.into_iter().filter(exists) {
            all.entry(one.get("privateDnsName").to_owned()).or_default().push(one);
        }
        Ok(all)
    }

    async fn instances(&self, call: &Call) -> Result<Vec<Element>, Error> {
        let reservations = self.ec2.pages(call, "reservationSet/item", NEXT_TOKEN).await?;
        Ok(reservations.iter().flat_map(|one| one.all("instancesSet/item")).cloned().collect())
    }

    fn instance_from(&self, element: &Element) -> Instance {
        let zone = element.get("placement/availabilityZone");
        Instance {
            provider_id: provider_id(zone, element.get("instanceId")),
            is_shut_down: element.get("instanceState/name") == "stopped",
            instance_type: element.get("instanceType").to_owned(),
            zone: zone.to_owned(),
            region: self.region.clone(),
            addresses: addresses(element),
        }
    }

    /// Returns the instances of these IDs that exist, as they were at this moment or later.
    pub(super) async fn described(&self, ids: &[String], since: Instant) -> Result<Vec<Element>, Error> {
        let asked = ids.iter().map(|id| self.shared.instances.get_since(id, since, |ids| Box::pin(self.by_id(ids))));
        let found = futures::future::try_join_all(asked).await?;
        Ok(found.into_iter().flatten().collect())
    }
}

/// Reports whether an instance that AWS still shows exists.
fn exists(instance: &Element) -> bool {
    instance.get("instanceState/name") != "terminated"
}

/// Returns the provider ID of an instance.
pub fn provider_id(zone: &str, instance: &str) -> String {
    format!("{NAME}:///{zone}/{instance}")
}

/// Returns the instance IDs of nodes.
pub fn instance_ids(nodes: &[BalancerNode]) -> Result<Vec<String>, Error> {
    nodes.iter().map(|node| instance_id(&node.provider_id).map(str::to_owned)).collect()
}

/// Returns the instance ID of a provider ID: `aws:///ZONE/ID` or `aws:///ID`.
pub fn instance_id(provider_id: &str) -> Result<&str, Error> {
    let id = provider_id.strip_prefix("aws://").and_then(|path| path.rsplit('/').next());
    let id = id.filter(|id| id.starts_with("i-") && id.bytes().all(|one| one.is_ascii_alphanumeric() || one == b'-'));
    id.ok_or_else(|| Error::Invalid(format!("{provider_id:?} is no provider ID of AWS, such as aws:///ZONE/i-ID")))
}

/// Returns the addresses of an instance, those of its network interfaces in the order of their devices.
fn addresses(element: &Element) -> Vec<NodeAddress> {
    let mut all: Vec<NodeAddress> = Vec::new();
    let mut add = |kind: &'static str, address: &str| {
        let address = NodeAddress { kind, address: address.to_owned() };
        if !address.address.is_empty() && !all.contains(&address) {
            all.push(address);
        }
    };
    add("InternalIP", element.get("privateIpAddress"));
    for interface in element.all("networkInterfaceSet/item") {
        for private in interface.all("privateIpAddressesSet/item") {
            add("InternalIP", private.get("privateIpAddress"));
        }
        for ipv6 in interface.all("ipv6AddressesSet/item") {
            add("InternalIP", ipv6.get("ipv6Address"));
        }
    }
    add("ExternalIP", element.get("ipAddress"));
    add("InternalDNS", element.get("privateDnsName"));
    add("Hostname", element.get("privateDnsName"));
    add("ExternalDNS", element.get("dnsName"));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn provider_ids_are_read() {
        assert_eq!(instance_id("aws:///eu-central-1a/i-0abc"), Ok("i-0abc"));
        assert_eq!(instance_id("aws:///i-0abc"), Ok("i-0abc"));
        for bad in ["hcloud://1", "aws:///eu-central-1a/", "aws:///z/i-&x", "i-0abc"] {
            assert!(instance_id(bad).is_err(), "{bad}");
        }
    }
}
