//! Tests of unpacked layers, and of hostile ones.

use super::*;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};

fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

fn header(kind: tar::EntryType, size: u64, mode: u32) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(kind);
    header.set_size(size);
    header.set_mode(mode);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(1_000_000_000);
    header
}

fn archive(build: impl FnOnce(&mut tar::Builder<Vec<u8>>)) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    build(&mut builder);
    builder.into_inner().expect("a finished archive")
}

fn file(builder: &mut tar::Builder<Vec<u8>>, path: &str, content: &[u8]) {
    let mut header = header(tar::EntryType::Regular, content.len() as u64, 0o4755);
    // Sets the name by hand: the builder refuses the hostile names that this test is about.
    header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
    header.set_cksum();
    builder.append(&header, content).expect("append");
}

fn link(builder: &mut tar::Builder<Vec<u8>>, kind: tar::EntryType, path: &str, target: &str) {
    let mut header = header(kind, 0, 0o777);
    header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
    header.as_old_mut().linkname[..target.len()].copy_from_slice(target.as_bytes());
    header.set_cksum();
    builder.append(&header, io::empty()).expect("append");
}

#[test]
fn a_layer_keeps_modes_links_and_overlay_whiteouts() {
    if !is_root() {
        eprintln!("skipped: unpacking a layer makes device nodes, which needs root");
        return;
    }
    let layer = archive(|builder| {
        file(builder, "bin/tool", b"tool");
        link(builder, tar::EntryType::Link, "bin/alias", "bin/tool");
        link(builder, tar::EntryType::Symlink, "sh", "bin/tool");
        file(builder, "etc/.wh.gone", b"");
        file(builder, "var/.wh..wh..opq", b"");
    });
    let directory = tempfile::tempdir().expect("a temporary directory");
    let size = unpack(layer.as_slice(), directory.path()).expect("unpack");
    let metadata = |path: &str| std::fs::symlink_metadata(directory.path().join(path)).expect(path);
    assert_eq!(size, Size { bytes: 4, inodes: 5 });
    assert_eq!(metadata("bin/tool").permissions().mode() & 0o7777, 0o4755);
    assert_eq!(metadata("bin/tool").mtime(), 1_000_000_000);
    assert_eq!(metadata("bin/tool").ino(), metadata("bin/alias").ino());
    assert!(metadata("sh").file_type().is_symlink());
    assert!(metadata("etc/gone").file_type().is_char_device() && metadata("etc/gone").rdev() == 0);
    let opaque = xattr::get(directory.path().join("var"), "trusted.overlay.opaque").expect("read the attribute");
    assert_eq!(opaque.as_deref(), Some(b"y".as_slice()));
}

#[test]
fn a_layer_cannot_set_attributes_of_overlayfs() {
    if !is_root() {
        eprintln!("skipped: setting trusted attributes needs root");
        return;
    }
    let layer = archive(|builder| {
        let attributes =
            [("SCHILY.xattr.trusted.overlay.redirect", b"/etc".as_slice()), ("SCHILY.xattr.user.note", b"kept")];
        builder.append_pax_extensions(attributes).expect("extensions");
        file(builder, "innocent", b"x");
    });
    let directory = tempfile::tempdir().expect("a temporary directory");
    unpack(layer.as_slice(), directory.path()).expect("unpack");
    let read = |name: &str| xattr::get(directory.path().join("innocent"), name).ok().flatten();
    assert_eq!(read("trusted.overlay.redirect"), None);
    assert!(read("user.note").is_none_or(|value| value == b"kept"), "where the file system takes it at all");
}

#[test]
fn no_name_and_no_link_reaches_outside_of_the_layer() {
    if !is_root() {
        eprintln!("skipped: unpacking a layer changes owners, which needs root");
        return;
    }
    let outside = tempfile::tempdir().expect("a temporary directory");
    let inside = tempfile::tempdir().expect("a temporary directory");
    let target = outside.path().to_str().expect("a readable path");
    let layer = archive(|builder| {
        link(builder, tar::EntryType::Symlink, "way-out", target);
        file(builder, "way-out/through-a-link", b"x");
        file(builder, "../../climbed", b"x");
        file(builder, "/absolute", b"x");
    });
    unpack(layer.as_slice(), inside.path()).expect("unpack");
    assert_eq!(std::fs::read_dir(outside.path()).expect("list").count(), 0);
    assert!(inside.path().join("climbed").exists() && inside.path().join("absolute").exists());
}

