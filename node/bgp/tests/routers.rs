//! The speaker against real routers in namespaces: BIRD and FRR. Tests skip, with a sentence, where they are absent.

#![allow(clippy::unwrap_used)]

#[path = "../../dns/tests/api/mod.rs"]
#[expect(dead_code, reason = "the API of the speaker wraps it and is the client itself")]
mod api;
#[path = "../../network/tests/namespaces/mod.rs"]
mod namespaces;
mod world;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use namespaces::{Pins, ip, on_machine};
use serde_json::json;
use world::{Node, Program, SERVED, SERVED_V6, SpeakerApi, answer, output, router, until, until_next_hops};

const BIRD: &str = "/usr/sbin/bird";
const FRR: &str = "/usr/lib/frr/bgpd";

fn is_there(program: &str) -> bool {
    let found = Path::new(program).exists();
    if !found {
        eprintln!("skipped: {program} is not installed");
    }
    found
}

/// BIRD in the router's namespace, which takes routes of the nodes into the kernel.
struct Bird {
    program: Program,
    socket: String,
}

impl Bird {
    /// Starts it with these options of every neighbour.
    fn start(pins: &Pins, nodes: u8, options: &str) -> Bird {
        let mut text = String::from(
            "router id 10.77.0.1;\nprotocol device { scan time 1; }\n\
             protocol kernel four { merge paths yes; ipv4 { import none; export all; }; }\n\
             protocol bfd { interface \"br0\" { interval 200 ms; multiplier 3; }; }\n\
             protocol kernel six { merge paths yes; ipv6 { import none; export all; }; }\n",
        );
        for number in 1..=nodes {
            text.push_str(&format!(
                "protocol bgp n{number} {{ local 10.77.0.1 as 64500; neighbor 10.77.0.{} as 64512; passive on; \
                 graceful restart on; {options} ipv4 {{ import all; export none; }}; ipv6 {{ import all; export none; }}; }}\n",
                10 + number
            ));
        }
        let config = pins.path().join("bird.conf");
        std::fs::write(&config, text).unwrap();
        let socket = pins.path().join("bird.ctl").to_string_lossy().into_owned();
        let program = Program::start(BIRD, &["-f", "-c", &config.to_string_lossy(), "-s", &socket]);
        let bird = Bird { program, socket };
        until("BIRD runs", || {
            let shown = bird.show("status");
            if shown.contains("Daemon is up") { Ok(()) } else { Err(shown) }
        });
        bird
    }

    fn show(&self, about: &str) -> String {
        let mut arguments = vec!["-s", self.socket.as_str(), "show"];
        arguments.extend(about.split(' '));
        output("/usr/sbin/birdc", &arguments)
    }
}

/// Makes a router with BIRD, and nodes whose speakers run.
fn nodes_with_bird(pins: &Pins, api: &SpeakerApi, count: u8, options: &str) -> (Bird, Vec<Node>) {
    router();
    let bird = Bird::start(pins, count, options);
    let mut nodes: Vec<Node> = (1..=count).map(|number| Node::new(pins, number)).collect();
    for node in &mut nodes {
        api.node(&node.name, json!({}));
        node.start(api);
    }
    (bird, nodes)
}

#[test]
fn three_nodes_share_an_address_and_a_dead_cordoned_or_leaving_node_does_not() {
    if !is_there(BIRD) {
        return;
    }
    on_machine(|| {
        let pins = Pins::new();
        let api = SpeakerApi::default();
        api.pool(json!({}));
        api.peer(json!({}));
        let (bird, mut nodes) = nodes_with_bird(&pins, &api, 3, "");
        until("all sessions", || {
            let shown = bird.show("protocols");
            if shown.matches("Established").count() == 3 { Ok(()) } else { Err(shown) }
        });
        let begun = Instant::now();
        api.service("Cluster");
        until_next_hops(SERVED, 3);
        until_next_hops(SERVED_V6, 3);
        eprintln!("three routes of each family in {:?}", begun.elapsed());
        for address in [SERVED, SERVED_V6] {
            until("an answer", || answer(address));
        }

        api.node("n2", json!({"unschedulable": true}));
        until_next_hops(SERVED, 2);
        api.node("n2", json!({}));
        until_next_hops(SERVED, 3);

        let begun = Instant::now();
        ip(&["link", "set", "n3", "down"]);
        until_next_hops(SERVED, 2);
        eprintln!("a dead node has no route after {:?}, by a hold time of 3 s", begun.elapsed());

        nodes[0].leave();
        until_next_hops(SERVED, 1);
        assert_eq!(until("an answer", || answer(SERVED)), "n2");

        api.objects.delete("services", "default", "web");
        until_next_hops(SERVED, 0);
        until_next_hops(SERVED_V6, 0);
    });
}

