//! The controllers on a cloud and an API in memory, which fail or end the process at any call.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

use corten_api::AddressRange;
use corten_meta::{Key, Value};
use serde_json::json;

use crate::controllers::{Action, Event, Kind, node, node_lifecycle, route, service};
use crate::execute::{Api, Failure, Written, execute, execute_each};
use crate::nodes::reference;
use crate::provider::{
    Answer, Balancer, BalancerStatus, Balancers, Error, Ingress, Instance, NodeAddress, NodeReference, Provider, Route,
    Routes,
};

const NOW: &str = "2026-01-01T00:00:00Z";

/// Waits for an answer of the world, which is always there.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

/// The call at which the world fails, and whether the call had its effect before.
#[derive(Clone, Copy, Debug)]
struct Fault {
    at: usize,
    has_effect: bool,
}

#[derive(Default)]
struct State {
    calls: usize,
    fault: Option<Fault>,
    revision: u64,
    objects: BTreeMap<(Kind, Key), Value>,
    instances: BTreeMap<String, Instance>,
    balancers: BTreeMap<String, Balancer>,
    routes: BTreeMap<String, Route>,
    /// The CIDRs to which the cloud makes no route.
    refused: Vec<String>,
    /// The most load balancers that there were at once.
    most_balancers: usize,
    events: Vec<String>,
}

/// The cloud and the API of one test.
#[derive(Default)]
struct World(Mutex<State>);

impl World {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// Counts a call and carries it out, unless the fault prevents it.
    fn call<T>(&self, effect: impl FnOnce(&mut State) -> T) -> Result<T, String> {
        let mut state = self.state();
        state.calls += 1;
        let fault = state.fault.filter(|fault| fault.at == state.calls);
        match fault {
            Some(Fault { has_effect: false, .. }) => Err("the process ended before the call".to_owned()),
            Some(Fault { has_effect: true, .. }) => {
                effect(&mut state);
                Err("the process ended after the call".to_owned())
            }
            None => Ok(effect(&mut state)),
        }
    }

    fn cloud<T: Send + 'static>(&self, effect: impl FnOnce(&mut State) -> T) -> Answer<'_, T> {
        let answer = self.call(effect).map_err(Error::Failed);
        Box::pin(async move { answer })
    }

    fn put(&self, kind: Kind, object: Value) {
        self.state().put(kind, object);
    }

    fn all(&self, kind: Kind) -> Vec<Value> {
        let state = self.state();
        state.objects.iter().filter(|((of, _), _)| *of == kind).map(|(_, object)| object.clone()).collect()
    }

    /// Reconciles everything once, in the order of the keys; a failure ends the process.
    fn pass(&self) -> Result<bool, String> {
        let mut is_quiet = true;
        let mut run = |actions: Vec<Action>| {
            is_quiet &= actions.iter().all(|action| matches!(action, Action::Event(_) | Action::EnsureBalancer { .. }));
            block_on(execute(self, self, &actions)).map_err(|failure| failure.to_string())
        };
        for object in self.all(Kind::Node) {
            let instance = block_on(self.instance(&reference(&object)));
            if let Err(error) = &instance {
                return Err(error.to_string());
            }
            run(node::reconcile(&object, &instance))?;
        }
        for object in self.all(Kind::Node).iter().filter(|node| node_lifecycle::needs_instance(node)) {
            let instance = block_on(self.instance(&reference(object)));
            run(node_lifecycle::reconcile(object, Some(&instance)))?;
        }
        let present = block_on(self.list_routes()).map_err(|error| error.to_string())?;
        let cidrs = [AddressRange::parse("10.244.0.0/16").unwrap()];
        let plan = route::reconcile(&self.all(Kind::Node), &present, &cidrs, NOW);
        plan.surplus.into_iter().chain(plan.nodes).try_for_each(&mut run)?;
        for object in self.all(Kind::Service) {
            run(service::reconcile(&object, &self.all(Kind::Node), "memory"))?;
        }
        Ok(is_quiet)
    }

    /// Reconciles until nothing is written, beginning anew after each failure.
    fn converge(&self) {
        for _ in 0..50 {
            if self.pass() == Ok(true) {
                return;
            }
        }
        panic!("does not converge");
    }
}

