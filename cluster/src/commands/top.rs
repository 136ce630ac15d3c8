//! `corten top`: the cluster live in the terminal; as a table where the output is no terminal.

use std::io::IsTerminal;

use anyhow::{Context, Result};
use corten_client::{Client, Resource};
use corten_scheduler::Config;
use corten_top::{Explainer, Settings};
use corten_why::Subject;
use futures::future::BoxFuture;

use crate::user_cli::Top;
use crate::{answers, config, kubeconfig};

pub async fn run(flags: &Top) -> Result<()> {
    let path = kubeconfig::user_file(flags.kubeconfig.as_deref()).context("no kubeconfig: name one by --kubeconfig")?;
    let client = Client::from_kubeconfig(&path, flags.context.as_deref())
        .with_context(|| format!("{} cannot be used", path.display()))?;
    let namespace = flags.namespace.clone().unwrap_or_default();
    if !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        print!("{}", corten_top::table(&client, &namespace).await?);
        return Ok(());
    }
    let settings = Settings {
        kubeconfig: Some(path),
        namespace,
        colors: std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()),
        explainer: Box::new(Why { client: client.clone(), scheduler: config::scheduler(None)? }),
        client,
    };
    Ok(corten_top::run(settings).await?)
}

/// Explains objects as `corten why` does.
struct Why {
    client: Client,
    scheduler: Config,
}

impl Explainer for Why {
    fn explain(&self, kind: &'static str, namespace: String, name: String) -> BoxFuture<'static, String> {
        let client = self.client.clone();
        let scheduler = self.scheduler.clone();
        Box::pin(async move {
            let resource = Resource::new("", "v1", kind, !namespace.is_empty());
            let findings = answers::explain(client, scheduler, &Subject { resource, namespace, name }).await;
            findings.map(|all| all.iter().map(ToString::to_string).collect()).unwrap_or_default()
        })
    }
}
