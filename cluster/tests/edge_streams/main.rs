//! Streams through a Gateway go on, whatever happens around them: routes are edited, certificates rotate, the server is
//! killed, and the proxy is exchanged while a certificate rotates.
//!
//! `CORTEN_STREAMS` is the number of WebSockets and of gRPC streams, for a longer run by hand.

#![allow(clippy::unwrap_used)]

mod backend;
mod clients;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use testkit::cluster::Cluster;
use testkit::machine::ADDRESS;
use testkit::{tools, wait};

use clients::{Clients, Traffic};

const CORTEN: &str = env!("CARGO_BIN_EXE_corten");
/// The port of the Gateway.
const PORT: u16 = 8443;
/// The port of the backend, a server of this test in the machine's network.
const BACKEND: u16 = 9099;
/// The name in all certificates.
const HOST: &str = "a.test";
/// The WebSockets, and the gRPC streams.
const STREAMS: usize = 40;
/// The edits of routes.
const EDITS: usize = 10;

/// A certificate of the Gateway.
struct Certificate {
    pem: String,
    key: String,
    der: Vec<u8>,
}

impl Certificate {
    fn new() -> Certificate {
        let made = rcgen::generate_simple_self_signed(vec![HOST.to_owned()]).unwrap();
        Certificate { pem: made.cert.pem(), key: made.signing_key.serialize_pem(), der: made.cert.der().to_vec() }
    }

    fn secret(&self) -> String {
        let encode = |text: &str| BASE64_STANDARD.encode(text);
        let (certificate, key) = (encode(&self.pem), encode(&self.key));
        format!(
            "apiVersion: v1\nkind: Secret\nmetadata: {{name: web}}\ntype: kubernetes.io/tls\n\
             data: {{tls.crt: {certificate}, tls.key: {key}}}\n"
        )
    }
}

#[test]
fn streams_outlive_edits_of_routes_certificates_servers_and_proxies() {
    if !tools::is_root() {
        eprintln!("skipped: a cluster needs root");
        return;
    }
    let streams = std::env::var("CORTEN_STREAMS").ok().and_then(|text| text.parse().ok()).unwrap_or(STREAMS);
    let certificates: Vec<Certificate> = (0..4).map(|_| Certificate::new()).collect();
    let cluster = Cluster::machine(CORTEN);
    cluster.start(&[]);
    cluster.machine.in_network(|| backend::start(ADDRESS, BACKEND));
    cluster.apply(&format!("{}---\n{}", certificates[0].secret(), manifest()));
    cluster.kubectl_wait(&["wait", "--for=condition=Programmed", "gateway/web"]);
    let traffic = Traffic::new(streams);
    let clients = Clients::new(certificates.iter().map(|one| one.der.clone()).collect(), (ADDRESS, PORT));
    wait::until("the first answer", wait::BOUND, || cluster.machine.in_network(|| clients.first_answer()));
    std::thread::scope(|scope| {
        let machine = &cluster.machine;
        scope.spawn(|| machine.in_network(|| clients.run(&traffic)));
        // Also when an assertion fails: the scope waits for the clients.
        let _stopped = clients::Stop(&traffic);
        traffic.goes_on("at first");

        for number in 0..EDITS {
            edit_routes(&cluster, number);
        }
        traffic.goes_on("after the edits of routes");

        cluster.apply(&certificates[1].secret());
        traffic.until_certificate(&certificates[1].der);
        traffic.goes_on("with the second certificate");

        cluster.kill_hard();
        traffic.goes_on("without a server");
        cluster.start(&[]);
        traffic.goes_on("with the next server");
        let first = cluster.proxies();
        assert_eq!(first.len(), 1, "{first:?}");

        cluster.apply(&certificates[2].secret());
        cluster.exchange_binary();
        cluster.apply(&certificates[3].secret());
        wait::until("a proxy of the other binary", wait::BOUND, || match cluster.proxies() {
            both if both.len() == 2 => Ok(()),
            others => Err(format!("{others:?}")),
        });
        traffic.until_certificate(&certificates[3].der);
        traffic.goes_on("with another binary");
        let both = cluster.proxies();
        let is_kept = first.keys().all(|pid| both.contains_key(pid));
        assert!(both.len() == 2 && is_kept, "the first proxy ended: {both:?}");
    });
    assert_eq!(traffic.failures(), [""; 0]);
    cluster.corten(&["down"]);
}

/// Changes a header that both routes set, and adds and deletes a route.
fn edit_routes(cluster: &Cluster, number: usize) {
    let patch = |backend: &str| {
        format!(
            r#"{{"spec": {{"rules": [{{"backendRefs": [{{"name": "web", "port": {backend}}}], "filters": [{{
                "type": "ResponseHeaderModifier",
                "responseHeaderModifier": {{"set": [{{"name": "x-edit", "value": "{number}"}}]}}}}]}}]}}}}"#
        )
    };
    cluster.kubectl(&["patch", "httproute", "web", "--type=merge", "-p", &patch("80")]);
    cluster.kubectl(&["patch", "grpcroute", "web", "--type=merge", "-p", &patch("81")]);
    let other = format!(
        "apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {{name: other}}\nspec:\n  \
         parentRefs: [{{name: web}}]\n  hostnames: [b{number}.test]\n  rules: [{{backendRefs: [{{name: web, port: 80}}]}}]\n"
    );
    cluster.apply(&other);
    cluster.kubectl(&["delete", "httproute", "other"]);
}

fn manifest() -> String {
    format!(
        r#"
apiVersion: v1
kind: Service
metadata: {{name: web}}
spec: {{ports: [{{name: http, port: 80}}, {{name: grpc, port: 81, appProtocol: kubernetes.io/h2c}}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: web, labels: {{kubernetes.io/service-name: web}}}}
addressType: IPv4
ports: [{{name: http, port: {BACKEND}, protocol: TCP}}, {{name: grpc, port: {BACKEND}, protocol: TCP}}]
endpoints: [{{addresses: [{ADDRESS}]}}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {{name: web}}
spec:
  gatewayClassName: corten
  listeners: [{{name: https, port: {PORT}, protocol: HTTPS, tls: {{certificateRefs: [{{name: web}}]}}}}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {{name: web}}
spec:
  parentRefs: [{{name: web}}]
  hostnames: [{HOST}]
  rules: [{{backendRefs: [{{name: web, port: 80}}]}}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: GRPCRoute
metadata: {{name: web}}
spec:
  parentRefs: [{{name: web}}]
  hostnames: [grpc.{HOST}]
  rules: [{{backendRefs: [{{name: web, port: 81}}]}}]
"#
    )
}
