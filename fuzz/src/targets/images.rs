//! Images: references, archives and layers, plain and compressed.

use std::io::{Read, Write};

use serde_json::json;
use sha2::{Digest, Sha256};

use super::{joined, parts, text, texts};
use crate::Target;

pub const TARGETS: &[Target] = &[
    Target { name: "image-reference", seeds: reference_seeds, run: reference },
    Target { name: "image-archive", seeds: archive_seeds, run: archive },
    Target { name: "image-layer", seeds: layer_seeds, run: layer },
    Target { name: "image-manifest", seeds: manifest_seeds, run: manifest },
    Target { name: "registry-words", seeds: registry_seeds, run: registry_words },
];

/// The size of an unpacked archive beyond which it is skipped, so that the fuzzer does not fill the disk.
const MOST_BYTES: usize = 4 << 20;

fn reference_seeds() -> Vec<Vec<u8>> {
    texts(&[
        "busybox",
        "registry.example:5000/a/b_c--d:1.2-x",
        "localhost/a@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
        "[::1]:80/a:b",
    ])
}

fn reference(input: &[u8]) {
    let Some(text) = text(input) else { return };
    let Ok(reference) = corten_runtime::Reference::parse(text) else { return };
    let shown = reference.to_string();
    let again = corten_runtime::Reference::parse(&shown).expect("what was written is read");
    assert_eq!(again.to_string(), shown);
}

fn archive_of(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (path, bytes) in files {
        let mut header = tar::Header::new_gnu();
        header.set_mode(0o644);
        header.set_size(bytes.len() as u64);
        builder.append_data(&mut header, path, *bytes).expect("memory is writable");
    }
    builder.into_inner().expect("memory is writable")
}

/// Returns a layer with every kind of entry.
fn plain_layer() -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    builder
        .append_pax_extensions([("SCHILY.xattr.user.a", b"b".as_slice()), ("mtime", b"1.5")])
        .expect("memory is writable");
    let kinds = [
        ("d/", tar::EntryType::Directory),
        ("d/f", tar::EntryType::Regular),
        ("s", tar::EntryType::Symlink),
        ("h", tar::EntryType::Link),
        ("p", tar::EntryType::Fifo),
        ("d/.wh.x", tar::EntryType::Regular),
        ("d/.wh..wh..opq", tar::EntryType::Regular),
    ];
    for (path, kind) in kinds {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(0o4755);
        header.set_size(0);
        if matches!(kind, tar::EntryType::Symlink | tar::EntryType::Link) {
            builder.append_link(&mut header, path, "d/f").expect("memory is writable");
        } else {
            builder.append_data(&mut header, path, std::io::empty()).expect("memory is writable");
        }
    }
    builder.into_inner().expect("memory is writable")
}

