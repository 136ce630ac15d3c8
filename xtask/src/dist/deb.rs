//! A Debian package: an `ar` archive of the format's version, the control files and the files to install.

use anyhow::{Context, Result};

use super::tree::Tree;
use super::{Inputs, add_pages};

/// The package's bytes.
pub fn package(inputs: &Inputs) -> Result<Vec<u8>> {
    let data = data(inputs)?;
    let mut control = Tree::default();
    control.add("control", 0o644, fields(inputs, data.size())?.into_bytes());
    control.add("conffiles", 0o644, b"/etc/default/corten\n/etc/default/corten-agent\n".to_vec());
    control.add("postinst", 0o755, std::fs::read(inputs.root.join("cluster/dist/postinst"))?);
    let mut package = b"!<arch>\n".to_vec();
    append(&mut package, "debian-binary", b"2.0\n");
    append(&mut package, "control.tar.gz", &control.gzipped("./")?);
    append(&mut package, "data.tar.gz", &data.gzipped("./")?);
    Ok(package)
}

fn data(inputs: &Inputs) -> Result<Tree> {
    let units = inputs.root.join("cluster/dist");
    let mut pages = Tree::default();
    add_pages(&mut pages, inputs)?;
    let mut data = pages.below("usr");
    data.add("usr/bin/corten", 0o755, std::fs::read(&inputs.binary)?);
    for unit in ["corten", "corten-agent"] {
        let name = format!("usr/lib/systemd/system/{unit}.service");
        data.add(&name, 0o644, std::fs::read(units.join(format!("{unit}.service")))?);
        data.add(&format!("etc/default/{unit}"), 0o644, std::fs::read(units.join(format!("{unit}.default")))?);
    }
    data.add("usr/share/doc/corten/copyright", 0o644, std::fs::read(inputs.root.join("LICENSE"))?);
    Ok(data)
}

fn fields(inputs: &Inputs, size: u64) -> Result<String> {
    let binary = std::fs::read(&inputs.binary)?;
    let glibc = newest_glibc(&binary).context("the program is not linked with glibc")?;
    Ok(format!(
        "Package: corten\nVersion: {}\nArchitecture: amd64\nMaintainer: The Corten project\nInstalled-Size: {}\n\
         Depends: libc6 (>= {glibc}), libgcc-s1\nRecommends: kubectl\nSection: admin\nPriority: optional\n\
         Homepage: https://github.com/corten-project/corten\nDescription: Kubernetes in one binary\n \
         API server, store, scheduler, controllers, kubelet, container runtime, network,\n \
         proxy and DNS of a Kubernetes cluster in one program.\n",
        inputs.version,
        size.div_ceil(1024)
    ))
}

/// The newest version of glibc that the program asks for, as its symbols name it.
fn newest_glibc(binary: &[u8]) -> Option<String> {
    const START: &[u8] = b"GLIBC_2.";
    let minors = binary.split(|byte| *byte == 0).filter_map(|text| {
        let minor = text.strip_prefix(START)?;
        std::str::from_utf8(minor).ok()?.parse::<u32>().ok()
    });
    minors.max().map(|minor| format!("2.{minor}"))
}

/// Appends a member of an `ar` archive; members begin at even places.
fn append(archive: &mut Vec<u8>, name: &str, bytes: &[u8]) {
    let header = format!("{name:<16}{:<12}{:<6}{:<6}{:<8}{:<10}`\n", 0, 0, 0, "100644", bytes.len());
    archive.extend(header.bytes());
    archive.extend(bytes);
    if bytes.len() % 2 == 1 {
        archive.push(b'\n');
    }
}
