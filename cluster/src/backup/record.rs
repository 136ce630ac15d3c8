//! The record of the last backup of a data directory, for the status, the metrics and the schedule after a restart.

use std::path::PathBuf;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::directories::Directories;
use crate::private;

/// The last backups of a data directory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Record {
    pub success: Option<Success>,
    /// The last failure, if it came after the last success.
    pub failure: Option<Failure>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Success {
    pub time: Timestamp,
    /// The file or the object of the bucket.
    pub place: String,
    pub bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Failure {
    pub time: Timestamp,
    pub reason: String,
}

fn path(directories: &Directories) -> PathBuf {
    directories.data.join("backup.json")
}

/// Returns the last backups of a data directory; none are known if the record is missing or damaged.
pub fn status(directories: &Directories) -> Record {
    let text = std::fs::read(path(directories)).unwrap_or_default();
    serde_json::from_slice(&text).unwrap_or_default()
}

pub fn record_success(directories: &Directories, success: Success) {
    write(directories, &Record { success: Some(success), failure: None });
}

/// Records a failure; the last success stays known.
pub fn record_failure(directories: &Directories, time: Timestamp, reason: String) {
    write(directories, &Record { failure: Some(Failure { time, reason }), ..status(directories) });
}

fn write(directories: &Directories, record: &Record) {
    let written = serde_json::to_vec_pretty(record).map_err(anyhow::Error::from);
    if let Err(error) = written.and_then(|bytes| private::write(&path(directories), &bytes)) {
        tracing::warn!("the last backup cannot be recorded: {error:#}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_keeps_the_last_success_and_a_success_ends_the_failure() {
        let folder = tempfile::tempdir().unwrap();
        let directories = Directories { data: folder.path().to_owned(), run: folder.path().to_owned() };
        assert_eq!(status(&directories), Record::default());
        let success =
            |second| Success { time: Timestamp::from_second(second).unwrap(), place: "b".to_owned(), bytes: 7 };
        record_success(&directories, success(1));
        record_failure(&directories, Timestamp::from_second(2).unwrap(), "no space".to_owned());
        let known = status(&directories);
        assert_eq!((known.success, known.failure.unwrap().reason), (Some(success(1)), "no space".to_owned()));
        record_success(&directories, success(3));
        assert_eq!(status(&directories), Record { success: Some(success(3)), failure: None });
    }
}
