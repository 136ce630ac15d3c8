//! The binary of every server is exchanged, one after the other, under load: for the next version, and back.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use super::faults::{self, World};
use super::machines::{CORTEN, etcd};
use super::number;

/// The paths of the machines' binaries: links, which are exchanged as an installed binary is.
struct Binaries {
    folder: tempfile::TempDir,
}

impl Binaries {
    fn new(servers: usize, binary: &Path) -> Binaries {
        let binaries = Binaries { folder: tempfile::tempdir().unwrap() };
        (0..servers).for_each(|server| binaries.exchange(server, binary));
        binaries
    }

    fn path(&self, server: usize) -> PathBuf {
        self.folder.path().join(format!("corten-{server}"))
    }

    fn exchange(&self, server: usize, binary: &Path) {
        let new = self.folder.path().join("new");
        symlink(binary, &new).unwrap();
        std::fs::rename(new, self.path(server)).unwrap();
    }
}

/// Returns the versions that the servers report.
fn versions(world: &World) -> Vec<String> {
    let of = |index: usize| world.servers[index].corten(&["--version"]);
    (0..world.servers.len()).map(of).collect()
}

#[test]
fn a_rolling_upgrade_and_the_way_back_fail_no_request() {
    let Some(etcd) = etcd() else { return };
    let Some(previous) = std::env::var_os("CORTEN_PREVIOUS").map(PathBuf::from) else {
        eprintln!("skipped: CORTEN_PREVIOUS names no binary of the last release");
        return;
    };
    let binaries = Binaries::new(3, &previous);
    let paths: Vec<String> = (0..3).map(|server| binaries.path(server).to_string_lossy().into_owned()).collect();
    let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
    let world = World::of(&etcd, &[], &paths);
    let rate = number("FAULTS_RATE").unwrap_or(100);
    println!("before: {:?}", versions(&world));
    for (seed, binary) in [(1, Path::new(CORTEN)), (2, previous.as_path())] {
        faults::rolling_exchange(&world, seed, rate, &|server| binaries.exchange(server, binary));
        println!("after: {:?}", versions(&world));
    }
}
