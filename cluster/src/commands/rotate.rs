//! `corten ca rotate`, `corten service-account-key rotate` and `corten encryption-key rotate`.
//!
//! A rotation is a state in files; a running server follows them and records what it has taken over. Several servers share
//! one set of files ([`crate::membership::shared`]). Each command goes on from the state that it finds, so one that was
//! interrupted is repeated.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use bytes::Bytes;
use corten_api::Typed;
use corten_api::k8s_openapi::api::core::v1::{Node, Secret};
use corten_client::{Client, ListOptions};
use corten_meta::{Value, time};
use http::Request;
use http::header::ACCEPT;

use crate::certificate_cli::{Ca, CaRotate, EncryptionKey, ServiceAccountKey, ServiceAccountKeyRotate};
use crate::components::trusted_authority::reported;
use crate::directories::Directories;
use crate::join::discovery;
use crate::membership::shared::SharedKeys;
use crate::pki::keys::{self, KeyRing, Stage};
use crate::pki::rotation::{Files, Phase, generation, set_generation};
use crate::pki::{ENCRYPTION_KEYS, Pki, SERVICE_ACCOUNT_KEYS, digest};
use crate::{instance, preflight};

/// The time within which a running server takes over changed files.
const PATIENCE: Duration = Duration::from_secs(120);
/// The time within which all servers take over a change: each restarts its etcd member in turn.
const SERVERS_PATIENCE: Duration = Duration::from_secs(600);
/// The time between two looks at what was taken over.
const PAUSE: Duration = Duration::from_millis(50);
const SERVERS_PAUSE: Duration = Duration::from_millis(500);
/// The most Secrets in one answer.
const PAGE: u64 = 500;
/// The most attempts at one Secret that others change too.
const ATTEMPTS: usize = 10;

/// Runs `corten ca`.
pub async fn ca(command: Ca) -> Result<()> {
    let Ca::Rotate(flags) = command;
    let directories = of_server("ca rotate", &Directories::of(&flags.directories))?;
    if flags.finish {
        return finish_ca(&flags, &directories).await;
    }
    let keys = Keys::open(&directories)?;
    keys.change(|files| {
        files.recover()?;
        match files.rotation()? {
            Some(rotation) if rotation.phase == Phase::Overlap => Ok(()),
            _ => files.rotate(time::now()),
        }
    })
    .await?;
    println!("the cluster has new certificate authorities; the old ones are still trusted");
    if instance::running(&directories)?.is_some() {
        let waiting = waiting_nodes(&admin(&directories)?, &directories).await?;
        if !waiting.is_empty() {
            println!("these nodes follow within a minute: {}", waiting.join(", "));
        }
    }
    println!("pods that read kube-root-ca.crt only at their start must be restarted before the end of the rotation");
    println!("end it by: corten ca rotate --finish");
    Ok(())
}

async fn finish_ca(flags: &CaRotate, directories: &Directories) -> Result<()> {
    if !flags.force {
        ensure!(
            instance::running(directories)?.is_some(),
            "whether every node has followed is unknown while the cluster is stopped; start it by `corten up`, or give \
             --force"
        );
        let waiting = waiting_nodes(&admin(directories)?, directories).await?;
        ensure!(
            waiting.is_empty(),
            "these nodes have not followed: {}; wait for them, delete those that are gone, or give --force, after which \
             they must join again",
            waiting.join(", ")
        );
    }
    let keys = Keys::open(directories)?;
    let finished = keys.change(|files| {
        files.recover()?;
        let is_under_way = files.rotation()?.is_some();
        if is_under_way {
            files.finish()?;
        }
        Ok(is_under_way)
    });
    // A command whose answer was lost had finished the rotation, and every server has followed now.
    if !finished.await? {
        println!("no rotation of the authorities is under way");
    }
    println!("the old certificate authorities are no longer trusted");
    Ok(())
}

/// Returns the nodes that do not report the signing authority.
async fn waiting_nodes(client: &Client, directories: &Directories) -> Result<Vec<String>> {
    let own = discovery::hash(&Pki::open(&directories.pki())?.cluster.certificate)?;
    let nodes = client.list::<Node>("", &ListOptions::default()).await.context("the nodes cannot be listed")?;
    let nodes = nodes.items.iter().map(Typed::to_value);
    let waiting = nodes.filter(|node| reported(node) != Some(own.as_str()));
    Ok(waiting.map(|node| corten_meta::name(&node).to_owned()).collect())
}

/// Runs `corten service-account-key`.
pub async fn service_account_key(command: ServiceAccountKey) -> Result<()> {
    let ServiceAccountKey::Rotate(flags) = command;
    let directories = of_server("service-account-key rotate", &Directories::of(&flags.directories))?;
    let keys = Keys::open(&directories)?;
    if flags.finish {
        return finish_service_account_key(&flags, &directories, &keys).await;
    }
    // Every server accepts the new key before one signs with it.
    while keys.change(|files| SERVICE_ACCOUNTS.stage(files)).await? != Stage::Used {
        keys.change(|files| SERVICE_ACCOUNTS.step(files)).await?;
    }
    println!("a new key signs ServiceAccount tokens; tokens of the old one are still accepted");
    println!("pods get new tokens within the hour; end the rotation by: corten service-account-key rotate --finish");
    Ok(())
}

