//! Answers of the kernel over netlink, and of CNI plugins.

use super::{json, texts};
use crate::Target;

pub const TARGETS: &[Target] = &[
    Target { name: "netlink", seeds: netlink_seeds, run: netlink },
    Target { name: "netlink-attributes", seeds: attribute_seeds, run: attributes },
    Target { name: "link-events", seeds: event_seeds, run: link_events },
    Target { name: "cni", seeds: cni_seeds, run: cni },
];

/// Returns a message with its header.
fn message(kind: u16, flags: u16, sequence: u32, body: &[u8]) -> Vec<u8> {
    let length = 16 + body.len() as u32;
    let mut message = length.to_ne_bytes().to_vec();
    message.extend(kind.to_ne_bytes());
    message.extend(flags.to_ne_bytes());
    message.extend(sequence.to_ne_bytes());
    message.extend(0_u32.to_ne_bytes());
    message.extend(body);
    message.resize(message.len().next_multiple_of(4), 0);
    message
}

fn nested(kind: u16, content: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    corten_nftables::put(&mut out, kind, content);
    out
}

/// Returns nested attributes, as tables, chains, sets, rules and flows have them.
fn tree() -> Vec<u8> {
    let leaf = [nested(1, b"name\0"), nested(2, &7_u32.to_be_bytes()), nested(3, &[10, 0, 0, 1])].concat();
    let branch = [nested(1, &leaf), nested(2, &leaf), nested(3, &leaf), nested(7, &leaf)].concat();
    [nested(1, b"table\0"), nested(2, &branch), nested(3, &branch), nested(4, &branch), nested(8, &9_u64.to_be_bytes())]
        .concat()
}

fn netlink_seeds() -> Vec<Vec<u8>> {
    let body = [&[2, 0, 0, 0][..], &tree()].concat();
    let refused = [&(-17_i32).to_ne_bytes()[..], &message(5, 0, 1, &[]), &nested(1, b"why\0")].concat();
    vec![
        [message(0x0a00, 2, 1, &body), message(3, 2, 1, &0_i32.to_ne_bytes())].concat(),
        message(2, 0x300, 1, &refused),
    ]
}

fn netlink(input: &[u8]) {
    corten_nftables::fuzz::datagram(input);
    for answer in corten_nftables::fuzz::conversation(input, 1) {
        attributes(&answer);
    }
}

fn attribute_seeds() -> Vec<Vec<u8>> {
    let key = nested(1, &[7; 32]);
    let range = [nested(1, &2_u16.to_ne_bytes()), nested(2, &[10, 0, 0, 0]), nested(3, &[8])].concat();
    let peer = [key, nested(4, &[2; 16]), nested(9, &nested(0, &range))].concat();
    let service =
        [nested(1, &2_u16.to_ne_bytes()), nested(2, &6_u16.to_ne_bytes()), nested(3, &[10; 16]), nested(4, &[0, 80])];
    vec![tree(), nested(8, &nested(0, &peer)), nested(1, &service.concat())]
}

fn attributes(input: &[u8]) {
    let attributes = corten_nftables::attributes(input).count();
    assert!(attributes <= input.len() / 4, "an attribute has a header");
    corten_proxy::fuzz::ipvs(input);
    corten_network::fuzz::wireguard(input);
}

fn event_seeds() -> Vec<Vec<u8>> {
    let route = [&[2, 24, 0, 0, 254, 2, 0, 1, 0, 0, 0, 0][..], &nested(1, &[10, 0, 0, 0])].concat();
    let link = [0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    vec![
        [message(16, 0, 0, &link), message(17, 0, 0, &link), message(24, 0, 0, &route), message(25, 0, 0, &route)]
            .concat(),
    ]
}

fn link_events(input: &[u8]) {
    let events = corten_network::fuzz::link_events(input);
    assert!(events <= input.len() / 16, "an event has a header");
}

fn cni_seeds() -> Vec<Vec<u8>> {
    texts(&[
        r#"{"cniVersion":"1.1.0","cniVersions":["0.4.0"],"name":"n","disableCheck":"true","plugins":[{"type":"bridge","capabilities":{"portMappings":true}}]}"#,
        r#"{"cniVersion":"1.0.0","ips":[{"address":"10.0.0.2/24","gateway":"10.0.0.1"}],"ip4":{"ip":"10.0.0.3/8"},"dns":{}}"#,
        r#"{"code":7,"msg":"m","details":"d"}"#,
        r#"{"cniVersion":"1.1.0","ranges":["10.244.0.0/24","fd00::/64"],"clusterRanges":["10.244.0.0/16"],"mtu":1400,"runtimeConfig":{"portMappings":[{"hostPort":80,"containerPort":81,"protocol":"udp","hostIP":"::1"}],"bandwidth":{"ingressRate":8000},"ipRanges":[[{"subnet":"10.0.0.0/8"}]]}}"#,
        r#"{"config":{"name":"n","cniVersion":"1.0.0","plugins":[{"type":"t"}]},"containerId":"c","netns":"/n","ifName":"eth0","result":{}}"#,
    ])
}

fn cni(input: &[u8]) {
    let _ = corten_network::fuzz::cni_answer(input, 0);
    let _ = corten_network::fuzz::cni_answer(input, 1);
    let Some(value) = json(input) else { return };
    corten_network::fuzz::cni_list(&value);
    let _ = corten_network::fuzz::cni_call(value.clone());
    if let Some(written) = corten_network::fuzz::cni_record(&value) {
        assert_eq!(corten_network::fuzz::cni_record(&written), Some(written), "a record is written the same again");
    }
}
