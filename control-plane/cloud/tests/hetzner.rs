//! The provider of Hetzner Cloud against a mock of its API.

#![allow(clippy::unwrap_used, reason = "a test stops at what it does not expect")]

mod http;

use std::sync::{Arc, Mutex, MutexGuard};

use corten_cloud::provider::{Annotation, Balancer, BalancerNode, BalancerPort, Error, NodeReference, Provider, Route};
use corten_cloud::providers::{Setup, open};
use corten_meta::Key;
use serde_json::{Value, json};

use http::{Answer, Request, serve};

/// The objects of the account, and the fault of its API.
struct Account {
    servers: Vec<Value>,
    balancers: Vec<Value>,
    network: Value,
    calls: usize,
    /// The call whose answer is lost; no later call arrives.
    killed_after: Option<usize>,
}

#[derive(Clone)]
struct Hetzner(Arc<Mutex<Account>>);

impl Hetzner {
    fn new() -> Hetzner {
        let server = |id: u64| {
            json!({"id": id, "name": format!("n{id}"), "status": "running", "server_type": {"name": "cx22"},
                "datacenter": {"name": "fsn1-dc14", "location": {"name": "fsn1"}},
                "public_net": {"ipv4": {"ip": format!("203.0.113.{id}")}, "ipv6": {"ip": "2001:db8::/64"}},
                "private_net": [{"network": 7, "ip": format!("10.0.0.{id}")}]})
        };
        let foreign = json!({"id": 99, "name": "theirs", "labels": {}, "services": [], "targets": []});
        Hetzner(Arc::new(Mutex::new(Account {
            servers: vec![server(1), server(2)],
            balancers: vec![foreign],
            network: json!({"id": 7, "name": "private", "routes": []}),
            calls: 0,
            killed_after: None,
        })))
    }

    fn account(&self) -> MutexGuard<'_, Account> {
        self.0.lock().unwrap()
    }

    /// Begins to count calls, and kills the client after one of them.
    fn kill_after(&self, call: Option<usize>) {
        let mut account = self.account();
        account.calls = 0;
        account.killed_after = call;
    }

    async fn provider(&self) -> Arc<dyn Provider> {
        let account = self.clone();
        let address = serve(move |request| account.account().answer(request));
        let endpoint = format!("http://{address}/v1");
        let variable = move |name: &str| match name {
            "HCLOUD_TOKEN" => Some("t".to_owned()),
            "HCLOUD_NETWORK" => Some("private".to_owned()),
            "HCLOUD_ENDPOINT" => Some(endpoint.clone()),
            _ => None,
        };
        let config = "Location = fsn1\n".to_owned();
        let setup = Setup { config, cluster: "c".to_owned(), roots: String::new(), variable: Box::new(variable) };
        open("hetzner", &setup).await.unwrap()
    }
}

impl Account {
    fn answer(&mut self, request: &Request) -> Option<Answer> {
        let call = self.calls;
        self.calls += 1;
        if self.killed_after.is_some_and(|last| call > last) {
            return None;
        }
        let answer = match request.head.contains("authorization: Bearer t\n") {
            true => self.route(request),
            false => Err((401, "unauthorized")),
        };
        if self.killed_after == Some(call) {
            return None;
        }
        Some(match answer {
            Ok(value) => Answer { status: 200, body: value.to_string() },
            Err((status, code)) => {
                Answer { status, body: json!({"error": {"code": code, "message": "no"}}).to_string() }
            }
        })
    }