async fn finish_service_account_key(
    flags: &ServiceAccountKeyRotate,
    directories: &Directories,
    keys: &Keys,
) -> Result<()> {
    ensure!(flags.finish, "the rotation is not to be ended");
    match keys.change(|files| SERVICE_ACCOUNTS.stage(files)).await? {
        Stage::Used => {}
        // So too after a command whose answer was lost.
        Stage::Single => {
            println!("no rotation of the ServiceAccount key is under way");
            return Ok(());
        }
        Stage::Accepted => bail!("the new key does not sign yet; go on by `corten service-account-key rotate`"),
    }
    if instance::running(directories)?.is_some() {
        let old = tokens_of_old_keys(&admin(directories)?).await?;
        ensure!(
            old.is_empty(),
            "these Secrets hold tokens of the old key: {}; delete `data.token` of each, and the controller writes a new \
             one",
            old.join(", ")
        );
    }
    keys.change(|files| SERVICE_ACCOUNTS.step(files)).await?;
    println!("tokens of the old key are refused");
    Ok(())
}

/// Returns the Secrets with ServiceAccount tokens that a key signed which no longer signs.
async fn tokens_of_old_keys(client: &Client) -> Result<Vec<String>> {
    let keys = Request::get("/openid/v1/jwks").header(ACCEPT, "application/jwk-set+json").body(Bytes::new())?;
    let answer = client.request(keys).await.context("the keys of ServiceAccount tokens cannot be read")?;
    let keys: Value = serde_json::from_slice(&answer.into_body().into_bytes().await?)?;
    let keys = keys["keys"].as_array().cloned().unwrap_or_default();
    let old: Vec<&str> = keys.iter().skip(1).filter_map(|key| key["kid"].as_str()).collect();
    let selector = ListOptions::fields("type=kubernetes.io/service-account-token");
    let secrets = client.list::<Secret>("", &selector).await.context("the Secrets cannot be listed")?;
    let is_old = |secret: &Value| {
        let token = STANDARD.decode(secret.pointer("/data/token")?.as_str()?).ok()?;
        let header = URL_SAFE_NO_PAD.decode(token.split(|byte| *byte == b'.').next()?).ok()?;
        let header: Value = serde_json::from_slice(&header).ok()?;
        old.contains(&header["kid"].as_str()?).then_some(())
    };
    let found = secrets.items.iter().map(Typed::to_value).filter(|secret| is_old(secret).is_some());
    Ok(found.map(|secret| format!("{}/{}", corten_meta::namespace(&secret), corten_meta::name(&secret))).collect())
}

/// Runs `corten encryption-key`.
pub async fn encryption_key(command: EncryptionKey) -> Result<()> {
    let EncryptionKey::Rotate(flags) = command;
    let directories = of_server("encryption-key rotate", &Directories::of(&flags))?;
    ensure!(
        instance::running(&directories)?.is_some(),
        "corten is not running, and the Secrets are rewritten by the API server; start it by `corten up`"
    );
    let keys = Keys::open(&directories)?;
    loop {
        // A step that a killed command had written may not have been taken over.
        if keys.change(|files| ENCRYPTION.stage(files)).await? == Stage::Used {
            let count = rewrite_secrets(&admin(&directories)?).await?;
            println!("{count} Secrets are encrypted with the new key");
        }
        let stage = keys.change(|files| {
            ENCRYPTION.step(files)?;
            ENCRYPTION.stage(files)
        });
        if stage.await? == Stage::Single {
            break;
        }
    }
    println!("the old key is removed");
    Ok(())
}

/// Writes every Secret again, which encrypts it with the first key.
async fn rewrite_secrets(client: &Client) -> Result<usize> {
    let mut options = ListOptions { limit: Some(PAGE), ..ListOptions::default() };
    let mut count = 0;
    loop {
        let page = client.list::<Secret>("", &options).await.context("the Secrets cannot be listed")?;
        for secret in page.items {
            rewrite(client, secret).await?;
            count += 1;
        }
        if page.continue_token.is_empty() {
            return Ok(count);
        }
        options.continue_token = Some(page.continue_token);
    }
}

/// Writes a Secret as it is. One that is gone needs no key, and one that another writer changed is read again.
async fn rewrite(client: &Client, mut secret: Secret) -> Result<()> {
    let namespace = secret.metadata.namespace.clone().unwrap_or_default();
    let name = secret.metadata.name.clone().unwrap_or_default();
    for _ in 0..ATTEMPTS {
        match client.update(&secret).await {
            Ok(_) => return Ok(()),
            Err(error) if error.is_not_found() => return Ok(()),
            Err(error) if error.is_conflict() => match client.find::<Secret>(&namespace, &name).await? {
                Some(current) => secret = current,
                None => return Ok(()),
            },
            Err(error) => return Err(error).with_context(|| format!("the Secret {namespace}/{name}")),
        }
    }
    bail!("the Secret {namespace}/{name} keeps changing; repeat the command")
}

