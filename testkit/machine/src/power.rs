//! A disk that loses what was not synced, as a real one does when its power is cut.
//!
//! A journaled file system lies in a file of another one, xfs with reflinks, which lies in the machine's memory:
//!
//! ```text
//! tmpfs ── outer.img ── loop ── xfs ── disk.img ── loop ── xfs or ext4: the disk under test
//! ```
//!
//! `disk.img` holds what the inner file system has sent to its device; what only its page cache has is not in it. A reflink
//! of the file, which is atomic, is the disk at the moment of a power cut. Mounted, its journal is replayed.
//!
//! Everything is mounted on a [`Machine`], and every loop device ends with its mount: nothing outlives the machine, also
//! when the test is killed.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::machine::Machine;
use crate::tools;

/// The directory of the images on the machine, whose `/run` is memory.
const ROOT: &str = "/run/power";
/// The sizes of the images, which are sparse. xfs takes at least 300 MiB.
const OUTER_SIZE: &str = "8G";
const INNER_SIZE: &str = "1G";

/// The file system of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileSystem {
    Xfs,
    Ext4,
}

impl FileSystem {
    /// Returns the file systems in turn.
    pub fn of(number: u64) -> FileSystem {
        if number.is_multiple_of(2) { FileSystem::Xfs } else { FileSystem::Ext4 }
    }

    fn make(self) -> (PathBuf, &'static [&'static str]) {
        match self {
            FileSystem::Xfs => (tools::mkfs_xfs(), &["-q", "-f", "-m", "reflink=1"]),
            FileSystem::Ext4 => ("mkfs.ext4".into(), &["-q", "-F"]),
        }
    }

    /// Returns the name and the options of a mount. An option keeps ext4 from guessing which renames should have been
    /// synced; two images of one xfs have one id.
    fn options(self) -> (&'static str, &'static str) {
        match self {
            FileSystem::Xfs => ("xfs", "loop,nouuid"),
            FileSystem::Ext4 => ("ext4", "loop,noauto_da_alloc"),
        }
    }
}

/// A disk that is mounted on a machine.
pub struct Disk<'a> {
    machine: &'a Machine,
    kind: FileSystem,
    at: PathBuf,
    images: Cell<u64>,
}

/// The content of a disk at the moment of a power cut.
pub struct Image {
    number: u64,
}

impl<'a> Disk<'a> {
    /// Makes an empty disk and mounts it on a machine. The error says which part this host lacks.
    pub fn attach(machine: &'a Machine, kind: FileSystem, at: &Path) -> Result<Disk<'a>, String> {
        let disk = Disk { machine, kind, at: at.to_owned(), images: Cell::new(0) };
        let outer = format!("{ROOT}/outer");
        disk.run("mkdir", &["-p", &outer])?;
        disk.make(FileSystem::Xfs, "outer.img", OUTER_SIZE)?;
        disk.run("mount", &["-t", "xfs", "-o", "loop", &format!("{outer}.img"), &outer])?;
        disk.make(kind, "outer/disk.img", INNER_SIZE)?;
        disk.mount("disk.img", at)?;
        // Without reflinks there is no moment.
        let image = disk.image()?;
        disk.forget(image)?;
        Ok(disk)
    }

    /// Returns the path of a file of the disk, or of any other of the machine, for this process.
    pub fn path(&self, inside: impl AsRef<Path>) -> PathBuf {
        self.machine.path(&self.at.join(inside).display().to_string())
    }

    /// Returns what is left of the disk if its power is cut now.
    pub fn image(&self) -> Result<Image, String> {
        let number = self.images.get() + 1;
        self.images.set(number);
        let (from, to) = (file("disk.img"), file(&name(number)));
        self.run("cp", &["--reflink=always", &from, &to])?;
        Ok(Image { number })
    }

    /// Passes the directory at which an image is mounted, for this process, to a check, and drops the image.
    pub fn inspect<T>(&self, image: Image, check: impl FnOnce(&Path) -> T) -> T {
        let at = PathBuf::from(format!("{ROOT}/image"));
        let mounted = self.mount(&name(image.number), &at).map(|()| Mounted { disk: self, at: &at });
        let mounted = mounted.expect("the journal is replayed");
        let checked = check(&self.machine.path(&at.display().to_string()));
        drop(mounted);
        self.forget(image).expect("the image can be removed");
        checked
    }

    fn forget(&self, image: Image) -> Result<(), String> {
        self.run("rm", &["-f", &file(&name(image.number))])
    }

    /// Puts an image in the place of the disk, as when the power comes back. No process may use the disk any more.
    pub fn restore(&self, image: &Image) {
        let restored = (|| {
            // The last file that a killed process had open may be closed a moment later.
            self.run("umount", &["-l", &self.at.display().to_string()])?;
            self.run("rm", &["-f", &file("disk.img")])?;
            self.run("mv", &[&file(&name(image.number)), &file("disk.img")])?;
            self.mount("disk.img", &self.at)
        })();
        restored.expect("the journal is replayed");
    }

    fn make(&self, kind: FileSystem, name: &str, size: &str) -> Result<(), String> {
        let path = format!("{ROOT}/{name}");
        self.run("truncate", &["-s", size, &path])?;
        let (program, options) = kind.make();
        self.run(program, &[options, &[&path]].concat())
    }

    fn mount(&self, name: &str, at: &Path) -> Result<(), String> {
        let at = at.display().to_string();
        let (kind, options) = self.kind.options();
        self.run("mkdir", &["-p", &at])?;
        self.run("mount", &["-t", kind, "-o", options, &file(name), &at])?;
        // Programs that want an empty directory find one.
        self.run("rm", &["-rf", &format!("{at}/lost+found")])
    }

    fn run(&self, program: impl AsRef<Path>, arguments: &[&str]) -> Result<(), String> {
        let program = program.as_ref();
        let mut command = self.machine.command(program);
        let output = command.args(arguments).output().map_err(|error| error.to_string())?;
        if output.status.success() { Ok(()) } else { Err(complaint(&command, &output)) }
    }
}

impl Drop for Disk<'_> {
    /// Frees the memory; the machine may live on.
    fn drop(&mut self) {
        let _ = self.run("umount", &["-l", &self.at.display().to_string()]);
        let _ = self.run("umount", &["-l", &format!("{ROOT}/outer")]);
        let _ = self.run("rm", &["-rf", "--one-file-system", ROOT]);
    }
}

