//! `corten image`: the images of this machine, with or without a running cluster.
//!
//! All nodes of a machine share one image store, so an import is seen by every one of them at once.

use std::collections::BTreeSet;
use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use corten_runtime::{ImageStore, PullAuth, RegistryConfig};

use crate::cli::{DirectoryFlags, Image};
use crate::directories::Directories;
use crate::{instance, preflight, secrets};

pub async fn run(command: Image) -> Result<()> {
    preflight::root()?;
    match command {
        Image::Import { directories, files } => import(&open(&directories)?, &files),
        Image::Pull { directories, image, user, plain_http, registry_config } => {
            let store = match registry_config {
                Some(file) => open(&directories)?.with_registries(crate::registries::read(&file)?),
                None => open(&directories)?,
            };
            pull(store, &image, user, plain_http).await
        }
        Image::Ls { directories } => list(&open(&directories)?),
        Image::Rm { directories, images } => {
            remove(&Directories::of(&directories), &open(&directories)?, &images).await
        }
    }
}

fn open(directories: &DirectoryFlags) -> Result<ImageStore> {
    let directories = Directories::of(directories);
    preflight::data_directory(&directories)?;
    Ok(ImageStore::open(directories.images())?)
}

fn import(store: &ImageStore, files: &[std::path::PathBuf]) -> Result<()> {
    for file in files {
        let reader: Box<dyn Read> = if file == Path::new("-") {
            Box::new(std::io::stdin().lock())
        } else {
            Box::new(std::fs::File::open(file).with_context(|| format!("cannot open {}", file.display()))?)
        };
        for imported in store.import_archive(std::io::BufReader::new(reader))? {
            let size = size(imported.image.size);
            if imported.names.is_empty() {
                println!("imported {} ({size})", imported.image.id);
            }
            for name in imported.names {
                println!("imported {name} ({size})");
            }
        }
    }
    Ok(())
}

async fn pull(store: ImageStore, image: &str, user: Option<String>, plain_http: bool) -> Result<()> {
    let auth = match user {
        None => PullAuth::Anonymous,
        Some(user) => {
            let user = secrets::one(&user)?;
            let (user, password) = user.split_once(':').context("--user must be of the form USER:PASSWORD")?;
            PullAuth::Basic(user.into(), password.into())
        }
    };
    let store = if plain_http {
        let reference = corten_runtime::Reference::parse(image)?;
        store.with_registries(vec![RegistryConfig {
            host: reference.registry,
            plain_http: true,
            ..RegistryConfig::default()
        }])
    } else {
        store
    };
    let record = store.pull(image, auth).await?;
    println!("pulled {image} ({})", size(record.size));
    Ok(())
}

fn list(store: &ImageStore) -> Result<()> {
    let mut rows = vec![["IMAGE".to_owned(), "ID".to_owned(), "SIZE".to_owned(), "PINNED".to_owned()]];
    for record in store.list()? {
        let id: String = record.id.hex().chars().take(13).collect();
        let names = if record.tags.is_empty() { &record.digests } else { &record.tags };
        for name in names {
            rows.push([name.clone(), id.clone(), size(record.size), record.pinned.to_string()]);
        }
    }
    super::print_table(&rows);
    Ok(())
}

/// Removes images. A running node knows which layers its containers use, so it removes them; without one, nothing is in
/// use.
async fn remove(directories: &Directories, store: &ImageStore, images: &[String]) -> Result<()> {
    for image in images {
        ensure!(store.find(image)?.is_some(), "there is no image {image:?}");
        if instance::running(directories)?.is_some() {
            let channel =
                corten_cri::connect(&directories.cri_socket()).await.context("the node's runtime does not answer")?;
            let request = corten_cri::v1::RemoveImageRequest {
                image: Some(corten_cri::v1::ImageSpec { image: image.clone(), ..Default::default() }),
            };
            corten_cri::ImageServiceClient::new(channel).remove_image(request).await?;
        } else if store.remove(image, &BTreeSet::new())?.is_none() {
            bail!("there is no image {image:?}");
        }
        println!("removed {image}");
    }
    Ok(())
}

fn size(bytes: u64) -> String {
    match bytes {
        0..1_000_000 => format!("{:.1}kB", bytes as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1}MB", bytes as f64 / 1e6),
        _ => format!("{:.2}GB", bytes as f64 / 1e9),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn sizes_read_like_docker_images() {
        assert_eq!(super::size(4_200), "4.2kB");
        assert_eq!(super::size(7_654_321), "7.7MB");
        assert_eq!(super::size(1_230_000_000), "1.23GB");
    }
}
