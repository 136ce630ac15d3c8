//! The world of the tests: a router's namespace with nodes on its bridge, an API for the speakers, and waiting.

#![allow(dead_code)]

use std::io::Read;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use corten_bgp::Config;
use corten_client::{Body, Client, Error, Transport};
use corten_network::enter;
use futures::future::BoxFuture;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::api::Api;
use crate::namespaces::{Pins, block_on, ip, listen};

/// The bound of every wait.
const BOUND: Duration = Duration::from_secs(120);
const ATTEMPT: Duration = Duration::from_secs(2);
/// The address that all nodes serve.
pub const SERVED: &str = "198.51.100.1";
pub const SERVED_V6: &str = "2001:db8:77::1";

/// Waits until a condition holds; fails with the last observation.
pub fn until<T>(expected: &str, mut observe: impl FnMut() -> Result<T, String>) -> T {
    let deadline = Instant::now() + BOUND;
    loop {
        match observe() {
            Ok(found) => return found,
            Err(last) => assert!(Instant::now() < deadline, "{expected}; last: {last}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Returns the output of a program in the router's namespace.
pub fn output(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap();
    String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
}

/// Makes the bridge of the router, whose namespace is that of this thread.
pub fn router() {
    ip(&["link", "set", "lo", "up"]);
    ip(&["link", "add", "br0", "type", "bridge"]);
    ip(&["address", "add", "10.77.0.1/24", "dev", "br0"]);
    ip(&["address", "add", "fd77::1/64", "dev", "br0", "nodad"]);
    ip(&["link", "set", "br0", "up"]);
}

/// A program that is ended with the test.
pub struct Program(Child);

impl Program {
    pub fn start(program: &str, arguments: &[&str]) -> Program {
        let child = Command::new(program).args(arguments).stdout(Stdio::null()).stderr(Stdio::inherit()).spawn();
        Program(child.unwrap())
    }

    /// Stops the program's threads; its connections stay open.
    pub fn pause(&self) {
        let pid = nix::unistd::Pid::from_raw(self.0.id().cast_signed());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGSTOP).unwrap();
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A node: a namespace on the router's bridge, with a server on the served addresses and a speaker.
pub struct Node {
    pub name: String,
    number: u8,
    path: PathBuf,
    stop: CancellationToken,
    thread: Option<std::thread::JoinHandle<()>>,
    leaving: PathBuf,
}

impl Node {
    pub fn new(pins: &Pins, number: u8) -> Node {
        let name = format!("n{number}");
        let path = pins.add(&name);
        ip(&["link", "add", &name, "type", "veth", "peer", "name", "eth0", "netns", &path.to_string_lossy()]);
        ip(&["link", "set", &name, "master", "br0", "up"]);
        enter(&path, || {
            ip(&["address", "add", &format!("10.77.0.{}/24", 10 + number), "dev", "eth0"]);
            ip(&["address", "add", &format!("fd77::{}/64", 10 + number), "dev", "eth0", "nodad"]);
            for address in [SERVED, SERVED_V6] {
                ip(&["address", "add", address, "dev", "lo"]);
            }
            ip(&["link", "set", "lo", "up"]);
            ip(&["link", "set", "eth0", "up"]);
        })
        .unwrap();
        serve(&path, name.clone());
        let leaving = pins.path().join(format!("leaving-{name}"));
        Node { name, number, path, stop: CancellationToken::new(), thread: None, leaving }
    }

    /// Starts the speaker.
    pub fn start(&mut self, api: &SpeakerApi) {
        self.stop = CancellationToken::new();
        let config = Config {
            node_name: self.name.clone(),
            node_addresses: vec![
                format!("10.77.0.{}", 10 + self.number).parse().unwrap(),
                format!("fd77::{}", 10 + self.number).parse().unwrap(),
            ],
            pool: Vec::new(),
            leaving: Some(self.leaving.clone()),
        };
        let client = api.client();
        let path = self.path.clone();
        let stop = self.stop.clone();
        self.thread = Some(std::thread::spawn(move || {
            enter(&path, || block_on(corten_bgp::run(config, client, stop))).unwrap();
        }));
    }

    /// Stops the speaker, as a restart does.
    pub fn stop(&mut self) {
        self.stop.cancel();
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }

    /// Stops the speaker of a node that leaves.
    pub fn leave(&mut self) {
        std::fs::write(&self.leaving, "").unwrap();
        self.stop();
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.stop.cancel();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Starts a server that sends a name, on every address of a namespace.
fn serve(path: &Path, name: String) {
    let listener = listen(path);
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            let _ = std::io::Write::write_all(&mut stream, name.as_bytes());
        }
    });
}

/// Returns the name that a served address answers with.
pub fn answer(address: &str) -> Result<String, String> {
    let to = SocketAddr::new(address.parse().unwrap(), 80);
    let mut stream = TcpStream::connect_timeout(&to, ATTEMPT).map_err(|error| error.to_string())?;
    stream.set_read_timeout(Some(ATTEMPT)).map_err(|error| error.to_string())?;
    let mut name = String::new();
    stream.read_to_string(&mut name).map_err(|error| error.to_string())?;
    Ok(name)
}

/// Waits until the router's kernel has this number of next hops for an address.
pub fn until_next_hops(address: &str, expected: usize) {
    let family = if address.contains(':') { "-6" } else { "-4" };
    until(&format!("{expected} next hops of {address}"), || {
        let shown = output("ip", &[family, "route", "show", "exact", address]);
        let found = shown.matches("via ").count();
        if found == expected { Ok(()) } else { Err(shown) }
    });
}

/// Watches of all resources, one Secret, and a record of all writes.
#[derive(Clone, Default)]
pub struct SpeakerApi {
    pub objects: Api,
    pub password: Arc<Mutex<Option<String>>>,
    writes: Arc<Mutex<Vec<String>>>,
}

impl SpeakerApi {
    fn client(&self) -> Client {
        Client::new(Arc::new(self.clone()))
    }

    /// Puts a Service with the served addresses.
    pub fn service(&self, policy: &str) {
        let service = json!({"apiVersion": "v1", "kind": "Service",
            "metadata": {"namespace": "default", "name": "web"},
            "spec": {"type": "LoadBalancer", "externalTrafficPolicy": policy},
            "status": {"loadBalancer": {"ingress": [{"ip": SERVED}, {"ip": SERVED_V6}]}}});
        self.objects.put("services", &service.to_string());
    }

    pub fn node(&self, name: &str, spec: Value) {
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": spec,
            "status": {"conditions": [{"type": "Ready", "status": "True"}]}});
        self.objects.put("nodes", &node.to_string());
    }

    pub fn endpoints(&self, nodes: &[&str]) {
        let endpoint =
            |node: &&str| json!({"addresses": ["10.0.0.1"], "nodeName": node, "conditions": {"ready": true}});
        let slice = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {"namespace": "default", "name": "web", "labels": {"kubernetes.io/service-name": "web"}},
            "endpoints": nodes.iter().map(endpoint).collect::<Vec<_>>()});
        self.objects.put("endpointslices", &slice.to_string());
    }

    pub fn pool(&self, bgp: Value) {
        let pool = json!({"apiVersion": "network.corten.dev/v1beta1", "kind": "AddressPool",
            "metadata": {"name": "public"},
            "spec": {"addresses": ["198.51.100.0/24", "2001:db8:77::/64"], "bgp": bgp}});
        self.objects.put("addresspools", &pool.to_string());
    }

    /// Puts the router as a peer, with these fields beside the usual ones.
    pub fn peer(&self, fields: Value) {
        let mut spec = json!({"peerAddress": "10.77.0.1", "peerASN": 64500, "myASN": 64512, "holdTimeSeconds": 3});
        spec.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let peer = json!({"apiVersion": "network.corten.dev/v1beta1", "kind": "BGPPeer",
            "metadata": {"name": "router", "uid": "u"}, "spec": spec});
        self.objects.put("bgppeers", &peer.to_string());
    }

    /// Waits until a write contains a string.
    pub fn until_written(&self, expected: &str) {
        until(&format!("a write with {expected}"), || {
            let writes = self.writes.lock().unwrap();
            if writes.iter().any(|write| write.contains(expected)) { Ok(()) } else { Err(writes.join("\n")) }
        });
    }

    /// Waits until a write contains a sentence: an event, and the status of the peer.
    pub fn until_reported(&self, sentence: &str) {
        for kind in ["\"Event\"", "\"nodes\""] {
            until(&format!("{kind} with {sentence}"), || {
                let writes = self.writes.lock().unwrap();
                let is_found = writes.iter().any(|write| write.contains(sentence) && write.contains(kind));
                if is_found { Ok(()) } else { Err(writes.join("\n")) }
            });
        }
    }
}

impl Transport for SpeakerApi {
    fn send(&self, request: http::Request<Bytes>) -> BoxFuture<'static, Result<http::Response<Body>, Error>> {
        let is_watch = request.uri().query().is_some_and(|query| query.contains("watch="));
        if is_watch {
            return self.objects.send(request);
        }
        let body = if request.method() == http::Method::GET {
            let password = self.password.lock().unwrap().clone().unwrap_or_default();
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "router"}, "data": {"password": password}})
                .to_string()
        } else {
            let written = String::from_utf8_lossy(request.body()).into_owned();
            self.writes.lock().unwrap().push(written.clone());
            written
        };
        Box::pin(async move { Ok(http::Response::new(Body::Full(Bytes::from(body)))) })
    }
}
