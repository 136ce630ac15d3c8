//! Backup and restore on machines made of namespaces: a cluster goes to a bare machine with another address, and back in
//! time on its own machine; what cannot work is refused in a sentence.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use testkit::cluster::{Cluster, IMAGE};
use testkit::{tools, wait};

const CORTEN: &str = env!("CARGO_BIN_EXE_corten");

const ENCRYPTION: &str = "apiVersion: apiserver.config.k8s.io/v1
kind: EncryptionConfiguration
resources:
- resources: [secrets, configmaps]
  providers:
  - aesgcm:
      keys:
      - {name: k1, secret: AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=}
  - identity: {}
";

/// Runs a command that must succeed, and returns what it prints.
fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Runs a command that must fail, and returns its sentence.
fn refused(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(!output.status.success(), "{command:?} did not fail");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Runs `corten` on a machine without a data directory.
fn plain(on: &Cluster, arguments: &[&str]) -> Command {
    let mut command = on.machine.command(Path::new(CORTEN));
    command.args(arguments).env_remove("CORTEN_BACKUP_PASSPHRASE");
    command
}

/// The files of a test, outside of every data directory.
struct Files {
    folder: tempfile::TempDir,
}

impl Files {
    fn new() -> Files {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("key"), [7; 64]).unwrap();
        fs::write(folder.path().join("other"), [8; 64]).unwrap();
        fs::write(folder.path().join("passphrase"), "correct horse battery\n").unwrap();
        fs::write(folder.path().join("encryption.yaml"), ENCRYPTION).unwrap();
        Files { folder }
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }
}

#[test]
fn a_cluster_goes_to_a_bare_machine_with_another_address() {
    if !tools::is_root() {
        eprintln!("skipped: a cluster needs root");
        return;
    }
    let files = Files::new();
    let key = files.path("key");
    let sealed = files.path("cluster.corten");
    let encryption = files.path("encryption.yaml");
    let old = Cluster::machine(CORTEN);
    old.start(&["--node-name", "old", "--cluster-cidr", "10.7.0.0/16", "--encryption-provider-config", &encryption]);
    old.import_image();
    old.kubectl(&["create", "configmap", "memory", "--from-literal=of=before"]);
    old.kubectl(&["create", "secret", "generic", "password", "--from-literal=of=before"]);
    old.kubectl(&["create", "deployment", "sleeper", "--image", IMAGE, "--", "sleep", "3600"]);
    old.kubectl_wait(&["rollout", "status", "deployment/sleeper"]);
    old.corten(&["token", "create", "abcdef.0123456789abcdef"]);

    // While the cluster runs.
    let said = refused(old.corten_command(&["backup", &sealed]).env_remove("CORTEN_BACKUP_PASSPHRASE"));
    assert!(said.contains("a backup is sealed: name --passphrase-file or --key-file"), "{said}");
    assert!(old.corten(&["backup", &sealed, "--key-file", &key]).contains("sealed for the key file"));
    let said = refused(&mut old.corten_command(&["backup", &sealed, "--key-file", &key]));
    assert!(said.contains("a backup does not replace a file"), "{said}");
    let with_passphrase = files.path("passphrase.corten");
    let passphrase = files.path("passphrase");
    old.corten(&["backup", &with_passphrase, "--passphrase-file", &passphrase]);

    let version = old.kubectl(&["get", "configmap", "memory", "-o", "jsonpath={.metadata.resourceVersion}"]);
    old.kubectl(&["create", "configmap", "after", "--from-literal=of=after"]);
    inspected(&old, &files);

    let new = Cluster::machine(CORTEN);
    old.machine.connect(&new.machine, "10.88.0.3");
    let other = files.path("other");
    for (arguments, sentence) in [
        (&["restore", &sealed, "--key-file", &other][..], "the key file does not open it"),
        (&["restore", &sealed, "--passphrase-file", &passphrase], "it was sealed for a key file"),
        (&["restore", &encryption, "--key-file", &key], "it is no backup of corten"),
        (&["restore", &files.path("short.corten"), "--key-file", &key], "it is cut off"),
        (&["restore", &files.path("newer.corten"), "--key-file", &key], "it has format 2"),
        (&["restore", "--finish"], "no restore"),
    ] {
        let said = refused(&mut new.corten_command(arguments));
        assert!(said.contains(sentence), "{arguments:?}: {said}");
        assert!(!new.data_dir().join("pki").exists() && !new.data_dir().join("store").exists());
    }
    let said = new.corten(&["restore", &sealed, "--key-file", &key]);
    assert!(said.contains("from node old"), "{said}");
    let said = refused(&mut new.corten_command(&["restore", &sealed, "--key-file", &key]));
    assert!(said.contains("holds a cluster"), "{said}");

    // No flag, no token, no other file.
    new.start(&[]);
    new.import_image();
    assert_eq!(new.kubectl(&["get", "configmap", "memory", "-o", "jsonpath={.data.of}"]), "before");
    assert_eq!(new.kubectl(&["get", "secret", "password", "-o", "jsonpath={.data.of}"]), "YmVmb3Jl");
    assert!(new.kubectl_fails(&["get", "configmap", "after"]).contains("not found"));
    assert!(new.corten(&["token", "list"]).contains("abcdef"));
    let address = "jsonpath={.items[*].metadata.name} {.items[*].status.addresses[0].address}";
    new.kubectl_until(&["get", "nodes", "-o", address], |text| text == "old 10.88.0.3");
    let endpoints = ["get", "endpointslices", "kubernetes", "-o", "jsonpath={.endpoints[*].addresses[0]}"];
    new.kubectl_until(&endpoints, |text| text == "10.88.0.3");
    new.kubectl_wait(&["rollout", "status", "deployment/sleeper"]);
    new.kubectl_until(&["get", "pods", "-o", "jsonpath={.items[*].status.podIP}"], |text| text.starts_with("10.7."));
    // A client of the old cluster reads everything anew.
    for revision in [version.parse::<u64>().unwrap(), version.parse::<u64>().unwrap() + 1000] {
        let path = format!("/api/v1/namespaces/default/configmaps?watch=1&timeoutSeconds=5&resourceVersion={revision}");
        let output = new.kubectl_command(&["get", "--raw", &path]).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        assert!(text.contains("too old resource version") || text.contains("410"), "{text}");
    }
    let said = refused(&mut new.corten_command(&["restore", &sealed, "--key-file", &key, "--set-aside"]));
    assert!(said.contains("a cluster runs in"), "{said}");
}

