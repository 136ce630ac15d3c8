//! Authorities and keys of several servers rotate while a load runs, by commands that are killed and repeated, and with a
//! server that is off at first. A server whose address changes comes back by itself.
//!
//! The tests need root and an etcd (`ETCD_BINARY`, or in the search path), and say so where either is missing.

#![allow(clippy::unwrap_used)]

use std::process::{Command, Stdio};
use std::time::Duration;

use testkit::cluster::Cluster;
use testkit::{tools, wait};

use crate::faults::{self, World};
use crate::machines::{etcd, members};

/// Returns the certificates of a file, by their number.
fn certificates(on: &Cluster, file: &str) -> usize {
    let text = std::fs::read_to_string(on.data_dir().join(file)).unwrap_or_default();
    text.matches("BEGIN CERTIFICATE").count()
}

#[test]
fn several_servers_rotate_without_a_failed_request() {
    let Some(etcd) = etcd() else { return };
    let world = World::new(&etcd, &[]);
    let [one, two, three] = &world.servers[..] else { panic!("three servers") };
    one.kubectl(&["create", "secret", "generic", "kept", "--from-literal=a=b"]);
    let read = |on: &Cluster, name: &str| std::fs::read_to_string(on.data_dir().join("pki").join(name)).unwrap();
    let files = ["ca.key", "etcd-ca.key", "sa.key", "secrets.key"];
    let before = files.map(|file| read(one, file));
    faults::rotation(&world, 1, 100);
    for (file, before) in files.iter().zip(&before) {
        assert_ne!(read(one, file), *before, "{file}");
        for other in [two, three] {
            assert_eq!(read(other, file), read(one, file), "{file}");
        }
    }
    members(one, &["one", "three", "two"]);
    for server in [one, two, three] {
        assert_eq!([certificates(server, "pki/ca.crt"), certificates(server, "etcd/pki/ca.crt")], [1, 1]);
        assert_eq!(server.kubectl(&["get", "secret", "kept", "-o", "jsonpath={.data.a}"]), "Yg==");
    }
    one.kubectl_until(&["get", "nodes"], |text| text.matches(" Ready ").count() == 4);

    // A command that is killed at any moment is repeated, on another server too.
    for (number, milliseconds) in [40, 150, 400, 900, 2000].into_iter().enumerate() {
        let mut command = world.servers[number % 3].corten_command(&["ca", "rotate"]);
        let mut rotating = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(milliseconds));
        // The command is a child of the program that entered the machine.
        let id = rotating.id();
        let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap_or_default();
        for child in children.split_whitespace() {
            let _ = Command::new(tools::busybox()).args(["kill", "-9", child]).status();
        }
        let _ = rotating.kill();
        let _ = rotating.wait();
    }

    // A server that is off is waited for.
    three.kill_hard();
    let rotating = one.corten_command(&["ca", "rotate"]).stdout(Stdio::null()).spawn().unwrap();
    one.kubectl_until(&["create", "configmap", "written-by-two-servers"], |text| text.contains("created"));
    three.start(&["--node-name", "three"]);
    assert!(rotating.wait_with_output().unwrap().status.success());
    for server in [one, two, three] {
        assert_eq!([certificates(server, "pki/ca.crt"), certificates(server, "etcd/pki/ca.crt")], [2, 2]);
    }

    // A server whose address changes comes back by itself, and its member with it.
    three.machine.ip("addr del 10.88.0.4/24 dev eth0");
    three.machine.ip("addr add 10.88.0.44/24 dev eth0");
    three.machine.ip("route add default via 10.88.0.1");
    members(one, &["one", "three", "two"]);
    wait::until("the new address of the member", wait::BOUND, || {
        let text = std::fs::read_to_string(one.data_dir().join("etcd/member.json")).unwrap_or_default();
        if text.contains("https://10.88.0.44:2379") && !text.contains("https://10.88.0.4:2379") {
            Ok(())
        } else {
            Err(text)
        }
    });
    let endpoints = ["get", "endpointslices", "kubernetes", "-o", "jsonpath={.endpoints[*].addresses[0]}"];
    two.kubectl_until(&endpoints, |text| text.contains("10.88.0.44") && text.split_whitespace().count() == 3);
    two.kubectl_until(&["get", "nodes"], |text| text.matches(" Ready ").count() == 4);
}
