//! The servers behind the nodes.

use corten_outbound::sign::encode;
use serde_json::Value;

use super::Hetzner;
use crate::provider::{Error, Instance, NodeAddress, NodeReference};

/// The scheme of provider IDs, as Hetzner's own controller writes them.
const SCHEME: &str = "hcloud://";

impl Hetzner {
    /// Returns the server of a node, by its provider ID or its name.
    pub(super) async fn server_of(&self, node: &NodeReference) -> Result<Option<Instance>, Error> {
        let server = match node.provider_id.as_str() {
            "" => {
                let name = encode(&node.name, false);
                self.api.list(&format!("/servers?name={name}"), "servers").await?.into_iter().next()
            }
            id => match self.api.get(&format!("/servers/{}", server_id(id)?)).await {
                Ok(answer) => Some(answer["server"].clone()),
                Err(refusal) if refusal.code == "not_found" => None,
                Err(refusal) => return Err(refusal.into()),
            },
        };
        let network = self.network_id().await?;
        Ok(server.map(|server| instance(&server, network)))
    }
}

/// Returns the provider ID of a server.
pub fn provider_id(server: u64) -> String {
    format!("{SCHEME}{server}")
}

/// Returns the number of a server by its provider ID.
pub fn server_id(provider_id: &str) -> Result<u64, Error> {
    let number = provider_id.strip_prefix(SCHEME).and_then(|number| number.parse().ok());
    number.ok_or_else(|| Error::Invalid(format!("{provider_id:?} is no provider ID of Hetzner, such as {SCHEME}1")))
}

/// Returns the address of a server in a network.
pub fn private_address(server: &Value, network: u64) -> Option<&str> {
    let mut private = server["private_net"].as_array().into_iter().flatten();
    private.find(|one| one["network"] == network)?["ip"].as_str()
}

fn instance(server: &Value, network: Option<u64>) -> Instance {
    let text = |pointer: &str| server.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
    let mut addresses = Vec::new();
    let mut add = |kind, address: String| {
        if !address.is_empty() {
            addresses.push(NodeAddress { kind, address });
        }
    };
    let private = network.and_then(|network| private_address(server, network)).map(str::to_owned);
    add("InternalIP", private.unwrap_or_default());
    add("ExternalIP", text("/public_net/ipv4/ip"));
    // The server has a network; its own address is the first one.
    let ipv6 = text("/public_net/ipv6/ip");
    add("ExternalIP", ipv6.split_once("::/").map(|(network, _)| format!("{network}::1")).unwrap_or_default());
    let location = match text("/datacenter/location/name") {
        old if !old.is_empty() => old,
        _ => text("/location/name"),
    };
    let zone = text("/datacenter/name");
    Instance {
        provider_id: provider_id(server["id"].as_u64().unwrap_or_default()),
        is_shut_down: server["status"] == "off",
        instance_type: text("/server_type/name"),
        zone: if zone.is_empty() { location.clone() } else { zone },
        region: location,
        addresses,
    }
}