/// Checks the commands that read backups, and makes a short and a newer one.
fn inspected(on: &Cluster, files: &Files) {
    let sealed = files.path("cluster.corten");
    let key = files.path("key");
    let verified = run(&mut plain(on, &["backup", "verify", &sealed, "--key-file", &key]));
    assert!(verified.contains("is complete") && verified.contains("node      old"), "{verified}");
    let passphrase = files.path("passphrase.corten");
    let mut command = plain(on, &["backup", "verify", &passphrase]);
    assert!(run(command.env("CORTEN_BACKUP_PASSPHRASE", "correct horse battery")).contains("is complete"));
    let mut command = plain(on, &["backup", "verify", &passphrase]);
    let said = refused(command.env("CORTEN_BACKUP_PASSPHRASE", "another horse battery"));
    assert!(said.contains("the passphrase does not open it"), "{said}");
    let bytes = fs::read(&sealed).unwrap();
    fs::write(files.path("short.corten"), &bytes[..bytes.len() / 2]).unwrap();
    let mut newer = bytes.clone();
    newer[8] = 2;
    fs::write(files.path("newer.corten"), newer).unwrap();
    let folder = files.folder.path().to_str().unwrap();
    let listed = run(&mut plain(on, &["backup", "list", folder]));
    assert!(listed.contains("cluster.corten") && listed.contains("it has format 2"), "{listed}");
    let snapshot = files.path("snapshot.db");
    run(&mut plain(on, &["backup", "snapshot", &sealed, &snapshot, "--key-file", &key]));
    let checked = run(&mut plain(on, &["etcd", "check", &snapshot]));
    assert!(checked.contains("Namespace"), "{checked}");
}

#[test]
fn a_cluster_goes_back_in_time_on_its_own_machine() {
    if !tools::is_root() {
        eprintln!("skipped: a cluster needs root");
        return;
    }
    let files = Files::new();
    let key = files.path("key");
    let target = files.path("scheduled");
    let cluster = Cluster::machine(CORTEN);
    cluster.start(&[
        "--backup-schedule",
        "@every 1s",
        "--backup-target",
        &target,
        "--backup-keep",
        "2",
        "--backup-key-file",
        &key,
    ]);
    cluster.import_image();
    cluster.kubectl(&["create", "configmap", "memory", "--from-literal=of=before"]);
    let names = || {
        let mut names: Vec<PathBuf> =
            fs::read_dir(&target).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
        names.retain(|path| path.extension().is_some_and(|extension| extension == "corten"));
        names.sort();
        names
    };
    // The third newest is deleted, so the first ones are gone when another two were taken.
    let first = wait::until("a backup", wait::BOUND, || names().first().cloned().ok_or_else(|| "none".to_owned()));
    wait::until("the end of the first backup", wait::BOUND, || match first.exists() {
        false if names().len() <= 3 => Ok(()),
        _ => Err(format!("{:?}", names())),
    });
    let record = cluster.data_dir().join("backup.json");
    assert!(fs::read_to_string(record).unwrap().contains("\"success\""));

    let sealed = files.path("cluster.corten");
    cluster.corten(&["backup", &sealed, "--key-file", &key]);
    cluster.kubectl(&["create", "configmap", "after", "--from-literal=of=after"]);
    cluster.kubectl(&["run", "phantom", "--image", IMAGE, "--", "sleep", "86000"]);
    cluster.kubectl_wait(&["wait", "--for=condition=Ready", "pod/phantom"]);
    let phantoms = || cluster.machine.processes().iter().filter(|process| process.contains("sleep 86000")).count();
    assert!(phantoms() > 0);

    // Containers outlive a killed server, and go on while the state goes back.
    cluster.kill_hard();
    assert!(phantoms() > 0);
    let said = cluster.corten(&["restore", &sealed, "--key-file", &key, "--set-aside"]);
    assert!(said.contains("what was there before is in"), "{said}");
    cluster.start(&[]);
    assert_eq!(cluster.kubectl(&["get", "configmap", "memory", "-o", "jsonpath={.data.of}"]), "before");
    assert!(cluster.kubectl_fails(&["get", "configmap", "after"]).contains("not found"));
    wait::until("the end of the phantom pod", wait::BOUND, || match phantoms() {
        0 => Ok(()),
        left => Err(format!("{left} processes")),
    });
    let aside = fs::read_dir(cluster.data_dir()).unwrap().flatten().map(|entry| entry.path());
    let aside: Vec<PathBuf> = aside.filter(|path| path.to_string_lossy().contains("replaced-")).collect();
    assert!(aside.len() == 1 && aside[0].join("store/FORMAT").exists(), "{aside:?}");

    // A stopped cluster is backed up as well, and its store is intact.
    cluster.corten(&["down"]);
    let stopped = files.path("stopped.corten");
    cluster.corten(&["backup", &stopped, "--key-file", &key]);
    assert!(cluster.corten(&["store", "verify"]).contains("is intact"));
    run(&mut plain(&cluster, &["backup", "verify", &stopped, "--key-file", &key]));
}
