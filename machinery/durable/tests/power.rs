//! Tests that a change is on the disk when its function returns, on a disk that loses what was not synced.

#![allow(clippy::unwrap_used, reason = "a test stops at what it does not expect")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use testkit_machine::machine::Machine;
use testkit_machine::power::{Disk, FileSystem};
use testkit_machine::tools;

/// Runs a test on disks of each file system; none where this host cannot make them.
fn on_disks(test: impl Fn(&Disk<'_>)) {
    if !tools::is_root() {
        eprintln!("skipped: a machine needs root");
        return;
    }
    for kind in [FileSystem::Xfs, FileSystem::Ext4] {
        let machine = Machine::boot();
        match Disk::attach(&machine, kind, Path::new("/run/disk")) {
            Ok(disk) => test(&disk),
            Err(reason) => eprintln!("skipped: {reason}"),
        }
    }
}

/// Cuts the power, and returns the names and the content of the files of a directory.
fn after_a_cut(disk: &Disk<'_>, directory: &str) -> Vec<(String, String)> {
    let image = disk.image().unwrap();
    disk.inspect(image, |root| {
        let entries = fs::read_dir(root.join(directory)).unwrap().map(|entry| entry.unwrap().path());
        let name = |path: &Path| path.file_name().unwrap().to_string_lossy().into_owned();
        let mut all: Vec<(String, String)> =
            entries.map(|path| (name(&path), fs::read_to_string(&path).unwrap_or_default())).collect();
        all.sort();
        all
    })
}

fn files(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    expected.iter().map(|(name, content)| ((*name).to_owned(), (*content).to_owned())).collect()
}

#[test]
fn changes_survive_a_power_cut() {
    on_disks(|disk| {
        let file = disk.path("file");
        for content in ["old", "new"] {
            corten_durable::write(&file, content.as_bytes(), 0o600).unwrap();
            assert_eq!(after_a_cut(disk, ""), files(&[("file", content)]));
        }
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        fs::create_dir(disk.path("directory")).unwrap();
        corten_durable::rename(&file, &disk.path("directory/moved")).unwrap();
        assert_eq!(after_a_cut(disk, ""), files(&[("directory", "")]));
        assert_eq!(after_a_cut(disk, "directory"), files(&[("moved", "new")]));
        fs::write(disk.path("directory/moved.new"), "half").unwrap();
        for _ in 0..2 {
            corten_durable::remove(&disk.path("directory/moved")).unwrap();
            assert_eq!(after_a_cut(disk, "directory"), files(&[]));
        }
        for _ in 0..2 {
            corten_durable::remove_directory(&disk.path("directory")).unwrap();
            assert_eq!(after_a_cut(disk, ""), files(&[]));
        }
    });
}

#[test]
fn a_link_in_the_way_of_a_write_is_not_followed() {
    on_disks(|disk| {
        fs::write(disk.path("victim"), "whole").unwrap();
        std::os::unix::fs::symlink(disk.path("victim"), disk.path("file.new")).unwrap();
        corten_durable::write(&disk.path("file"), b"content", 0o600).unwrap();
        assert_eq!(fs::read_to_string(disk.path("victim")).unwrap(), "whole");
        assert_eq!(fs::read_to_string(disk.path("file")).unwrap(), "content");
    });
}
