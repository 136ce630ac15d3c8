//! `corten ingress import`: Ingresses of ingress-nginx as objects of Gateway API, and a note for each part that has no
//! equivalent.

use std::io::Read as _;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use corten_client::{Client, ListOptions, Resource};
use corten_gateway::import::{Config, import};
use corten_meta::{Key, Value};

use crate::kubeconfig;
use crate::user_cli::IngressImport;

/// The most bytes of one file.
const MAX_FILE: u64 = 64 * 1024 * 1024;

pub async fn run(flags: &IngressImport) -> Result<()> {
    let (namespace, name) = flags.gateway.split_once('/').context("--gateway is NAMESPACE/NAME")?;
    let config = Config { gateway: Key::new(namespace, name), ingress_class: flags.ingress_class.clone() };
    let objects = match flags.files.is_empty() {
        true => of_cluster(flags).await?,
        false => of_files(&flags.files)?,
    };
    let imported = import(&objects, &config);
    for object in &imported.objects {
        println!("---\n{}", corten_meta::codec::encode_yaml(object).trim_end());
    }
    for note in &imported.notes {
        eprintln!("{note}");
    }
    ensure!(!imported.objects.is_empty(), "there is no Ingress to import");
    Ok(())
}

async fn of_cluster(flags: &IngressImport) -> Result<Vec<Value>> {
    let path = kubeconfig::user_file(flags.kubeconfig.as_deref()).context("no kubeconfig: name one by --kubeconfig")?;
    let client = Client::from_kubeconfig(&path, None).with_context(|| format!("{} cannot be used", path.display()))?;
    let mut objects = Vec::new();
    let kinds = [("", "services", "Service"), ("networking.k8s.io", "ingresses", "Ingress")];
    for (group, plural, kind) in kinds {
        let resource = Resource::new(group, "v1", plural, true);
        let list = client.dynamic(&resource).list("", &ListOptions::default()).await;
        let list = list.with_context(|| format!("the {plural} of the cluster cannot be read"))?;
        let version = if group.is_empty() { "v1".to_owned() } else { format!("{group}/v1") };
        objects.extend(list.items.into_iter().map(|mut item| {
            item["apiVersion"] = version.clone().into();
            item["kind"] = kind.into();
            item
        }));
    }
    Ok(objects)
}

fn of_files(files: &[std::path::PathBuf]) -> Result<Vec<Value>> {
    let mut objects = Vec::new();
    for path in files {
        let mut bytes = Vec::new();
        let unreadable = || format!("{} cannot be read", path.display());
        match path == Path::new("-") {
            true => std::io::stdin().take(MAX_FILE + 1).read_to_end(&mut bytes),
            false => {
                let file = std::fs::File::open(path).with_context(unreadable)?;
                file.take(MAX_FILE + 1).read_to_end(&mut bytes)
            }
        }
        .with_context(unreadable)?;
        ensure!(bytes.len() as u64 <= MAX_FILE, "{} is longer than {MAX_FILE} bytes", path.display());
        let documents = corten_meta::codec::decode_yaml_documents(&bytes);
        objects.extend(documents.with_context(|| format!("{} is no manifest", path.display()))?);
    }
    Ok(objects)
}
