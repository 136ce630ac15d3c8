//! A webhook: an HTTPS server whose responses a test writes.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use base64::Engine;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};

/// The webhook's reaction to a call.
pub enum Act {
    Answer(Value),
    Raw(u16, &'static str),
    /// Never responds.
    Hang,
}

/// A running webhook; it ends with the test's runtime.
pub struct Hook {
    port: u16,
    ca: String,
    seen: Arc<Mutex<Vec<(String, Value)>>>,
    traceparents: Arc<Mutex<Vec<Option<String>>>>,
}

impl Hook {
    /// Starts one that responds by `act`, a function of path and body.
    pub async fn start(act: impl Fn(&str, &Value) -> Act + Send + Sync + 'static) -> Hook {
        let certified = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        let pem = certified.cert.pem();
        let chain = vec![CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()];
        let key = PrivateKeyDer::from_pem_slice(certified.signing_key.serialize_pem().as_bytes()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .unwrap();
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(tls));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (act, log) = (Arc::new(act), Arc::clone(&seen));
        let traceparents: Arc<Mutex<Vec<Option<String>>>> = Arc::default();
        let traced = Arc::clone(&traceparents);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, act, log) = (acceptor.clone(), Arc::clone(&act), Arc::clone(&log));
                let traced = Arc::clone(&traced);
                tokio::spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else { return };
                    let service = hyper::service::service_fn(move |request: http::Request<Incoming>| {
                        let (act, log) = (Arc::clone(&act), Arc::clone(&log));
                        let parent =
                            request.headers().get("traceparent").map(|value| value.to_str().unwrap().to_owned());
                        traced.lock().unwrap().push(parent);
                        async move { Ok::<_, Infallible>(respond(request, act.as_ref(), &log).await) }
                    });
                    let _ = hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service)
                        .await;
                });
            }
        });
        let ca = base64::engine::general_purpose::STANDARD.encode(pem);
        Hook { port, ca, seen, traceparents }
    }

    /// Returns a `clientConfig` that leads here.
    pub fn client(&self, path: &str) -> Value {
        json!({ "url": format!("https://localhost:{}{path}", self.port), "caBundle": self.ca })
    }

    /// Returns the paths and bodies of the calls since the last time.
    pub fn calls(&self) -> Vec<(String, Value)> {
        std::mem::take(&mut self.seen.lock().unwrap())
    }

    /// Returns the header `traceparent` of the calls since the last time.
    pub fn traceparents(&self) -> Vec<Option<String>> {
        std::mem::take(&mut self.traceparents.lock().unwrap())
    }

    pub fn ca(&self) -> &str {
        &self.ca
    }
}

async fn respond(
    request: http::Request<Incoming>,
    act: &(dyn Fn(&str, &Value) -> Act + Send + Sync),
    log: &Mutex<Vec<(String, Value)>>,
) -> http::Response<Full<Bytes>> {
    let path = request.uri().path().to_owned();
    let bytes = request.into_body().collect().await.unwrap().to_bytes();
    let body: Value = serde_json::from_slice(&bytes).unwrap_or_default();
    log.lock().unwrap().push((path.clone(), body.clone()));
    let (code, text) = match act(&path, &body) {
        Act::Answer(value) => (200, value.to_string()),
        Act::Raw(code, text) => (code, text.to_owned()),
        Act::Hang => std::future::pending().await,
    };
    http::Response::builder().status(code).body(Full::new(text.into())).unwrap()
}

/// Returns an AdmissionReview with this response, whose uid is filled in.
pub fn review(request: &Value, response: Value) -> Act {
    let mut response = response;
    response["uid"] = request["request"]["uid"].clone();
    Act::Answer(json!({ "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response }))
}

pub fn allow(request: &Value) -> Act {
    review(request, json!({ "allowed": true }))
}

pub fn deny(request: &Value, status: Value) -> Act {
    review(request, json!({ "allowed": false, "status": status }))
}

pub fn patch(request: &Value, operations: Value) -> Act {
    let encoded = base64::engine::general_purpose::STANDARD.encode(operations.to_string());
    review(request, json!({ "allowed": true, "patchType": "JSONPatch", "patch": encoded }))
}