#[test]
fn a_local_service_is_announced_by_the_nodes_with_endpoints() {
    if !is_there(BIRD) {
        return;
    }
    on_machine(|| {
        let pins = Pins::new();
        let api = SpeakerApi::default();
        api.pool(json!({}));
        api.peer(json!({}));
        api.service("Local");
        api.endpoints(&["n1"]);
        let (_bird, _nodes) = nodes_with_bird(&pins, &api, 2, "");
        until_next_hops(SERVED, 1);
        assert_eq!(until("an answer", || answer(SERVED)), "n1");
        api.endpoints(&["n2"]);
        until("an answer of n2", || answer(SERVED).and_then(|name| if name == "n2" { Ok(()) } else { Err(name) }));
        until_next_hops(SERVED, 1);
    });
}

#[test]
fn a_restart_of_the_speaker_loses_no_connection() {
    if !is_there(BIRD) {
        return;
    }
    on_machine(|| {
        let pins = Pins::new();
        let api = SpeakerApi::default();
        *api.password.lock().unwrap() = Some("c2VjcmV0".to_owned());
        api.pool(json!({}));
        api.peer(json!({"passwordSecret": "router", "ttlSecurity": true}));
        api.service("Cluster");
        let (bird, mut nodes) = nodes_with_bird(&pins, &api, 1, "password \"secret\"; ttl security on;");
        until_next_hops(SERVED, 1);
        api.until_reported("established");

        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let client = std::thread::spawn(move || {
            let mut count = 0;
            while !stopped.load(Ordering::Relaxed) {
                answer(SERVED).unwrap_or_else(|error| panic!("connection {count} is lost: {error}"));
                count += 1;
            }
            count
        });
        nodes[0].stop();
        until("BIRD keeps the routes of a session that it lost", || {
            let shown = bird.show("protocols n1");
            if shown.contains("Established") { Err(shown) } else { Ok(()) }
        });
        until_next_hops(SERVED, 1);
        nodes[0].start(&api);
        until("the session is back", || {
            let shown = bird.show("protocols n1");
            if shown.contains("Established") { Ok(()) } else { Err(shown) }
        });
        until("the route is fresh", || {
            let shown = bird.show("route all");
            if shown.contains("198.51.100.1/32") && !shown.contains("stale") { Ok(()) } else { Err(shown) }
        });
        stop.store(true, Ordering::Relaxed);
        assert!(client.join().unwrap() > 0);
        until_next_hops(SERVED, 1);
    });
}

#[test]
fn a_wrong_password_and_a_wrong_as_number_are_reported() {
    if !is_there(BIRD) {
        return;
    }
    on_machine(|| {
        let pins = Pins::new();
        let api = SpeakerApi::default();
        *api.password.lock().unwrap() = Some("d3Jvbmc=".to_owned());
        api.pool(json!({}));
        api.peer(json!({"passwordSecret": "router"}));
        api.service("Cluster");
        let (_bird, _nodes) = nodes_with_bird(&pins, &api, 1, "password \"secret\"; error wait time 1, 2;");
        api.until_reported(
            "10.77.0.1:179: no answer within 10 s: the passwords may differ, or the peer is unreachable",
        );
        until_next_hops(SERVED, 0);

        *api.password.lock().unwrap() = Some("c2VjcmV0".to_owned());
        api.peer(json!({"passwordSecret": "router", "peerASN": 64501}));
        api.until_reported("the peer has the AS number 64500, and spec.peerASN is 64501");
        api.peer(json!({"passwordSecret": "router", "myASN": 64599}));
        api.until_reported("the AS number is not the one that the peer expects");
        api.peer(json!({"passwordSecret": "router"}));
        until_next_hops(SERVED, 1);
    });
}