#[test]
fn whiteouts_hide_only_names_of_their_own_directory() {
    if !is_root() {
        eprintln!("skipped: unpacking a layer makes device nodes, which needs root");
        return;
    }
    let outside = tempfile::tempdir().expect("a temporary directory");
    std::fs::write(outside.path().join("kept"), "x").expect("a file");
    let inside = tempfile::tempdir().expect("a temporary directory");
    let target = outside.path().to_str().expect("a readable path");
    for (name, refused) in [
        (".wh.", true),
        (".wh..", true),
        (".wh...", true),
        ("a/.wh..", true),
        ("a/.wh...", true),
        ("link/.wh.kept", true),
        ("link/.wh..wh..opq", true),
        ("inner/.wh.file", true),
        (".wh..wh.plnk", false),
        ("a/.wh.gone", false),
        ("../../a/.wh.gone", false),
    ] {
        let directory = inside.path().join(name.replace('/', "_"));
        std::fs::create_dir(&directory).expect("a directory");
        let layer = archive(|builder| {
            file(builder, "a/file", b"x");
            link(builder, tar::EntryType::Symlink, "link", target);
            link(builder, tar::EntryType::Symlink, "inner", "a");
            file(builder, name, b"");
        });
        let unpacked = unpack(layer.as_slice(), &directory);
        assert_eq!(unpacked.is_err(), refused, "{name}: {unpacked:?}");
        assert!(directory.join("a/file").exists(), "{name}");
        assert!(outside.path().join("kept").exists(), "{name}");
    }
}

#[test]
fn a_sparse_file_that_claims_an_exbibyte_is_refused() {
    if !is_root() {
        eprintln!("skipped: unpacking a layer changes owners, which needs root");
        return;
    }
    // A sparse file of an exbibyte: two blocks in the archive.
    let mut sparse = header(tar::EntryType::GNUSparse, 0, 0o644);
    sparse.as_old_mut().name[..6].copy_from_slice(b"sparse");
    let gnu = sparse.as_gnu_mut().expect("a GNU header");
    gnu.realsize = *b"\x80\0\0\0\x10\0\0\0\0\0\0\0";
    gnu.sparse[0].offset = gnu.realsize;
    gnu.sparse[0].numbytes = *b"00000000000\0";
    sparse.set_cksum();
    let layer = archive(|builder| builder.append(&sparse, io::empty()).expect("append"));
    let directory = tempfile::tempdir().expect("a temporary directory");
    let error = unpack(layer.as_slice(), directory.path()).expect_err("too large").to_string();
    assert!(error.contains("larger than a layer may be"), "{error}");
    // The zeros of an entry that becomes no file are not read.
    sparse.as_old_mut().name[..6].copy_from_slice(b".wh.aa");
    sparse.set_cksum();
    let layer = archive(|builder| builder.append(&sparse, io::empty()).expect("append"));
    let error = unpack(layer.as_slice(), directory.path()).expect_err("not a file").to_string();
    assert!(error.contains("a sparse file that nobody reads"), "{error}");
}

#[test]
fn sparse_files_are_unpacked_under_their_own_name() {
    if !is_root() {
        eprintln!("skipped: unpacking a layer changes owners, which needs root");
        return;
    }
    let layer = archive(|builder| {
        let records = [
            ("GNU.sparse.major", b"1".as_slice()),
            ("GNU.sparse.minor", b"0"),
            ("GNU.sparse.name", b"d/big"),
            ("GNU.sparse.realsize", b"1073741824"),
        ];
        builder.append_pax_extensions(records).expect("extensions");
        let mut content = b"1\n1073741820\n4\n".to_vec();
        content.resize(512, 0);
        content.extend(b"data");
        file(builder, "d/GNUSparseFile.0/big", &content);
    });
    let directory = tempfile::tempdir().expect("a temporary directory");
    let size = unpack(layer.as_slice(), directory.path()).expect("unpack");
    let found = std::fs::metadata(directory.path().join("d/big")).expect("the file");
    assert_eq!((size.bytes, found.len()), (1 << 30, 1 << 30));
    assert!(found.blocks() * 512 < 1 << 20, "{} blocks", found.blocks());
    assert_eq!(std::fs::read_dir(directory.path().join("d")).expect("list").count(), 1);
}
