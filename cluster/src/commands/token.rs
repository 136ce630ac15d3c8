//! `corten token`: the bootstrap tokens with which machines join, kept as Secrets in `kube-system`.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use base64::{Engine, engine::general_purpose::STANDARD};
use corten_api::Typed;
use corten_api::k8s_openapi::api::core::v1::{ConfigMap, Secret};
use corten_api::k8s_openapi::api::discovery::v1::EndpointSlice;
use corten_client::{Client, DeleteOptions, HttpsConfig, ListOptions};
use corten_meta::{Value, time};
use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use crate::cli::{Token, TokenAccess, TokenCreate};
use crate::directories::Directories;
use crate::join::discovery;
use crate::membership::{sealed, token};
use crate::{api_servers, instance, preflight, secrets};

/// The longest time that a server may take to answer.
const PATIENCE: Duration = Duration::from_secs(3);
const NAMESPACE: &str = "kube-system";
const TYPE: &str = "bootstrap.kubernetes.io/token";
const PREFIX: &str = "bootstrap-token-";
const ALPHABET: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";
const GROUP_PREFIX: &str = "system:bootstrappers:";

pub async fn run(command: Token) -> Result<()> {
    match command {
        Token::Create(flags) => create(&flags).await,
        Token::List { access } => list(&client(&access)?).await,
        Token::Delete { access, tokens } => delete(&client(&access)?, &secrets::several(&tokens)?).await,
        Token::Generate => {
            println!("{}", generate()?);
            Ok(())
        }
    }
}

fn client(access: &TokenAccess) -> Result<Client> {
    let path = match &access.kubeconfig {
        Some(path) => path.clone(),
        None => {
            preflight::root_for("token")?;
            Directories::of(&access.directories).kubeconfig("admin")
        }
    };
    Client::from_kubeconfig(&path, None).with_context(|| format!("{} cannot be used", path.display()))
}

async fn create(flags: &TokenCreate) -> Result<()> {
    if flags.server {
        return create_for_server(flags).await;
    }
    let token = match &flags.token {
        Some(token) => secrets::one(token)?,
        None => generate()?,
    };
    let secret = secret(&token, flags, time::now())?;
    let client = client(&flags.access)?;
    client.create(&Secret::from_value(secret)?).await.context("the token cannot be kept")?;
    if flags.print_join_command {
        println!("{}", join_command(&client, &token).await?);
    } else {
        println!("{token}");
    }
    Ok(())
}

/// Makes a token with which a machine becomes another server, and prints it.
async fn create_for_server(flags: &TokenCreate) -> Result<()> {
    preflight::root_for("token create --server")?;
    let client = client(&flags.access)?;
    let directories = Directories::of(&flags.access.directories);
    let running = instance::running(&directories)?.map(instance::flags).transpose()?.flatten();
    let encryption = running.and_then(|flags| flags.access.encryption_provider_config);
    let new = sealed::NewToken {
        directories: &directories,
        encryption: encryption.as_deref(),
        expiration: expiration(&flags.ttl, time::now())?,
        description: flags.description.clone(),
    };
    let token = sealed::create(&client, &new).await?;
    if flags.print_join_command {
        let cluster = published(&client).await?;
        let hash = discovery::hash(&cluster.authority)?;
        println!(
            "corten server --join {} --token {} --discovery-token-ca-cert-hash {hash}",
            cluster.server,
            token.reveal()
        );
    } else {
        println!("{}", token.reveal());
    }
    Ok(())
}

/// Returns the command that joins another machine.
async fn join_command(client: &Client, token: &str) -> Result<String> {
    let cluster = published(client).await?;
    let hash = discovery::hash(&cluster.authority)?;
    Ok(format!("corten agent --server {} --token {token} --discovery-token-ca-cert-hash {hash}", cluster.server))
}

/// Reads where the cluster is and whom to trust, as it is published for machines that join. While the published server does
/// not answer, another one is named.
async fn published(client: &Client) -> Result<discovery::Discovered> {
    let info: ConfigMap =
        client.get("kube-public", "cluster-info").await.context("cluster-info is not published yet")?;
    let content = info.data.and_then(|mut data| data.remove("kubeconfig")).context("cluster-info is empty")?;
    let published = discovery::parse(&content)?;
    let options = ListOptions::labels("kubernetes.io/service-name=kubernetes");
    let slices = client.list::<EndpointSlice>("default", &options).await;
    let slices: Vec<Value> = slices.map(|list| list.items.iter().map(Typed::to_value).collect()).unwrap_or_default();
    let others = api_servers::endpoints(&slices).into_iter().map(|server| format!("https://{server}"));
    for server in std::iter::once(published.server.clone()).chain(others) {
        if answers(&server, &published.authority).await {
            return Ok(discovery::Discovered { server, ..published });
        }
    }
    Ok(published)
}

/// Reports whether a server answers as one of the cluster.
async fn answers(server: &str, authority: &str) -> bool {
    let config = HttpsConfig { server: server.to_owned(), ca: Some(authority.into()), ..HttpsConfig::default() };
    let Ok(client) = Client::https(config) else { return false };
    let answer = tokio::time::timeout(PATIENCE, client.get_raw("/readyz")).await;
    matches!(answer, Ok(Ok(_)))
}