impl State {
    fn put(&mut self, kind: Kind, mut object: Value) {
        self.revision += 1;
        object["metadata"]["resourceVersion"] = self.revision.to_string().into();
        let key = crate::objects::key(&object);
        let has_finalizers = object["metadata"]["finalizers"].as_array().is_some_and(|all| !all.is_empty());
        let is_deleted = object.pointer("/metadata/deletionTimestamp").is_some();
        match is_deleted && !has_finalizers {
            true => drop(self.objects.remove(&(kind, key))),
            false => drop(self.objects.insert((kind, key), object)),
        }
    }

    fn patch(&mut self, kind: Kind, key: &Key, patch: &Value) -> Result<(), String> {
        let Some(mut object) = self.objects.get(&(kind, key.clone())).cloned() else { return Ok(()) };
        let version = &patch["metadata"]["resourceVersion"];
        if !version.is_null() && *version != object["metadata"]["resourceVersion"] {
            return Err("conflict".to_owned());
        }
        corten_meta::patch::merge_patch(&mut object, patch);
        self.put(kind, object);
        Ok(())
    }
}

impl Api for World {
    fn patch<'a>(&'a self, kind: Kind, key: &'a Key, patch: &'a Value, _: bool) -> Written<'a> {
        let written = self.call(|state| state.patch(kind, key, patch)).and_then(|written| written);
        Box::pin(async move { written })
    }

    fn delete_node<'a>(&'a self, name: &'a str, uid: &'a str) -> Written<'a> {
        let written = self.call(|state| {
            let key = (Kind::Node, Key::new("", name));
            if state.objects.get(&key).is_some_and(|node| node["metadata"]["uid"] == uid) {
                state.objects.remove(&key);
            }
        });
        Box::pin(async move { written })
    }

    fn set_condition<'a>(&'a self, service: &'a Value, condition: Value) -> Written<'a> {
        let key = crate::objects::key(service);
        let others = crate::objects::list(service, "/status/conditions").filter(|one| one["type"] != condition["type"]);
        let all: Vec<Value> = others.cloned().chain([condition.clone()]).collect();
        let patch = json!({"status": {"conditions": all}});
        let written = self.call(|state| state.patch(Kind::Service, &key, &patch)).and_then(|outcome| outcome);
        Box::pin(async move { written })
    }

    fn event(&self, event: &Event) {
        self.state().events.push(format!("{} {}", event.reason, event.message));
    }
}

impl Provider for World {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn instance<'a>(&'a self, node: &'a NodeReference) -> Answer<'a, Option<Instance>> {
        let name = node.name.clone();
        self.cloud(move |state| state.instances.get(&name).cloned())
    }

    fn balancers(&self) -> Option<&dyn Balancers> {
        Some(self)
    }

    fn routes(&self) -> Option<&dyn Routes> {
        Some(self)
    }
}

fn status() -> BalancerStatus {
    let ingress = vec![Ingress::Ip { address: [198, 51, 100, 1].into(), is_proxy: false }];
    BalancerStatus { ingress, warnings: Vec::new() }
}

impl Balancers for World {
    fn balancer<'a>(&'a self, name: &'a str) -> Answer<'a, Option<BalancerStatus>> {
        let name = name.to_owned();
        self.cloud(move |state| state.balancers.get(&name).map(|_| status()))
    }

    fn ensure_balancer<'a>(&'a self, wanted: &'a Balancer) -> Answer<'a, BalancerStatus> {
        let wanted = wanted.clone();
        self.cloud(move |state| {
            state.balancers.insert(wanted.name.clone(), wanted);
            state.most_balancers = state.most_balancers.max(state.balancers.len());
            status()
        })
    }

    fn delete_balancer<'a>(&'a self, name: &'a str) -> Answer<'a, ()> {
        let name = name.to_owned();
        self.cloud(move |state| drop(state.balancers.remove(&name)))
    }
}

impl Routes for World {
    fn list_routes(&self) -> Answer<'_, Vec<Route>> {
        self.cloud(|state| state.routes.values().cloned().collect())
    }

    fn create_route<'a>(&'a self, route: &'a Route) -> Answer<'a, ()> {
        if self.state().refused.contains(&route.cidr) {
            return Box::pin(async { Err(Error::Invalid("it leads elsewhere".to_owned())) });
        }
        let route = route.clone();
        self.cloud(move |state| drop(state.routes.insert(route.cidr.clone(), route)))
    }

    fn delete_route<'a>(&'a self, route: &'a Route) -> Answer<'a, ()> {
        let cidr = route.cidr.clone();
        self.cloud(move |state| drop(state.routes.remove(&cidr)))
    }
}