    fn route(&mut self, request: &Request) -> Result<Value, (u16, &'static str)> {
        let target = request.target.strip_prefix("/v1/").ok_or((404, "not_found"))?;
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let name = query.split('&').find_map(|pair| pair.strip_prefix("name="));
        let body: Value = serde_json::from_str(&request.body).unwrap_or(Value::Null);
        let is_named = |one: &&Value| name.is_none_or(|name| one["name"] == name);
        let words: Vec<&str> = path.split('/').collect();
        match (request.method.as_str(), &words[..]) {
            ("GET", ["servers"]) => {
                // One object a page.
                let page: usize = query
                    .split('&')
                    .find_map(|pair| pair.strip_prefix("page="))
                    .and_then(|page| page.parse().ok())
                    .unwrap();
                let all: Vec<&Value> = self.servers.iter().filter(is_named).collect();
                let next = (page < all.len()).then_some(page + 1);
                let shown: Vec<&&Value> = all.iter().skip(page - 1).take(1).collect();
                Ok(json!({"servers": shown, "meta": {"pagination": {"next_page": next}}}))
            }
            ("GET", ["servers", id]) => {
                let server = self.servers.iter().find(|one| has_id(one, id));
                Ok(json!({"server": server.ok_or((404, "not_found"))?}))
            }
            ("GET", ["networks"]) => Ok(json!({"networks": [self.network]})),
            ("GET", ["networks", "7"]) => Ok(json!({"network": self.network})),
            ("POST", ["networks", "7", "actions", action]) => {
                let routes = self.network["routes"].as_array_mut().unwrap();
                match *action {
                    "add_route" => routes.push(body),
                    _ => routes.retain(|route| *route != body),
                }
                Ok(json!({}))
            }
            ("GET", ["load_balancers"]) => {
                Ok(json!({"load_balancers": self.balancers.iter().filter(is_named).collect::<Vec<_>>()}))
            }
            ("POST", ["load_balancers"]) => {
                if self.balancers.iter().any(|one| one["name"] == body["name"]) {
                    return Err((409, "uniqueness_error"));
                }
                let mut made = body;
                made["id"] = json!(100 + self.balancers.len());
                made["services"] = json!([]);
                made["targets"] = json!([]);
                made["private_net"] = json!([]);
                made["public_net"] = json!({"ipv4": {"ip": "198.51.100.9"}});
                self.balancers.push(made.clone());
                Ok(json!({"load_balancer": made}))
            }
            ("DELETE", ["load_balancers", id]) => {
                self.balancers.retain(|one| !has_id(one, id));
                Ok(Value::Null)
            }
            ("POST", ["load_balancers", id, "actions", action]) => {
                let one = self.balancers.iter_mut().find(|one| has_id(one, id));
                act(one.ok_or((404, "not_found"))?, action, body);
                Ok(json!({}))
            }
            _ => Err((404, "not_found")),
        }
    }
}

fn has_id(object: &Value, id: &str) -> bool {
    object["id"].as_u64() == id.parse().ok()
}

/// Carries out an action at a load balancer.
fn act(balancer: &mut Value, action: &str, body: Value) {
    let same_port = |one: &Value| one["listen_port"] == body["listen_port"];
    let same_server = |one: &Value| one["server"]["id"] == body["server"]["id"];
    let list = |name: &str| balancer[name].as_array().cloned().unwrap_or_default();
    let mut services = list("services");
    let mut targets = list("targets");
    let mut networks = list("private_net");
    match action {
        "add_service" => services.push(body),
        "update_service" => {
            services.retain(|one| !same_port(one));
            services.push(body);
        }
        "delete_service" => services.retain(|one| !same_port(one)),
        "add_target" => targets.push(body),
        "remove_target" => targets.retain(|one| !same_server(one)),
        "attach_to_network" => networks.push(body),
        other => panic!("{other}"),
    }
    balancer["services"] = json!(services);
    balancer["targets"] = json!(targets);
    balancer["private_net"] = json!(networks);
}

fn node(id: u64) -> BalancerNode {
    BalancerNode { name: format!("n{id}"), provider_id: format!("hcloud://{id}"), internal_addresses: Vec::new() }
}