/// A file of keys that rotate.
struct Ring {
    file: &'static str,
    parse: fn(&str) -> Result<KeyRing>,
    encode: fn(&KeyRing) -> String,
    make: fn() -> Result<String>,
}

const SERVICE_ACCOUNTS: Ring = Ring {
    file: SERVICE_ACCOUNT_KEYS,
    parse: keys::parse_pem,
    encode: keys::encode_pem,
    make: keys::make_service_account_key,
};

const ENCRYPTION: Ring = Ring {
    file: ENCRYPTION_KEYS,
    parse: keys::parse_lines,
    encode: keys::encode_lines,
    make: keys::make_encryption_key,
};

impl Ring {
    fn stage(&self, files: &Files) -> Result<Stage> {
        Ok((self.parse)(&files.read(self.file)?)?.stage())
    }

    /// Takes the next step of the rotation.
    fn step(&self, files: &mut Files) -> Result<()> {
        let next = (self.parse)(&files.read(self.file)?)?.next(self.make)?;
        files.write(self.file, &(self.encode)(&next))
    }
}

/// The files of authorities and keys: those of this machine, or those that several servers share.
struct Keys {
    directories: Directories,
    shared: Option<SharedKeys>,
}

impl Keys {
    fn open(directories: &Directories) -> Result<Keys> {
        let shared = SharedKeys::of_machine(directories)?;
        ensure!(
            shared.is_none() || instance::running(directories)?.is_some(),
            "corten is not running, and the keys are shared with the other servers; start it by `corten up`"
        );
        Ok(Keys { directories: directories.clone(), shared })
    }

    /// Takes a step, and waits until every running server has taken it over; so too after a step that changes nothing.
    async fn change<T>(&self, step: impl FnOnce(&mut Files) -> Result<T>) -> Result<T> {
        match &self.shared {
            None => {
                let outcome = change_own(&self.directories, step)?;
                wait_until_taken_over(&self.directories).await?;
                Ok(outcome)
            }
            Some(shared) => {
                let changed = shared.change(step).await?;
                wait_for_servers(shared, &changed.digest).await?;
                Ok(changed.outcome)
            }
        }
    }
}

/// Takes a step in the files of this machine.
fn change_own<T>(directories: &Directories, step: impl FnOnce(&mut Files) -> Result<T>) -> Result<T> {
    let pki = directories.pki();
    Pki::open(&pki)?;
    let before = digest(&pki)?;
    let mut files = Files::lock(&pki)?;
    let outcome = step(&mut files)?;
    let mut shared = files.shared()?;
    let changes = generation(&shared);
    // Other servers had these files once, and take the newer ones when they come back.
    if changes > 0 && digest(&pki)? != before {
        set_generation(&mut shared, changes + 1);
        files.replace(&shared)?;
    }
    Ok(outcome)
}

/// Waits until all servers have reported that they use the changed files.
async fn wait_for_servers(shared: &SharedKeys, digest: &str) -> Result<()> {
    let began = Instant::now();
    loop {
        let waiting = match shared.waiting(digest).await {
            Ok(waiting) if waiting.is_empty() => return Ok(()),
            Ok(waiting) => waiting.join(", "),
            Err(error) => format!("unknown, because {error:#}"),
        };
        ensure!(
            began.elapsed() < SERVERS_PATIENCE,
            "these servers have not taken over the change within {SERVERS_PATIENCE:?}: {waiting}; start them, or delete \
             the Nodes of those that are gone; the next attempt goes on from here"
        );
        tokio::time::sleep(SERVERS_PAUSE).await;
    }
}

/// Returns the directories of a server; refuses a machine without one.
fn of_server(command: &str, directories: &Directories) -> Result<Directories> {
    preflight::root_for(command)?;
    ensure!(
        directories.pki().join("ca.key").exists(),
        "{} holds no cluster: run the command on the machine of a server, or give its --data-dir",
        directories.data.display()
    );
    Ok(directories.clone())
}

/// Waits until a running server has taken over the files.
async fn wait_until_taken_over(directories: &Directories) -> Result<()> {
    let wanted = digest(&directories.pki())?;
    let began = Instant::now();
    while instance::running(directories)?.is_some() {
        if std::fs::read_to_string(directories.loaded_authorities()).is_ok_and(|loaded| loaded == wanted) {
            return Ok(());
        }
        ensure!(
            began.elapsed() < PATIENCE,
            "the server has not taken over the change within {PATIENCE:?}; `corten logs` shows why; the next attempt goes \
             on from here"
        );
        tokio::time::sleep(PAUSE).await;
    }
    Ok(())
}

fn admin(directories: &Directories) -> Result<Client> {
    let path = directories.kubeconfig("admin");
    Client::from_kubeconfig(&path, None).context("the administrator's kubeconfig cannot be used")
}
