//! The instances of EC2 behind the nodes.

use corten_outbound::xml::Element;

use super::call::{Call, NEXT_TOKEN};
use super::{Aws, NAME};
use crate::provider::{Error, Instance, NodeAddress, NodeReference};

/// The states of instances that exist.
const STATES: [&str; 5] = ["pending", "running", "shutting-down", "stopping", "stopped"];

impl Aws {
    /// Returns the instance of a node: by its provider ID, else by its name, which is an instance ID or a private DNS
    /// name.
    pub(super) async fn instance_of(&self, node: &NodeReference) -> Result<Option<Instance>, Error> {
        let call = Call::new("DescribeInstances");
        let call = match node.provider_id.as_str() {
            "" if node.name.starts_with("i-") => call.list("InstanceId", [node.name.as_str()]),
            "" => call.filter("private-dns-name", [node.name.as_str()]).filter("instance-state-name", STATES),
            id => call.list("InstanceId", [instance_id(id)?]),
        };
        let found = match self.ec2.call(&call).await {
            Ok(found) => found,
            Err(refusal) if is_absent(&refusal.code) => return Ok(None),
            Err(refusal) => return Err(refusal.into()),
        };
        let mut instances = found.all("reservationSet/item").flat_map(|one| one.all("instancesSet/item"));
        let first = instances.find(|one| one.get("instanceState/name") != "terminated");
        if instances.any(|one| one.get("instanceState/name") != "terminated") {
            return Err(Error::Invalid(format!("several instances have the private DNS name {}", node.name)));
        }
        Ok(first.map(|one| self.instance_from(one)))
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

    /// Returns the instances of these IDs that exist.
    pub(super) async fn described(&self, ids: &[String]) -> Result<Vec<Element>, Error> {
        let mut all = Vec::new();
        for chunk in ids.chunks(100) {
            // A filter leaves out the instances that are gone, where a list of IDs would be refused.
            let call = Call::new("DescribeInstances").filter("instance-id", chunk.iter().map(String::as_str));
            let reservations = self.ec2.pages(&call, "reservationSet/item", NEXT_TOKEN).await?;
            all.extend(reservations.iter().flat_map(|one| one.all("instancesSet/item")).cloned());
        }
        Ok(all)
    }
}

fn is_absent(code: &str) -> bool {
    code == "InvalidInstanceID.NotFound" || code == "InvalidInstanceID.Malformed"
}

/// Returns the provider ID of an instance.
pub fn provider_id(zone: &str, instance: &str) -> String {
    format!("{NAME}:///{zone}/{instance}")
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
