//! Routes of the private network to the pods of nodes.

use corten_outbound::sign::encode;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::super::batch::{Fetched, HELD};
use super::Hetzner;
use super::servers::{private_address, provider_id, server_id};
use crate::provider::{Answer, BalancerNode, Error, Route, Routes};

impl Hetzner {
    /// Returns the number of the private network; none if the servers have none. That of a name is a minute old at most.
    pub(super) async fn network_id(&self) -> Result<Option<u64>, Error> {
        if self.network.is_empty() {
            return Ok(None);
        }
        if let Ok(number) = self.network.parse() {
            return Ok(Some(number));
        }
        let now = Instant::now();
        let since = now.checked_sub(HELD).unwrap_or(now);
        let number = self.networks.get_since(&self.network, since, |_| Box::pin(self.named_network())).await?;
        number.map(Some).ok_or_else(|| Error::Invalid(format!("there is no network {:?}", self.network)))
    }

    async fn named_network(&self) -> Fetched<u64> {
        let path = format!("/networks?name={}", encode(&self.network, false));
        let found = self.api.list(&path, "networks").await?;
        let number = found.first().and_then(|network| network["id"].as_u64());
        Ok(number.map(|number| (self.network.clone(), number)).into_iter().collect())
    }

    async fn network_of_routes(&self) -> Result<Value, Error> {
        let number = self.network_id().await?.ok_or_else(|| Error::Invalid("there is no network".to_owned()))?;
        let answer = self.api.get(&format!("/networks/{number}")).await?;
        Ok(answer["network"].clone())
    }

    async fn routes_of(&self) -> Result<Vec<Route>, Error> {
        let network = self.network_of_routes().await?;
        let number = network["id"].as_u64().unwrap_or_default();
        let servers = self.api.list("/servers?sort=id", "servers").await?;
        let route = |route: &Value| {
            let gateway = route["gateway"].as_str();
            let server = servers.iter().find(|server| gateway.is_some() && private_address(server, number) == gateway);
            let node = BalancerNode {
                name: server.and_then(|server| server["name"].as_str()).unwrap_or_default().to_owned(),
                provider_id: server.and_then(|server| server["id"].as_u64()).map(provider_id).unwrap_or_default(),
                internal_addresses: gateway.and_then(|gateway| gateway.parse().ok()).into_iter().collect(),
            };
            Route { node, cidr: route["destination"].as_str().unwrap_or_default().to_owned() }
        };
        Ok(network["routes"].as_array().into_iter().flatten().map(route).collect())
    }

    async fn create(&self, route: &Route) -> Result<(), Error> {
        let network = self.network_of_routes().await?;
        let number = network["id"].as_u64().unwrap_or_default();
        let id = server_id(&route.node.provider_id)?;
        let answer = self.api.get(&format!("/servers/{id}")).await?;
        let gateway = private_address(&answer["server"], number);
        let gateway = gateway.ok_or_else(|| {
            Error::Invalid(format!("the server of node {} is not in the network {}", route.node.name, self.network))
        })?;
        let mut present = network["routes"].as_array().into_iter().flatten();
        if let Some(present) = present.find(|one| one["destination"] == route.cidr) {
            if present["gateway"] == gateway {
                return Ok(());
            }
            // The pod CIDR has moved to another node.
            self.api.post(&format!("/networks/{number}/actions/delete_route"), present).await?;
        }
        let body = json!({"destination": route.cidr, "gateway": gateway});
        self.api.post(&format!("/networks/{number}/actions/add_route"), &body).await?;
        Ok(())
    }

    async fn delete(&self, route: &Route) -> Result<(), Error> {
        let network = self.network_of_routes().await?;
        let mut present = network["routes"].as_array().into_iter().flatten();
        let Some(present) = present.find(|one| one["destination"] == route.cidr) else { return Ok(()) };
        self.api.post(&format!("/networks/{}/actions/delete_route", network["id"]), present).await?;
        Ok(())
    }
}

impl Routes for Hetzner {
    fn list_routes(&self) -> Answer<'_, Vec<Route>> {
        Box::pin(self.routes_of())
    }

    fn create_route<'a>(&'a self, route: &'a Route) -> Answer<'a, ()> {
        Box::pin(self.create(route))
    }

    fn delete_route<'a>(&'a self, route: &'a Route) -> Answer<'a, ()> {
        Box::pin(self.delete(route))
    }
}