fn secret(token: &str, flags: &TokenCreate, now: Timestamp) -> Result<Value> {
    let (id, secret) = parse(token)?;
    let mut data = json!({"token-id": STANDARD.encode(id), "token-secret": STANDARD.encode(secret)});
    let mut put = |key: &str, text: &str| data[key] = json!(STANDARD.encode(text));
    if let Some(description) = &flags.description {
        put("description", description);
    }
    if let Some(expiration) = expiration(&flags.ttl, now)? {
        put("expiration", &expiration);
    }
    for usage in &flags.usages {
        ensure!(
            ["signing", "authentication"].contains(&usage.as_str()),
            "--usages {usage:?}: signing or authentication"
        );
        put(&format!("usage-bootstrap-{usage}"), "true");
    }
    for group in &flags.groups {
        ensure!(group.starts_with(GROUP_PREFIX), "--groups {group:?}: a group must begin with {GROUP_PREFIX}");
    }
    if flags.usages.iter().any(|usage| usage == "authentication") {
        put("auth-extra-groups", &flags.groups.join(","));
    }
    let name = format!("{PREFIX}{id}");
    Ok(json!({"apiVersion": "v1", "kind": "Secret", "type": TYPE,
        "metadata": {"namespace": NAMESPACE, "name": name}, "data": data}))
}

/// Returns the expiry of a token with this lifetime; none for one that never expires.
fn expiration(ttl: &str, now: Timestamp) -> Result<Option<String>> {
    if ttl == "0" {
        return Ok(None);
    }
    let ttl: SignedDuration = ttl.parse().with_context(|| format!("--ttl {ttl:?}: a duration such as 24h or 30m"))?;
    ensure!(ttl.is_positive() || ttl.is_zero(), "--ttl must not be negative");
    if ttl.is_zero() {
        return Ok(None);
    }
    let expires = now.checked_add(ttl).with_context(|| format!("--ttl {ttl:#} ends after the last time there is"))?;
    Ok(Some(time::rfc3339(expires)))
}

/// Generates a token: six characters for its id, sixteen for its secret.
fn generate() -> Result<String> {
    Ok(format!("{}.{}", token::random(6)?, token::random(16)?))
}

fn parse(token: &str) -> Result<(&str, &str)> {
    let good = |text: &str, length: usize| text.len() == length && text.bytes().all(|byte| ALPHABET.contains(&byte));
    match token.split_once('.') {
        Some((id, secret)) if good(id, 6) && good(secret, 16) => Ok((id, secret)),
        _ => bail!("{token:?} is no token: six and sixteen characters of a-z and 0-9 with a dot between them"),
    }
}

async fn list(client: &Client) -> Result<()> {
    let options = ListOptions::fields(format!("type={TYPE}"));
    let secrets = client.list::<Secret>(NAMESPACE, &options).await.context("the tokens cannot be listed")?;
    let mut rows = vec![["TOKEN", "TTL", "EXPIRES", "USAGES", "DESCRIPTION", "EXTRA GROUPS"].map(str::to_owned)];
    rows.extend(secrets.items.iter().filter_map(|secret| row(secret, time::now())));
    super::print_table(&rows);
    Ok(())
}

fn row(secret: &Secret, now: Timestamp) -> Option<[String; 6]> {
    let field = |name: &str| {
        let bytes = secret.data.as_ref()?.get(name)?;
        String::from_utf8(bytes.0.clone()).ok().filter(|text| !text.is_empty())
    };
    let or = |text: Option<String>, otherwise: &str| text.unwrap_or_else(|| otherwise.to_owned());
    let expires = field("expiration");
    let ttl = expires.as_deref().map(|text| match text.parse::<Timestamp>() {
        Ok(at) if at > now => format!("{:#}", SignedDuration::from_secs(at.duration_since(now).as_secs())),
        Ok(_) => "<expired>".to_owned(),
        Err(_) => "<invalid>".to_owned(),
    });
    let usage = |name: &str| field(&format!("usage-bootstrap-{name}")).is_some_and(|text| text == "true");
    let usages: Vec<&str> = ["authentication", "signing"].into_iter().filter(|name| usage(name)).collect();
    Some([
        format!("{}.{}", field("token-id")?, field("token-secret")?),
        or(ttl, "<forever>"),
        or(expires, "<never>"),
        or(Some(usages.join(",")).filter(|text| !text.is_empty()), "<none>"),
        or(field("description"), "<none>"),
        or(field("auth-extra-groups"), "<none>"),
    ])
}

/// Deletes tokens, by id or as full tokens.
async fn delete(client: &Client, tokens: &[String]) -> Result<()> {
    for token in tokens {
        let id = token.split_once('.').map_or(token.as_str(), |(id, _)| id);
        let name = format!("{PREFIX}{id}");
        client
            .delete::<Secret>(NAMESPACE, &name, &DeleteOptions::default())
            .await
            .with_context(|| format!("the token {id} cannot be deleted"))?;
        println!("bootstrap token {id:?} deleted");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_made_and_read() {
        let token = generate().unwrap();
        let (id, secret) = parse(&token).unwrap();
        assert_eq!((id.len(), secret.len()), (6, 16));
        assert_ne!(token, generate().unwrap());
        for bad in ["", "abcdef", "abcdef.short", "ABCDEF.0123456789abcdef", "abcdef.0123456789abcde-"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_ttl_becomes_an_expiration() {
        let now: Timestamp = "2026-01-02T03:04:05Z".parse().unwrap();
        assert_eq!(expiration("24h", now).unwrap().as_deref(), Some("2026-01-03T03:04:05Z"));
        assert_eq!(expiration("1h30m", now).unwrap().as_deref(), Some("2026-01-02T04:34:05Z"));
        assert_eq!(expiration("0", now).unwrap(), None);
        assert_eq!(expiration("0s", now).unwrap(), None);
        for bad in ["soon", "-1h", "99999999h"] {
            assert!(expiration(bad, now).is_err(), "{bad}");
        }
    }
}