fn hexadecimal(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns a docker archive whose only layer is these bytes, which unpack to `plain`.
fn with_layer(layer: &[u8], plain: &[u8]) -> Vec<u8> {
    let diff_ids = [format!("sha256:{}", hexadecimal(plain))];
    let config = json!({"architecture": "amd64", "os": "linux", "config": {"Env": ["A=b"]}, "rootfs": {"type": "layers", "diff_ids": diff_ids}});
    let manifest = json!([{"Config": "config.json", "RepoTags": ["a:b"], "Layers": ["layer.tar"]}]);
    archive_of(&[
        ("config.json", config.to_string().as_bytes()),
        ("layer.tar", layer),
        ("manifest.json", manifest.to_string().as_bytes()),
    ])
}

fn archive_seeds() -> Vec<Vec<u8>> {
    let layer = archive_of(&[("f", b"x")]);
    let docker = with_layer(&layer, &layer);
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(&docker).expect("memory is writable");
    let packed = packed.finish().expect("memory is writable");
    vec![docker, oci_archive(), packed]
}

fn oci_archive() -> Vec<u8> {
    let config =
        json!({"architecture": "amd64", "os": "linux", "rootfs": {"type": "layers", "diff_ids": []}}).to_string();
    let config_digest = hexadecimal(config.as_bytes());
    let manifest = json!({"schemaVersion": 2, "config": {"digest": format!("sha256:{config_digest}"), "size": config.len()}, "layers": []}).to_string();
    let digest = hexadecimal(manifest.as_bytes());
    let index = json!({"schemaVersion": 2, "manifests": [{"digest": format!("sha256:{digest}"), "size": manifest.len(),
        "platform": {"os": "linux", "architecture": "amd64"}, "annotations": {"io.containerd.image.name": "docker.io/a/b:c"}}]});
    archive_of(&[
        ("index.json", index.to_string().as_bytes()),
        (&format!("blobs/sha256/{digest}"), manifest.as_bytes()),
        (&format!("blobs/sha256/{config_digest}"), config.as_bytes()),
    ])
}

/// Returns a sparse file in GNU tar's old format: the map is in the header, and continues behind it.
fn old_sparse_layer() -> Vec<u8> {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(tar::EntryType::GNUSparse);
    header.set_path("sparse").expect("a name");
    header.set_mode(0o644);
    header.set_size(512);
    let gnu = header.as_gnu_mut().expect("a GNU header");
    gnu.realsize = *b"00000004000\0";
    gnu.sparse[0].offset = *b"00000001000\0";
    gnu.sparse[0].numbytes = *b"00000001000\0";
    gnu.isextended[0] = 1;
    header.set_cksum();
    let mut more = tar::GnuExtSparseHeader::new();
    more.sparse[0].offset = *b"00000004000\0";
    more.sparse[0].numbytes = *b"00000000000\0";
    [&header.as_bytes()[..], more.as_bytes(), &[b'x'; 512], &[0; 1024]].concat()
}

/// Returns a sparse file in the PAX format: the map is before the data, or among the records.
fn new_sparse_layer(records: &[(&str, &str)], map: &str) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    let records = records.iter().map(|(key, value)| (*key, value.as_bytes()));
    builder.append_pax_extensions(records).expect("memory is writable");
    let mut content = map.as_bytes().to_vec();
    content.resize(content.len().next_multiple_of(512), 0);
    content.extend(b"data");
    let mut header = tar::Header::new_ustar();
    header.set_mode(0o644);
    header.set_size(content.len() as u64);
    builder.append_data(&mut header, "GNUSparseFile.0/f", content.as_slice()).expect("memory is writable");
    builder.into_inner().expect("memory is writable")
}

fn sparse_layers() -> [Vec<u8>; 4] {
    let name = ("GNU.sparse.name", "d/f");
    let version =
        |minor| [("GNU.sparse.major", if minor == "0" { "1" } else { "0" }), ("GNU.sparse.minor", minor), name];
    let inside = [&version("0")[..], &[("GNU.sparse.realsize", "8192")]].concat();
    let listed = [&version("1")[..], &[("GNU.sparse.size", "99"), ("GNU.sparse.map", "0,2,90,2")]].concat();
    let repeated = [("GNU.sparse.size", "99"), ("GNU.sparse.offset", "9"), ("GNU.sparse.numbytes", "4")];
    [
        old_sparse_layer(),
        new_sparse_layer(&inside, "2\n0\n2\n8190\n2\n"),
        new_sparse_layer(&listed, ""),
        new_sparse_layer(&repeated, ""),
    ]
}

fn layer_seeds() -> Vec<Vec<u8>> {
    let plain = plain_layer();
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(&plain).expect("memory is writable");
    let packed = packed.finish().expect("memory is writable");
    let zstandard = zstd::encode_all(plain.as_slice(), 1).expect("memory is writable");
    let mut seeds = vec![plain, packed, zstandard];
    seeds.extend(sparse_layers());
    seeds
}

