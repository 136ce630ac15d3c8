//! Reads the spec of a policy into [`Settings`].
//!
//! A policy that protects and cannot be followed closes its rules: they answer with 500 until it can.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use corten_meta::Key;
use corten_routing::{
    AddressPolicy, BackendKey, BasicAuth, ClaimHeader, ConcurrencyLimit, CookieAttributes, ErrorPages, Filter,
    FixedResponse, ForwardAuth, HashKey, Jwt, Network, PathChange, RateLimit, Retry, SameSite, SessionKind,
    SessionPersistence, Timeouts,
};

use super::certificates::Problem;
use super::http::{duration, regex, unsupported_filter};
use super::references::From;
use super::settings::{Canary, CanaryHeader, CanaryValues, Settings};
use super::{References, backends, key_sets};
use crate::objects::{Objects, Reference};
use crate::policy_spec::{
    BackendSpec, BasicAuthSpec, CanarySpec, ForwardAuthSpec, HashBySpec, JwtSpec, MaintenanceSpec, RateLimitSpec,
    RoutePolicySpec, SecretSpec, SessionSpec,
};
use crate::status::Condition;

/// The name of a session's cookie unless the policy names another.
pub const SESSION_COOKIE: &str = "corten-session";
/// The most users of one Secret.
const MAX_USERS: usize = 10_000;
/// The total of canary weights unless the policy names another.
const WEIGHT_TOTAL: u32 = 100;

/// The object whose policy is read.
#[derive(Clone, Copy)]
pub struct Source<'a> {
    pub objects: &'a Objects,
    pub from: From<'a>,
    /// The name of the limits of the policy: it is the same as long as the policy exists.
    pub name: &'a str,
}

/// A policy that was read.
#[derive(Debug, Default)]
pub struct Read {
    pub settings: Settings,
    /// The Services that the policy sends requests to.
    pub backends: Vec<BackendKey>,
    /// A value that cannot be used, for the condition Accepted.
    pub invalid: Option<Problem>,
    /// The state of keys that are fetched, for the condition KeysCurrent.
    pub keys: Option<Condition>,
    /// A reference that cannot be resolved, for the condition ResolvedRefs.
    pub unresolved: Option<Problem>,
}

/// Reads the spec of a policy.
pub fn read(source: Source<'_>, spec: &RoutePolicySpec, read: &mut References) -> Read {
    let mut made = Read::default();
    let result = fill(source, spec, read, &mut made);
    if let Err(problem) = result {
        made.invalid = Some(problem);
    }
    if made.invalid.is_some() || made.unresolved.is_some() {
        made.settings.limits.insert(0, unsupported_filter());
    }
    made
}

fn fill(
    source: Source<'_>,
    spec: &RoutePolicySpec,
    references: &mut References,
    made: &mut Read,
) -> Result<(), Problem> {
    limits(source, spec, made)?;
    if let Some(auth) = &spec.basic_auth {
        match basic_auth(source, auth, references) {
            Ok(users) => made.settings.authentication.push(Filter::BasicAuth(Arc::new(users))),
            Err(problem) => made.unresolved = Some(problem),
        }
    }
    if let Some(auth) = &spec.forward_auth {
        forward_auth(source, auth, made);
    }
    if let Some(spec) = &spec.jwt {
        match jwt(source, spec, references, made) {
            Ok(jwt) => made.settings.authentication.push(Filter::Jwt(Arc::new(jwt))),
            Err(problem) => made.unresolved = Some(problem),
        }
    }
    let settings = &mut made.settings;
    settings.maintenance = spec.maintenance.as_ref().map(maintenance).transpose()?;
    settings.max_body_bytes = spec.max_body_bytes;
    settings.compression = spec.compression;
    settings.access_log = spec.access_log;
    settings.hash_by = spec.hash_by.as_ref().map(hash_by).transpose()?;
    settings.session = spec.session.as_ref().map(session).transpose()?.map(Arc::new);
    if let Some(rewrite) = &spec.rewrite {
        let path = rewrite.path.as_deref().map(|path| PathChange::ReplaceGroups(groups(path).into()));
        settings.rewrite = Some(Filter::Rewrite { hostname: rewrite.hostname.as_deref().map(Arc::from), path });
    }
    if let Some(timeouts) = &spec.timeouts {
        let of = |text: &Option<String>| text.as_deref().map(period).transpose();
        settings.timeouts = Timeouts {
            request: of(&timeouts.request)?.filter(|time| !time.is_zero()),
            backend_request: of(&timeouts.backend_request)?.filter(|time| !time.is_zero()),
        };
    }
    if let Some(retry) = &spec.retry {
        settings.retry = Some(Arc::new(Retry {
            attempts: retry.attempts.unwrap_or(1),
            codes: retry.codes.clone(),
            backoff: retry.backoff.as_deref().map(period).transpose()?.unwrap_or(Duration::from_millis(25)),
            idempotent_only: retry.idempotent_only.unwrap_or(false),
        }));
    }
    if let Some(pages) = &spec.error_pages
        && let Some(backend) = backend(source, &pages.backend_ref, made)
    {
        let pages = ErrorPages { statuses: pages.statuses.clone(), backend };
        made.settings.error_pages = Some(Arc::new(pages));
    }
    if let Some(spec) = &spec.canary {
        made.settings.canary = Some(canary(source, spec, made)?);
    }
    Ok(())
}

