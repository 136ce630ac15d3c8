//! The command line of backups: `corten backup`, `corten restore`, and the flags of scheduled backups.

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::directories::absolute;
use crate::flag_values::DirectoryFlags;

/// The commands that keep a cluster: backups and the ways back.
#[derive(Debug, Clone, Subcommand)]
pub enum Keep {
    /// Back up the cluster into one sealed file, while it runs: objects, authorities, keys and settings.
    Backup(Backup),
    /// Make a data directory of a backup, on this machine or another; then `corten up` starts the cluster.
    Restore(Restore),
    /// Make this server, which is stopped, a cluster of one server again after the majority of the servers was lost.
    Recover(Recover),
    /// Check whether this binary can take over the data directory of another version.
    Upgrade(Upgrade),
}

#[derive(Debug, Clone, Args)]
pub struct Upgrade {
    #[command(flatten)]
    pub directories: DirectoryFlags,
    /// Check and change nothing.
    #[arg(long, required = true)]
    pub check: bool,
}

#[derive(Debug, Clone, Args)]
pub struct Recover {
    #[command(flatten)]
    pub directories: DirectoryFlags,
    /// The etcd binary; defaults to that of the last run, or to the first `etcd` in PATH.
    #[arg(long, value_name = "FILE")]
    pub etcd_binary: Option<PathBuf>,
    /// Let this server join the one that went on alone, at its address: for servers that all have other addresses now.
    /// Without this flag, a server that is started again looks for the others where they were.
    #[arg(long, value_name = "ADDRESS", conflicts_with = "etcd_binary")]
    pub join: Option<IpAddr>,
}

#[derive(Debug, Clone, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Backup {
    #[command(subcommand)]
    pub command: Option<BackupCommand>,
    /// The new file, or s3://BUCKET/NAME.
    #[arg(value_name = "FILE", required = true)]
    pub file: Option<PathBuf>,
    #[command(flatten)]
    pub directories: DirectoryFlags,
    #[command(flatten)]
    pub secret: SecretOptions,
    #[command(flatten)]
    pub s3: S3Options,
}

#[derive(Debug, Clone, Subcommand)]
pub enum BackupCommand {
    /// Read a backup completely, and fail if anything in it is damaged.
    Verify {
        /// The file, or s3://BUCKET/NAME.
        #[arg(value_name = "FILE")]
        file: PathBuf,
        #[command(flatten)]
        secret: SecretOptions,
        #[command(flatten)]
        s3: S3Options,
    },
    /// List the backups of a directory, or of s3://BUCKET/PREFIX, without opening them.
    List {
        #[arg(value_name = "DIR")]
        target: PathBuf,
        #[command(flatten)]
        s3: S3Options,
    },
    /// Write the store's snapshot of a backup to a file, for etcd's tools.
    Snapshot {
        /// The backup, or s3://BUCKET/NAME.
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// The new snapshot file.
        #[arg(value_name = "SNAPSHOT")]
        output: PathBuf,
        #[command(flatten)]
        secret: SecretOptions,
        #[command(flatten)]
        s3: S3Options,
    },
}

/// The secret that seals a backup; one of them is needed.
#[derive(Debug, Clone, Default, Args)]
pub struct SecretOptions {
    /// The file of the passphrase; the variable CORTEN_BACKUP_PASSPHRASE is read if no flag is given.
    #[arg(long, value_name = "FILE", conflicts_with = "key_file")]
    pub passphrase_file: Option<PathBuf>,
    /// The file of a random key of at least 32 bytes, in place of a passphrase.
    #[arg(long, value_name = "FILE")]
    pub key_file: Option<PathBuf>,
}

/// The access to S3. Credentials come from the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY,
/// AWS_SESSION_TOKEN) or a file.
#[derive(Debug, Clone, Default, Args)]
pub struct S3Options {
    /// The URL of the S3 service; defaults to AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, or Amazon's of the region.
    #[arg(long, value_name = "URL")]
    pub s3_endpoint: Option<String>,
    /// The region; defaults to AWS_REGION, AWS_DEFAULT_REGION, or us-east-1.
    #[arg(long, value_name = "REGION")]
    pub s3_region: Option<String>,
    /// The file of credentials, as AWS's tools write it; defaults to AWS_SHARED_CREDENTIALS_FILE.
    #[arg(long, value_name = "FILE")]
    pub s3_credentials_file: Option<PathBuf>,
}

