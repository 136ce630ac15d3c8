//! A release of a small program: unpacked, looked at, and run.

use std::collections::BTreeMap;
use std::io::Read;

use super::*;

/// A small program in the place of the real one, which a debug build would pack for minutes.
const PROGRAM: &str = "#include <stdio.h>\nint main(void) { puts(\"corten 1.2.3\"); return 0; }\n";

/// The program and its pages.
fn inputs_of_test(work: &Path) -> Inputs {
    let source = work.join("corten.c");
    std::fs::write(&source, PROGRAM).expect("a file");
    let built = work.join("built");
    succeed(Command::new("cc").arg("-o").arg(&built).arg(&source)).expect("a C compiler, which the build needs too");
    let manual = work.join("manual");
    let pages = "mkdir -p $2/man1 $2/completions; echo page > $2/man1/corten.1; echo --nodes > $2/man1/corten-up.1\n\
                 for name in corten.bash _corten corten.fish; do echo $name > $2/completions/$name; done\n";
    std::fs::write(&manual, format!("#!/bin/sh\n{pages}")).expect("a file");
    std::fs::set_permissions(&manual, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("a program");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the package lies in the tree");
    inputs(root, &built, &manual, work).expect("the inputs of a release")
}

fn entries(bytes: &[u8]) -> BTreeMap<String, Vec<u8>> {
    let mut archive = tar::Archive::new(bytes);
    let files = archive.entries().expect("an archive").map(|entry| {
        let mut entry = entry.expect("an entry");
        let name = entry.path().expect("a path").display().to_string();
        let mut content = Vec::new();
        entry.read_to_end(&mut content).expect("its content");
        (name.trim_start_matches("./").to_owned(), content)
    });
    files.collect()
}

fn gunzip(bytes: &[u8]) -> Vec<u8> {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), bytes).expect("a file");
    let output = Command::new("sh").args(["-c", "gzip -dc < \"$0\""]).arg(file.path()).output().expect("gzip runs");
    assert!(output.status.success(), "{output:?}");
    output.stdout
}

/// The members of an `ar` archive.
fn members(mut bytes: &[u8]) -> BTreeMap<String, Vec<u8>> {
    bytes = bytes.strip_prefix(b"!<arch>\n").expect("an ar archive");
    let mut found = BTreeMap::new();
    while bytes.len() >= 60 {
        let (header, rest) = bytes.split_at(60);
        let header = std::str::from_utf8(header).expect("a header is text");
        assert!(header.ends_with("`\n"), "{header:?}");
        let size: usize = header[48..58].trim().parse().expect("a size");
        found.insert(header[..16].trim().to_owned(), rest[..size].to_vec());
        bytes = &rest[(size + size % 2).min(rest.len())..];
    }
    assert!(bytes.is_empty());
    found
}

fn says_its_version(program: &mut Command, version: &str) {
    let output = program.arg("--version").output().expect("it runs");
    assert_eq!(String::from_utf8_lossy(&output.stdout), format!("corten {version}\n"), "{output:?}");
}

#[test]
fn a_release_holds_what_it_should() {
    let work = tempfile::tempdir().unwrap();
    let inputs = inputs_of_test(work.path());
    assert_eq!(inputs.version, "1.2.3");
    let output = work.path().join("dist");
    make(&inputs, &output).unwrap();
    let sums = write_sums(&output).unwrap();
    assert_eq!(sums.len(), 3, "{sums:?}");
    succeed(Command::new("sha256sum").args(["--check", "--quiet", "SHA256SUMS"]).current_dir(&output)).unwrap();
    let read = |name: String| std::fs::read(output.join(name)).unwrap();
    let version = &inputs.version;

    look_at_archive(&entries(&gunzip(&read(format!("corten-{version}-linux-amd64.tar.gz")))));
    look_at_package(&read(format!("corten_{version}_amd64.deb")), version);
    if let Ok(output) =
        Command::new("dpkg-deb").arg("--info").arg(output.join(format!("corten_{version}_amd64.deb"))).output()
    {
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success() && text.contains("Package: corten"), "{output:?}");
    }
    look_at_image(&read(format!("corten-{version}-image.tar")), version, work.path());
}

