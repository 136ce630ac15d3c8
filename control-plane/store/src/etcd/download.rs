//! Downloads a snapshot of the database of one member.

use std::io::Write;
use std::time::Duration;

use corten_etcd::etcdserverpb::SnapshotRequest;
use corten_etcd::etcdserverpb::maintenance_client::MaintenanceClient;
use tonic::Status;

use super::config::Config;
use super::dial::{self, SharedTls};
use crate::Error;

/// The largest part of a snapshot; members send parts of 32 KiB.
const MAX_PART_BYTES: usize = 16 << 20;
/// The time within which the next part must come.
const PART: Duration = Duration::from_secs(30);

/// Writes the snapshot of the first endpoint that answers, with its digest, and returns its length. Members have the same
/// data, so one of them is enough.
pub async fn download(config: &Config, most_bytes: u64, file: &mut impl Write) -> Result<u64, Error> {
    let tls = SharedTls::new(config.tls.as_ref())?;
    let mut failure = Error::Unsuitable { reason: "etcd has no endpoints".into() };
    for url in &config.endpoints {
        let (channel, last_error) = dial::channel(url, &tls)?;
        let mut client = MaintenanceClient::new(channel).max_decoding_message_size(MAX_PART_BYTES);
        let unavailable = |status: Status| {
            let reason = last_error.get().unwrap_or_else(|| status.message().to_owned());
            Error::Unavailable { reason: format!("etcd at {url} sends no snapshot: {reason}").into() }
        };
        let opened = tokio::time::timeout(config.dial_timeout, client.snapshot(SnapshotRequest {})).await;
        let opened = opened.unwrap_or_else(|_| Err(Status::deadline_exceeded("it does not answer")));
        let mut parts = match opened {
            Ok(parts) => parts.into_inner(),
            Err(status) => {
                failure = unavailable(status);
                continue;
            }
        };
        let mut length = 0;
        loop {
            let part = tokio::time::timeout(PART, parts.message()).await;
            let part = part.unwrap_or_else(|_| Err(Status::deadline_exceeded("it stopped"))).map_err(unavailable)?;
            let Some(part) = part else { return Ok(length) };
            length += part.blob.len() as u64;
            if length > most_bytes {
                let reason = format!("the snapshot of etcd at {url} has more than {most_bytes} bytes");
                return Err(Error::Unsuitable { reason: reason.into() });
            }
            let written = file.write_all(&part.blob);
            written.map_err(|error| Error::io("write the snapshot to", std::path::Path::new("a file"), error))?;
        }
    }
    Err(failure)
}
