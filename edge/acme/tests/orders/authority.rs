//! A strict authority: it checks signatures, nonces and URLs, keeps the states of orders, and validates challenges by
//! real requests.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;
use corten_acme::jws::{decode, encode};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rcgen::{BasicConstraints, CertificateParams, CertificateSigningRequestParams, IsCa, Issuer, KeyPair};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::validation;

/// Refuses every nonce with this number, as authorities do now and then.
const REFUSED_NONCES: u64 = 5;

/// The settings of an authority.
#[derive(Default)]
pub struct Settings {
    /// The key of the only customer, who is named `customer`.
    pub hmac_key: Option<Vec<u8>>,
    /// Refuses new orders with this Retry-After.
    pub limited: Option<u64>,
}

/// The addresses that names lead to, by port.
pub type Resolver = Arc<dyn Fn(u16) -> Option<SocketAddr> + Send + Sync>;

/// An authority that serves.
pub struct Authority {
    pub url: String,
    shared: Arc<Shared>,
    serving: tokio::task::JoinHandle<()>,
}

impl Drop for Authority {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

struct Shared {
    base: String,
    settings: Settings,
    resolver: Resolver,
    state: Mutex<State>,
    /// Validations wait until this is true.
    validates: watch::Sender<bool>,
    issuer: Issuer<'static, KeyPair>,
}

#[derive(Default)]
struct State {
    nonces: BTreeSet<String>,
    issued_nonces: u64,
    /// JSON Web Keys by account URL.
    accounts: BTreeMap<String, Value>,
    orders: Vec<Order>,
    /// The paths of signed requests.
    requests: Vec<String>,
}

struct Order {
    account: String,
    status: &'static str,
    names: Vec<Name>,
    certificate: Option<String>,
}

struct Name {
    value: String,
    status: &'static str,
    token: String,
    problem: Value,
}

/// A refusal.
struct Refusal {
    status: StatusCode,
    kind: &'static str,
    detail: String,
    retry_after: Option<u64>,
}

fn refuse(kind: &'static str, detail: impl Into<String>) -> Refusal {
    Refusal { status: StatusCode::BAD_REQUEST, kind, detail: detail.into(), retry_after: None }
}

/// A request whose signature is valid.
struct Signed {
    account: String,
    jwk: Value,
    payload: Option<Value>,
}

type Answer = Result<Response<Full<Bytes>>, Refusal>;

fn random() -> String {
    let mut bytes = [0; 16];
    ring::rand::SecureRandom::fill(&ring::rand::SystemRandom::new(), &mut bytes).unwrap();
    encode(bytes)
}

impl Authority {
    pub async fn start(settings: Settings, resolver: Resolver) -> Authority {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let key = KeyPair::generate().unwrap();
        let mut parameters = CertificateParams::new(Vec::new()).unwrap();
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let shared = Arc::new(Shared {
            base: base.clone(),
            settings,
            resolver,
            state: Mutex::default(),
            validates: watch::channel(true).0,
            issuer: Issuer::new(parameters, key),
        });
        let serving = tokio::spawn(serve(listener, shared.clone()));
        Authority { url: format!("{base}/directory"), shared, serving }
    }

    /// Lets validations wait, or go on.
    pub fn set_validates(&self, validates: bool) {
        self.shared.validates.send_replace(validates);
    }

