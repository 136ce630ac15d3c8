//! `corten upgrade --check`: whether this binary can take over a data directory of another version. Changes nothing.
//!
//! It is run with the new binary, while the old one serves or after it has stopped, before anything is replaced.

use anyhow::{Context, Result, ensure};
use corten_store::etcd::{self, Etcd};
use corten_store::{Config, Embedded};

use super::etcd_check;
use crate::backup::Source;
use crate::backup_cli::Upgrade;
use crate::directories::Directories;
use crate::version::VERSION;
use crate::{instance, preflight};

/// The number of keys that are named with the reason why they cannot be decoded.
const SHOWN: usize = 20;

pub async fn run(flags: &Upgrade) -> Result<()> {
    preflight::root_for("upgrade")?;
    ensure!(flags.check, "an upgrade is a new binary and a start; `corten upgrade --check` tells whether it can work");
    let directories = Directories::of(&flags.directories);
    let format = preflight::format_of(&directories)?;
    corten_backup::restore::refuse_pending(&directories.data)?;
    println!("data directory   {}, format {format}: this version ({VERSION}) reads it", directories.data.display());
    let report = match instance::running(&directories)? {
        Some(pid) => {
            let options = instance::flags(pid)?.map(|flags| flags.store).unwrap_or_default();
            let Source::Running(config) = Source::of_server(&directories, &options)? else {
                anyhow::bail!("the store of the running server is unknown");
            };
            let prefix = options.etcd_prefix.clone();
            let store = Etcd::open(etcd::Config { compaction_interval: Default::default(), ..config });
            let store = store.await.context("the store of the running server does not answer")?;
            etcd_check::check_decodable(&*store, &prefix, SHOWN).await?
        }
        None => {
            let Source::Stopped(store) = Source::of_stopped(&directories)? else {
                anyhow::bail!("the store is unknown");
            };
            let _lock = instance::acquire(&directories)?;
            let damages = corten_store::verify(&store)?;
            ensure!(damages.is_empty(), "the store is damaged in {} places: see `corten store verify`", damages.len());
            let store = Embedded::open(Config::new(store)).context("the store cannot be opened")?;
            etcd_check::check_decodable(&*store, "/registry", SHOWN).await?
        }
    };
    let failures = report.failures();
    if failures > 0 {
        print!("{report}");
    }
    ensure!(failures == 0, "{failures} of {} keys cannot be decoded by this version", report.keys());
    println!("store            {} keys, which this version decodes", report.keys());
    println!("the upgrade can work; back up first: `corten backup FILE`");
    Ok(())
}
