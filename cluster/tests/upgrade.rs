//! An upgrade from the last release, and the way back.
//!
//! `data/v0.2.0.tar.gz` is a data directory that the binary of v0.2.0 wrote: a ConfigMap `memory` and a Secret `password`
//! with the value `v0.2.0`, and a Deployment. The way back needs that binary: `CORTEN_PREVIOUS` names it, and without it
//! the test says so.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use testkit::cluster::Cluster;
use testkit::tools;

const CORTEN: &str = env!("CARGO_BIN_EXE_corten");
const DATA: &[u8] = include_bytes!("data/v0.2.0.tar.gz");

/// Unpacks the data directory.
fn unpack(into: &Path) {
    fs::create_dir_all(into).unwrap();
    tar::Archive::new(flate2::read::GzDecoder::new(DATA)).unpack(into).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o700);
    fs::set_permissions(into, mode).unwrap();
}

fn holds_its_objects(cluster: &Cluster) {
    assert_eq!(cluster.kubectl(&["get", "configmap", "memory", "-o", "jsonpath={.data.of}"]), "v0.2.0");
    assert_eq!(cluster.kubectl(&["get", "secret", "password", "-o", "jsonpath={.data.of}"]), "djAuMi4w");
    assert!(cluster.kubectl(&["get", "deployment", "web"]).contains("web"));
}

#[test]
fn a_data_directory_of_the_last_release_is_taken_over_and_given_back() {
    if !tools::is_root() {
        eprintln!("skipped: a cluster needs root");
        return;
    }
    let cluster = Cluster::machine(CORTEN);
    unpack(&cluster.data_dir());
    let checked = cluster.corten(&["upgrade", "--check"]);
    assert!(checked.contains("the upgrade can work"), "{checked}");
    cluster.start(&[]);
    let checked = cluster.corten(&["upgrade", "--check"]);
    assert!(checked.contains("which this version decodes"), "{checked}");
    holds_its_objects(&cluster);
    cluster.kubectl(&["create", "configmap", "written", "--from-literal=by=the-new-version"]);
    cluster.corten(&["down"]);
    assert_eq!(fs::read_to_string(cluster.data_dir().join("format")).unwrap(), "1\n");

    let Some(previous) = std::env::var_os("CORTEN_PREVIOUS").map(PathBuf::from) else {
        eprintln!("skipped: CORTEN_PREVIOUS names no binary of the last release");
        return;
    };
    let run = |arguments: &[&str]| {
        let mut command: Command = cluster.machine.command(&previous);
        command.args(arguments).arg("--data-dir").arg(cluster.data_dir()).env("HOME", cluster.scratch());
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    run(&["up", "--timeout", "600"]);
    holds_its_objects(&cluster);
    assert_eq!(cluster.kubectl(&["get", "configmap", "written", "-o", "jsonpath={.data.by}"]), "the-new-version");
    run(&["down"]);
    cluster.start(&[]);
    holds_its_objects(&cluster);
}

#[test]
fn a_directory_of_a_newer_format_is_refused_before_anything_is_written() {
    if !tools::is_root() {
        eprintln!("skipped: a cluster needs root");
        return;
    }
    let cluster = Cluster::machine(CORTEN);
    unpack(&cluster.data_dir());
    let write = |name: &str, text: &str| fs::write(cluster.data_dir().join(name), text).unwrap();
    let refused = |arguments: &[&str]| {
        let output = cluster.corten_command(arguments).output().unwrap();
        assert!(!output.status.success(), "{arguments:?} did not fail");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let names = || {
        let mut names: Vec<_> =
            fs::read_dir(cluster.data_dir()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    let before = names();
    write("format", "2\n");
    for arguments in [&["upgrade", "--check"][..], &["up"], &["server"], &["apiserver"]] {
        let said = refused(arguments);
        assert!(said.contains("format 2; this binary reads format 1"), "{arguments:?}: {said}");
    }
    write("format", "1\n");
    write("store/FORMAT", "corten-store 2\n");
    let said = refused(&["upgrade", "--check"]);
    assert!(said.contains("the store is damaged") || said.contains("format"), "{said}");
    let said = refused(&["apiserver"]);
    assert!(said.contains("has format 2"), "{said}");
    assert_eq!(names().iter().filter(|name| !before.contains(name)).count(), 0, "{:?}", names());
}