    /// Returns the number of signed requests to a path that begins like this.
    pub fn requests(&self, prefix: &str) -> usize {
        self.shared.state().requests.iter().filter(|path| path.starts_with(prefix)).count()
    }
}

async fn serve(listener: TcpListener, shared: Arc<Shared>) {
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let shared = shared.clone();
        tokio::spawn(async move {
            let service = service_fn(move |request| {
                let shared = shared.clone();
                async move { Ok::<_, std::convert::Infallible>(shared.handle(request).await) }
            });
            // A client that is gone ends its connection.
            let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

fn answer(status: StatusCode, location: Option<String>, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut builder = Response::builder().status(status);
    if let Some(location) = location {
        builder = builder.header("location", location);
    }
    builder.body(Full::new(body.into())).unwrap()
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn nonce(&self) -> String {
        let mut state = self.state();
        state.issued_nonces += 1;
        let nonce = random();
        if !state.issued_nonces.is_multiple_of(REFUSED_NONCES) {
            state.nonces.insert(nonce.clone());
        }
        nonce
    }

    async fn handle(self: Arc<Self>, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let mut response = match self.route(request).await {
            Ok(response) => response,
            Err(refusal) => {
                let kind = format!("urn:ietf:params:acme:error:{}", refusal.kind);
                let problem = json!({"type": kind, "detail": refusal.detail});
                let mut response = answer(refusal.status, None, problem.to_string());
                if let Some(seconds) = refusal.retry_after {
                    response.headers_mut().insert("retry-after", seconds.into());
                }
                response
            }
        };
        response.headers_mut().insert("replay-nonce", self.nonce().parse().unwrap());
        response
    }

    async fn route(self: &Arc<Self>, request: Request<Incoming>) -> Answer {
        let path = request.uri().path().to_owned();
        if request.method() == Method::GET && path == "/directory" {
            let url = |name: &str| format!("{}/{name}", self.base);
            let meta = json!({"externalAccountRequired": self.settings.hmac_key.is_some()});
            let directory = json!({"newNonce": url("nonce"), "newAccount": url("account"), "newOrder": url("order"),
                "meta": meta});
            return Ok(answer(StatusCode::OK, None, directory.to_string()));
        }
        if request.method() == Method::HEAD && path == "/nonce" {
            return Ok(answer(StatusCode::OK, None, ""));
        }
        if request.method() != Method::POST {
            return Err(refuse("malformed", "only POST is allowed"));
        }
        if request.headers().get("content-type").is_none_or(|value| value != "application/jose+json") {
            return Err(refuse("malformed", "the content type is not application/jose+json"));
        }
        let body = request.into_body().collect().await.unwrap().to_bytes();
        let signed = self.verify(&path, &body)?;
        self.state().requests.push(path.clone());
        let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
        match parts.as_slice() {
            ["account"] => self.account(&signed),
            ["order"] => self.new_order(&signed),
            ["order", number] => self.order(&signed, parse(number)?),
            ["authorization", order, name] => self.authorization(&signed, parse(order)?, parse(name)?),
            ["challenge", order, name, type_] => self.challenge(&signed, parse(order)?, parse(name)?, type_),
            ["finalize", number] => self.finalize(&signed, parse(number)?),
            ["certificate", number] => self.certificate(&signed, parse(number)?),
            _ => Err(refuse("malformed", "no such resource")),
        }
    }

    /// Checks the signature, the nonce and the URL of a request.
    fn verify(&self, path: &str, body: &[u8]) -> Result<Signed, Refusal> {
        let malformed = |what: &'static str| refuse("malformed", what);
        let jws: Value = serde_json::from_slice(body).map_err(|_| malformed("not JSON"))?;
        let part = |name: &str| jws[name].as_str().unwrap_or_default().to_owned();
        let protected = decode(&part("protected")).ok_or_else(|| malformed("not base64url"))?;
        let header: Value = serde_json::from_slice(&protected).map_err(|_| malformed("no header"))?;
        if header["alg"] != "ES256" {
            return Err(refuse("badSignatureAlgorithm", "ES256 alone"));
        }
        if header["url"] != format!("{}{path}", self.base) {
            return Err(refuse("unauthorized", "the signed URL is another"));
        }
        if header["jwk"].is_null() == header["kid"].is_null() {
            return Err(malformed("either jwk or kid"));
        }
        let account = header["kid"].as_str().unwrap_or_default().to_owned();
        let is_new = path == "/account";
        if is_new != header["kid"].is_null() {
            return Err(malformed("an account is named by its key when it is made, and by its URL afterwards"));
        }
        let known = self.state().accounts.get(&account).cloned();
        let jwk = match is_new {
            true => header["jwk"].clone(),
            false => known.ok_or_else(|| refuse("accountDoesNotExist", "no such account"))?,
        };
        check_signature(&jwk, &jws)?;
        let nonce = header["nonce"].as_str().unwrap_or_default();
        if !self.state().nonces.remove(nonce) {
            return Err(refuse("badNonce", "the nonce is not valid"));
        }
        let payload = match part("payload").as_str() {
            "" => None,
            text => {
                let bytes = decode(text).ok_or_else(|| malformed("not base64url"))?;
                Some(serde_json::from_slice(&bytes).map_err(|_| malformed("not JSON"))?)
            }
        };
        Ok(Signed { account, jwk, payload })
    }

    fn account(&self, signed: &Signed) -> Answer {
        let payload = signed.payload.as_ref().ok_or_else(|| refuse("malformed", "no payload"))?;
        if payload["termsOfServiceAgreed"] != true {
            return Err(refuse("userActionRequired", "the terms of service"));
        }
        if let Some(key) = &self.settings.hmac_key {
            check_binding(&payload["externalAccountBinding"], key, &signed.jwk, &format!("{}/account", self.base))?;
        }
        let mut state = self.state();
        let known = state.accounts.iter().find(|(_, jwk)| **jwk == signed.jwk).map(|(url, _)| url.clone());
        let (status, url) = match known {
            Some(url) => (StatusCode::OK, url),
            None => (StatusCode::CREATED, format!("{}/accounts/{}", self.base, state.accounts.len())),
        };
        state.accounts.insert(url.clone(), signed.jwk.clone());
        Ok(answer(status, Some(url), json!({"status": "valid"}).to_string()))
    }

    fn new_order(&self, signed: &Signed) -> Answer {
        if let Some(seconds) = self.settings.limited {
            let limited = refuse("rateLimited", "too many orders");
            return Err(Refusal { status: StatusCode::TOO_MANY_REQUESTS, retry_after: Some(seconds), ..limited });
        }
        let payload = signed.payload.as_ref().ok_or_else(|| refuse("malformed", "no payload"))?;
        let identifiers = payload["identifiers"].as_array().cloned().unwrap_or_default();
        let names: Vec<Name> = identifiers
            .iter()
            .map(|one| Name {
                value: one["value"].as_str().unwrap_or_default().to_owned(),
                status: "pending",
                token: random(),
                problem: Value::Null,
            })
            .collect();
        if names.is_empty() {
            return Err(refuse("malformed", "no identifiers"));
        }
        let mut state = self.state();
        state.orders.push(Order { account: signed.account.clone(), status: "pending", names, certificate: None });
        let number = state.orders.len() - 1;
        let url = format!("{}/order/{number}", self.base);
        let order = self.describe(&state, number);
        Ok(answer(StatusCode::CREATED, Some(url), order.to_string()))
    }

    fn describe(&self, state: &State, number: usize) -> Value {
        let order = &state.orders[number];
        let url = |kind: &str| format!("{}/{kind}/{number}", self.base);
        let authorizations: Vec<String> =
            (0..order.names.len()).map(|name| format!("{}/{name}", url("authorization"))).collect();
        let mut described = json!({"status": order.status, "authorizations": authorizations,
            "finalize": url("finalize")});
        if order.certificate.is_some() {
            described["certificate"] = json!(url("certificate"));
        }
        described
    }

    /// Checks that an order is of the account, and is only read.
    fn own<'a>(state: &'a mut State, signed: &Signed, number: usize) -> Result<&'a mut Order, Refusal> {
        let order = state.orders.get_mut(number).ok_or_else(|| refuse("malformed", "no such order"))?;
        match order.account == signed.account {
            true => Ok(order),
            false => Err(refuse("unauthorized", "the order is of another account")),
        }
    }

    fn order(&self, signed: &Signed, number: usize) -> Answer {
        let mut state = self.state();
        let order = Shared::own(&mut state, signed, number)?;
        if order.status == "processing" {
            order.status = "valid";
        }
        Ok(answer(StatusCode::OK, None, self.describe(&state, number).to_string()))
    }

    fn authorization(&self, signed: &Signed, number: usize, name: usize) -> Answer {
        let mut state = self.state();
        let order = Shared::own(&mut state, signed, number)?;
        let one = order.names.get(name).ok_or_else(|| refuse("malformed", "no such name"))?;
        let challenge = |type_: &str| {
            json!({"type": type_, "url": format!("{}/challenge/{number}/{name}/{type_}", self.base),
                "token": one.token, "status": one.status, "error": one.problem})
        };
        let described = json!({"status": one.status, "identifier": {"type": "dns", "value": one.value},
            "challenges": [challenge("dns-01"), challenge("http-01"), challenge("tls-alpn-01")]});
        Ok(answer(StatusCode::OK, None, described.to_string()))
    }

    fn challenge(self: &Arc<Self>, signed: &Signed, number: usize, name: usize, type_: &str) -> Answer {
        let mut state = self.state();
        let order = Shared::own(&mut state, signed, number)?;
        let one = order.names.get(name).ok_or_else(|| refuse("malformed", "no such name"))?;
        if one.status != "pending" || signed.payload != Some(json!({})) {
            return Err(refuse("malformed", "the challenge is decided, or the payload is not {}"));
        }
        let expected = validation::Expected {
            name: one.value.clone(),
            token: one.token.clone(),
            answer: format!("{}.{}", one.token, thumbprint(&signed.jwk)),
        };
        let shared = self.clone();
        let type_ = type_.to_owned();
        tokio::spawn(async move {
            let mut validates = shared.validates.subscribe();
            validates.wait_for(|validates| *validates).await.unwrap();
            let result = validation::validate(&type_, &shared.resolver, &expected).await;
            let mut state = shared.state();
            let order = &mut state.orders[number];
            match result {
                Ok(()) => order.names[name].status = "valid",
                Err(detail) => {
                    order.names[name].status = "invalid";
                    order.names[name].problem =
                        json!({"type": "urn:ietf:params:acme:error:connection", "detail": detail});
                    order.status = "invalid";
                }
            }
            if order.names.iter().all(|name| name.status == "valid") {
                order.status = "ready";
            }
        });
        Ok(answer(StatusCode::OK, None, json!({"type": "x", "status": "processing"}).to_string()))
    }

    fn finalize(&self, signed: &Signed, number: usize) -> Answer {
        let mut state = self.state();
        let order = Shared::own(&mut state, signed, number)?;
        if order.status != "ready" {
            return Err(Refusal { status: StatusCode::FORBIDDEN, ..refuse("orderNotReady", "the order is not ready") });
        }
        let request = signed.payload.as_ref().and_then(|payload| decode(payload["csr"].as_str()?));
        let request = request.ok_or_else(|| refuse("badCSR", "no request"))?;
        let request = CertificateSigningRequestParams::from_der(&request.into());
        let request = request.map_err(|error| refuse("badCSR", error.to_string()))?;
        let names: BTreeSet<String> = request
            .params
            .subject_alt_names
            .iter()
            .map(|name| match name {
                rcgen::SanType::DnsName(name) => name.to_string(),
                other => format!("{other:?}"),
            })
            .collect();
        let ordered: BTreeSet<String> = order.names.iter().map(|name| name.value.clone()).collect();
        if names != ordered {
            return Err(refuse("badCSR", format!("the names {names:?} are not those of the order")));
        }
        let certificate = request.signed_by(&self.issuer).map_err(|error| refuse("badCSR", error.to_string()))?;
        order.certificate = Some(certificate.pem());
        order.status = "processing";
        Ok(answer(StatusCode::OK, None, self.describe(&state, number).to_string()))
    }

    fn certificate(&self, signed: &Signed, number: usize) -> Answer {
        let mut state = self.state();
        let order = Shared::own(&mut state, signed, number)?;
        let certificate = order.certificate.clone().ok_or_else(|| refuse("malformed", "no certificate"))?;
        Ok(answer(StatusCode::OK, None, certificate))
    }
}

fn parse(number: &str) -> Result<usize, Refusal> {
    number.parse().map_err(|_| refuse("malformed", "no such resource"))
}

/// Returns the thumbprint of a key (RFC 7638), made apart from the code that is tested.
fn thumbprint(jwk: &Value) -> String {
    let members: BTreeMap<&str, &str> =
        ["crv", "kty", "x", "y"].map(|name| (name, jwk[name].as_str().unwrap_or_default())).into();
    encode(ring::digest::digest(&ring::digest::SHA256, serde_json::to_string(&members).unwrap().as_bytes()))
}

fn check_signature(jwk: &Value, jws: &Value) -> Result<(), Refusal> {
    let coordinate = |name: &str| jwk[name].as_str().and_then(decode).filter(|bytes| bytes.len() == 32);
    let (Some(x), Some(y)) = (coordinate("x"), coordinate("y")) else {
        return Err(refuse("badPublicKey", "not a key of P-256"));
    };
    let point = [&[4], x.as_slice(), y.as_slice()].concat();
    let key = ring::signature::UnparsedPublicKey::new(&ring::signature::ECDSA_P256_SHA256_FIXED, point);
    let part = |name: &str| jws[name].as_str().unwrap_or_default();
    let message = format!("{}.{}", part("protected"), part("payload"));
    let signature = decode(part("signature")).unwrap_or_default();
    key.verify(message.as_bytes(), &signature).map_err(|_| refuse("unauthorized", "the signature is wrong"))
}

fn check_binding(binding: &Value, key: &[u8], jwk: &Value, url: &str) -> Result<(), Refusal> {
    let wrong = |what: &str| refuse("externalAccountRequired", what);
    let part = |name: &str| binding[name].as_str().unwrap_or_default();
    let parsed = |name: &str| -> Option<Value> { serde_json::from_slice(&decode(part(name))?).ok() };
    let header = parsed("protected").ok_or_else(|| wrong("no binding"))?;
    if header != json!({"alg": "HS256", "kid": "customer", "url": url}) {
        return Err(wrong("the header of the binding"));
    }
    if parsed("payload").as_ref() != Some(jwk) {
        return Err(wrong("the binding is of another key"));
    }
    let mac = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, key);
    let message = format!("{}.{}", part("protected"), part("payload"));
    let signature = decode(part("signature")).unwrap_or_default();
    ring::hmac::verify(&mac, message.as_bytes(), &signature).map_err(|_| wrong("the signature of the binding"))
}