fn limits(source: Source<'_>, spec: &RoutePolicySpec, made: &mut Read) -> Result<(), Problem> {
    let limits = &mut made.settings.limits;
    if let Some(addresses) = &spec.addresses {
        let policy = AddressPolicy { allow: networks(&addresses.allow)?, deny: networks(&addresses.deny)? };
        limits.push(Filter::Addresses(Arc::new(policy)));
    }
    for (number, limit) in spec.rate_limits.iter().enumerate() {
        limits.push(Filter::RateLimit(Arc::new(rate_limit(source, number, limit)?)));
    }
    if let Some(concurrency) = &spec.concurrency {
        limits.push(Filter::Concurrency(Arc::new(ConcurrencyLimit {
            name: source.name.into(),
            requests: concurrency.requests,
            exempt: networks(&concurrency.exempt)?,
        })));
    }
    Ok(())
}

fn rate_limit(source: Source<'_>, number: usize, spec: &RateLimitSpec) -> Result<RateLimit, Problem> {
    let time = spec.period.as_deref().map(period).transpose()?.unwrap_or(Duration::from_secs(1));
    if time.is_zero() || spec.requests == 0 {
        return Err(invalid("a rate limit needs requests and a period"));
    }
    Ok(RateLimit {
        name: format!("{}/{number}", source.name).into(),
        requests: spec.requests,
        period: time,
        burst: spec.burst.unwrap_or(0),
        per_client: spec.per != "Node",
        exempt: networks(&spec.exempt)?,
    })
}

fn invalid(message: impl Into<String>) -> Problem {
    Problem::new("Invalid", message)
}

fn period(text: &str) -> Result<Duration, Problem> {
    duration(text).ok_or_else(|| invalid(format!("{text:?} is no duration")))
}

fn networks(list: &[String]) -> Result<Vec<Network>, Problem> {
    list.iter().map(|text| text.trim().parse().map_err(|error| invalid(format!("{error}")))).collect()
}

/// Returns a path with groups in the syntax of the `regex` crate: `$1x` is the first group before an x.
fn groups(path: &str) -> String {
    let mut made = String::with_capacity(path.len());
    let mut rest = path;
    while let Some((head, tail)) = rest.split_once('$') {
        made.push_str(head);
        match tail.chars().next().filter(char::is_ascii_digit) {
            Some(digit) => {
                made.push_str("${");
                made.push(digit);
                made.push('}');
                rest = tail.get(1..).unwrap_or_default();
            }
            None => {
                made.push_str("$$");
                rest = tail;
            }
        }
    }
    made.push_str(rest);
    made
}

fn secret_bytes(secret: &BTreeMap<String, String>, key: &str) -> Option<Vec<u8>> {
    BASE64_STANDARD.decode(secret.get(key)?).ok()
}

