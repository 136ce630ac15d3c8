//! Discovers a cluster and verifies that it is the right one.
//!
//! `cluster-info` is read from a server that is not trusted yet. Its signature proves that its author knows the token;
//! the pinned hash of the CA's key proves that it is the cluster that the administrator meant, and not another server
//! with a stolen token.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use corten_client::{Client, HttpsConfig};
use corten_meta::{Value, decode_yaml};
use ring::hmac;

use crate::cli;
pub use crate::key_hash::hash;
use crate::pki::rotation;

pub const CLUSTER_INFO: &str = "/api/v1/namespaces/kube-public/configmaps/cluster-info";

/// The time that a cluster may take to publish a signed `cluster-info`: it may be starting, and a new token signs it only
/// after its creation.
const PATIENCE: Duration = Duration::from_secs(60);
/// The time after which a `cluster-info` with a wrong signature is final: the signature of a token that was made again with another
/// secret is replaced within moments.
const PATIENCE_WITH_SIGNATURE: Duration = Duration::from_secs(5);
/// The time between two reads of a `cluster-info` that the token has not signed yet.
const INTERVAL: Duration = Duration::from_millis(500);

/// A verified cluster.
pub struct Discovered {
    pub server: String,
    /// The CA's certificate in PEM.
    pub authority: String,
}

/// Discovers the cluster of a server.
pub async fn discover(server: &str, token: &str, flags: &cli::Join) -> Result<Discovered> {
    let hashes = &flags.discovery_token_ca_cert_hash;
    ensure!(
        !hashes.is_empty() || flags.discovery_token_unsafe_skip_ca_verification,
        "--discovery-token-ca-cert-hash is needed: it says which cluster is meant (`corten token create \
         --print-join-command` prints it). --discovery-token-unsafe-skip-ca-verification joins whoever answers"
    );
    let untrusted = HttpsConfig { server: server.to_owned(), insecure_skip_tls_verify: true, ..HttpsConfig::default() };
    let info = signed_info(&Client::https(untrusted)?, token).await?;
    let content = verified_content(&info, token)?;
    let discovered = parse(content)?;
    if !hashes.is_empty() {
        ensure!(
            is_pinned(&discovered.authority, hashes)?,
            "the cluster behind {server} is not the one that was pinned: its authority is {}",
            hash(&discovered.authority)?
        );
    }
    // The second request uses a connection that the CA verifies: the first answer could be of any server.
    let trusted = HttpsConfig {
        server: server.to_owned(),
        ca: Some(discovered.authority.as_str().into()),
        ..HttpsConfig::default()
    };
    let again = cluster_info(&Client::https(trusted)?).await?;
    ensure!(verified_content(&again, token)? == content, "{server} says different things with and without trust");
    // The server of the flag is known to be reachable from here.
    Ok(Discovered { server: server.to_owned(), ..discovered })
}

/// Waits for a `cluster-info` that the token has signed; one that is not is returned when the time is over.
async fn signed_info(client: &Client, token: &str) -> Result<Value> {
    parts(token)?;
    let begun = Instant::now();
    let mut signed_since = None;
    let mut logged = None;
    loop {
        let info = cluster_info(client).await;
        let missing = match &info {
            Ok(info) => verified_content(info, token).err().map(|error| error.to_string()),
            Err(error) => Some(format!("{error:#}")),
        };
        let is_signed = info.as_ref().is_ok_and(|info| has_signature(info, token));
        signed_since = is_signed.then(|| signed_since.unwrap_or_else(Instant::now));
        if missing.is_none() || is_final(begun.elapsed(), signed_since.map(|since| since.elapsed())) {
            return info;
        }
        if logged != missing {
            tracing::info!(missing, "waiting for a cluster-info that the token has signed");
            logged = missing;
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

/// Reports whether waiting longer cannot help, by the time since the start, and since a signature by the token's id was there.
fn is_final(waited: Duration, signed: Option<Duration>) -> bool {
    waited >= PATIENCE || signed.is_some_and(|signed| signed >= PATIENCE_WITH_SIGNATURE)
}

/// Reports whether the token's id signed a `cluster-info`, rightly or not.
fn has_signature(info: &Value, token: &str) -> bool {
    let id = token.split('.').next().unwrap_or_default();
    info.pointer("/data").is_some_and(|data| data[&*format!("jws-kubeconfig-{id}")].is_string())
}

/// Splits a token into its id and its secret.
fn parts(token: &str) -> Result<(&str, &str)> {
    token.split_once('.').context("the token is not of the form id.secret")
}

async fn cluster_info(client: &Client) -> Result<Value> {
    let bytes = client.get_raw(CLUSTER_INFO).await.context("the cluster's cluster-info cannot be read")?;
    Ok(serde_json::from_slice(&bytes)?)
}

/// Returns the kubeconfig of a cluster-info that the token has signed.
pub fn verified_content<'a>(info: &'a Value, token: &str) -> Result<&'a str> {
    let (id, secret) = parts(token)?;
    let data = |key: &str| info.pointer("/data").and_then(|data| data[key].as_str());
    let content = data("kubeconfig").context("cluster-info holds no kubeconfig")?;
    let Some(signature) = data(&format!("jws-kubeconfig-{id}")) else {
        bail!("the cluster does not know the token {id}: it may have expired");
    };
    let (header, signature) = signature.split_once("..").context("cluster-info is not signed as it should be")?;
    let algorithm: Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(header)?)?;
    ensure!(algorithm["alg"] == "HS256" && algorithm["kid"] == id, "cluster-info is not signed as it should be");
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
    let signed = format!("{header}.{}", URL_SAFE_NO_PAD.encode(content));
    hmac::verify(&key, signed.as_bytes(), &URL_SAFE_NO_PAD.decode(signature)?).map_err(|_| {
        anyhow::anyhow!("cluster-info is not signed by the token {id}: the token is wrong, or the cluster")
    })?;
    Ok(content)
}