fn new_node(name: &str, number: u8) -> Value {
    json!({"metadata": {"name": name, "uid": format!("uid-{name}")},
        "spec": {"podCIDRs": [format!("10.244.{number}.0/24")],
            "taints": [{"key": node::UNINITIALIZED, "value": "true", "effect": "NoSchedule"}]},
        "status": {"addresses": [{"type": "Hostname", "address": name}],
            "conditions": [{"type": "Ready", "status": "True"}]}})
}

fn new_service(name: &str) -> Value {
    json!({"metadata": {"namespace": "default", "name": name, "uid": format!("5e4c-{name}")},
        "spec": {"type": "LoadBalancer", "ports": [{"port": 80, "nodePort": 30080, "protocol": "TCP"}]}})
}

fn instance(number: u8) -> Instance {
    let address = |kind, address: String| NodeAddress { kind, address };
    Instance {
        provider_id: format!("memory://{number}"),
        instance_type: "small".to_owned(),
        zone: "z".to_owned(),
        region: "r".to_owned(),
        addresses: vec![
            address("InternalIP", format!("10.0.0.{number}")),
            address("ExternalIP", format!("203.0.113.{number}")),
        ],
        is_shut_down: false,
    }
}

/// Makes a world with two nodes, a Service, and a route of another owner.
fn world() -> World {
    let world = World::default();
    for (name, number) in [("a", 1), ("b", 2)] {
        world.put(Kind::Node, new_node(name, number));
        world.state().instances.insert(name.to_owned(), instance(number));
    }
    world.put(Kind::Service, new_service("web"));
    let foreign = crate::nodes::balancer_node(&json!({"metadata": {"name": "other"}}));
    world
        .state()
        .routes
        .insert("192.168.0.0/24".to_owned(), Route { node: foreign, cidr: "192.168.0.0/24".to_owned() });
    world
}

/// Deletes a Service and an instance, as users do after the world has settled.
fn change(world: &World) {
    let mut service = world.all(Kind::Service)[0].clone();
    service["metadata"]["deletionTimestamp"] = json!(NOW);
    world.put(Kind::Service, service);
    world.state().instances.remove("b");
    let mut lost = world.all(Kind::Node)[1].clone();
    lost["status"]["conditions"][0]["status"] = json!("Unknown");
    world.put(Kind::Node, lost);
}

/// Returns the lasting state, without resourceVersions.
fn outcome(world: &World) -> Value {
    let state = world.state();
    let objects: Vec<Value> = state
        .objects
        .values()
        .cloned()
        .map(|mut object| {
            object["metadata"]["resourceVersion"] = Value::Null;
            object
        })
        .collect();
    json!({"objects": objects, "balancers": state.balancers.keys().collect::<Vec<_>>(),
        "routes": state.routes.keys().collect::<Vec<_>>()})
}

#[test]
fn nodes_are_initialized_and_have_routes_and_a_load_balancer() {
    let world = world();
    world.converge();
    let node = &world.all(Kind::Node)[0];
    assert_eq!(node["spec"]["providerID"], "memory://1");
    assert_eq!(node["spec"]["taints"], json!([]));
    assert_eq!(node["metadata"]["labels"]["topology.kubernetes.io/zone"], "z");
    let kinds: Vec<&str> =
        crate::objects::list(node, "/status/addresses").filter_map(|one| one["type"].as_str()).collect();
    assert_eq!(kinds, ["InternalIP", "ExternalIP", "Hostname"]);
    let service = &world.all(Kind::Service)[0];
    assert_eq!(service["status"]["loadBalancer"]["ingress"], json!([{"ip": "198.51.100.1", "ipMode": "VIP"}]));
    let state = world.state();
    assert_eq!(state.balancers["a5e4cweb"].nodes.len(), 2);
    assert_eq!(state.routes.keys().collect::<Vec<_>>(), ["10.244.1.0/24", "10.244.2.0/24", "192.168.0.0/24"]);
}

