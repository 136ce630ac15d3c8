//! `cargo xtask images`: makes the container images of upstream's specs, from Debian's packages and from programs that
//! the user built from upstream's tree, as listed in `conformance/images.toml`. Nothing of upstream is fetched or built
//! here.

pub mod layer;
mod registry;
mod table;
pub mod userland;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Result, bail, ensure};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::archive::Archive;
use crate::tools;
use table::{Image, Layer, Served, Table};

const USAGE: &str = "usage: cargo xtask images --programs DIR [--output DIR]

  --programs DIR   the programs and files that conformance/images.toml names as sources
  --output DIR     where images.tar is written; target/images if absent";

/// The search path of commands in an image.
const PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

pub fn run(root: &Path, words: &[&str]) -> Result<()> {
    let (programs, output) = match words {
        ["--programs", programs] => (*programs, root.join("target/images")),
        ["--programs", programs, "--output", output] => (*programs, PathBuf::from(output)),
        _ => bail!("{USAGE}"),
    };
    ensure!(tools::is_root(), "files of an image belong to several users: run this as root");
    let programs = Path::new(programs);
    let table = Table::read(root)?;
    let missing = missing(&table, programs);
    let images: Vec<&Image> = table
        .images
        .iter()
        .filter(|image| image.layers.iter().all(|name| !missing.contains_key(name.as_str())))
        .collect();
    ensure!(!images.is_empty(), "{} holds none of the programs that {} names", programs.display(), table::FILE);
    let layers = layers(root, &table, &images, programs)?;
    std::fs::create_dir_all(&output)?;
    write(&output.join("images.tar"), &images, &layers)?;
    println!("{} images in {}", images.len(), output.join("images.tar").display());
    print_missing(&table, &missing, programs);
    Ok(())
}

/// Returns the layers that cannot be made, with their missing sources.
fn missing<'a>(table: &'a Table, programs: &Path) -> BTreeMap<&'a str, Vec<&'a str>> {
    let absent = |layer: &'a Layer| layer.brought().filter(|name| !programs.join(name).is_file()).collect::<Vec<_>>();
    let layers = table.layers.iter().map(|layer| (layer.name.as_str(), absent(layer)));
    layers.filter(|(_, absent)| !absent.is_empty()).collect()
}

fn print_missing(table: &Table, missing: &BTreeMap<&str, Vec<&str>>, programs: &Path) {
    for image in &table.images {
        let absent: BTreeSet<&str> =
            image.layers.iter().filter_map(|layer| missing.get(layer.as_str())).flatten().copied().collect();
        if !absent.is_empty() {
            let absent: Vec<&str> = absent.into_iter().collect();
            println!("without {}: put {} into {}", image.names[0], absent.join(" and "), programs.display());
        }
    }
}

/// A packed layer.
struct Packed {
    path: PathBuf,
    digest: String,
}

/// Makes every layer of the images, once.
fn layers<'a>(root: &Path, table: &'a Table, images: &[&Image], programs: &Path) -> Result<BTreeMap<&'a str, Packed>> {
    let cache = root.join("target/images/packages");
    let packed = root.join("target/images/layers");
    std::fs::create_dir_all(&cache)?;
    std::fs::create_dir_all(&packed)?;
    let archive = Archive::of_host(&cache)?;
    let wanted: BTreeSet<&str> = images.iter().flat_map(|image| &image.layers).map(String::as_str).collect();
    let mut layers = BTreeMap::new();
    for layer in table.layers.iter().filter(|layer| wanted.contains(layer.name.as_str())) {
        let dir = tempfile::Builder::new().prefix("corten-image").tempdir()?;
        let tree = dir.path().join("tree");
        let below = layer.on.as_deref().map(|on| table.layer(on)).transpose()?;
        let below = below.map(|below| below.packages.as_slice()).unwrap_or_default();
        userland::fill(&tree, &archive, &layer.packages, below)?;
        layer::finish(layer, &tree, programs)?;
        if let Some(served) = &layer.registry {
            serve(served, table, &layers, &tree)?;
        }
        let path = packed.join(format!("{}.tar", layer.name));
        let digest = layer::pack(&tree, &path)?;
        layers.insert(layer.name.as_str(), Packed { path, digest });
    }
    Ok(layers)
}

