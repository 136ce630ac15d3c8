//! A registry of the suite's images on the first machine: specs whose pods always pull request images by their own
//! names.
//!
//! It serves the content of docker archives over plain HTTP, and nothing else; archives in the OCI layout only are
//! imported and not served.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// The port of the registry. Specs run one of their own at 5000, on the network of any node.
pub const PORT: u16 = 5443;
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
/// The time after which a silent client is disconnected.
const SILENCE: Duration = Duration::from_secs(30);

/// The position of a blob.
#[derive(Debug, Clone)]
struct Blob {
    archive: PathBuf,
    offset: u64,
    size: u64,
}

/// The manifests by `NAME TAG` and by digest, and the blobs by digest.
#[derive(Debug, Default)]
pub struct Registry {
    manifests: BTreeMap<String, Vec<u8>>,
    blobs: BTreeMap<String, Blob>,
    hosts: Vec<String>,
}

impl Registry {
    pub fn read(archives: &[PathBuf]) -> Result<Registry> {
        let mut registry = Registry::default();
        for archive in archives {
            registry.add(archive).with_context(|| archive.display().to_string())?;
        }
        registry.hosts.sort_unstable();
        registry.hosts.dedup();
        Ok(registry)
    }

    /// Returns the settings with which a node uses this registry as a mirror.
    pub fn settings(&self, address: &str) -> String {
        let mut text = format!("registries:\n- {{host: '{address}:{PORT}', plainHTTP: true}}\n");
        for host in &self.hosts {
            text += &format!("- {{host: '{host}', mirrors: ['{address}:{PORT}']}}\n");
        }
        text
    }

    fn add(&mut self, archive: &Path) -> Result<()> {
        let entries = entries(archive)?;
        let read = |name: &str| -> Result<Vec<u8>> {
            entries.get(name).with_context(|| format!("there is no {name}")).and_then(read_blob)
        };
        let Ok(list) = read("manifest.json") else { return Ok(()) };
        for image in serde_json::from_slice::<Vec<Value>>(&list)? {
            let config_name = text(&image["Config"]);
            let config = read(config_name)?;
            let content: Value = serde_json::from_slice(&config)?;
            let config = self.blob(digest(&config), entries[config_name].clone());
            let mut layers = Vec::new();
            for (name, id) in array(&image["Layers"]).zip(array(&content["rootfs"]["diff_ids"])) {
                let blob = entries.get(text(name)).with_context(|| format!("there is no layer {name}"))?;
                layers.push(self.blob(text(id).to_owned(), blob.clone()));
            }
            self.publish(&image, &config, &layers);
        }
        Ok(())
    }

    fn blob(&mut self, digest: String, blob: Blob) -> Value {
        let descriptor = json!({"digest": digest, "size": blob.size});
        self.blobs.insert(digest, blob);
        descriptor
    }

    fn publish(&mut self, image: &Value, config: &Value, layers: &[Value]) {
        let typed = |descriptor: &Value, kind: &str| {
            let mut descriptor = descriptor.clone();
            descriptor["mediaType"] = json!(format!("application/vnd.oci.image.{kind}"));
            descriptor
        };
        let layers: Vec<Value> = layers.iter().map(|layer| typed(layer, "layer.v1.tar")).collect();
        let config = typed(config, "config.v1+json");
        let manifest = json!({"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": layers});
        let manifest = manifest.to_string().into_bytes();
        for name in array(&image["RepoTags"]).map(text) {
            let Some((host, path)) = name.split_once('/') else { continue };
            let Some((path, tag)) = path.rsplit_once(':') else { continue };
            self.hosts.push(host.to_owned());
            self.manifests.insert(format!("{path} {tag}"), manifest.clone());
            self.manifests.insert(format!("{path} {}", digest(&manifest)), manifest.clone());
        }
    }

