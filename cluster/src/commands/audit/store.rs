//! Section 2: the store. It consists of files of the API server's own process and has no listener; or it is the etcd member
//! of this machine, one of several.

use super::facts::{EtcdFact, Facts, ListenerFact};
use super::{Item, Outcome, item};

/// The ports of an etcd, for clients and for peers.
const ETCD_PORTS: [u16; 2] = [2379, 2380];
const CLOSE_PORT: &str = "stop whatever listens on the port; the embedded store needs no port";
const OWN_ETCD: &str = "let the server start etcd, with its own flags and certificates";
const OWN_AUTHORITY: &str = "remove etcd-ca.crt and etcd-ca.key of pki, and let the servers join again";
const NO_PEERS: &str = "the embedded store has no peers: one control-plane machine";
const ELSEWHERE: &str = "--etcd-servers names an etcd that others run; audit it there";

pub const ITEMS: &[Item] = &[
    item("2.1", "The store is not served without TLS", CLOSE_PORT, |facts| {
        clients(facts, |listener| listener.answers_plain, "a client without TLS")
    }),
    item("2.2", "The store is not served to clients without a certificate", CLOSE_PORT, |facts| {
        clients(facts, |listener| listener.answers_without_certificate, "a client without a certificate")
    }),
    item("2.3", "The store accepts no self-signed client certificates", CLOSE_PORT, |facts| {
        clients(facts, |listener| listener.answers_self_signed, "a client with a self-signed certificate")
    }),
    item("2.4", "Peers of the store use TLS", OWN_ETCD, |facts| {
        peers(facts, |listener| listener.answers_plain, "a peer without TLS")
    }),
    item("2.5", "Peers of the store authenticate each other", OWN_ETCD, |facts| {
        peers(facts, |listener| listener.answers_without_certificate, "a peer without a certificate")
    }),
    item("2.6", "Peers of the store use no self-signed certificates", OWN_ETCD, |facts| {
        peers(facts, |listener| listener.answers_self_signed, "a peer with a self-signed certificate")
    }),
    item("2.7", "The store has a certificate authority of its own", OWN_AUTHORITY, own_authority),
];

/// The store of a cluster, as far as its section differs.
enum Kind<'a> {
    Embedded,
    Member(&'a EtcdFact),
    Elsewhere,
}

fn kind(facts: &Facts) -> Kind<'_> {
    match &facts.etcd {
        Some(etcd) => Kind::Member(etcd),
        None if !facts.flags.store.etcd_servers.is_empty() => Kind::Elsewhere,
        None => Kind::Embedded,
    }
}

fn clients(facts: &Facts, answers: fn(&ListenerFact) -> bool, stranger: &str) -> Outcome {
    match kind(facts) {
        Kind::Embedded => no_port(facts),
        Kind::Member(etcd) => refuses(&etcd.clients, answers, stranger),
        Kind::Elsewhere => Outcome::NotApplicable(ELSEWHERE),
    }
}

fn peers(facts: &Facts, answers: fn(&ListenerFact) -> bool, stranger: &str) -> Outcome {
    match kind(facts) {
        Kind::Embedded => Outcome::NotApplicable(NO_PEERS),
        Kind::Member(etcd) => refuses(&etcd.peers, answers, stranger),
        Kind::Elsewhere => Outcome::NotApplicable(ELSEWHERE),
    }
}

fn refuses(listener: &ListenerFact, answers: fn(&ListenerFact) -> bool, stranger: &str) -> Outcome {
    let address = listener.address;
    Outcome::when(
        !answers(listener),
        format!("etcd at {address} refuses {stranger}"),
        format!("etcd at {address} answers {stranger}"),
    )
}

fn own_authority(facts: &Facts) -> Outcome {
    match kind(facts) {
        Kind::Embedded => no_port(facts),
        Kind::Member(etcd) => {
            let shared = etcd.shared_authorities.iter().map(|name| format!("etcd's authority has the key of {name}"));
            Outcome::of(shared.collect(), "etcd-ca signs for members and their clients alone")
        }
        Kind::Elsewhere => Outcome::NotApplicable(ELSEWHERE),
    }
}

/// Checks that the API server shows its members a certificate that they accept, and accepts theirs.
pub fn authenticated(facts: &Facts) -> Outcome {
    match kind(facts) {
        Kind::Embedded => Outcome::NotApplicable("the store is part of the API server's process"),
        Kind::Member(etcd) => Outcome::when(
            etcd.is_authenticated,
            format!("etcd at {} accepts the server's certificate, and has one of etcd-ca", etcd.clients.address),
            format!("etcd at {} and this server do not accept each other's certificates", etcd.clients.address),
        ),
        Kind::Elsewhere => {
            let tls = &facts.flags.store;
            let found = [("--etcd-cafile", &tls.etcd_cafile), ("--etcd-certfile", &tls.etcd_certfile)]
                .into_iter()
                .filter(|(_, path)| path.is_none())
                .map(|(flag, _)| format!("{flag} is not set"));
            Outcome::of(found.collect(), "--etcd-cafile and --etcd-certfile are set")
        }
    }
}

fn no_port(facts: &Facts) -> Outcome {
    let open: Vec<String> = ETCD_PORTS
        .iter()
        .flat_map(|port| {
            facts.reachable(*port).into_iter().map(move |address| format!("{address} port {port} is open"))
        })
        .collect();
    Outcome::of(open, "the store is files of the API server's process and listens nowhere")
}
