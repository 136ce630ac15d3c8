//! One order, from the account to the certificate in its Secret.
//!
//! Each step stores what the next one needs, and asks the authority for the state of the order: a leader that takes over
//! in the middle goes on where the last one stopped.

use std::sync::Arc;
use std::time::Duration;

use corten_client::{Client, Patch};
use corten_gateway::issuer::{ChallengeType, IssuerSpec, acme_issuers};
use corten_gateway::resolve::{HttpChallenge, NAMESPACE, TlsChallenge};
use corten_meta::{Key, Value};
use jiff::Timestamp;
use rcgen::{CertificateParams, CustomExtension, DistinguishedName, KeyPair};
use serde_json::json;
use tokio::time::Instant;

use crate::Error;
use crate::answers::{Answer, Answers};
use crate::held::Held;
use crate::jws::{self, AccountKey, ExternalBinding};
use crate::plan::{self, Due};
use crate::protocol::{Authority, Authorization, Challenge, Order, Status};
use crate::store::{self, Account, OrderState, Part};
use crate::wanted::Wanted;

/// The longest time for an authority's decision, on an authorization or on an order.
const DECISION: Duration = Duration::from_secs(300);
/// The pause between two looks at an authorization or order, and the longest.
const FIRST_POLL: Duration = Duration::from_millis(250);
const LONGEST_POLL: Duration = Duration::from_secs(5);
/// The entry of the Secret of an external account with its key.
const HMAC: &str = "hmac";

/// An order to make.
pub struct Job {
    pub client: Client,
    pub answers: Arc<Answers>,
    pub issuer: String,
    pub spec: IssuerSpec,
    pub secret: Key,
    pub wanted: Wanted,
}

/// The end of a job.
pub enum Done {
    Issued,
    /// There was nothing to do: the caches were behind.
    NotDue,
    Failed {
        error: Error,
        retry_at: Timestamp,
    },
}

impl Job {
    /// Orders the certificate if it is still due, and records a failure.
    pub async fn run(self) -> Result<Done, Error> {
        let stored = store::read(&self.client, &store::order_key(&self.secret)).await?;
        let mut state: OrderState = stored.as_ref().and_then(store::state).unwrap_or_default();
        let names: Vec<String> = self.wanted.names.iter().cloned().collect();
        if state.names != names || state.issuer != self.issuer {
            state = OrderState { secret: self.secret.to_string(), issuer: self.issuer.clone(), names, ..state };
            state =
                OrderState { order: String::new(), key: String::new(), failures: 0, retry_at: String::new(), ..state };
        }
        let current = store::read(&self.client, &self.secret).await?;
        let held = current.as_ref().and_then(held);
        let retry_at = state.retry_at.parse().ok();
        if plan::due(held.as_ref(), &self.wanted.names, retry_at, corten_meta::time::now()) != Due::Now {
            return Ok(Done::NotDue);
        }
        let ordered = self.order(&mut state, current.as_ref()).await;
        for name in &self.wanted.names {
            if let Err(error) = self.answers.remove(name).await {
                tracing::info!(%error, name, "the answer to a challenge stays for now");
            }
        }
        match ordered {
            Ok(()) => {
                store::delete(&self.client, &store::order_key(&self.secret)).await?;
                Ok(Done::Issued)
            }
            Err(error) => self.failed(state, error).await,
        }
    }

    /// Records a failure, and the time before which no other order is made.
    async fn failed(&self, mut state: OrderState, error: Error) -> Result<Done, Error> {
        state.failures = state.failures.saturating_add(1);
        let retry_at = plan::after(corten_meta::time::now(), plan::pause(state.failures, &error));
        state.retry_at = corten_meta::time::rfc3339(retry_at);
        state.message = error.to_string();
        if !error.is_local() {
            state.order.clear();
            state.key.clear();
        }
        self.save(&state).await?;
        Ok(Done::Failed { error, retry_at })
    }

    async fn save(&self, state: &OrderState) -> Result<(), Error> {
        let key = store::order_key(&self.secret);
        match store::put(&self.client, &store::of_state(&key, Part::Order, state)).await? {
            true => Ok(()),
            false => Err(Error::Invalid(format!("Secret {key} is of another owner"))),
        }
    }

    async fn order(&self, state: &mut OrderState, current: Option<&Value>) -> Result<(), Error> {
        if current.is_some_and(|current| current["metadata"]["labels"][store::LABEL].is_null()) {
            return Err(Error::Invalid(format!("Secret {} exists and is not of an AcmeIssuer", self.secret)));
        }
        let opened = self.authority().await;
        self.report(opened.as_ref().err()).await?;
        let authority = opened?;
        if current.is_none() && self.spec.challenge == ChallengeType::TlsAlpn {
            self.write_temporary().await?;
        }
        let order = self.begin(&authority, state).await?;
        let chain = self.complete(&authority, order, &state.key).await?;
        let issued = Held::read(chain.as_bytes()).ok_or(Error::Malformed("a certificate"))?;
        if !self.wanted.names.is_subset(&issued.names) {
            return Err(Error::Malformed("the certificate has other names"));
        }
        match store::put(&self.client, &store::of_certificate(&self.secret, &chain, &state.key, false)).await? {
            true => Ok(()),
            false => Err(Error::Invalid(format!("Secret {} is of another owner", self.secret))),
        }
    }