fn balancer(name: &str, ids: &[u64]) -> Balancer {
    let port = BalancerPort { name: String::new(), protocol: "TCP".to_owned(), port: 80, node_port: 30080 };
    Balancer {
        name: name.to_owned(),
        service: Key::new("default", "web"),
        ports: vec![port],
        nodes: ids.iter().copied().map(node).collect(),
        source_ranges: Vec::new(),
        health_check_port: None,
        requested_address: None,
        annotations: vec![Annotation {
            name: "load-balancer.hetzner.cloud/use-private-ip".to_owned(),
            value: "true".to_owned(),
        }],
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_and_routes_are_those_of_the_cloud() {
    let cloud = Hetzner::new();
    let provider = cloud.provider().await;
    let by_name = NodeReference { name: "n2".to_owned(), provider_id: String::new() };
    let found = provider.instance(&by_name).await.unwrap().unwrap();
    assert_eq!((found.provider_id.as_str(), found.zone.as_str()), ("hcloud://2", "fsn1-dc14"));
    let addresses: Vec<String> = found.addresses.iter().map(|one| format!("{}={}", one.kind, one.address)).collect();
    assert_eq!(addresses, ["InternalIP=10.0.0.2", "ExternalIP=203.0.113.2", "ExternalIP=2001:db8::1"]);
    let gone = NodeReference { name: "n3".to_owned(), provider_id: "hcloud://3".to_owned() };
    assert_eq!(provider.instance(&gone).await.unwrap(), None);

    let routes = provider.routes().unwrap();
    let route = Route { node: node(1), cidr: "10.244.0.0/24".to_owned() };
    routes.create_route(&route).await.unwrap();
    routes.create_route(&route).await.unwrap();
    let listed = routes.list_routes().await.unwrap();
    assert_eq!((listed.len(), listed[0].node.provider_id.as_str()), (1, "hcloud://1"));
    let moved = Route { node: node(2), cidr: route.cidr.clone() };
    routes.create_route(&moved).await.unwrap();
    let expected = json!([{"destination": "10.244.0.0/24", "gateway": "10.0.0.2"}]);
    assert_eq!(cloud.account().network["routes"], expected);
    routes.delete_route(&moved).await.unwrap();
    routes.delete_route(&moved).await.unwrap();
    assert_eq!(cloud.account().network["routes"], json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_load_balancer_is_whole_after_a_kill_at_any_call() {
    let cloud = Hetzner::new();
    let ensure = async |wanted: Balancer| cloud.provider().await.balancers().unwrap().ensure_balancer(&wanted).await;
    let delete = async |name: &str| cloud.provider().await.balancers().unwrap().delete_balancer(name).await;
    cloud.kill_after(None);
    ensure(balancer("calm", &[1])).await.unwrap();
    let calls = cloud.account().calls;
    for last in 0..calls {
        let name = format!("k{last}");
        cloud.kill_after(Some(last));
        ensure(balancer(&name, &[1])).await.unwrap_err();
        cloud.kill_after(None);
        ensure(balancer(&name, &[1, 2])).await.unwrap();
        ensure(balancer(&name, &[2])).await.unwrap();
        let made: Vec<Value> = cloud.account().balancers.iter().filter(|one| one["name"] == name).cloned().collect();
        assert_eq!(made.len(), 1, "killed after call {last}");
        assert_eq!(made[0]["services"].as_array().unwrap().len(), 1);
        let targets: Vec<&Value> =
            made[0]["targets"].as_array().unwrap().iter().map(|one| &one["server"]["id"]).collect();
        assert_eq!(targets, [&json!(2)]);
        delete(&name).await.unwrap();
        delete(&name).await.unwrap();
    }
    delete("calm").await.unwrap();
    let error = ensure(balancer("theirs", &[1])).await.unwrap_err();
    let sentence = "the load balancer theirs is not this cluster's: it has no label kubernetes.io/cluster: c";
    assert_eq!(error, Error::Invalid(sentence.to_owned()));
    delete("theirs").await.unwrap();
    let left: Vec<Value> = cloud.account().balancers.iter().map(|one| one["name"].clone()).collect();
    assert_eq!(left, ["theirs"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn unusable_settings_are_refused_with_a_sentence() {
    let refuse = async |name: &str, config: &str| {
        let setup = Setup {
            config: config.to_owned(),
            cluster: "c".to_owned(),
            roots: String::new(),
            variable: Box::new(|_| None),
        };
        open(name, &setup).await.err().unwrap()
    };
    let expected = "Hetzner Cloud needs a token: set HCLOUD_TOKEN, or Token in the cloud configuration";
    assert_eq!(refuse("hetzner", "").await, expected);
    let expected = "the cloud configuration has the unknown key \"Tokn\" in section \"\"";
    assert_eq!(refuse("hetzner", "Tokn = x").await, expected);
    assert_eq!(refuse("gce", "").await, "\"gce\" is no known cloud; there are aws and hetzner");
    let expected = "\"moon\" is no region of AWS, such as eu-central-1";
    assert_eq!(refuse("aws", "[Global]\nRegion = moon").await, expected);
}