/// Returns the data of a Secret of the policy's namespace.
fn secret<'a>(
    source: Source<'a>,
    spec: &SecretSpec,
    references: &mut References,
) -> Result<&'a BTreeMap<String, String>, Problem> {
    let key = Key::new(source.from.namespace, spec.name.clone());
    references.secrets.insert(key.clone());
    let secret = source.objects.secrets.get(&key);
    let secret = secret.ok_or_else(|| Problem::new("SecretNotFound", format!("Secret {key} does not exist")))?;
    Ok(&secret.data)
}

/// Reads users from the lines of one key, as `htpasswd` writes them; without such a key each key is a user.
fn basic_auth(source: Source<'_>, spec: &BasicAuthSpec, references: &mut References) -> Result<BasicAuth, Problem> {
    let data = secret(source, &spec.secret_ref, references)?;
    let wrong = |message: String| Problem::new("InvalidSecret", message);
    let name = &spec.secret_ref.name;
    let key = spec.secret_ref.key.as_deref().unwrap_or("auth");
    let users: BTreeMap<String, String> = match secret_bytes(data, key) {
        Some(bytes) => {
            let text = String::from_utf8(bytes).map_err(|_| wrong(format!("{key} of Secret {name} is no text")))?;
            let lines = text.lines().filter_map(|line| line.trim().split_once(':'));
            lines.map(|(user, hash)| (user.to_owned(), hash.to_owned())).collect()
        }
        None if spec.secret_ref.key.is_some() => return Err(wrong(format!("Secret {name} has no key {key}"))),
        None => {
            let text = |key: &String| String::from_utf8(secret_bytes(data, key)?).ok();
            data.keys().filter_map(|user| Some((user.clone(), text(user)?.trim().to_owned()))).collect()
        }
    };
    if users.is_empty() || users.len() > MAX_USERS {
        return Err(wrong(format!("Secret {name} has no users, or more than {MAX_USERS}")));
    }
    let is_known = |hash: &String| hash.starts_with("{SHA}") || hash.starts_with("$apr1$");
    if let Some((user, _)) = users.iter().find(|(_, hash)| !is_known(hash)) {
        let message = format!("the password of user {user:?} in Secret {name} is neither of $apr1$ nor of {{SHA}}");
        return Err(Problem::new("UnsupportedHash", message));
    }
    Ok(BasicAuth { realm: spec.realm.as_deref().unwrap_or("Authentication Required").into(), users })
}

fn jwt(source: Source<'_>, spec: &JwtSpec, references: &mut References, made: &mut Read) -> Result<Jwt, Problem> {
    let jwks = &spec.jwks;
    let mut key_set = None;
    let keys: Vec<u8> = if let Some(inline) = &jwks.inline {
        inline.clone().into_bytes()
    } else if let Some(reference) = &jwks.secret_ref {
        let data = secret(source, reference, references)?;
        let key = reference.key.as_deref().unwrap_or(key_sets::ENTRY);
        let missing = || Problem::new("InvalidSecret", format!("Secret {} has no key {key}", reference.name));
        secret_bytes(data, key).ok_or_else(missing)?
    } else if let Some(uri) = &jwks.uri {
        let set = key_sets::read(source, uri, jwks, references)?;
        let missing = Problem::new("KeysNotFetched", set.condition.message.clone());
        made.keys = Some(set.condition);
        key_set = Some(Arc::from(set.name));
        set.keys.ok_or(missing)?.into_bytes()
    } else {
        return Err(Problem::new("InvalidKeys", "the policy names no keys"));
    };
    if !key_sets::is_key_set(&keys) {
        return Err(Problem::new("InvalidKeys", "the keys are no JSON Web Key Set"));
    }
    let headers = spec.claim_headers.iter();
    Ok(Jwt {
        issuer: spec.issuer.as_deref().map(Arc::from),
        audiences: spec.audiences.iter().map(|audience| audience.as_str().into()).collect(),
        keys_json: keys.into(),
        key_set,
        claim_headers: headers
            .map(|one| ClaimHeader { claim: one.claim.clone(), header: one.header.to_lowercase() })
            .collect(),
    })
}