#[derive(Debug, Clone, Args)]
pub struct Restore {
    /// The backup, or s3://BUCKET/NAME.
    #[arg(value_name = "FILE", required_unless_present_any = ["finish", "undo", "etcd_snapshot"])]
    pub file: Option<PathBuf>,
    #[command(flatten)]
    pub directories: DirectoryFlags,
    #[command(flatten)]
    pub secret: SecretOptions,
    #[command(flatten)]
    pub s3: S3Options,
    /// Restore the objects of a snapshot of etcd instead. It has no keys and no authorities: those in the data directory
    /// are used, or made anew at the start.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["file", "passphrase_file", "key_file"])]
    pub etcd_snapshot: Option<PathBuf>,
    /// The name of the node that this machine will be; defaults to that of the server which was backed up.
    #[arg(long, value_name = "NAME")]
    pub node_name: Option<String>,
    /// Restore into a data directory that holds a cluster; its objects and keys are moved to a directory in it.
    #[arg(long)]
    pub set_aside: bool,
    /// Go on with a restore that was interrupted.
    #[arg(long, conflicts_with_all = ["file", "undo", "etcd_snapshot"])]
    pub finish: bool,
    /// Take back a restore that was interrupted.
    #[arg(long, conflicts_with_all = ["file", "etcd_snapshot"])]
    pub undo: bool,
}

/// Backups on a schedule.
#[derive(Debug, Clone, Default, Args)]
pub struct BackupOptions {
    /// The times of backups, as a cron schedule in UTC: `0 3 * * *`, `@hourly`, `@every 6h`.
    #[arg(long, value_name = "CRON", requires = "backup_target")]
    pub backup_schedule: Option<String>,
    /// The place of scheduled backups: a directory, or s3://BUCKET/PREFIX.
    #[arg(long, value_name = "TARGET", visible_alias = "backup-directory", requires = "backup_schedule")]
    pub backup_target: Option<PathBuf>,
    /// The number of scheduled backups to keep; older ones are deleted.
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u16).range(1..))]
    pub backup_keep: u16,
    /// The file of the passphrase of scheduled backups.
    #[arg(long, value_name = "FILE", conflicts_with = "backup_key_file")]
    pub backup_passphrase_file: Option<PathBuf>,
    /// The file of the random key of scheduled backups, in place of a passphrase.
    #[arg(long, value_name = "FILE")]
    pub backup_key_file: Option<PathBuf>,
    #[command(flatten)]
    pub s3: S3Options,
}

impl BackupOptions {
    /// Returns the secret of scheduled backups.
    pub fn secret(&self) -> SecretOptions {
        SecretOptions { passphrase_file: self.backup_passphrase_file.clone(), key_file: self.backup_key_file.clone() }
    }

    /// Returns the flags as another process's command line takes them.
    pub fn arguments(&self) -> Vec<OsString> {
        let mut list: Vec<OsString> = Vec::new();
        let texts = [
            ("--backup-schedule", &self.backup_schedule),
            ("--s3-endpoint", &self.s3.s3_endpoint),
            ("--s3-region", &self.s3.s3_region),
        ];
        for (name, text) in texts {
            if let Some(text) = text {
                list.extend([name.into(), text.into()]);
            }
        }
        let is_bucket = |path: &PathBuf| corten_backup::target::is_bucket(path);
        let paths = [
            ("--backup-target", &self.backup_target),
            ("--backup-passphrase-file", &self.backup_passphrase_file),
            ("--backup-key-file", &self.backup_key_file),
            ("--s3-credentials-file", &self.s3.s3_credentials_file),
        ];
        for (name, path) in paths {
            if let Some(path) = path {
                let path = if is_bucket(path) { path.clone() } else { absolute(path) };
                list.extend([name.into(), path.into()]);
            }
        }
        list.extend(["--backup-keep".into(), self.backup_keep.to_string().into()]);
        list
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use crate::cli::{Cli, Command};

    fn parse(words: &[&str]) -> Result<Command, clap::Error> {
        Ok(Cli::try_parse_from(["corten"].iter().chain(words))?.command)
    }

    #[test]
    fn a_backup_has_a_file_or_a_subcommand() {
        for good in [
            &["backup", "b", "--key-file", "k"][..],
            &["backup", "verify", "b", "--passphrase-file", "p"],
            &["backup", "list", "d"],
            &["backup", "snapshot", "b", "s.db"],
            &["restore", "b"],
            &["restore", "--finish"],
            &["recover"],
            &["restore", "--etcd-snapshot", "s.db"],
            &["server", "--backup-schedule", "@hourly", "--backup-directory", "/b"],
        ] {
            assert!(parse(good).is_ok(), "{good:?}: {}", parse(good).unwrap_err());
        }
        for bad in [
            &["backup"][..],
            &["backup", "b", "--key-file", "k", "--passphrase-file", "p"],
            &["restore"],
            &["restore", "b", "--undo"],
            &["server", "--backup-schedule", "@hourly"],
            &["server", "--backup-keep", "0"],
        ] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn another_process_gets_the_same_flags() {
        let words =
            ["server", "--backup-schedule", "0 3 * * *", "--backup-target", "s3://b/p", "--backup-key-file", "/k"];
        let Command::Server(server) = parse(&words).unwrap() else { panic!("server") };
        let again: Vec<String> =
            server.backup.arguments().into_iter().map(|word| word.into_string().unwrap()).collect();
        let again: Vec<&str> = ["server"].into_iter().chain(again.iter().map(String::as_str)).collect();
        let Command::Server(again) = parse(&again).unwrap() else { panic!("server") };
        assert_eq!(format!("{:?}", again.backup), format!("{:?}", server.backup));
    }
}