/// Adds an image to the registry of a layer.
fn serve(served: &Served, table: &Table, layers: &BTreeMap<&str, Packed>, tree: &Path) -> Result<()> {
    let image = table.image(&served.image)?;
    let packed: Vec<&Packed> = image.layers.iter().filter_map(|name| layers.get(name.as_str())).collect();
    let [only] = packed.as_slice() else { bail!("{} has not one layer, or a later one", served.image) };
    registry::store(tree, &served.name, &served.tag, &config(image, &packed), &std::fs::read(&only.path)?)
}

/// Writes all images into one archive, as `docker save` does: a shared layer is written once.
fn write(path: &Path, images: &[&Image], layers: &BTreeMap<&str, Packed>) -> Result<()> {
    let mut archive = tar::Builder::new(std::io::BufWriter::new(std::fs::File::create(path)?));
    let mut written = BTreeSet::new();
    let mut manifest = Vec::new();
    for image in images {
        let own: Vec<&Packed> = image.layers.iter().filter_map(|name| layers.get(name.as_str())).collect();
        let config = config(image, &own).to_string();
        let config_name = format!("{}.json", layer::hex(&Sha256::digest(config.as_bytes())));
        append(&mut archive, &config_name, config.as_bytes())?;
        for layer in &own {
            if written.insert(&layer.digest) {
                archive.append_path_with_name(&layer.path, layer_name(layer))?;
            }
        }
        let names: Vec<String> = own.iter().map(|layer| layer_name(layer)).collect();
        manifest.push(json!({"Config": config_name, "RepoTags": image.names, "Layers": names}));
    }
    append(&mut archive, "manifest.json", Value::from(manifest).to_string().as_bytes())?;
    archive.into_inner()?.into_inner()?.sync_all()?;
    Ok(())
}

fn layer_name(layer: &Packed) -> String {
    format!("{}/layer.tar", layer.digest)
}

fn config(image: &Image, layers: &[&Packed]) -> Value {
    let env: Vec<&str> = [PATH].into_iter().chain(image.env.iter().map(String::as_str)).collect();
    let mut config = json!({"Env": env, "User": image.user, "WorkingDir": "/"});
    if !image.entrypoint.is_empty() {
        config["Entrypoint"] = json!(image.entrypoint);
    }
    if !image.command.is_empty() {
        config["Cmd"] = json!(image.command);
    }
    let digests: Vec<String> = layers.iter().map(|layer| format!("sha256:{}", layer.digest)).collect();
    json!({
        "architecture": "amd64",
        "os": "linux",
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": digests},
        // The name makes images of the same layers distinct, as upstream's are.
        "history": [{"created_by": image.names[0]}],
    })
}

fn append<W: std::io::Write>(archive: &mut tar::Builder<W>, name: &str, bytes: &[u8]) -> Result<()> {
    let mut header = tar::Header::new_gnu();
    header.set_mode(0o644);
    header.set_size(bytes.len() as u64);
    archive.append_data(&mut header, name, bytes)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_share_layers_and_differ_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let layer = dir.path().join("layer.tar");
        std::fs::write(&layer, "layer").unwrap();
        let layers = BTreeMap::from([("l", Packed { path: layer, digest: "ab".into() })]);
        let text = "[[layer]]\nname = 'l'\n[[image]]\nnames = ['a:1', 'a:2']\nlayers = ['l']\ncommand = ['sh']\nuser = '12'\n[[image]]\nnames = ['b:1']\nlayers = ['l']\n";
        let table = Table::parse(text).unwrap();
        let images: Vec<&Image> = table.images.iter().collect();
        let path = dir.path().join("images.tar");
        write(&path, &images, &layers).unwrap();
        let mut archive = tar::Archive::new(std::fs::File::open(path).unwrap());
        let names: Vec<String> =
            archive.entries().unwrap().map(|entry| entry.unwrap().path().unwrap().display().to_string()).collect();
        assert_eq!((names.len(), names.iter().filter(|name| *name == "ab/layer.tar").count()), (4, 1), "{names:?}");
        let config = config(images[0], &[&layers["l"]]);
        assert_eq!((config["config"]["User"].as_str(), config["config"]["Cmd"][0].as_str()), (Some("12"), Some("sh")));
        assert!(config["config"].get("Entrypoint").is_none());
    }
}