/// Returns the Service's port that a policy names. One that cannot be resolved is a problem of the policy.
fn backend(source: Source<'_>, spec: &BackendSpec, made: &mut Read) -> Option<BackendKey> {
    let namespace = spec.namespace.clone();
    let to = Reference { name: spec.name.clone(), namespace, port: Some(spec.port), ..Reference::default() };
    match backends::resolve(source.objects, source.from, &to) {
        Ok(key) => {
            made.backends.push(key.clone());
            Some(key)
        }
        Err(problem) => {
            made.unresolved = Some(problem);
            None
        }
    }
}

fn forward_auth(source: Source<'_>, spec: &ForwardAuthSpec, made: &mut Read) {
    let Some(backend) = backend(source, &spec.backend_ref, made) else { return };
    made.settings.authentication.push(Filter::ForwardAuth(Arc::new(ForwardAuth {
        backend,
        host: spec.host.as_deref().map(Arc::from),
        path: spec.path.as_str().into(),
        request_headers: spec.request_headers.clone(),
        response_headers: spec.response_headers.clone(),
        sign_in: spec.sign_in_url.as_deref().map(Arc::from),
    })));
}

fn maintenance(spec: &MaintenanceSpec) -> Result<Filter, Problem> {
    let body = spec.body.clone().unwrap_or_else(|| "The service is being maintained.\n".to_owned());
    Ok(Filter::Respond(Arc::new(FixedResponse {
        status: spec.status.unwrap_or(503),
        content_type: spec.content_type.as_deref().unwrap_or("text/plain; charset=utf-8").into(),
        body: body.into_bytes().into(),
        exempt: networks(&spec.allow)?,
    })))
}

fn hash_by(spec: &HashBySpec) -> Result<HashKey, Problem> {
    let name = || spec.name.as_deref().ok_or_else(|| invalid("hashBy names neither a header nor a cookie"));
    Ok(match spec.type_.as_str() {
        "Header" => HashKey::Header(name()?.to_lowercase().into()),
        "Cookie" => HashKey::Cookie(name()?.into()),
        "Target" => HashKey::Target,
        "Host" => HashKey::Host,
        _ => HashKey::ClientAddress,
    })
}

fn session(spec: &SessionSpec) -> Result<SessionPersistence, Problem> {
    let time = |text: &Option<String>| text.as_deref().map(period).transpose();
    let absolute_timeout = time(&spec.absolute_timeout)?;
    let same_site = match spec.same_site.as_deref() {
        Some("Strict") => SameSite::Strict,
        Some("None") => SameSite::None,
        _ => SameSite::Lax,
    };
    Ok(SessionPersistence {
        kind: SessionKind::Cookie,
        name: spec.cookie.as_deref().unwrap_or(SESSION_COOKIE).into(),
        absolute_timeout,
        idle_timeout: time(&spec.idle_timeout)?,
        path: spec.path.as_deref().unwrap_or("/").into(),
        permanent: absolute_timeout.is_some(),
        cookie: CookieAttributes {
            same_site,
            secure: spec.secure.unwrap_or(same_site == SameSite::None),
            domain: spec.domain.as_deref().map(Arc::from),
        },
    })
}

fn canary(source: Source<'_>, spec: &CanarySpec, made: &mut Read) -> Result<Canary, Problem> {
    let backend = backend(source, &spec.backend_ref, made);
    let header = spec.header.as_ref().map(|header| {
        let values = match (&header.value, &header.pattern) {
            (Some(value), _) => CanaryValues::Value(value.clone()),
            (None, Some(pattern)) => CanaryValues::Pattern(regex(pattern)?),
            (None, None) => CanaryValues::AlwaysNever,
        };
        Ok(CanaryHeader { name: header.name.to_lowercase(), values })
    });
    let total = spec.weight_total.unwrap_or(WEIGHT_TOTAL).max(1);
    Ok(Canary {
        backend,
        header: header.transpose().map_err(|problem: Problem| invalid(problem.message))?,
        cookie: spec.cookie.clone(),
        weight: spec.weight.unwrap_or(0).min(total),
        total,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_ends_after_its_digit() {
        assert_eq!(groups("/$2"), "/${2}");
        assert_eq!(groups("/a/$1b$"), "/a/${1}b$$");
        assert_eq!(groups("/$name/${1}"), "/$$name/$${1}");
    }
}
