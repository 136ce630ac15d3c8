//! The shared parts of all tests of a node's network: a thread that is a machine of its own, namespaces that are
//! deleted when the test ends, and the request that connects a pod.

#![allow(dead_code)]

use std::io::ErrorKind;
use std::net::{IpAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use corten_network::namespace_node::{NodeNamespace, pin_new_namespace, unpin};
use corten_network::{Limits, PortMapping, SetupRequest, enter};
use nix::sched::{CloneFlags, unshare};

/// Runs a test on a thread that is a machine of its own.
pub fn on_machine(test: impl FnOnce() + Send + 'static) {
    let thread = std::thread::spawn(move || {
        unshare(CloneFlags::CLONE_NEWNET).expect("tests run as root");
        test();
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

/// Runs an asynchronous test on such a thread; its tasks share it.
pub fn on_node<F: Future<Output = ()>>(test: impl FnOnce() -> F + Send + 'static) {
    on_machine(move || block_on(test()));
}

pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

/// A directory with pinned namespaces of pods and nodes; all of them are deleted when the test ends, also by a panic.
pub struct Pins(tempfile::TempDir);

impl Pins {
    pub fn new() -> Pins {
        Pins(tempfile::tempdir().unwrap())
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Makes a new namespace.
    pub fn add(&self, name: &str) -> PathBuf {
        let path = self.path().join("pins").join(name);
        pin_new_namespace(&path).unwrap();
        path
    }
}

impl Drop for Pins {
    fn drop(&mut self) {
        for directory in ["pins", "netns"] {
            for entry in std::fs::read_dir(self.path().join(directory)).into_iter().flatten().flatten() {
                unpin(&entry.path()).unwrap();
            }
        }
    }
}

/// Returns the request that connects a namespace as a pod.
pub fn request(name: &str, netns_path: &Path, port_mappings: Vec<PortMapping>) -> SetupRequest {
    SetupRequest {
        sandbox_id: name.to_owned(),
        netns_path: netns_path.to_owned(),
        pod_namespace: "default".to_owned(),
        pod_name: name.to_owned(),
        pod_uid: format!("uid-{name}"),
        pod_labels: Default::default(),
        static_pod: false,
        port_mappings,
        limits: Limits::default(),
    }
}

/// Returns the machine's end of a node's link.
pub fn cable(node: &NodeNamespace) -> String {
    let bits = match node.addresses[0] {
        IpAddr::V4(address) => address.to_bits(),
        IpAddr::V6(address) => address.to_bits() as u32,
    };
    format!("cn-{bits:08x}")
}

/// Listens on port 80 of a namespace. A program that another test is just starting may still hold an earlier listener.
pub fn listen(namespace: &Path) -> TcpListener {
    let patience = Instant::now() + Duration::from_secs(60);
    loop {
        match enter(namespace, || TcpListener::bind("[::]:80")).unwrap() {
            Err(error) if error.kind() == ErrorKind::AddrInUse && Instant::now() < patience => {
                std::thread::sleep(Duration::from_millis(2));
            }
            bound => return bound.unwrap(),
        }
    }
}

/// Sets a link up or down.
pub fn link_is(name: &str, state: &str) {
    ip(&["link", "set", name, state]);
}

pub fn ip(arguments: &[&str]) {
    assert!(std::process::Command::new("ip").args(arguments).status().unwrap().success(), "{arguments:?}");
}
