//! Orders from a strict authority, with the controller of Gateways, and a node whose proxy answers the challenges.

#![allow(clippy::unwrap_used)]

mod api;
mod authority;
mod pebble;
mod validation;
mod world;

use authority::Settings;
use serde_json::json;
use world::{World, certificate_names, gateway, ingress, issuer};

#[tokio::test(flavor = "multi_thread")]
async fn an_ingress_gets_its_certificate_by_http() {
    let world = World::start(Settings::default()).await;
    world.api.put("acmeissuers", issuer(&world, json!({"email": "admin@a.test"})));
    world.api.put("ingresses", ingress(&["a.test", "b.test"]));
    let _leader = world.lead();
    let secret = world.issued("tls").await;
    assert_eq!(certificate_names(&secret), ["a.test", "b.test"]);
    assert_eq!(world.authority.requests("/order/"), world.authority.requests("/order/0"), "one order is enough");
    world.until("no answer stays", || world.challenges() == json!([[], []])).await;
    world.until("no order stays", || world.orders().is_empty()).await;
    let ready = world.api.get("acmeissuers", "", "public").unwrap();
    assert_eq!(ready["status"]["conditions"][0]["status"], "True", "{ready}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_without_port_80_gets_its_certificate_by_tls() {
    let world = World::start(Settings::default()).await;
    world.api.put("acmeissuers", issuer(&world, json!({"challenge": "TLS-ALPN-01"})));
    world.api.put("gateways", gateway("a.test"));
    let _leader = world.lead();
    let secret = world.issued("tls").await;
    assert_eq!(certificate_names(&secret), ["a.test"]);
    assert_eq!(world.authority.requests("/challenge/0/0/tls-alpn-01"), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn another_leader_goes_on_with_the_order_of_one_that_was_killed() {
    let world = World::start(Settings::default()).await;
    world.api.put("acmeissuers", issuer(&world, json!({})));
    world.api.put("ingresses", ingress(&["a.test"]));
    world.authority.set_validates(false);
    let killed = world.lead();
    world.until("the authority is asked to validate", || world.authority.requests("/challenge/") > 0).await;
    killed.abort();
    world.authority.set_validates(true);
    let _leader = world.lead();
    let secret = world.issued("tls").await;
    assert_eq!(certificate_names(&secret), ["a.test"]);
    assert_eq!(world.authority.requests("/finalize/0"), 1);
    assert_eq!(world.authority.requests("/order/1"), 0, "the order of the killed leader is used");
    assert_eq!(world.new_orders(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_authority_that_limits_orders_is_left_alone() {
    let world = World::start(Settings { limited: Some(7200), ..Settings::default() }).await;
    world.api.put("acmeissuers", issuer(&world, json!({})));
    world.api.put("ingresses", ingress(&["a.test"]));
    let _leader = world.lead();
    world.until("the failure is recorded", || !world.orders().is_empty()).await;
    let order = world.orders().remove(0);
    let retry_at: jiff::Timestamp = order["retry_at"].as_str().unwrap().parse().unwrap();
    let left = retry_at.duration_since(corten_meta::time::now()).as_secs();
    assert!(left > 7000, "{order}");
    assert_eq!(order["failures"], 1, "{order}");
    world.until("the event is written", || !world.api.list("events").is_empty()).await;
    let event = world.api.list("events").remove(0);
    assert_eq!(event["reason"], "CertificateFailed", "{event}");
    assert_eq!(event["involvedObject"]["kind"], "Ingress", "{event}");
    assert_eq!(world.new_orders(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_account_is_bound_to_a_customer() {
    let key = b"a key of thirty-two bytes, or so".to_vec();
    let world = World::start(Settings { hmac_key: Some(key.clone()), ..Settings::default() }).await;
    let binding = json!({"externalAccountBinding": {"keyID": "customer", "secretName": "eab"}});
    world.api.put("acmeissuers", issuer(&world, binding));
    world.put_hmac("eab", &key);
    world.api.put("ingresses", ingress(&["a.test"]));
    let _leader = world.lead();
    assert_eq!(certificate_names(&world.issued("tls").await), ["a.test"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_secret_of_another_owner_stays() {
    let world = World::start(Settings::default()).await;
    world.api.put("acmeissuers", issuer(&world, json!({})));
    let own = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"namespace": "shop", "name": "tls"},
        "type": "kubernetes.io/tls", "data": {"tls.crt": "", "tls.key": ""}});
    world.api.put("secrets", own);
    world.api.put("ingresses", ingress(&["a.test"]));
    let _leader = world.lead();
    world.until("the failure is recorded", || !world.orders().is_empty()).await;
    assert_eq!(world.new_orders(), 0);
    assert_eq!(world.api.get("secrets", "shop", "tls").unwrap()["data"]["tls.crt"], "");
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_that_no_order_needs_are_removed() {
    let world = World::start(Settings::default()).await;
    world.api.put("acmeissuers", issuer(&world, json!({})));
    world.api.put("ingresses", ingress(&["a.test"]));
    let first = world.lead();
    world.issued("tls").await;
    world.until("no order stays", || world.orders().is_empty()).await;
    first.abort();
    world.leave_answer();
    assert_ne!(world.challenges(), json!([[], []]));
    let _leader = world.lead();
    world.until("no answer stays", || world.challenges() == json!([[], []])).await;
}
