//! Orders from Pebble, the test server of Let's Encrypt, if it is there: `PEBBLE` is its source folder, with the
//! programs in `bin`.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use crate::world::{World, certificate_names, gateway, ingress, node_address};

/// The programs of Pebble, which end with their test.
struct Pebble {
    directory: String,
    ca_bundle: String,
    programs: Vec<Child>,
    config: PathBuf,
}

impl Drop for Pebble {
    fn drop(&mut self) {
        for program in &mut self.programs {
            let _ = program.kill();
            let _ = program.wait();
        }
        let _ = std::fs::remove_file(&self.config);
    }
}

fn free_address() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().to_string()
}

impl Pebble {
    /// Starts Pebble, which validates at the ports of the node; None if it is not there.
    fn start(world: &World) -> Option<Pebble> {
        let folder = PathBuf::from(std::env::var_os("PEBBLE")?);
        let address = free_address();
        let dns = free_address();
        let port = |of: u16| node_address(&world.api, of).map_or(1, |address| address.port());
        let certificates = folder.join("test/certs");
        let config = json!({"pebble": {
            "listenAddress": address, "managementListenAddress": free_address(),
            "certificate": certificates.join("localhost/cert.pem"), "privateKey": certificates.join("localhost/key.pem"),
            "httpPort": port(80), "tlsPort": port(443), "keyAlgorithm": "ecdsa",
            "profiles": {"default": {"description": "all", "validityPeriod": 7_776_000}},
        }});
        let path = std::env::temp_dir().join(format!("pebble-{}.json", address.replace(':', "-")));
        std::fs::write(&path, config.to_string()).unwrap();
        let program = |name: &str| {
            let mut command = Command::new(folder.join("bin").join(name));
            command.stdout(Stdio::null()).stderr(Stdio::null());
            command
        };
        let mut names = program("pebble-challtestsrv");
        names.args(["-dnsserver", &dns, "-management", &free_address(), "-defaultIPv6", ""]);
        names.args(["-http01", "", "-https01", "", "-tlsalpn01", "", "-doh", ""]);
        let mut server = program("pebble");
        // Half of the nonces are refused; validations do not wait.
        server.args(["-strict", "-dnsserver", &dns, "-config"]).arg(&path);
        server.env("PEBBLE_WFE_NONCEREJECT", "50").env("PEBBLE_VA_NOSLEEP", "1");
        let programs = vec![names.spawn().unwrap(), server.spawn().unwrap()];
        let ca_bundle = std::fs::read_to_string(certificates.join("pebble.minica.pem")).unwrap();
        let port = address.rsplit(':').next().unwrap().to_owned();
        Some(Pebble { directory: format!("https://localhost:{port}/dir"), ca_bundle, programs, config: path })
    }

    fn issuer(&self, challenge: &str) -> Value {
        json!({"apiVersion": "edge.corten.dev/v1alpha1", "kind": "AcmeIssuer", "metadata": {"name": "public"},
            "spec": {"directory": self.directory, "caBundle": self.ca_bundle, "challenge": challenge,
                "email": "admin@example.com"}})
    }

    async fn ready(&self, world: &World) {
        let address = self.directory.trim_start_matches("https://").trim_end_matches("/dir").to_owned();
        world.until("Pebble listens", || std::net::TcpStream::connect(&address).is_ok()).await;
    }
}

async fn issued_by_pebble(object: Value, plural: &str, port: u16, challenge: &str) {
    let world = World::start(crate::Settings::default()).await;
    world.api.put(plural, object);
    world.until("the Service has its port", || node_address(&world.api, port).is_some()).await;
    let Some(pebble) = Pebble::start(&world) else {
        eprintln!("skipped: PEBBLE is not set");
        return;
    };
    pebble.ready(&world).await;
    world.api.put("acmeissuers", pebble.issuer(challenge));
    let _leader = world.lead();
    assert_eq!(certificate_names(&world.issued("tls").await), ["shop.example.com"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn pebble_issues_a_certificate_by_http() {
    issued_by_pebble(ingress(&["shop.example.com"]), "ingresses", 80, "HTTP-01").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pebble_issues_a_certificate_by_tls() {
    issued_by_pebble(gateway("shop.example.com"), "gateways", 443, "TLS-ALPN-01").await;
}
