//! Load balancers of Hetzner Cloud: one for each Service, found by its name and the cluster's label.

use corten_outbound::sign::encode;
use serde_json::{Value, json};

use super::options::Options;
use super::servers::server_id;
use super::{CLUSTER_LABEL, Hetzner};
use crate::provider::{Answer, Balancer, BalancerPort, BalancerStatus, Balancers, Error, Ingress};

impl Hetzner {
    /// Returns the load balancer of a name that is the cluster's; the error says that it is another owner's.
    async fn own_balancer(&self, name: &str) -> Result<Option<Value>, Error> {
        let path = format!("/load_balancers?name={}", encode(name, false));
        let found = self.api.list(&path, "load_balancers").await?.into_iter().next();
        match found {
            Some(found) if found["labels"][CLUSTER_LABEL] != self.cluster.as_str() => {
                let label = format!("{CLUSTER_LABEL}: {}", self.cluster);
                Err(Error::Invalid(format!("the load balancer {name} is not this cluster's: it has no label {label}")))
            }
            found => Ok(found),
        }
    }

    async fn ensure(&self, wanted: &Balancer) -> Result<BalancerStatus, Error> {
        let options = Options::parse(&wanted.annotations)?;
        let services: Vec<Value> =
            wanted.ports.iter().map(|port| service(wanted, port, &options)).collect::<Result<_, _>>()?;
        let found = match self.own_balancer(&wanted.name).await? {
            Some(found) => found,
            None => self.create_balancer(wanted, &options).await?,
        };
        let path = format!("/load_balancers/{}", found["id"]);
        self.ensure_network(&path, &found).await?;
        self.ensure_services(&path, &found, &services).await?;
        self.ensure_targets(&path, &found, wanted, &options).await?;
        Ok(BalancerStatus { ingress: ingress(&found), warnings: options.warnings })
    }

    async fn create_balancer(&self, wanted: &Balancer, options: &Options) -> Result<Value, Error> {
        let mut body = json!({
            "name": wanted.name,
            "load_balancer_type": options.kind.as_deref().unwrap_or("lb11"),
            "algorithm": {"type": options.algorithm.as_deref().unwrap_or("round_robin")},
            "labels": {CLUSTER_LABEL: self.cluster},
        });
        let location = options.location.as_ref().or(Some(&self.location)).filter(|location| !location.is_empty());
        match (location, &options.network_zone) {
            (_, Some(zone)) => body["network_zone"] = json!(zone),
            (Some(location), None) => body["location"] = json!(location),
            (None, None) => {
                let annotation = "load-balancer.hetzner.cloud/location";
                let sentence =
                    format!("no location: set the annotation {annotation}, or Location in the cloud configuration");
                return Err(Error::Invalid(sentence));
            }
        }
        let made = self.api.post("/load_balancers", &body).await?;
        Ok(made["load_balancer"].clone())
    }

    /// Attaches the load balancer to the private network.
    async fn ensure_network(&self, path: &str, found: &Value) -> Result<(), Error> {
        let Some(network) = self.network_id().await? else { return Ok(()) };
        let mut attached = found["private_net"].as_array().into_iter().flatten();
        if !attached.any(|one| one["network"] == network) {
            let body = json!({"network": network});
            self.api.post(&format!("{path}/actions/attach_to_network"), &body).await?;
        }
        Ok(())
    }

    async fn ensure_services(&self, path: &str, found: &Value, wanted: &[Value]) -> Result<(), Error> {
        let present: Vec<&Value> = found["services"].as_array().into_iter().flatten().collect();
        for surplus in present.iter().filter(|one| !wanted.iter().any(|other| same_port(one, other))) {
            let body = json!({"listen_port": surplus["listen_port"]});
            self.api.post(&format!("{path}/actions/delete_service"), &body).await?;
        }
        for service in wanted {
            let action = match present.iter().find(|one| same_port(one, service)) {
                None => "add_service",
                Some(present) if contains(present, service) => continue,
                Some(_) => "update_service",
            };
            self.api.post(&format!("{path}/actions/{action}"), service).await?;
        }
        Ok(())
    }

