//! `corten why KIND/NAME`: why an object is not as it should be, and what would help.

use anyhow::{Context, Result, bail};
use corten_client::Client;
use corten_meta::Key;
use corten_scheduler::Config;
use corten_why::{ClientReader, Finding, Placement, Sources, Subject, find_resource};
use futures::future::BoxFuture;

use crate::user_cli::Why;
use crate::{config, kubeconfig};

pub async fn run(flags: &Why) -> Result<()> {
    let (word, name) = flags.object.split_once('/').unwrap_or(("pods", flags.object.as_str()));
    if name.is_empty() {
        bail!("name an object: corten why pod/NAME");
    }
    let path = kubeconfig::user_file(flags.kubeconfig.as_deref()).context("no kubeconfig: name one by --kubeconfig")?;
    let client = Client::from_kubeconfig(&path, None).with_context(|| format!("{} cannot be used", path.display()))?;
    let scheduler = config::scheduler(flags.scheduler_config.as_deref())?;
    let resource = find_resource(&client, word).await.context("the server's resources cannot be read")?;
    let Some(resource) = resource else { bail!("the server has no resource {word:?}") };
    let namespace = if resource.namespaced { flags.namespace.clone() } else { String::new() };
    let subject = Subject { resource, namespace, name: name.to_owned() };
    print(&explain(client, scheduler, &subject).await?);
    Ok(())
}

/// Explains an object with the rights of a client.
pub async fn explain(client: Client, scheduler: Config, subject: &Subject) -> Result<Vec<Finding>> {
    let objects = ClientReader(client.clone());
    let placement = Plugins { client, scheduler };
    Ok(corten_why::explain(Sources { objects: &objects, placement: &placement }, subject).await?)
}

fn print(findings: &[Finding]) {
    if findings.is_empty() {
        println!("Nothing is wrong with it.");
    }
    for (at, finding) in findings.iter().enumerate() {
        if at > 0 {
            println!();
        }
        print!("{finding}");
    }
}

/// The scheduler's plugins, asked about one pod.
struct Plugins {
    client: Client,
    scheduler: Config,
}

impl Placement for Plugins {
    fn explain<'a>(&'a self, namespace: &'a str, name: &'a str) -> BoxFuture<'a, Result<String, String>> {
        let key = Key { namespace: namespace.to_owned(), name: name.to_owned() };
        Box::pin(async move {
            let explained = corten_scheduler::explain(&self.scheduler, self.client.clone(), &key).await;
            explained.map(|explanation| explanation.to_string()).map_err(|error| error.to_string())
        })
    }
}
