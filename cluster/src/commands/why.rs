//! `corten why pod/NAME`: what keeps a pod from being placed, by the scheduler's own reckoning.

use anyhow::{Context, Result, bail};
use corten_client::Client;
use corten_meta::Key;

use crate::cli::Why;
use crate::{config, kubeconfig};

pub async fn run(flags: &Why) -> Result<()> {
    let name = match flags.pod.split_once('/') {
        None => flags.pod.as_str(),
        Some(("pod" | "pods" | "po", name)) => name,
        Some((kind, _)) => bail!("only pods are scheduled, not {kind}"),
    };
    let path = kubeconfig::user_file(flags.kubeconfig.as_deref()).context("no kubeconfig: name one by --kubeconfig")?;
    let client = Client::from_kubeconfig(&path, None).with_context(|| format!("{} cannot be used", path.display()))?;
    let config = config::scheduler(flags.scheduler_config.as_deref())?;
    let key = Key { namespace: flags.namespace.clone(), name: name.to_owned() };
    print!("{}", corten_scheduler::explain(&config, client, &key).await?);
    Ok(())
}
