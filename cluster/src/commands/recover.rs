//! `corten recover`: a survivor goes on alone after the majority of the servers was lost, or all servers have moved; the others
//! join it where it is now.

use std::net::IpAddr;

use anyhow::{Context, Result, ensure};
use corten_members::{Binary, Config, Members, State};

use crate::backup_cli::Recover;
use crate::config::{addresses_of_links, machine_address, node_name};
use crate::directories::Directories;
use crate::membership::{self, member};
use crate::{instance, preflight};

pub async fn run(flags: &Recover) -> Result<()> {
    preflight::root_for("recover")?;
    let directories = Directories::of(&flags.directories);
    let _lock = instance::acquire(&directories)?;
    match flags.join {
        Some(address) => join(&directories, address).await,
        None => go_on_alone(flags, &directories).await,
    }
}

/// Makes this server the only one of its cluster.
async fn go_on_alone(flags: &Recover, directories: &Directories) -> Result<()> {
    let config = config(directories)?;
    let named = flags.etcd_binary.clone().or_else(|| member::last_binary(directories));
    let binary = Binary::find(named.as_deref(), std::env::var_os("PATH").as_deref()).await?;
    let authority = member::authority(directories)?;
    member::write_certificates(&config, &[config.address], &authority)?;
    let credentials = member::credentials(&authority)?;
    member::write_client(&config, &credentials)?;
    corten_members::recover(&config, &binary, &credentials).await?;
    println!("this server is the only one of its cluster now; start it as before");
    println!("then start the other servers as before: they join it anew, and their old data is set aside");
    println!("servers that do not find it by its former address: corten recover --join {}", config.address);
    Ok(())
}

/// Records the address of the server that went on alone: the next start of this one joins it.
async fn join(directories: &Directories, address: IpAddr) -> Result<()> {
    let state = state(directories)?;
    let config = config(directories)?;
    let survivor = Config { address, ..config }.client_url();
    let credentials = member::credentials(&member::authority(directories)?)?;
    let list = Members::new(vec![survivor.clone()], &credentials)?.list().await;
    let list = list.with_context(|| format!("no server of this cluster answers at {address}"))?;
    ensure!(list.cluster == state.cluster, "the server at {address} is of another cluster");
    ensure!(
        list.members.iter().all(|member| member.id != state.member),
        "the server at {address} still counts this one as a member: run `corten recover` without --join there"
    );
    let own = state.endpoints.iter().take(1).cloned();
    let endpoints = own.chain([survivor]).collect();
    State { endpoints, ..state }.write(&membership::directory(directories))?;
    println!("start this server as before: it joins the one at {address} anew, and its old data is set aside");
    Ok(())
}

fn state(directories: &Directories) -> Result<State> {
    let state = State::read(&membership::directory(directories))?;
    state.context("this machine is no survivor of a cluster of several servers: it has no etcd member")
}

/// Returns the settings of the member as it last ran, at an address that the machine has.
fn config(directories: &Directories) -> Result<Config> {
    let state = state(directories)?;
    let own = state.endpoints.first().context("the member has no address")?;
    let uri: http::Uri = own.parse().with_context(|| format!("{own} is no URL"))?;
    let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
    let address = host.parse().with_context(|| format!("{own} has no address"))?;
    // etcd gets its name back at the next start.
    let name = node_name(None).unwrap_or_else(|_| "survivor".to_owned());
    Ok(member::config_at(directories, name, current(address)?))
}

/// Returns the address of the last run, or another one of this machine if that is gone.
fn current(last: IpAddr) -> Result<IpAddr> {
    if last.is_loopback() || addresses_of_links().iter().any(|(_, address)| *address == last) {
        return Ok(last);
    }
    machine_address(last.is_ipv4()).with_context(|| format!("this machine has no address in place of {last}"))
}
