//! `corten recover`: a survivor goes on alone after the majority of the servers was lost.

use anyhow::{Context, Result};
use corten_members::{Binary, Config, State};

use crate::backup_cli::Recover;
use crate::config::node_name;
use crate::directories::Directories;
use crate::membership::{self, member};
use crate::{instance, preflight};

pub async fn run(flags: &Recover) -> Result<()> {
    preflight::root_for("recover")?;
    let directories = Directories::of(&flags.directories);
    let _lock = instance::acquire(&directories)?;
    let config = config(&directories)?;
    let named = flags.etcd_binary.clone().or_else(|| member::last_binary(&directories));
    let binary = Binary::find(named.as_deref(), std::env::var_os("PATH").as_deref()).await?;
    let authority = member::authority(&directories)?;
    member::write_certificates(&config, &[config.address], &authority)?;
    let credentials = member::credentials(&authority)?;
    member::write_client(&config, &credentials)?;
    corten_members::recover(&config, &binary, &credentials).await?;
    println!("this server is the only one of its cluster now; start it as before");
    println!("then start the other servers as before: they join it anew, and their old data is set aside");
    Ok(())
}

/// Returns the settings of the member as it last ran.
fn config(directories: &Directories) -> Result<Config> {
    let state = State::read(&membership::directory(directories))?;
    let state = state.context("this machine is no survivor of a cluster of several servers: it has no etcd member")?;
    let own = state.endpoints.first().context("the member has no address")?;
    let uri: http::Uri = own.parse().with_context(|| format!("{own} is no URL"))?;
    let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
    let address = host.parse().with_context(|| format!("{own} has no address"))?;
    // etcd gets its name back at the next start.
    let name = node_name(None).unwrap_or_else(|_| "survivor".to_owned());
    Ok(member::config_at(directories, name, address))
}