/// Without BFD these sessions would last for minutes after their end.
const PATIENT: &str = "hold time 240;";

#[test]
fn bfd_notices_a_dead_node_and_a_silent_router() {
    if !is_there(BIRD) {
        return;
    }
    on_machine(|| {
        let pins = Pins::new();
        let api = SpeakerApi::default();
        api.pool(json!({}));
        api.peer(json!({"holdTimeSeconds": 240, "bfd": {"transmitInterval": 200, "receiveInterval": 200}}));
        api.service("Cluster");
        let (bird, _nodes) = nodes_with_bird(&pins, &api, 2, &format!("{PATIENT} bfd on;"));
        until_next_hops(SERVED, 2);
        until_bfd(&bird, "10.77.0.11", "Up");
        until_bfd(&bird, "10.77.0.12", "Up");
        api.until_written("\"bfd\":\"Up\"");

        let begun = Instant::now();
        ip(&["link", "set", "n2", "down"]);
        until_next_hops(SERVED, 1);
        eprintln!("a dead node has no route after {:?}, by BFD of 3 × 200 ms", begun.elapsed());

        bird.program.pause();
        api.until_reported("BFD received no packet for");
    });
}

#[test]
fn a_restart_under_bfd_keeps_the_routes() {
    if !is_there(BIRD) {
        return;
    }
    on_machine(|| {
        let pins = Pins::new();
        let api = SpeakerApi::default();
        api.pool(json!({}));
        api.peer(json!({"bfd": {}}));
        api.service("Cluster");
        let (bird, mut nodes) = nodes_with_bird(&pins, &api, 1, &format!("{PATIENT} bfd graceful;"));
        until_next_hops(SERVED, 1);
        until_bfd(&bird, "10.77.0.11", "Up");
        nodes[0].stop();
        until_bfd(&bird, "10.77.0.11", "Down");
        until_next_hops(SERVED, 1);
        nodes[0].start(&api);
        until_bfd(&bird, "10.77.0.11", "Up");
        until_next_hops(SERVED, 1);
    });
}

/// Waits until BIRD's session of BFD with a node has a state.
fn until_bfd(bird: &Bird, node: &str, state: &str) {
    until(&format!("BFD with {node} is {state}"), || {
        let shown = bird.show("bfd sessions");
        let is_found = shown.lines().any(|line| line.contains(node) && line.contains(state));
        if is_found { Ok(()) } else { Err(shown) }
    });
}

/// FRR's daemon of BGP in the router's namespace.
struct Frr {
    _program: Program,
    directory: String,
}

impl Frr {
    /// Starts it with this configuration.
    fn start(pins: &Pins, text: &str) -> Frr {
        let config = pins.path().join("bgpd.conf");
        std::fs::write(&config, text).unwrap();
        // The daemon gives up root, and makes its sockets as its own user.
        let everyone = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        std::fs::set_permissions(pins.path(), everyone).unwrap();
        let directory = pins.path().to_string_lossy().into_owned();
        let pid = pins.path().join("bgpd.pid").to_string_lossy().into_owned();
        let config = config.to_string_lossy().into_owned();
        let arguments = ["-n", "-f", &config, "-i", &pid, "--vty_socket", &directory, "-P", "0"];
        Frr { _program: Program::start(FRR, &arguments), directory }
    }

    fn show(&self, about: &str) -> String {
        let command = format!("show bgp {about} json");
        output("vtysh", &["--vty_socket", &self.directory, "-d", "bgpd", "-c", &command])
    }

    /// Waits until packets of an address are spread over this number of nodes.
    fn until_paths(&self, prefix: &str, expected: usize) {
        let family = if prefix.contains(':') { "ipv6" } else { "ipv4" };
        until(&format!("{expected} paths of {prefix}"), || {
            let shown = self.show(&format!("{family} unicast {prefix}"));
            let document: serde_json::Value = serde_json::from_str(&shown).map_err(|_| shown.clone())?;
            let paths = document["paths"].as_array().into_iter().flatten();
            let used = paths.filter(|path| path["multipath"] == true || path["bestpath"]["overall"] == true).count();
            if used == expected { Ok(()) } else { Err(shown) }
        });
    }
}

