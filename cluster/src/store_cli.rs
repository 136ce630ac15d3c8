//! The command line of `corten etcd` and `corten store`: reading stores, and moving between them.

use std::path::PathBuf;

use anyhow::Result;
use clap::{Args, Subcommand, ValueEnum};
use corten_store::etcd;

use crate::flag_values::DirectoryFlags;
use crate::store_options::etcd_tls;

#[derive(Debug, Clone, Subcommand)]
pub enum Etcd {
    /// Decode every key of a snapshot or of a running etcd, and name those that cannot be decoded.
    Check(Check),
}

#[derive(Debug, Clone, Args)]
pub struct Check {
    /// A snapshot file, as `etcdctl snapshot save` writes it, or the client URLs of etcd, separated by commas.
    #[arg(value_name = "SOURCE")]
    pub source: String,
    #[command(flatten)]
    pub tls: EtcdTls,
    /// The prefix of all objects.
    #[arg(long, value_name = "PREFIX", default_value = "/registry")]
    pub etcd_prefix: String,
    /// The EncryptionConfiguration whose keys decrypt the values; without it, encrypted values are only counted.
    #[arg(long, value_name = "FILE")]
    pub encryption_provider_config: Option<PathBuf>,
    /// The number of keys that are named with the reason why they cannot be decoded.
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub show: usize,
}

#[derive(Debug, Clone, Subcommand)]
pub enum Store {
    /// Move the objects of a server to another store: by a snapshot with the same resourceVersions, or into a running etcd.
    Migrate(Migrate),
    /// Read every byte of a stopped server's embedded store, and name the records and keys that are damaged.
    Verify {
        #[command(flatten)]
        directories: DirectoryFlags,
    },
    /// Make a new embedded store of everything that is intact in a damaged one, and list what was lost.
    Repair {
        #[command(flatten)]
        directories: DirectoryFlags,
    },
}

/// A kind of store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Target {
    Etcd,
    Embedded,
}

#[derive(Debug, Clone, Args)]
pub struct Migrate {
    #[command(flatten)]
    pub directories: DirectoryFlags,
    /// The new store.
    #[arg(long, value_enum, value_name = "STORE")]
    pub to: Target,
    /// The snapshot: written with `--to etcd`, to restore with etcdutl; read with `--to embedded`.
    #[arg(long, value_name = "FILE")]
    pub snapshot: Option<PathBuf>,
    /// The client URLs of the running etcd, in place of a snapshot. With `--to etcd` the server may run: it serves reads
    /// meanwhile.
    #[arg(long, value_name = "URLS", value_delimiter = ',', conflicts_with = "snapshot")]
    pub etcd_servers: Vec<String>,
    #[command(flatten)]
    pub tls: EtcdTls,
}

/// The TLS files of a client of etcd.
#[derive(Debug, Clone, Default, Args)]
pub struct EtcdTls {
    /// The CA bundle of etcd's members.
    #[arg(long, value_name = "FILE")]
    pub etcd_cafile: Option<PathBuf>,
    /// The client certificate for etcd.
    #[arg(long, value_name = "FILE", requires = "etcd_keyfile")]
    pub etcd_certfile: Option<PathBuf>,
    /// The private key of the client certificate for etcd.
    #[arg(long, value_name = "FILE", requires = "etcd_certfile")]
    pub etcd_keyfile: Option<PathBuf>,
}

impl EtcdTls {
    /// Returns the settings of a client that only reads.
    pub fn client(&self, endpoints: &[String]) -> Result<etcd::Config> {
        let tls = etcd_tls(&self.etcd_cafile, &self.etcd_certfile, &self.etcd_keyfile)?;
        let compaction_interval = std::time::Duration::ZERO;
        Ok(etcd::Config { tls, compaction_interval, ..etcd::Config::new(endpoints.to_vec()) })
    }
}
