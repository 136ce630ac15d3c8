//! Tokens of an OpenID Connect issuer, tokens of Secrets that another controller manager signs, and tokens that only
//! look like them.

use std::sync::Arc;

use crate::hook::{Act, Hook};
use crate::server::TestServer;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64URL;
use corten_apiserver::Config;
use ring::signature::{EcdsaKeyPair, KeyPair};
use serde_json::{Value, json};
use testkit::eventually::eventually;

struct Issuer {
    pair: EcdsaKeyPair,
}

impl Issuer {
    fn new() -> Issuer {
        Issuer::with(&rcgen::KeyPair::generate().unwrap())
    }

    fn with(key: &rcgen::KeyPair) -> Issuer {
        let random = ring::rand::SystemRandom::new();
        let algorithm = &ring::signature::ECDSA_P256_SHA256_FIXED_SIGNING;
        Issuer { pair: EcdsaKeyPair::from_pkcs8(algorithm, &key.serialize_der(), &random).unwrap() }
    }

    fn jwk(&self) -> Value {
        let point = self.pair.public_key().as_ref();
        json!({ "kty": "EC", "crv": "P-256", "kid": "k", "x": BASE64URL.encode(&point[1..33]), "y": BASE64URL.encode(&point[33..]) })
    }

    fn token(&self, claims: &Value) -> String {
        self.token_of_key("k", claims)
    }

    fn token_of_key(&self, key: &str, claims: &Value) -> String {
        let header = json!({ "alg": "ES256", "kid": key });
        let message = format!("{}.{}", BASE64URL.encode(header.to_string()), BASE64URL.encode(claims.to_string()));
        let signed = self.pair.sign(&ring::rand::SystemRandom::new(), message.as_bytes()).unwrap();
        format!("{message}.{}", BASE64URL.encode(signed))
    }
}

