//! The place of backups: a directory, or a bucket; and which backups stay there.
//!
//! Scheduled backups are named by the cluster and the time: `corten-3f1c2a90-20261117T120000Z.corten`. Retention counts
//! only names of this form, of this cluster: files of other names and of other clusters are never deleted.

use std::fs::File;
use std::path::{Path, PathBuf};

use jiff::Timestamp;

use crate::file::{self, SUFFIX};
use crate::s3::Bucket;
use crate::{Error, Secret, archive};

/// A place for backups.
#[derive(Debug)]
pub enum Target {
    Directory(PathBuf),
    /// A bucket, and the local directory through which backups go there.
    Bucket {
        bucket: Box<Bucket>,
        scratch: PathBuf,
    },
}

impl Target {
    /// Writes a backup under a name; returns its size.
    pub async fn write(&self, name: &str, mut contents: archive::Contents, secret: &Secret) -> Result<u64, Error> {
        let path = match self {
            Target::Directory(directory) => directory.join(name),
            Target::Bucket { scratch, .. } => scratch.join(name),
        };
        let secret = secret.clone();
        let local = path.clone();
        if let Target::Bucket { .. } = self {
            // An interrupted upload may have left a file of this name.
            let _ = std::fs::remove_file(&local);
        }
        let written = tokio::task::spawn_blocking(move || file::write(&local, &mut contents, &secret)).await;
        let bytes = written.map_err(|_| Error::Target("the writer of the backup panicked".to_owned()))??;
        if let Target::Bucket { bucket, .. } = self {
            let file = File::open(&path).map_err(Error::io("read", &path))?;
            let sent = bucket.upload(name, file, bytes).await;
            std::fs::remove_file(&path).map_err(Error::io("remove", &path))?;
            sent?;
        }
        Ok(bytes)
    }

    /// Returns the names of all files there.
    pub async fn names(&self) -> Result<Vec<String>, Error> {
        match self {
            Target::Directory(directory) => Ok(file::list(directory)?.into_iter().map(|listed| listed.name).collect()),
            Target::Bucket { bucket, .. } => Ok(bucket.list().await?.into_iter().map(|object| object.name).collect()),
        }
    }

    /// Deletes the scheduled backups of a cluster beyond the newest `keep`; returns their names.
    pub async fn prune(&self, cluster: &str, keep: usize) -> Result<Vec<String>, Error> {
        let names = surplus(&self.names().await?, cluster, keep);
        for name in &names {
            match self {
                Target::Directory(directory) => {
                    let path = directory.join(name);
                    std::fs::remove_file(&path).map_err(Error::io("remove", &path))?;
                }
                Target::Bucket { bucket, .. } => bucket.delete(name).await?,
            }
        }
        Ok(names)
    }
}

/// Returns the name of a scheduled backup.
pub fn name(cluster: &str, time: Timestamp) -> String {
    format!("{}{}{SUFFIX}", stem(cluster), time.strftime("%Y%m%dT%H%M%SZ"))
}

fn stem(cluster: &str) -> String {
    let short: String = cluster.chars().take(8).collect();
    format!("corten-{short}-")
}

/// Returns the time in the name of a scheduled backup of a cluster; none for another name.
pub fn time_of(name: &str, cluster: &str) -> Option<Timestamp> {
    let stamp = name.strip_prefix(&stem(cluster))?.strip_suffix(SUFFIX)?.strip_suffix('Z')?;
    Timestamp::strptime("%Y%m%dT%H%M%S%z", format!("{stamp}+0000")).ok()
}

/// Returns the names that retention deletes, oldest first.
pub fn surplus(names: &[String], cluster: &str, keep: usize) -> Vec<String> {
    let mut ours: Vec<String> = names.iter().filter(|name| time_of(name, cluster).is_some()).cloned().collect();
    ours.sort_unstable();
    ours.truncate(ours.len().saturating_sub(keep));
    ours
}

/// Returns the bucket and the prefix of an `s3://bucket/prefix`; none for another form.
pub fn parse_bucket(text: &str) -> Option<(&str, &str)> {
    let rest = text.strip_prefix("s3://")?;
    let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    (!bucket.is_empty()).then_some((bucket, prefix.trim_matches('/')))
}

/// Reports whether a text names a bucket rather than a file.
pub fn is_bucket(text: &Path) -> bool {
    text.to_str().is_some_and(|text| text.starts_with("s3://"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_surplus_backups_of_this_cluster_are_deleted() {
        let day = |day: u8| name("3f1c2a90ffff", format!("2026-11-{day:02}T12:00:00Z").parse().unwrap());
        assert_eq!(day(17), "corten-3f1c2a90-20261117T120000Z.corten");
        let mut names: Vec<String> = [3, 1, 2].map(day).into();
        names.extend(
            ["corten-3f1c2a90-mine.corten", "corten-00000000-20261101T120000Z.corten", "notes.txt"].map(str::to_owned),
        );
        assert_eq!(surplus(&names, "3f1c2a90ffff", 2), [day(1)]);
        assert_eq!(surplus(&names, "3f1c2a90ffff", 3), Vec::<String>::new());
        assert_eq!(surplus(&names, "3f1c2a90ffff", 0), [day(1), day(2), day(3)]);
    }

    #[test]
    fn buckets_have_a_name_and_perhaps_a_prefix() {
        assert_eq!(parse_bucket("s3://b"), Some(("b", "")));
        assert_eq!(parse_bucket("s3://b/x/y/"), Some(("b", "x/y")));
        assert_eq!(parse_bucket("s3:///x"), None);
        assert_eq!(parse_bucket("/var/backups"), None);
    }
}