fn look_at_archive(files: &BTreeMap<String, Vec<u8>>) {
    for name in [
        "bin/corten",
        "share/man/man1/corten.1.gz",
        "share/man/man1/corten-up.1.gz",
        "share/bash-completion/completions/corten",
        "share/zsh/site-functions/_corten",
        "share/fish/vendor_completions.d/corten.fish",
        "lib/systemd/system/corten.service",
        "share/corten/monitoring/corten.rules.yaml",
        "share/doc/corten/LICENSE",
    ] {
        assert!(files.get(name).is_some_and(|content| !content.is_empty()), "{name} is missing");
    }
    let page = gunzip(&files["share/man/man1/corten-up.1.gz"]);
    assert!(
        String::from_utf8_lossy(&page).contains("--nodes") || String::from_utf8_lossy(&page).contains("\\-\\-nodes")
    );
    let unit = String::from_utf8_lossy(&files["lib/systemd/system/corten.service"]).into_owned();
    assert!(unit.contains("ExecStart=/usr/local/bin/corten server"), "{unit}");
}

fn look_at_package(bytes: &[u8], version: &str) {
    let members = members(bytes);
    assert_eq!(members["debian-binary"], b"2.0\n");
    let control = entries(&gunzip(&members["control.tar.gz"]));
    let fields = String::from_utf8_lossy(&control["control"]).into_owned();
    assert!(fields.contains(&format!("Version: {version}\n")) && fields.contains("Depends: libc6 (>= 2."), "{fields}");
    let data = entries(&gunzip(&members["data.tar.gz"]));
    for name in ["usr/bin/corten", "usr/share/man/man1/corten.1.gz", "usr/lib/systemd/system/corten-agent.service"] {
        assert!(data.contains_key(name), "{name} is missing");
    }
    for file in String::from_utf8_lossy(&control["conffiles"]).lines() {
        assert!(data.contains_key(file.trim_start_matches('/')), "{file} is missing");
    }
}

/// Unpacks the image as a runtime would, and runs its program in its root.
fn look_at_image(bytes: &[u8], version: &str, work: &Path) {
    let files = entries(bytes);
    let json = |name: &str| serde_json::from_slice::<serde_json::Value>(&files[name]).expect("JSON");
    let digest = |value: &serde_json::Value| value["digest"].as_str().expect("a digest").replace(':', "/");
    let manifest = json(&format!("blobs/{}", digest(&json("index.json")["manifests"][0])));
    let layer = gunzip(&files[&format!("blobs/{}", digest(&manifest["layers"][0]))]);
    let config = json(&format!("blobs/{}", digest(&manifest["config"])));
    assert_eq!(config["rootfs"]["diff_ids"][0], format!("sha256:{}", hex(&Sha256::digest(&layer))));
    assert_eq!(json("manifest.json")[0]["RepoTags"][0], format!("corten:{version}"));
    let entrypoint = config["config"]["Entrypoint"][0].as_str().expect("a program").to_owned();
    let tree = work.join("image");
    tar::Archive::new(layer.as_slice()).unpack(&tree).expect("the layer unpacks");
    if crate::tools::is_root() {
        says_its_version(Command::new("chroot").arg(&tree).arg(entrypoint), version);
    } else {
        says_its_version(&mut Command::new(tree.join(entrypoint.trim_start_matches('/'))), version);
    }
}

#[test]
fn the_same_files_give_the_same_archive() {
    let tree = || {
        let mut tree = Tree::default();
        tree.add("b/c", 0o755, b"two".to_vec());
        tree.add("a", 0o644, b"one".to_vec());
        tree.add_directory("tmp", 0o1777);
        tree
    };
    let bytes = tree().gzipped("./").unwrap();
    assert_eq!(bytes, tree().gzipped("./").unwrap());
    let names: Vec<String> = entries(&gunzip(&bytes)).into_keys().collect();
    assert_eq!(names, ["a", "b/", "b/c", "tmp/"]);
}