/// Returns the unpacked bytes; `None` if they are invalid, or too many.
fn unpacked(input: &[u8]) -> Option<Vec<u8>> {
    let mut plain = Vec::new();
    let limit = MOST_BYTES as u64 + 1;
    let read = if input.starts_with(&[0x1f, 0x8b]) {
        flate2::read::MultiGzDecoder::new(input).take(limit).read_to_end(&mut plain)
    } else if input.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) {
        zstd::Decoder::new(input).ok()?.take(limit).read_to_end(&mut plain)
    } else {
        input.take(limit).read_to_end(&mut plain)
    };
    read.is_ok_and(|length| length <= MOST_BYTES).then_some(plain)
}

/// Sets the checksums of headers: otherwise every mutation would be refused for its checksum.
fn with_checksums(mut plain: Vec<u8>) -> Vec<u8> {
    for block in plain.chunks_exact_mut(512).filter(|block| block[257..262] == *b"ustar") {
        block[148..156].fill(b' ');
        let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    }
    plain
}

fn import(archive: &[u8]) {
    let directory = tempfile::tempdir().expect("a directory");
    let store = corten_runtime::ImageStore::open(directory.path()).expect("the store opens");
    // Layers have a target of their own, without a process for each.
    let store = store.with_program("/nonexistent");
    if let Ok(records) = store.import_archive(archive) {
        let is_found = |id: String| store.find(&id).is_ok_and(|found| found.is_some());
        assert!(records.iter().all(|record| is_found(record.image.id.to_string())));
    }
}

fn archive(input: &[u8]) {
    let Some(plain) = unpacked(input) else { return };
    import(input);
    import(&with_checksums(plain));
}

fn layer(input: &[u8]) {
    let Some(plain) = unpacked(input) else { return };
    unpack(input, &plain);
    let layer = with_checksums(plain);
    unpack(&layer, &layer);
}

fn unpack(layer: &[u8], plain: &[u8]) {
    let directory = tempfile::tempdir().expect("a directory");
    let _ = corten_runtime::fuzz::unpack_layer(layer, plain, directory.path());
}

fn registry_seeds() -> Vec<Vec<u8>> {
    vec![joined(&[
        r#"Basic, Bearer realm="https://auth.example/token",service="a \"b\"",scope=x"#,
        r#"{"errors":[{"code":"DENIED","message":"m"}]}"#,
    ])]
}

fn registry_words(input: &[u8]) {
    let [header, body] = parts::<2>(input);
    if let Some(header) = text(header) {
        let _ = corten_runtime::fuzz::registry_words(header, body);
    }
}

fn manifest_seeds() -> Vec<Vec<u8>> {
    texts(&[
        r#"[{"Config":"config.json","RepoTags":["a:b"],"Layers":["layer.tar"]}]"#,
        r#"{"schemaVersion":2,"manifests":[{"digest":"sha256:ab","size":1,"platform":{"os":"linux","architecture":"amd64"},"annotations":{"org.opencontainers.image.ref.name":"a:b"}}]}"#,
        r#"{"architecture":"amd64","os":"linux","config":{"User":"1:2","Env":["A=b"],"Cmd":["sh"],"Entrypoint":null,"WorkingDir":"/","ExposedPorts":{"80/tcp":{}},"Volumes":{},"StopSignal":"SIGTERM"},"rootfs":{"type":"layers","diff_ids":[]}}"#,
    ])
}

/// Reads one document as manifest, index and configuration of an image at once.
fn manifest(input: &[u8]) {
    let empty = archive_of(&[]);
    import(&archive_of(&[("manifest.json", input), ("config.json", input), ("layer.tar", &empty)]));
    let digest = hexadecimal(input);
    let index = json!({"manifests": [{"digest": format!("sha256:{digest}")}]}).to_string();
    import(&archive_of(&[("index.json", index.as_bytes()), (&format!("blobs/sha256/{digest}"), input)]));
    import(&archive_of(&[("index.json", input)]));
}
