//! An update has the result of a resolution of everything, and leaves all hosts alone that the change does not concern.

use std::sync::Arc;

use corten_meta::Key;
use corten_routing::{Configuration, HttpHost, ListenerProtocol};
use proptest::prelude::*;

use super::{Scene, print, run};
use crate::objects::Objects;
use crate::resolve::{ChangedRoutes, Live, Resolution, RouteName, resolve_for};

const NOW: &str = "2026-01-01T00:00:00Z";

fn scene() -> Scene {
    let mut scene = Scene::default();
    for command in [
        "node n1 192.0.2.1",
        "gatewayclass corten controllerName=corten.dev/gateway",
        "certificate shop.test",
        "gateway front gatewayClassName=corten listeners=[\
            {name: http, port: 80, protocol: HTTP}, \
            {name: narrow, port: 80, protocol: HTTP, hostname: \"*.b.test\"}, \
            {name: tls, port: 443, protocol: HTTPS, hostname: \"*.test\", tls: {certificateRefs: [{name: shop.test}]}}]",
        "svc web port=80",
        "svc next port=80",
        "ingress web ingressClassName=corten rules=[{host: i.test, http: {paths: [{path: /, pathType: Prefix, \
            backend: {service: {name: next, port: {number: 80}}}}]}}]",
        "settle",
    ] {
        assert_eq!(run(&mut scene, command), "", "{command}");
    }
    scene
}

/// Returns the line of a route.
fn route(kind: &str, name: &str, host: &str, service: &str) -> String {
    let hosts = if host.is_empty() { String::new() } else { format!("hostnames=[\"{host}\"] ") };
    let backend = format!("{{name: {service}, port: 80}}");
    format!("{kind} {name} parentRefs=[{{name: front}}] {hosts}rules=[{{backendRefs: [{backend}]}}]")
}

/// Returns the rules of a host.
fn host(configuration: &Configuration, name: &str) -> Arc<HttpHost> {
    let listener = configuration.listeners.values().next().expect("a listener");
    let ListenerProtocol::Http(hosts) = &listener.protocol else { panic!("HTTP") };
    Arc::clone(hosts.find(name).expect("a host"))
}

/// Takes a route over from other objects.
fn take(objects: &mut Objects, from: &Objects, name: &RouteName) {
    objects.http_routes.remove(&name.key);
    objects.grpc_routes.remove(&name.key);
    objects.http_routes.extend(from.http_routes.get_key_value(&name.key).map(|(key, one)| (key.clone(), one.clone())));
    objects.grpc_routes.extend(from.grpc_routes.get_key_value(&name.key).map(|(key, one)| (key.clone(), one.clone())));
}

/// Checks that an update of some routes has the result of a resolution of everything, if there is one.
fn check(live: &mut Live, objects: &Objects, changed: &ChangedRoutes, now: Option<&str>) -> bool {
    let Some(update) = live.update(objects, changed, now) else { return false };
    let whole = resolve_for(objects, now).resolved;
    assert_eq!(print::configuration(&update.configuration), print::configuration(&whole.configuration), "{changed:?}");
    for status in &update.statuses {
        let same = whole.statuses.iter().find(|one| one.plural == status.plural && one.key == status.key);
        assert_eq!(Some(status), same, "{changed:?}");
    }
    let is_updated = |one: &&crate::resolve::WantedStatus| update.statuses.contains(one);
    let gateways = whole.statuses.iter().filter(|one| one.plural == "gateways");
    assert!(now.is_none() || gateways.clone().all(|one| is_updated(&one)), "{changed:?}");
    true
}

/// Checks each route of a scene: one that comes, and one that goes, has the result of a resolution of everything.
pub fn check_each_route(objects: &Objects) {
    let http = objects.http_routes.keys().map(|key| RouteName { kind: "HTTPRoute", key: key.clone() });
    let grpc = objects.grpc_routes.keys().map(|key| RouteName { kind: "GRPCRoute", key: key.clone() });
    for name in http.chain(grpc) {
        let mut without = objects.clone();
        take(&mut without, &Objects::default(), &name);
        let changed = ChangedRoutes::from([name]);
        for time in [None, Some(NOW)] {
            check(&mut resolve_for(&without, time).live, objects, &changed, time);
            check(&mut resolve_for(objects, time).live, &without, &changed, time);
        }
    }
}