/// An image that is mounted to be read.
struct Mounted<'a> {
    disk: &'a Disk<'a>,
    at: &'a Path,
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let _ = self.disk.run("umount", &["-l", &self.at.display().to_string()]);
    }
}

fn name(image: u64) -> String {
    format!("image-{image}.img")
}

/// Returns the path of a file of the outer file system on the machine.
fn file(name: &str) -> String {
    format!("{ROOT}/outer/{name}")
}

fn complaint(command: &Command, output: &Output) -> String {
    format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim())
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};

    use super::*;

    fn names(directory: &Path) -> Vec<String> {
        let entries = fs::read_dir(directory).expect("a directory");
        let mut names: Vec<String> =
            entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_power_cut_loses_what_was_not_synced_and_nothing_else() {
        if !tools::is_root() {
            eprintln!("skipped: a machine needs root");
            return;
        }
        for kind in [FileSystem::Xfs, FileSystem::Ext4] {
            let machine = Machine::boot();
            let disk = match Disk::attach(&machine, kind, Path::new("/run/disk")) {
                Ok(disk) => disk,
                Err(reason) => {
                    eprintln!("skipped: {reason}");
                    return;
                }
            };
            let directory = File::open(disk.path("")).expect("the disk");
            fs::write(disk.path("synced"), "old").expect("a file");
            sync(&disk.path("synced"));
            directory.sync_all().expect("a sync");
            fs::write(disk.path("synced.new"), "new").expect("a file");
            fs::rename(disk.path("synced.new"), disk.path("synced")).expect("a rename");
            fs::write(disk.path("unsynced"), "new").expect("a file");
            let image = disk.image().expect("a reflink");
            let read = disk.inspect(image, |path| (names(path), fs::read(path.join("synced")).expect("a file")));
            assert_eq!(read, (vec!["synced".to_owned()], b"old".to_vec()), "{kind:?}");
            // The power comes back, and goes again after a sync.
            let image = disk.image().expect("a reflink");
            drop(directory);
            disk.restore(&image);
            assert_eq!(names(&disk.path("")), ["synced"]);
            fs::rename(disk.path("synced"), disk.path("moved")).expect("a rename");
            File::open(disk.path("")).and_then(|directory| directory.sync_all()).expect("a sync");
            let image = disk.image().expect("a reflink");
            assert_eq!(disk.inspect(image, names), ["moved"], "{kind:?}");
        }
    }

    fn sync(path: &Path) {
        File::open(path).and_then(|file| file.sync_all()).expect("a sync");
    }
}