    /// Returns the authority with the account of the issuer, which is registered if it is not yet.
    async fn authority(&self) -> Result<Authority, Error> {
        let key = store::account_key(&self.issuer);
        let stored = store::read(&self.client, &key).await?;
        let stored: Option<Account> = stored.as_ref().and_then(store::state);
        let known = stored.filter(|account| account.directory == self.spec.directory);
        let account_key = match &known {
            Some(account) => AccountKey::from_pem(&account.key)?,
            None => AccountKey::generate()?,
        };
        let mut account = known.unwrap_or_else(|| Account {
            directory: self.spec.directory.clone(),
            key: account_key.pem().to_owned(),
            url: String::new(),
        });
        let roots = self.spec.ca_bundle.as_deref();
        let mut authority = Authority::open(&self.spec.directory, roots, account_key).await?;
        if !account.url.is_empty() {
            authority.set_account(account.url);
            return Ok(authority);
        }
        // The key is stored first: an account whose key is lost cannot be found again.
        self.save_account(&key, &account).await?;
        let binding = self.binding().await?;
        account.url = authority.register(self.spec.email.as_deref(), binding.as_ref()).await?.to_owned();
        self.save_account(&key, &account).await?;
        Ok(authority)
    }

    async fn save_account(&self, key: &Key, account: &Account) -> Result<(), Error> {
        match store::put(&self.client, &store::of_state(key, Part::Account, account)).await? {
            true => Ok(()),
            false => Err(Error::Invalid(format!("Secret {key} is of another owner"))),
        }
    }

    /// Reads the credentials of a customer of the authority.
    async fn binding(&self) -> Result<Option<ExternalBinding>, Error> {
        let Some(spec) = &self.spec.external_account_binding else { return Ok(None) };
        let key = Key::new(NAMESPACE, spec.secret_name.clone());
        let secret = store::read(&self.client, &key).await?;
        let entry = secret.and_then(|secret| store::entry(&secret, HMAC));
        let text = entry.and_then(|bytes| String::from_utf8(bytes).ok());
        let hmac_key = text.and_then(|text| jws::decode(&text));
        let hmac_key = hmac_key.ok_or_else(|| Error::Invalid(format!("Secret {key} has no valid {HMAC}")))?;
        Ok(Some(ExternalBinding { key_id: spec.key_id.clone(), hmac_key }))
    }

    /// Writes the issuer's condition Ready.
    async fn report(&self, error: Option<&Error>) -> Result<(), Error> {
        let issuers = self.client.dynamic(&acme_issuers());
        let current = issuers.get("", &self.issuer).await?;
        let condition = match error {
            None => corten_gateway::status::Condition::is_true("Ready", "Registered", "the account is registered"),
            Some(error) => corten_gateway::status::Condition::is_false("Ready", "Failed", error.to_string()),
        };
        let generation = current["metadata"]["generation"].as_i64().unwrap_or_default();
        let now = corten_meta::time::rfc3339(corten_meta::time::now());
        let known = &current["status"]["conditions"];
        let conditions = corten_gateway::status::conditions(&[condition], generation, known, &now);
        if *known == conditions {
            return Ok(());
        }
        let patch = Patch::Merge(json!({"status": {"conditions": conditions}}));
        Ok(issuers.patch("", &self.issuer, &patch, Some("status")).await.map(drop)?)
    }

    /// Lets the listener of the certificate begin, so that the authority can connect to it.
    async fn write_temporary(&self) -> Result<(), Error> {
        let key = generate()?;
        let names: Vec<String> = self.wanted.names.iter().cloned().collect();
        let certificate = parameters(names)?.self_signed(&key).map_err(cryptography)?;
        let secret = store::of_certificate(&self.secret, &certificate.pem(), &key.serialize_pem(), true);
        Ok(store::put(&self.client, &secret).await.map(drop)?)
    }

