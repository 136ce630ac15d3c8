//! The servers behind the nodes.

use std::collections::BTreeMap;

use corten_outbound::sign::encode;
use serde_json::Value;

use super::super::batch::Fetched;
use super::Hetzner;
use crate::provider::{Error, Instance, NodeAddress, NodeReference};

/// The prefix of keys that are names; the others are IDs.
const NAMED: &str = "name/";
/// The scheme of provider IDs, as Hetzner's own controller writes them.
const SCHEME: &str = "hcloud://";

impl Hetzner {
    /// Returns the server of a node, by its provider ID or its name.
    pub(super) async fn server_of(&self, node: &NodeReference) -> Result<Option<Instance>, Error> {
        let key = match node.provider_id.as_str() {
            "" => name_key(&node.name),
            id => server_id(id)?.to_string(),
        };
        let server = self.servers.get(&key, |keys| Box::pin(self.fetch_servers(keys))).await?;
        let network = self.network_id().await?;
        Ok(server.map(|server| instance(&server, network)))
    }

    /// Returns one server by its own path, and several by the list of all.
    async fn fetch_servers(&self, keys: Vec<String>) -> Fetched<Value> {
        let servers = match keys.as_slice() {
            [key] => self.fetch_server(key).await?.into_iter().collect(),
            _ => self.api.list("/servers?sort=id", "servers").await?,
        };
        let mut all = BTreeMap::new();
        for server in servers {
            all.insert(name_key(server["name"].as_str().unwrap_or_default()), server.clone());
            all.insert(server["id"].to_string(), server);
        }
        Ok(all)
    }

    async fn fetch_server(&self, key: &str) -> Result<Option<Value>, Error> {
        if let Some(name) = key.strip_prefix(NAMED) {
            let path = format!("/servers?name={}", encode(name, false));
            return Ok(self.api.list(&path, "servers").await?.into_iter().next());
        }
        match self.api.get(&format!("/servers/{key}")).await {
            Ok(answer) => Ok(Some(answer["server"].clone())),
            Err(refusal) if refusal.code == "not_found" => Ok(None),
            Err(refusal) => Err(refusal.into()),
        }
    }
}

/// Returns the key of a server that is known by its name.
fn name_key(name: &str) -> String {
    format!("{NAMED}{name}")
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
