//! Tests of typed and dynamic requests over a server in memory.

use super::*;
use crate::fake::FakeServer;
use corten_api::k8s_openapi::api::core::v1::ConfigMap;
use futures::future::BoxFuture;
use serde_json::json;
use std::collections::BTreeMap;

fn config_map(name: &str) -> ConfigMap {
    let mut object = ConfigMap::default();
    object.metadata.name = Some(name.into());
    object.metadata.namespace = Some("a".into());
    object.data = Some(BTreeMap::from([("x".to_owned(), "1".to_owned())]));
    object
}

fn x(object: &ConfigMap) -> &str {
    object.data.as_ref().and_then(|data| data.get("x")).map(String::as_str).unwrap_or_default()
}

#[tokio::test]
async fn typed_requests() {
    let client = FakeServer::default().client();
    assert!(client.get::<ConfigMap>("a", "one").await.unwrap_err().is_not_found());
    assert!(client.find::<ConfigMap>("a", "one").await.unwrap().is_none());
    let created = client.create(&config_map("one")).await.unwrap();
    assert_eq!(created.metadata.resource_version.as_deref(), Some("1"));
    assert!(client.create(&config_map("one")).await.unwrap_err().is_already_exists());

    let mut changed = created.clone();
    changed.data = Some(BTreeMap::from([("x".to_owned(), "2".to_owned())]));
    assert_eq!(x(&client.update(&changed).await.unwrap()), "2");
    assert!(client.update(&changed).await.unwrap_err().is_conflict());
    let patch = Patch::Merge(json!({"data": {"x": "3"}}));
    assert_eq!(x(&client.patch::<ConfigMap>("a", "one", &patch, None).await.unwrap()), "3");

    client.create(&config_map("two")).await.unwrap();
    let list = client.list::<ConfigMap>("", &ListOptions::default()).await.unwrap();
    assert_eq!(list.items.iter().map(x).collect::<Vec<_>>(), ["3", "1"]);
    assert_eq!(list.resource_version, "4");
    assert!(client.list::<ConfigMap>("b", &ListOptions::default()).await.unwrap().items.is_empty());

    client.delete::<ConfigMap>("a", "one", &DeleteOptions::default()).await.unwrap();
    assert!(client.delete::<ConfigMap>("a", "one", &DeleteOptions::default()).await.unwrap_err().is_not_found());
    assert!(matches!(client.get::<ConfigMap>("a", "").await, Err(Error::Config(_))), "no name would list");
}

#[tokio::test]
async fn dynamic_requests() {
    let server = FakeServer::default();
    let maps = server.client().dynamic(&Resource::of::<ConfigMap>());
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "one", "namespace": "a"}});
    let mut created = maps.create("a", &object).await.unwrap();
    created["data"] = json!({"x": "2"});
    assert_eq!(maps.update(&created).await.unwrap()["data"]["x"], "2");
    assert_eq!(maps.get("a", "one").await.unwrap()["metadata"]["resourceVersion"], "2");
    let page = maps.list_objects("a", &ListOptions { limit: Some(1), ..ListOptions::default() }).await.unwrap();
    assert_eq!((page.items[0].revision, page.continue_token.as_str()), (2, ""));
    maps.delete("a", "one", &DeleteOptions::uid("u")).await.unwrap();
    assert!(maps.list("", &ListOptions::default()).await.unwrap().items.is_empty());
}

/// A transport that answers every request the same, and repeats the request's headers.
struct Fixed(u16, &'static str);

impl Transport for Fixed {
    fn send(&self, request: Request<Bytes>) -> BoxFuture<'static, Result<Response<Body>, Error>> {
        let mut response = Response::new(Body::Full(Bytes::from_static(self.1.as_bytes())));
        *response.status_mut() = http::StatusCode::from_u16(self.0).unwrap();
        *response.headers_mut() = request.headers().clone();
        Box::pin(async move { Ok(response) })
    }
}

#[tokio::test]
async fn failures_without_a_status_get_one() {
    for (code, body, reason, message) in [
        (
            502,
            "bad gateway\n",
            "InternalError",
            r#"an error on the server ("bad gateway") has prevented the request from succeeding"#,
        ),
        (404, "404 page not found", "NotFound", "the server could not find the requested resource"),
        (418, "", "", "the server responded with the status code 418 but did not return more information"),
        (403, r#"{"kind":"Status","reason":"Forbidden","message":"no","code":403}"#, "Forbidden", "no"),
    ] {
        let error = Client::new(Arc::new(Fixed(code, body))).get_raw("/x").await.unwrap_err();
        let status = error.status().unwrap();
        assert_eq!((status.code, status.reason.as_str(), status.message.as_str()), (code, reason, message));
    }
}

#[tokio::test]
async fn items_get_back_the_kind_that_other_servers_leave_out() {
    let list = r#"{"kind":"ConfigMapList","apiVersion":"v1","metadata":{"resourceVersion":"9"},"items":[{"metadata":{"name":"one","resourceVersion":"3"}}]}"#;
    let maps = Client::new(Arc::new(Fixed(200, list))).dynamic(&Resource::of::<ConfigMap>());
    let objects = maps.list_objects("", &ListOptions::default()).await.unwrap();
    assert_eq!(
        objects.items[0].bytes,
        br#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"one"}}"#.as_slice()
    );
    assert_eq!((objects.items[0].revision, objects.resource_version.as_str()), (3, "9"));
    let empty = Client::new(Arc::new(Fixed(200, r#"{"kind":"ConfigMapList","metadata":{},"items":null}"#)));
    assert!(empty.list::<ConfigMap>("", &ListOptions::default()).await.unwrap().items.is_empty());
    for broken in ["[]", "{}", r#"{"kind":"Status","status":"Success"}"#, "<html>"] {
        let client = Client::new(Arc::new(Fixed(200, broken)));
        let list = client.list::<ConfigMap>("", &ListOptions::default()).await;
        assert!(matches!(list, Err(Error::Decode(_))), "{broken}");
    }
}

#[tokio::test]
async fn raw_requests_carry_the_user_agent() {
    let client = Client::new(Arc::new(Fixed(200, ""))).with_user_agent("kubelet/v1.36.0");
    let response = client.request(Request::new(Bytes::new())).await.unwrap();
    assert_eq!(response.headers()[USER_AGENT], "kubelet/v1.36.0");
    let mut own = Request::new(Bytes::new());
    own.headers_mut().insert(USER_AGENT, HeaderValue::from_static("mine"));
    assert_eq!(client.request(own).await.unwrap().headers()[USER_AGENT], "mine");
}
