//! The store in etcd, and the certificates that this server reaches it with.
//!
//! Another program, or the server itself for its own members, renews the files. The store takes them without a restart:
//! connections that are open stay, and the next ones use the new files.

use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use corten_apiserver::{StoreOverride, Stores};
use corten_store::etcd::{Etcd, Tls};
use corten_store::transfer;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::files;
use crate::store_options::StoreOptions;
use crate::tasks::Tasks;

/// The time without a change after which files belong together: a certificate and its key are written one by one.
const SETTLE: Duration = Duration::from_millis(500);

/// Opens the stores in etcd that the flags name; `None` if they name none. Their files are read again when they change;
/// the store of the server's own members follows `endpoints`.
pub async fn open(
    options: &StoreOptions,
    endpoints: Option<watch::Receiver<Vec<String>>>,
    tasks: &mut Tasks,
) -> Result<Option<Stores>> {
    let Some(mut config) = options.etcd()? else { return Ok(None) };
    // The own member is the first.
    config.prefers_first = endpoints.is_some();
    let main = Etcd::open(config).await?;
    ensure!(
        !transfer::is_unfinished(&*main).await?,
        "the move of a store into this etcd is not complete; run `corten store migrate --to etcd` again"
    );
    let mut all = vec![Arc::downgrade(&main)];
    let mut overrides = Vec::new();
    for (config, resources) in options.overrides()? {
        let store = Etcd::open(config).await.with_context(|| format!("the etcd of {}", resources.join(", ")))?;
        all.push(Arc::downgrade(&store));
        overrides.push(StoreOverride { store, resources });
    }
    if let Some(endpoints) = endpoints {
        tasks.spawn("etcd endpoints", follow(Arc::downgrade(&main), endpoints, tasks.shutdown()));
    }
    if let Some(files) = TlsFiles::follow(options, tasks)? {
        tasks.spawn("etcd client certificate", renew(all, files, tasks.shutdown()));
    }
    Ok(Some(Stores { main, overrides }))
}

/// Gives a store the endpoints of the members as they change, until the shutdown.
async fn follow(
    store: Weak<Etcd>,
    mut endpoints: watch::Receiver<Vec<String>>,
    shutdown: CancellationToken,
) -> Result<()> {
    loop {
        tokio::select! {
            changed = endpoints.changed() => changed.context("the members are no longer followed")?,
            () = shutdown.cancelled() => return Ok(()),
        }
        let next = endpoints.borrow_and_update().clone();
        let Some(store) = store.upgrade() else { return Ok(()) };
        match store.set_endpoints(&next) {
            Ok(()) => tracing::info!(endpoints = next.join(", "), "the etcd members have changed"),
            // The store goes on with the members that it has.
            Err(error) => tracing::warn!("the store cannot follow the etcd members: {error}"),
        }
    }
}

/// The files of the client's TLS, with their content now and after every change.
struct TlsFiles {
    ca: watch::Receiver<String>,
    certificate: watch::Receiver<String>,
    key: watch::Receiver<String>,
}

impl TlsFiles {
    fn follow(options: &StoreOptions, tasks: &mut Tasks) -> Result<Option<TlsFiles>> {
        let Some(ca) = &options.etcd_cafile else { return Ok(None) };
        let mut optional = |path: &Option<PathBuf>| match path {
            Some(path) => files::follow(path, tasks),
            // Without the sender the content never changes.
            None => Ok(watch::channel(String::new()).1),
        };
        let certificate = optional(&options.etcd_certfile)?;
        let key = optional(&options.etcd_keyfile)?;
        Ok(Some(TlsFiles { ca: files::follow(ca, tasks)?, certificate, key }))
    }

    fn read(&mut self) -> Tls {
        Tls {
            ca: self.ca.borrow_and_update().clone(),
            certificate: self.certificate.borrow_and_update().clone(),
            key: self.key.borrow_and_update().clone(),
        }
    }

    /// Waits for a change of any file.
    async fn changed(&mut self) {
        tokio::select! {
            Ok(()) = self.ca.changed() => {}
            Ok(()) = self.certificate.changed() => {}
            Ok(()) = self.key.changed() => {}
            else => std::future::pending().await,
        }
    }

    /// Waits until the files changed, and no other change follows.
    async fn settled(&mut self) -> Tls {
        self.changed().await;
        let mut tls = self.read();
        while tokio::time::timeout(SETTLE, self.changed()).await.is_ok() {
            tls = self.read();
        }
        tls
    }
}

/// Gives the stores the files after every change. A store closes with its last holder, which this task is not.
async fn renew(stores: Vec<Weak<Etcd>>, mut files: TlsFiles, shutdown: CancellationToken) -> Result<()> {
    // They may have changed since the stores were opened.
    let mut tls = files.read();
    loop {
        for store in stores.iter().filter_map(Weak::upgrade) {
            match store.set_tls(&tls) {
                Ok(()) => tracing::debug!("the next connections to etcd use the files as they are now"),
                Err(error) => tracing::warn!("connections to etcd still use the files as they were: {error}"),
            }
        }
        tls = tokio::select! {
            () = shutdown.cancelled() => return Ok(()),
            tls = files.settled() => tls,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn files_that_change_one_by_one_are_taken_together() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| Some(folder.path().join(name));
        let options = StoreOptions {
            etcd_cafile: path("ca"),
            etcd_certfile: path("crt"),
            etcd_keyfile: path("key"),
            ..StoreOptions::default()
        };
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        ["ca", "crt", "key"].iter().for_each(|name| write(name, "old"));
        let shutdown = CancellationToken::new();
        let mut tasks = Tasks::new(shutdown.clone());
        let mut files = TlsFiles::follow(&options, &mut tasks).unwrap().unwrap();
        let tls = files.read();
        assert_eq!([&tls.ca, &tls.certificate, &tls.key], ["old", "old", "old"]);
        write("key", "new");
        write("crt", "new");
        let patience = Duration::from_secs(300);
        let renewed = async {
            loop {
                let tls = files.settled().await;
                if tls.certificate == "new" && tls.key == "new" {
                    return tls;
                }
            }
        };
        let tls = tokio::time::timeout(patience, renewed).await.expect("the files in time");
        assert_eq!(tls.ca, "old");
        shutdown.cancel();
        tasks.run().await.unwrap();
    }
}
