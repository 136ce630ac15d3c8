//! An issuer of tokens: its key set over HTTPS, and tokens signed by its keys.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::signature::{Ed25519KeyPair, KeyPair as _};
use rustls_pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

/// An answer of the issuer.
#[derive(Clone, Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: String,
    pub body: String,
}

#[derive(Default)]
struct State {
    answers: BTreeMap<String, Answer>,
    requests: usize,
}

pub struct Issuer {
    pub address: SocketAddr,
    /// The certificate that the issuer is verified by, in PEM.
    pub authority: String,
    state: Arc<Mutex<State>>,
}

/// Returns the key with a number; the number is its id as well.
fn pair(number: u8) -> Ed25519KeyPair {
    Ed25519KeyPair::from_seed_unchecked(&[number; 32]).unwrap()
}

/// Returns a key set.
pub fn key_set(numbers: &[u8]) -> String {
    let key = |number: &u8| {
        let x = URL_SAFE_NO_PAD.encode(pair(*number).public_key().as_ref());
        json!({"kty": "OKP", "crv": "Ed25519", "kid": number.to_string(), "x": x})
    };
    json!({"keys": numbers.iter().map(key).collect::<Vec<_>>()}).to_string()
}

/// Returns a token that is signed by a key.
pub fn token(number: u8) -> String {
    let head = json!({"alg": "EdDSA", "kid": number.to_string()}).to_string();
    let claims = json!({"sub": "user"}).to_string();
    let message = format!("{}.{}", URL_SAFE_NO_PAD.encode(head), URL_SAFE_NO_PAD.encode(claims));
    let signature = pair(number).sign(message.as_bytes());
    format!("{message}.{}", URL_SAFE_NO_PAD.encode(signature))
}

impl Issuer {
    pub async fn start() -> Issuer {
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
        let config = rustls::ServerConfig::builder().with_no_client_auth();
        let config = config.with_single_cert(vec![made.cert.der().clone()], key).unwrap();
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(Mutex::new(State::default()));
        let shared = Arc::clone(&state);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, state) = (acceptor.clone(), Arc::clone(&shared));
                tokio::spawn(async move {
                    if let Ok(stream) = acceptor.accept(stream).await {
                        answer(stream, &state).await;
                    }
                });
            }
        });
        Issuer { address, authority: made.cert.pem(), state }
    }

    pub fn url(&self, path: &str) -> String {
        format!("https://localhost:{}{path}", self.address.port())
    }

    /// Sets the answer of a path.
    pub fn set(&self, path: &str, status: u16, headers: &str, body: &str) {
        let answer = Answer { status, headers: headers.to_owned(), body: body.to_owned() };
        self.state.lock().unwrap().answers.insert(path.to_owned(), answer);
    }

    /// Returns the number of requests so far.
    pub fn requests(&self) -> usize {
        self.state.lock().unwrap().requests
    }
}

async fn answer(mut stream: tokio_rustls::server::TlsStream<tokio::net::TcpStream>, state: &Mutex<State>) {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => request.push(byte),
            Err(_) => return,
        }
    }
    let head = String::from_utf8_lossy(&request).into_owned();
    let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
    let found = {
        let mut state = state.lock().unwrap();
        state.requests += 1;
        state.answers.get(&path).cloned()
    };
    let missing = || Answer { status: 404, headers: String::new(), body: String::new() };
    let Answer { status, headers, body } = found.unwrap_or_else(missing);
    let length = body.len();
    let text =
        format!("HTTP/1.1 {status} Status\r\ncontent-length: {length}\r\nconnection: close\r\n{headers}\r\n{body}");
    let _ = stream.write_all(text.as_bytes()).await;
    let _ = stream.shutdown().await;
}