pub fn parse(content: &str) -> Result<Discovered> {
    let config = decode_yaml(content.as_bytes()).context("cluster-info holds no kubeconfig")?;
    let field = |name: &str| config.pointer("/clusters/0/cluster").and_then(|cluster| cluster[name].as_str());
    let authority = field("certificate-authority-data").context("cluster-info names no authority")?;
    Ok(Discovered {
        server: field("server").context("cluster-info names no server")?.to_owned(),
        authority: String::from_utf8(STANDARD.decode(authority)?)?,
    })
}

/// Reports whether a CA, or one of those of a bundle, has one of the hashes.
pub fn is_pinned(authority: &str, hashes: &[String]) -> Result<bool> {
    let all = rotation::certificates(authority);
    let own = all.iter().map(|one| hash(one)).collect::<Result<Vec<_>>>()?;
    for pinned in hashes {
        ensure!(pinned.starts_with("sha256:"), "{pinned:?} is not of the form sha256:<hexadecimal digits>");
    }
    Ok(hashes.iter().any(|pinned| own.iter().any(|own| pinned.eq_ignore_ascii_case(own))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn info(content: &str, id: &str, secret: &str) -> Value {
        let header = URL_SAFE_NO_PAD.encode(format!(r#"{{"alg":"HS256","kid":"{id}"}}"#));
        let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
        let signature = hmac::sign(&key, format!("{header}.{}", URL_SAFE_NO_PAD.encode(content)).as_bytes());
        let signature = format!("{header}..{}", URL_SAFE_NO_PAD.encode(signature));
        json!({"data": {"kubeconfig": content, (format!("jws-kubeconfig-{id}")): signature}})
    }

    #[test]
    fn only_content_that_the_token_signed_is_trusted() {
        let good = info("content", "abcdef", "0123456789abcdef");
        assert_eq!(verified_content(&good, "abcdef.0123456789abcdef").unwrap(), "content");
        for (token, why) in [
            ("abcdef.0123456789abcdeX", "not signed by the token"),
            ("ghijkl.0123456789abcdef", "does not know the token"),
            ("nonsense", "not of the form"),
        ] {
            let refused = verified_content(&good, token).unwrap_err().to_string();
            assert!(refused.contains(why), "{token}: {refused}");
        }
        let mut forged = good.clone();
        forged["data"]["kubeconfig"] = json!("other content");
        assert!(verified_content(&forged, "abcdef.0123456789abcdef").is_err());
    }

    #[test]
    fn a_wrong_secret_is_refused_within_seconds_and_an_unknown_token_is_waited_for() {
        let good = info("content", "abcdef", "0123456789abcdef");
        assert!(has_signature(&good, "abcdef.0123456789abcdeX"));
        assert!(!has_signature(&good, "ghijkl.0123456789abcdef") && !has_signature(&Value::Null, "abcdef.0"));
        let seconds = Duration::from_secs;
        assert!(!is_final(seconds(59), None) && is_final(seconds(60), None));
        assert!(!is_final(seconds(59), Some(seconds(1))) && is_final(seconds(5), Some(seconds(5))));
    }

    #[test]
    fn an_authority_is_pinned_by_its_key() {
        let dir = tempfile::tempdir().unwrap();
        let authority = crate::pki::Pki::open(dir.path()).unwrap().cluster.certificate;
        let own = hash(&authority).unwrap();
        assert!(own.starts_with("sha256:") && own.len() == 7 + 64, "{own}");
        assert!(is_pinned(&authority, &["sha256:00".into(), own.to_uppercase().replace("SHA256", "sha256")]).unwrap());
        assert!(!is_pinned(&authority, &["sha256:00".into()]).unwrap());
        assert!(is_pinned(&authority, &["md5:00".into()]).is_err());
    }
}