#[tokio::test]
async fn a_token_is_reviewed() {
    let issuer = Arc::new(Issuer::new());
    let address: Arc<std::sync::OnceLock<String>> = Arc::default();
    let (keys, url) = (Arc::clone(&issuer), Arc::clone(&address));
    let hook = Hook::start(move |path, _| match path {
        "/.well-known/openid-configuration" => {
            let url = url.get().unwrap();
            Act::Answer(json!({ "issuer": url, "jwks_uri": format!("{url}/keys") }))
        }
        _ => Act::Answer(json!({ "keys": [keys.jwk()] })),
    })
    .await;
    let url = hook.client("")["url"].as_str().unwrap().to_owned();
    address.set(url.clone()).unwrap();
    let pem = String::from_utf8(base64::engine::general_purpose::STANDARD.decode(hook.ca()).unwrap()).unwrap();
    let configuration = json!({
        "apiVersion": "apiserver.config.k8s.io/v1", "kind": "AuthenticationConfiguration",
        "jwt": [{ "issuer": { "url": url, "audiences": ["corten"], "certificateAuthority": pem },
                  "claimMappings": { "username": { "claim": "sub", "prefix": "oidc:" }, "groups": { "claim": "groups", "prefix": "" } } }],
    });
    let (sender, receiver) = tokio::sync::watch::channel(configuration.to_string());
    let config = Config { authentication_configuration: Some(receiver), ..crate::server::config() };
    let server = TestServer::with(config).await;
    let review = async |token: String| {
        let body = json!({ "spec": { "token": token } });
        server.post("/apis/authentication.k8s.io/v1/tokenreviews", body).await.expect(201)["status"].clone()
    };
    let good = json!({ "iss": url, "aud": "corten", "exp": 4_000_000_000_u64, "sub": "jane", "groups": ["dev"] });
    let status = review(issuer.token(&good)).await;
    assert_eq!(status["user"]["username"], "oidc:jane", "{status}");
    assert_eq!(status["user"]["groups"], json!(["dev", "system:authenticated"]));
    let with = |key: &str, value: Value| {
        let mut claims = good.clone();
        claims[key] = value;
        claims
    };
    for token in [
        Issuer::new().token(&good),
        issuer.token(&with("exp", json!(1))),
        issuer.token(&with("aud", json!("other"))),
        issuer.token(&with("iss", json!("https://elsewhere"))),
        format!("{}.{}.", BASE64URL.encode(r#"{"alg":"none"}"#), BASE64URL.encode(good.to_string())),
    ] {
        assert_ne!(review(token.clone()).await["authenticated"], true, "{token}");
    }

    // A changed configuration takes effect; an invalid one does not.
    sender.send("nonsense".to_owned()).unwrap();
    let mut changed = configuration.clone();
    changed["jwt"][0]["claimMappings"]["username"] = json!({ "expression": "'cel:' + claims.sub" });
    changed["jwt"][0]["userValidationRules"] = json!([{ "expression": "user.username != 'cel:eve'" }]);
    sender.send(changed.to_string()).unwrap();
    eventually("the name is that of the expression", async || {
        let status = review(issuer.token(&good)).await;
        if status["user"]["username"] == "cel:jane" { Ok(()) } else { Err(status.to_string()) }
    })
    .await;
    assert_ne!(review(issuer.token(&with("sub", json!("eve")))).await["authenticated"], true);
    check_counts(&server).await;
}

/// Checks the metrics: the reload, the configuration and the keys in use, and the tokens.
async fn check_counts(server: &TestServer) {
    let request = http::Request::get("/metrics").body(Default::default()).unwrap();
    let reply = server.user("admin", &["system:masters"]).call(request).await;
    let corten_apiserver::Body::Full(text) = reply.into_body() else { panic!("metrics are one text") };
    let text = String::from_utf8(text.to_vec()).unwrap();
    let samples = |beginning: &str| text.lines().filter(|line| line.starts_with(beginning)).count();
    let reloads = "apiserver_authentication_config_controller_automatic_reloads_total";
    assert_eq!(samples(&format!("{reloads}{{apiserver_id_hash=\"\",status=\"success\"}}")), 1, "{text}");
    assert_eq!(samples("apiserver_authentication_config_controller_last_config_info{"), 1, "{text}");
    let jwt = "apiserver_authentication_jwt_authenticator";
    assert_eq!(samples(&format!("{jwt}_jwks_fetch_last_key_set_info{{")), 1, "{text}");
    assert_eq!(samples(&format!("{jwt}_latency_seconds_count{{")), 2, "good ones and bad ones: {text}");
}

/// Returns the code of a request without a credential.
async fn anonymously(server: &TestServer, path: &str) -> u16 {
    let request = http::Request::get(path).body(corten_apiserver::RequestBody::Full(Default::default())).unwrap();
    server.server.handle(request, &corten_apiserver::Peer::default()).await.status().as_u16()
}

#[tokio::test]
async fn anonymous_requests_are_allowed_only_where_it_is_configured() {
    let server = TestServer::start().await;
    assert_eq!((anonymously(&server, "/livez").await, anonymously(&server, "/api/v1/pods").await), (200, 403));
    let text = "{apiVersion: apiserver.config.k8s.io/v1, kind: AuthenticationConfiguration, anonymous: {enabled: true, conditions: [{path: /livez}]}}";
    let (_sender, receiver) = tokio::sync::watch::channel(text.to_owned());
    let config = Config { authentication_configuration: Some(receiver), ..crate::server::config() };
    let server = TestServer::with(config).await;
    let codes = [anonymously(&server, "/livez").await, anonymously(&server, "/readyz").await];
    assert_eq!((codes, anonymously(&server, "/api/v1/pods").await), ([200, 401], 401));
}

/// Upstream's controller manager signs the tokens of Secrets itself.
#[tokio::test]
async fn a_token_of_a_secret_is_valid_while_the_secret_exists() {
    let key = rcgen::KeyPair::generate().unwrap();
    let server =
        TestServer::with(Config { service_account_keys: vec![key.serialize_pem()], ..crate::server::config() }).await;
    let account = json!({ "metadata": { "name": "robot" } });
    let account = server.post("/api/v1/namespaces/default/serviceaccounts", account).await.expect(201);
    let claims = json!({
        "iss": "kubernetes/serviceaccount", "sub": "system:serviceaccount:default:robot",
        "kubernetes.io/serviceaccount/namespace": "default", "kubernetes.io/serviceaccount/secret.name": "robot",
        "kubernetes.io/serviceaccount/service-account.name": "robot",
        "kubernetes.io/serviceaccount/service-account.uid": account["metadata"]["uid"],
    });
    let token = Issuer::with(&key).token_of_key("", &claims);
    let review = async |token: &str, audiences: Value| {
        let body = json!({ "spec": { "token": token, "audiences": audiences } });
        server.post("/apis/authentication.k8s.io/v1/tokenreviews", body).await.expect(201)["status"].clone()
    };
    assert_ne!(review(&token, Value::Null).await["authenticated"], true, "no secret holds it");
    let secret = json!({ "metadata": { "name": "robot", "annotations": { "kubernetes.io/service-account.name": "robot" } },
        "type": "kubernetes.io/service-account-token", "stringData": { "token": token } });
    server.post("/api/v1/namespaces/default/secrets", secret).await.expect(201);
    let status = review(&token, Value::Null).await;
    assert_eq!(status["user"]["username"], "system:serviceaccount:default:robot", "{status}");
    assert_eq!(status["user"]["uid"], account["metadata"]["uid"]);
    let mut others = claims.clone();
    others["sub"] = json!("system:serviceaccount:kube-system:robot");
    for (name, token, audiences) in [
        ("another audience", &token, json!(["vault"])),
        ("another key", &Issuer::new().token_of_key("", &claims), Value::Null),
        ("another account", &Issuer::with(&key).token_of_key("", &others), Value::Null),
        ("another copy", &Issuer::with(&key).token_of_key("", &claims), Value::Null),
    ] {
        assert_ne!(review(token, audiences).await["authenticated"], true, "{name}");
    }
    server.delete("/api/v1/namespaces/default/secrets/robot", None).await.expect(200);
    assert_ne!(review(&token, Value::Null).await["authenticated"], true, "its secret is gone");
}