    /// Serves until the process ends.
    pub fn serve(self, listener: TcpListener) {
        let registry = Arc::new(self);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let registry = Arc::clone(&registry);
                // A client that disconnects early is no error here.
                std::thread::spawn(move || registry.answer(stream));
            }
        });
    }

    fn answer(&self, mut stream: TcpStream) -> Result<()> {
        stream.set_read_timeout(Some(SILENCE))?;
        let mut head = BufReader::new(stream.try_clone()?).take(1 << 16);
        let mut request = String::new();
        head.read_line(&mut request)?;
        let mut line = String::new();
        while head.read_line(&mut line)? > 2 {
            line.clear();
        }
        let mut words = request.split(' ');
        let is_head = words.next() == Some("HEAD");
        let path = words.next().unwrap_or_default().split('?').next().unwrap_or_default();
        match self.find(path) {
            Found::Ping => respond(&mut stream, "200 OK", "application/json", "", 2)?,
            Found::Nothing => respond(&mut stream, "404 Not Found", "application/json", "", 2)?,
            Found::Manifest(bytes) => {
                respond(&mut stream, "200 OK", MANIFEST, &digest(bytes), bytes.len() as u64)?;
                return if is_head { Ok(()) } else { Ok(stream.write_all(bytes)?) };
            }
            Found::Blob(blob, digest) => {
                respond(&mut stream, "200 OK", "application/octet-stream", digest, blob.size)?;
                return if is_head { Ok(()) } else { copy_blob(blob, &mut stream) };
            }
        }
        if !is_head {
            stream.write_all(b"{}")?;
        }
        Ok(())
    }

    fn find<'a>(&'a self, path: &'a str) -> Found<'a> {
        let Some(path) = path.strip_prefix("/v2/") else { return Found::Nothing };
        if path.is_empty() {
            return Found::Ping;
        }
        if let Some((name, reference)) = path.split_once("/manifests/") {
            let manifest = self.manifests.get(&format!("{name} {reference}"));
            return manifest.map_or(Found::Nothing, |bytes| Found::Manifest(bytes));
        }
        let digest = path.split_once("/blobs/").map(|(_, digest)| digest).unwrap_or_default();
        self.blobs.get(digest).map_or(Found::Nothing, |blob| Found::Blob(blob, digest))
    }
}

enum Found<'a> {
    Ping,
    Nothing,
    Manifest(&'a [u8]),
    Blob(&'a Blob, &'a str),
}

fn respond(stream: &mut TcpStream, status: &str, kind: &str, digest: &str, size: u64) -> Result<()> {
    let digest = if digest.is_empty() { String::new() } else { format!("Docker-Content-Digest: {digest}\r\n") };
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {size}\r\n{digest}Connection: close\r\n\r\n"
    )?;
    Ok(())
}

/// Returns the position of each file of an archive.
fn entries(archive: &Path) -> Result<BTreeMap<String, Blob>> {
    let mut found = BTreeMap::new();
    let mut tar = tar::Archive::new(BufReader::new(File::open(archive)?));
    for entry in tar.entries_with_seek()? {
        let entry = entry?;
        let name = entry.path()?.display().to_string();
        found.insert(name, Blob { archive: archive.into(), offset: entry.raw_file_position(), size: entry.size() });
    }
    Ok(found)
}

fn read_blob(blob: &Blob) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    copy_blob(blob, &mut bytes)?;
    Ok(bytes)
}

fn copy_blob(blob: &Blob, to: &mut impl Write) -> Result<()> {
    let mut file = File::open(&blob.archive)?;
    file.seek(SeekFrom::Start(blob.offset))?;
    std::io::copy(&mut file.take(blob.size), to)?;
    Ok(())
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn array(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn digest(bytes: &[u8]) -> String {
    let digest: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{digest}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn archive(dir: &Path) -> PathBuf {
        let layer = b"a layer";
        let config = json!({"rootfs": {"diff_ids": [digest(layer)]}}).to_string();
        let list =
            json!([{"Config": "c.json", "RepoTags": ["r.example/a/b:1"], "Layers": ["l/layer.tar"]}]).to_string();
        let path = dir.join("images.tar");
        let mut tar = tar::Builder::new(File::create(&path).unwrap());
        for (name, bytes) in [("c.json", config.as_bytes()), ("l/layer.tar", layer), ("manifest.json", list.as_bytes())]
        {
            let mut header = tar::Header::new_gnu();
            header.set_size(bytes.len() as u64);
            tar.append_data(&mut header, name, bytes).unwrap();
        }
        tar.into_inner().unwrap();
        path
    }

    fn get(address: std::net::SocketAddr, path: &str) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn an_image_is_served_by_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let registry = Registry::read(&[archive(dir.path())]).unwrap();
        assert!(registry.settings("10.0.0.1").contains("- {host: 'r.example', mirrors: ['10.0.0.1:5443']}\n"));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        registry.serve(listener);
        let manifest = get(address, "/v2/a/b/manifests/1?ns=r.example");
        assert!(manifest.starts_with("HTTP/1.1 200 ") && manifest.contains(&digest(b"a layer")), "{manifest}");
        let blob = get(address, &format!("/v2/a/b/blobs/{}", digest(b"a layer")));
        assert!(blob.ends_with("\r\n\r\na layer"), "{blob}");
        assert!(get(address, "/v2/a/b/manifests/2").starts_with("HTTP/1.1 404 "));
        assert!(get(address, "/v2/").starts_with("HTTP/1.1 200 "));
    }
}