#[test]
fn an_update_keeps_hosts_that_stay() {
    let mut scene = scene();
    for line in [
        route("httproute", "a", "a.test", "web"),
        route("httproute", "b", "x.b.test", "web"),
        route("httproute", "all", "*.test", "web"),
    ] {
        assert_eq!(run(&mut scene, &line), "", "{line}");
    }
    let mut objects = scene.objects();
    let Resolution { resolved, mut live } = resolve_for(&objects, None);
    let mut last = resolved.configuration;
    let new_a = route("httproute", "a", "a.test", "next");
    let new_all = route("httproute", "all", "*.test", "next");
    for (command, name, is_kept) in
        [(&*new_a, "a", true), ("delete httproute a", "a", true), (&*new_a, "a", true), (&*new_all, "all", false)]
    {
        assert_eq!(run(&mut scene, command), "", "{command}");
        let name = RouteName { kind: "HTTPRoute", key: Key::new("default", name) };
        take(&mut objects, &scene.objects(), &name);
        let next = live.update(&objects, &ChangedRoutes::from([name]), None).expect("an update").configuration;
        let whole = resolve_for(&objects, None).resolved.configuration;
        assert_eq!(print::configuration(&next), print::configuration(&whole), "{command}");
        let is_same = Arc::ptr_eq(&host(&last, "x.b.test"), &host(&next, "x.b.test"));
        assert_eq!(is_same, is_kept, "{command}");
        last = next;
    }
}

/// The hosts that an update built, and the parts of the configuration that it did not share with the one before.
#[derive(Debug, PartialEq, Eq)]
struct Work {
    hosts: usize,
    backends: usize,
}

/// Returns the work of an update that adds a route to many.
fn work_among(routes: usize) -> Work {
    let mut scene = scene();
    for number in 0..routes {
        let line = route("httproute", &format!("r{number}"), &format!("r{number}.test"), "web");
        assert_eq!(run(&mut scene, &line), "");
    }
    let mut objects = scene.objects();
    let Resolution { resolved, mut live } = resolve_for(&objects, Some(NOW));
    assert_eq!(run(&mut scene, &route("httproute", "new", "new.test", "next")), "");
    let name = RouteName { kind: "HTTPRoute", key: Key::new("default", "new") };
    take(&mut objects, &scene.objects(), &name);
    let changed = ChangedRoutes::from([name]);
    let next = live.update(&objects, &changed, Some(NOW)).expect("an update");
    assert_eq!(next.statuses.len(), 2, "the route and its Gateway");
    let mut hosts = 0;
    for (key, listener) in &resolved.configuration.listeners {
        let later = &next.configuration.listeners[key];
        if let (ListenerProtocol::Http(before), ListenerProtocol::Http(after)) = (&listener.protocol, &later.protocol) {
            let mut made = corten_routing::MadeHosts::default();
            made.follow(before, |_, _| ());
            made.follow(after, |_, _| hosts += 1);
        }
    }
    let backends = resolved.configuration.backends.diff(&next.configuration.backends).count();
    Work { hosts, backends }
}

#[test]
fn the_work_of_a_new_route_does_not_depend_on_the_number_of_routes() {
    let few = work_among(3);
    assert_eq!(few, Work { hosts: 1, backends: 1 });
    assert_eq!(work_among(300), few);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Any sequence of changes leads to the result of a resolution of everything.
    #[test]
    fn updates_have_the_result_of_a_resolution_of_everything(
        steps in prop::collection::vec((0..4usize, 0..5usize, 0..6usize, any::<bool>(), any::<bool>()), 1..12),
        is_leader in any::<bool>(),
    ) {
        let now = is_leader.then_some(NOW);
        let mut scene = scene();
        let mut objects = scene.objects();
        let mut live = resolve_for(&objects, now).live;
        for (kind, name, host, is_next, is_deleted) in steps {
            let (word, kind) = if kind == 0 { ("grpcroute", "GRPCRoute") } else { ("httproute", "HTTPRoute") };
            let host = ["", "a.test", "x.b.test", "*.b.test", "*.test", "a.other"][host];
            let service = if is_next { "next" } else { "web" };
            let name = format!("{word}-{name}");
            if is_deleted {
                run(&mut scene, &format!("delete {word} {name}"));
            } else {
                assert_eq!(run(&mut scene, &route(word, &name, host, service)), "");
            }
            let name = RouteName { kind, key: Key::new("default", name) };
            take(&mut objects, &scene.objects(), &name);
            if !check(&mut live, &objects, &ChangedRoutes::from([name]), now) {
                live = resolve_for(&objects, now).live;
            }
        }
    }
}