#[test]
fn frr_with_four_byte_numbers_and_passwords_spreads_over_three_nodes() {
    if !is_there(FRR) {
        return;
    }
    on_machine(|| {
        let pins = Pins::new();
        router();
        let mut text = String::from(
            "router bgp 4200000000\n bgp router-id 10.77.0.1\n no bgp ebgp-requires-policy\n bgp graceful-restart\n",
        );
        let mut families = String::from(" address-family ipv6 unicast\n");
        for number in 11..=13 {
            text.push_str(&format!(
                " neighbor 10.77.0.{number} remote-as 4200000001\n neighbor 10.77.0.{number} passive\n \
                 neighbor 10.77.0.{number} password secret\n neighbor 10.77.0.{number} timers connect 1\n"
            ));
            families.push_str(&format!("  neighbor 10.77.0.{number} activate\n"));
        }
        let frr = Frr::start(&pins, &format!("{text}{families} exit-address-family\n"));
        let api = SpeakerApi::default();
        *api.password.lock().unwrap() = Some("c2VjcmV0".to_owned());
        api.pool(json!({}));
        let peer = |asn: u32| api.peer(json!({"peerASN": asn, "myASN": 4_200_000_001_u32, "passwordSecret": "router"}));
        peer(4_200_000_000);
        api.service("Cluster");
        let mut nodes: Vec<Node> = (1..=3).map(|number| Node::new(&pins, number)).collect();
        for node in &mut nodes {
            api.node(&node.name, json!({}));
            node.start(&api);
        }
        let both = ["198.51.100.1/32", "2001:db8:77::1/128"];
        both.iter().for_each(|prefix| frr.until_paths(prefix, 3));

        // A speaker that restarts keeps its route.
        nodes[0].stop();
        until("FRR keeps the route of a session that it lost", || {
            let shown = frr.show("neighbors 10.77.0.11");
            if shown.contains("\"bgpState\":\"Established\"") { Err(shown) } else { Ok(()) }
        });
        both.iter().for_each(|prefix| frr.until_paths(prefix, 3));
        nodes[0].start(&api);
        until("the session is back", || {
            let shown = frr.show("neighbors 10.77.0.11");
            if shown.contains("\"bgpState\":\"Established\"") { Ok(()) } else { Err(shown) }
        });
        both.iter().for_each(|prefix| frr.until_paths(prefix, 3));

        nodes[1].leave();
        ip(&["link", "set", "n3", "down"]);
        both.iter().for_each(|prefix| frr.until_paths(prefix, 1));

        peer(4_200_000_009);
        api.until_reported("the peer has the AS number 4200000000, and spec.peerASN is 4200000009");
        both.iter().for_each(|prefix| frr.until_paths(prefix, 0));
    });
}

#[test]
fn frr_sees_communities_and_aggregates() {
    if !is_there(FRR) {
        return;
    }
    on_machine(|| {
        let pins = Pins::new();
        router();
        let text = "router bgp 64500\n bgp router-id 10.77.0.1\n no bgp ebgp-requires-policy\n \
            neighbor 10.77.0.11 remote-as 64512\n neighbor 10.77.0.11 passive\n neighbor 10.77.0.11 timers connect 1\n \
            address-family ipv6 unicast\n  neighbor 10.77.0.11 activate\n exit-address-family\n";
        let frr = Frr::start(&pins, text);
        let api = SpeakerApi::default();
        api.pool(json!({"communities": ["64512:7", "64512:8:9"], "aggregationLength": 24}));
        api.peer(json!({}));
        api.service("Cluster");
        api.node("n1", json!({}));
        let mut node = Node::new(&pins, 1);
        node.start(&api);
        let contains = |shown: String, all: &[&str]| {
            if all.iter().all(|one| shown.contains(one)) { Ok(()) } else { Err(shown) }
        };
        until("the aggregate with its communities", || {
            contains(frr.show("ipv4 unicast 198.51.100.0/24"), &["64512:7", "64512:8:9", "10.77.0.11"])
        });
        until("the IPv6 address", || contains(frr.show("ipv6 unicast 2001:db8:77::1/128"), &["fd77::11", "64512:7"]));
        node.leave();
        until("the withdrawal", || {
            let shown = frr.show("ipv4 unicast");
            if shown.contains("198.51.100.0/24") { Err(shown) } else { Ok(()) }
        });
    });
}