    async fn ensure_targets(
        &self,
        path: &str,
        found: &Value,
        wanted: &Balancer,
        options: &Options,
    ) -> Result<(), Error> {
        let mut servers = Vec::new();
        for node in &wanted.nodes {
            servers.push(server_id(&node.provider_id)?);
        }
        let present: Vec<u64> = found["targets"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|target| target["server"]["id"].as_u64())
            .collect();
        for server in servers.iter().filter(|server| !present.contains(server)) {
            let body = json!({"type": "server", "server": {"id": server}, "use_private_ip": options.uses_private_ip});
            match self.api.post(&format!("{path}/actions/add_target"), &body).await {
                Err(refusal) if refusal.code != "target_already_defined" => return Err(refusal.into()),
                _ => {}
            }
        }
        for server in present.iter().filter(|server| !servers.contains(server)) {
            let body = json!({"type": "server", "server": {"id": server}});
            match self.api.post(&format!("{path}/actions/remove_target"), &body).await {
                Err(refusal) if refusal.code != "not_found" => return Err(refusal.into()),
                _ => {}
            }
        }
        Ok(())
    }

    async fn delete_one(&self, name: &str) -> Result<(), Error> {
        match self.own_balancer(name).await {
            Ok(Some(found)) => self.api.delete(&format!("/load_balancers/{}", found["id"])).await,
            Ok(None) => Ok(()),
            Err(Error::Invalid(sentence)) => {
                tracing::warn!("{sentence}; it stays");
                Ok(())
            }
            Err(error) => Err(error),
        }
    }
}

/// Returns a service of the load balancer for a port.
fn service(wanted: &Balancer, port: &BalancerPort, options: &Options) -> Result<Value, Error> {
    if port.protocol != "TCP" {
        return Err(Error::Invalid(format!("Hetzner Cloud has no load balancers for {}", port.protocol)));
    }
    if !wanted.source_ranges.is_empty() {
        let sentence = "load balancers of Hetzner Cloud take no source ranges: remove spec.loadBalancerSourceRanges";
        return Err(Error::Invalid(sentence.to_owned()));
    }
    let mut check = json!({"protocol": "tcp", "port": port.node_port, "interval": 15, "timeout": 10, "retries": 3});
    if let Some(health) = wanted.health_check_port {
        check["protocol"] = json!("http");
        check["port"] = json!(health);
        check["http"] = json!({"path": "/healthz", "status_codes": ["200"]});
    }
    Ok(json!({
        "protocol": "tcp", "listen_port": port.port, "destination_port": port.node_port,
        "proxyprotocol": options.has_proxy_protocol, "health_check": check,
    }))
}

fn same_port(one: &Value, other: &Value) -> bool {
    one["listen_port"] == other["listen_port"]
}

/// Reports whether an object has all fields of another with the same values; it may have more.
fn contains(present: &Value, wanted: &Value) -> bool {
    match wanted {
        Value::Object(fields) => fields.iter().all(|(name, value)| contains(&present[name], value)),
        other => present == other,
    }
}

fn ingress(found: &Value) -> Vec<Ingress> {
    let address = |family: &str| found["public_net"][family]["ip"].as_str().and_then(|ip| ip.parse().ok());
    let addresses = [address("ipv4"), address("ipv6")];
    addresses.into_iter().flatten().map(|address| Ingress::Ip { address, is_proxy: true }).collect()
}

impl Balancers for Hetzner {
    fn balancer<'a>(&'a self, name: &'a str) -> Answer<'a, Option<BalancerStatus>> {
        Box::pin(async move {
            let found = self.own_balancer(name).await?;
            Ok(found.map(|found| BalancerStatus { ingress: ingress(&found), warnings: Vec::new() }))
        })
    }

    fn ensure_balancer<'a>(&'a self, wanted: &'a Balancer) -> Answer<'a, BalancerStatus> {
        Box::pin(self.ensure(wanted))
    }

    fn delete_balancer<'a>(&'a self, name: &'a str) -> Answer<'a, ()> {
        Box::pin(self.delete_one(name))
    }
}