#[test]
fn the_process_may_end_at_any_call_and_nothing_is_left_behind() {
    let calm = world();
    calm.converge();
    change(&calm);
    calm.converge();
    let expected = outcome(&calm);
    assert_eq!(expected["balancers"], json!([]), "the load balancer is deleted");
    assert_eq!(expected["routes"], json!(["10.244.1.0/24", "192.168.0.0/24"]), "the route of another owner stays");
    let calls = calm.state().calls;
    assert!(calls > 15, "{calls}");
    for at in 1..=calls {
        for has_effect in [false, true] {
            let world = world();
            world.state().fault = Some(Fault { at, has_effect });
            world.converge();
            change(&world);
            world.converge();
            assert_eq!(outcome(&world), expected, "call {at}, effect: {has_effect}");
            assert_eq!(world.state().most_balancers, 1, "call {at}: one load balancer for one Service");
        }
    }
}

#[test]
fn the_finalizer_comes_before_the_load_balancer_and_leaves_after_it() {
    let world = world();
    world.converge();
    let actions = service::reconcile(&new_service("new"), &[], "memory");
    assert!(matches!(&actions[..], [Action::Patch { .. }, Action::EnsureBalancer { .. }]));
    let mut deleted = world.all(Kind::Service)[0].clone();
    deleted["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    let actions = service::reconcile(&deleted, &[], "memory");
    let order: Vec<bool> = actions.iter().map(|action| matches!(action, Action::DeleteBalancer { .. })).collect();
    assert_eq!(order, [false, true, false, false]);
    assert!(matches!(&actions[2], Action::Patch { .. }));
    let mut other = deleted;
    other["spec"]["loadBalancerClass"] = json!("example.com/other");
    assert_eq!(service::reconcile(&other, &[], "memory"), [], "another controller's Service");
}

#[test]
fn a_route_that_cannot_be_made_is_reported_and_keeps_no_node_from_its_own() {
    let world = world();
    world.state().refused = vec!["10.244.1.0/24".to_owned()];
    // The nodes are initialized; the first route that fails ends each pass.
    for _ in 0..5 {
        world.pass().unwrap_err();
    }
    let round = || {
        let present = block_on(world.list_routes()).unwrap();
        let cidrs = [AddressRange::parse("10.244.0.0/16").unwrap()];
        let plan = route::reconcile(&world.all(Kind::Node), &present, &cidrs, NOW);
        block_on(execute_each(&world, &world, &plan.nodes))
    };
    let condition = |number: usize| {
        let node = &world.all(Kind::Node)[number];
        let mut all = crate::objects::list(node, "/status/conditions").cloned();
        all.find(|one| one["type"] == "NetworkUnavailable").unwrap()["reason"].clone()
    };
    for _ in 0..2 {
        assert!(matches!(round(), Err(Failure::Cloud(Error::Invalid(message))) if message == "it leads elsewhere"));
        assert_eq!((condition(0), condition(1)), (json!("NoRouteCreated"), json!("RouteCreated")));
    }
    let sentence = "Could not create route 10.244.1.0/24 for node a: it leads elsewhere";
    assert!(world.state().events.iter().any(|event| event.contains(sentence)), "{:?}", world.state().events);
    world.state().refused.clear();
    round().unwrap();
    assert_eq!(condition(0), "RouteCreated");
}

#[test]
fn an_error_of_the_cloud_deletes_no_node() {
    let mut lost = new_node("a", 1);
    lost["spec"]["taints"] = json!([]);
    lost["status"]["conditions"][0]["status"] = json!("Unknown");
    assert!(node_lifecycle::needs_instance(&lost));
    let denied = Err(Error::Denied("expired".to_owned()));
    assert_eq!(node_lifecycle::reconcile(&lost, Some(&denied)), []);
    let gone = node_lifecycle::reconcile(&lost, Some(&Ok(None)));
    assert!(matches!(&gone[..], [Action::Event(_), Action::DeleteNode { .. }]));
}

#[test]
fn a_shut_down_instance_taints_its_node_until_it_is_up() {
    let mut node = new_node("a", 1);
    node["spec"]["taints"] = json!([]);
    node["status"]["conditions"][0]["status"] = json!("Unknown");
    let down = Ok(Some(Instance { is_shut_down: true, ..instance(1) }));
    let actions = node_lifecycle::reconcile(&node, Some(&down));
    let [Action::Patch { patch, .. }] = &actions[..] else { panic!("{actions:?}") };
    corten_meta::patch::merge_patch(&mut node, patch);
    assert_eq!(node_lifecycle::reconcile(&node, Some(&down)), [], "it is tainted once");
    node["status"]["conditions"][0]["status"] = json!("True");
    let actions = node_lifecycle::reconcile(&node, None);
    let [Action::Patch { patch, .. }] = &actions[..] else { panic!("{actions:?}") };
    assert_eq!(patch["spec"]["taints"], json!([]));
}

#[test]
fn a_node_ip_that_the_instance_does_not_have_is_reported() {
    let mut node = new_node("a", 1);
    node["metadata"]["annotations"] = json!({"alpha.kubernetes.io/provided-node-ip": "10.9.9.9"});
    let actions = node::reconcile(&node, &Ok(Some(instance(1))));
    let [Action::Event(event)] = &actions[..] else { panic!("{actions:?}") };
    assert_eq!(event.message, "--node-ip of the kubelet is 10.9.9.9, and the cloud's instance has no such address");
    node["metadata"]["annotations"] = json!({"alpha.kubernetes.io/provided-node-ip": "10.0.0.1"});
    assert_eq!(node::reconcile(&node, &Ok(Some(instance(1)))).len(), 3);
}

#[test]
fn a_service_without_a_load_balancer_has_a_condition_until_it_has_one() {
    let mut service = new_service("web");
    let denied = Error::Denied("no".to_owned());
    assert_eq!(service::condition(&service, Ok(&[]), NOW), None, "it never failed");
    let condition = service::condition(&service, Err(&denied), NOW).unwrap();
    assert_eq!(condition["message"], "the cloud does not accept the credentials: no");
    assert_eq!((&condition["status"], &condition["reason"]), (&json!("False"), &json!("SyncLoadBalancerFailed")));
    service["status"]["conditions"] = json!([condition]);
    assert_eq!(service::condition(&service, Err(&denied), NOW), None, "it is written once");
    let throttled = Error::Throttled { message: "slowly".to_owned(), after: None };
    assert_eq!(service::condition(&service, Err(&throttled), NOW), None);
    let assigned = service::condition(&service, Ok(&[]), NOW).unwrap();
    assert_eq!((&assigned["status"], &assigned["message"]), (&json!("True"), &json!("")));
}

#[test]
fn a_part_of_a_service_without_effect_is_in_its_condition() {
    let mut service = new_service("web");
    let warnings = ["the annotation a is not known".to_owned(), "b has no effect".to_owned()];
    let condition = service::condition(&service, Ok(&warnings), NOW).unwrap();
    let sentence = "the annotation a is not known; b has no effect";
    assert_eq!((&condition["status"], &condition["message"]), (&json!("True"), &json!(sentence)));
    service["status"]["conditions"] = json!([condition]);
    assert_eq!(service::condition(&service, Ok(&warnings), NOW), None, "it is written once");
    assert_eq!(service::condition(&service, Ok(&[]), NOW).unwrap()["message"], "");
}

#[test]
fn a_service_without_node_ports_is_refused_with_a_sentence() {
    let world = world();
    world.converge();
    let service = Key::new("default", "web");
    world.state().patch(Kind::Service, &service, &json!({"spec": {"ports": [{"port": 80}]}})).unwrap();
    world.pass().unwrap_err();
    let sentence = "the port 80 has no node port, which this cloud's load balancers need";
    let state = world.state();
    assert_eq!(
        state.events.last().unwrap(),
        &format!("SyncLoadBalancerFailed Error syncing load balancer: {sentence}")
    );
    assert_eq!(state.objects[&(Kind::Service, service)]["status"]["conditions"][0]["message"], sentence);
    assert_eq!(state.balancers.len(), 1, "what it has stays");
}

#[test]
fn a_heartbeat_and_a_written_status_concern_no_controller() {
    let mut node = new_node("n1", 1);
    let before = crate::controllers::node::inputs(&node);
    node["status"]["conditions"] = json!([{"type": "Ready", "status": "True", "lastHeartbeatTime": "later"}]);
    assert_eq!(crate::controllers::node::inputs(&node), before);
    node["spec"]["providerID"] = "fake:///1".into();
    assert_ne!(crate::controllers::node::inputs(&node), before);
    let mut service = new_service("web");
    let before = crate::controllers::service::inputs(&service);
    service["status"]["loadBalancer"] = json!({"ingress": [{"ip": "192.0.2.1"}]});
    service["metadata"]["finalizers"] = json!(["service.kubernetes.io/load-balancer-cleanup"]);
    assert_eq!(crate::controllers::service::inputs(&service), before);
    service["metadata"]["annotations"] = json!({"a": "b"});
    assert_ne!(crate::controllers::service::inputs(&service), before);
}