    /// Returns the order that is under way, or a new one.
    async fn begin(&self, authority: &Authority, state: &mut OrderState) -> Result<Order, Error> {
        if !state.order.is_empty() {
            match authority.order(&state.order).await {
                Ok(order) if order.status != Status::Invalid => return Ok(order),
                // The authority has forgotten it, or it has expired.
                Ok(_) | Err(Error::Refused { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        let order = authority.new_order(&state.names).await?;
        state.order.clone_from(&order.url);
        state.key = generate()?.serialize_pem();
        self.save(state).await?;
        Ok(order)
    }

    /// Brings an order to its end, and returns the chain of the certificate.
    async fn complete(&self, authority: &Authority, mut order: Order, key: &str) -> Result<String, Error> {
        let mut poll = Poll::new();
        loop {
            match order.status {
                Status::Pending => {
                    for url in &order.authorizations {
                        self.authorize(authority, url).await?;
                    }
                }
                Status::Ready => {
                    let request = request(key, &self.wanted)?;
                    authority.finalize(&order, &request).await?;
                }
                Status::Processing => poll.pause().await?,
                Status::Valid => {
                    let url = order.certificate.ok_or(Error::Malformed("an order without a certificate"))?;
                    return authority.certificate(&url).await;
                }
                Status::Invalid => {
                    let problem = order.error.unwrap_or_default();
                    return Err(problem.into_error());
                }
            }
            let before = order.status;
            order = authority.order(&order.url).await?;
            if order.status == before {
                poll.pause().await?;
            }
        }
    }

    /// Lets the authority validate a name.
    async fn authorize(&self, authority: &Authority, url: &str) -> Result<(), Error> {
        let authorization = authority.authorization(url).await?;
        if authorization.status == Status::Valid {
            return Ok(());
        }
        let challenge = self.choose(&authorization)?;
        let answer = answer(self.spec.challenge, &authorization, challenge, authority.key())?;
        self.answers.add(answer).await?;
        authority.validate(challenge).await?;
        let mut poll = Poll::new();
        loop {
            let mut authorization = authority.authorization(url).await?;
            match authorization.status {
                Status::Valid => return Ok(()),
                Status::Invalid => {
                    let failed = authorization.challenges.iter_mut().find_map(|one| one.error.take());
                    return Err(failed.unwrap_or_default().into_error());
                }
                _ => poll.pause().await?,
            }
        }
    }

    fn choose<'a>(&self, authorization: &'a Authorization) -> Result<&'a Challenge, Error> {
        let type_ = match self.spec.challenge {
            ChallengeType::Http => "http-01",
            ChallengeType::TlsAlpn => "tls-alpn-01",
        };
        let found = authorization.challenges.iter().find(|challenge| challenge.type_ == type_);
        found.ok_or_else(|| {
            let name = &authorization.identifier.value;
            Error::Invalid(format!("the authority does not validate {name} by {type_}"))
        })
    }
}

/// The pauses between looks at something that the authority decides, until a deadline.
struct Poll {
    deadline: Instant,
    pause: Duration,
}

impl Poll {
    fn new() -> Poll {
        Poll { deadline: Instant::now() + DECISION, pause: FIRST_POLL }
    }

    async fn pause(&mut self) -> Result<(), Error> {
        if Instant::now() > self.deadline {
            return Err(Error::TooLate);
        }
        tokio::time::sleep(self.pause).await;
        self.pause = (self.pause * 2).min(LONGEST_POLL);
        Ok(())
    }
}

/// Returns the certificate of a Secret of this package; none for a temporary one.
pub fn held(secret: &Value) -> Option<Held> {
    if secret["metadata"]["annotations"][store::TEMPORARY] == "true" {
        return None;
    }
    Held::read(&store::entry(secret, "tls.crt")?)
}

fn cryptography(error: rcgen::Error) -> Error {
    Error::Cryptography(error.to_string())
}

fn generate() -> Result<KeyPair, Error> {
    KeyPair::generate().map_err(cryptography)
}

fn parameters(names: Vec<String>) -> Result<CertificateParams, Error> {
    let mut parameters = CertificateParams::new(names).map_err(cryptography)?;
    parameters.distinguished_name = DistinguishedName::new();
    Ok(parameters)
}

/// Returns the request for a certificate, in DER.
fn request(key: &str, wanted: &Wanted) -> Result<Vec<u8>, Error> {
    let key = KeyPair::from_pem(key).map_err(cryptography)?;
    let request = parameters(wanted.names.iter().cloned().collect())?.serialize_request(&key).map_err(cryptography)?;
    Ok(request.der().to_vec())
}

/// Returns the answer to a challenge.
fn answer(
    type_: ChallengeType,
    authorization: &Authorization,
    challenge: &Challenge,
    key: &AccountKey,
) -> Result<Answer, Error> {
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    if challenge.token.is_empty() || !challenge.token.bytes().all(is_token) {
        return Err(Error::Malformed("a token"));
    }
    let host = authorization.identifier.value.to_ascii_lowercase();
    let answer = key.key_authorization(&challenge.token);
    if type_ == ChallengeType::Http {
        return Ok(Answer::Http(HttpChallenge { host, token: challenge.token.clone(), answer }));
    }
    let digest = ring::digest::digest(&ring::digest::SHA256, answer.as_bytes());
    let mut parameters = parameters(vec![host.clone()])?;
    parameters.custom_extensions = vec![CustomExtension::new_acme_identifier(digest.as_ref())];
    let key = generate()?;
    let certificate = parameters.self_signed(&key).map_err(cryptography)?;
    Ok(Answer::Tls(TlsChallenge { host, certificate: certificate.pem(), key: key.serialize_pem() }))
}
