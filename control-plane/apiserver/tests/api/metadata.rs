//! Writes of `metadata`, and their results, as upstream's API server has them.
//!
//! Every row was observed: a request, the status code, and the message.

use crate::server::{Answer, TestServer, send};
use serde_json::{Value, json};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

async fn ask(s: &TestServer, method: &str, path: &str, body: &Value) -> Answer {
    let admin = s.user("admin", &["system:masters"]);
    let form = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
    send(&admin, method, path, body.to_string().into(), &[("content-type", form)]).await
}

#[tokio::test]
async fn invalid_metadata_is_refused() {
    let s = TestServer::start().await;
    let made = ask(&s, "POST", MAPS, &json!({"metadata": {"name": "a"}})).await;
    let uid = made.body["metadata"]["uid"].as_str().unwrap();
    let another = |place: &str| {
        format!(
            "Operation cannot be fulfilled on configmaps \"a\": StorageError: invalid object, Code: 4, Key: {place}, \
             ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: UID in precondition: x, \
             UID in object meta: {uid}"
        )
    };
    let changed = |change: &str| format!("ConfigMap \"a\" is invalid: metadata.{change}: field is immutable");
    let object = format!("{MAPS}/a");
    for (method, path, metadata, code, message) in [
        ("PUT", object.clone(), json!({"uid": "x"}), 409, another("/registry/configmaps/default/a")),
        ("PUT", format!("{object}?dryRun=All"), json!({"uid": "x"}), 409, another("/configmaps/default/a")),
        // The uid is checked before the resourceVersion.
        (
            "PUT",
            format!("{object}?dryRun=All"),
            json!({"uid": "x", "resourceVersion": "abc"}),
            409,
            another("/configmaps/default/a"),
        ),
        (
            "PATCH",
            object.clone(),
            json!({"resourceVersion": "abc"}),
            500,
            "strconv.ParseUint: parsing \"abc\": invalid syntax".to_owned(),
        ),
        (
            "PATCH",
            object.clone(),
            json!({"deletionGracePeriodSeconds": 3}),
            422,
            changed("deletionGracePeriodSeconds: Invalid value: 3"),
        ),
        (
            "PATCH",
            object.clone(),
            json!({"deletionTimestamp": "2040-01-01T00:00:00Z"}),
            422,
            changed("deletionTimestamp: Invalid value: \"2040-01-01T00:00:00Z\""),
        ),
        (
            "PATCH",
            object.clone(),
            json!({"name": "b", "namespace": "c"}),
            400,
            "the namespace of the provided object does not match the namespace sent on the request".to_owned(),
        ),
        (
            "POST",
            MAPS.to_owned(),
            json!({"name": "b", "resourceVersion": "12"}),
            500,
            "resourceVersion should not be set on objects to be created".to_owned(),
        ),
    ] {
        let mut metadata = metadata;
        if method == "PUT" {
            metadata["name"] = "a".into();
        }
        let answer = ask(&s, method, &path, &json!({"metadata": metadata})).await;
        assert_eq!((answer.code, answer.body["message"].as_str()), (code, Some(message.as_str())), "{metadata}");
    }
    let answer = ask(&s, "PATCH", &object, &json!({"metadata": {"generateName": "a/b"}})).await;
    assert_eq!(answer.code, 422);
    let shown = answer.body["message"].as_str().unwrap();
    assert!(shown.contains("metadata.generateName: Invalid value: \"a/b\": may not contain '/'"), "{shown}");
}

#[tokio::test]
async fn a_dry_run_shows_fields_that_storage_would_not_keep() {
    const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
    let s = TestServer::start().await;
    for (method, path, sent, shown) in [
        ("POST", "?dryRun=All", json!({"resourceVersion": "12", "selfLink": "/x"}), [Some("12"), None]),
        ("POST", "?dryRun=All", json!({"resourceVersion": "abc"}), [Some("abc"), None]),
        ("POST", "?dryRun=All", json!({"resourceVersion": "0"}), [Some("0"), None]),
        ("PUT", "/a?dryRun=All", json!({"resourceVersion": "12", "selfLink": "/x"}), [Some("12"), Some("/x")]),
        ("PUT", "/a?dryRun=All", json!({}), [None, None]),
        ("POST", "", json!({"resourceVersion": "abc", "selfLink": "/x"}), [Some("given"), None]),
        ("PATCH", "/a?dryRun=All", json!({"selfLink": "/x"}), [Some("given"), Some("/x")]),
        ("PATCH", "/a", json!({"selfLink": "/x"}), [Some("given"), None]),
    ] {
        let mut metadata = sent.clone();
        metadata["name"] = "a".into();
        let answer = ask(&s, method, &format!("{LEASES}{path}"), &json!({"metadata": metadata})).await;
        assert!(answer.code < 300, "{method} {path} {sent}: {}", answer.body);
        let found = ["resourceVersion", "selfLink"].map(|field| answer.body["metadata"][field].as_str());
        let is_given = shown[0] == Some("given") && found[0].is_some_and(|version| version.parse::<u64>().is_ok());
        assert!(found == shown || (is_given && found[1] == shown[1]), "{method} {path} {sent}: {found:?}");
    }
}

#[tokio::test]
async fn an_update_that_creates_keeps_its_metadata() {
    const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
    let s = TestServer::start().await;
    let end = json!({"name": "a", "resourceVersion": "12", "deletionTimestamp": "2020-01-01T00:00:00Z",
                     "deletionGracePeriodSeconds": 5});
    let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": end});
    for (form, path) in [("application/json", "/a"), ("application/apply-patch+yaml", "/b?fieldManager=m")] {
        let admin = s.user("admin", &["system:masters"]);
        let method = if path.starts_with("/a") { "PUT" } else { "PATCH" };
        let mut lease = lease.clone();
        lease["metadata"]["name"] = path[1..2].into();
        let path = format!("{LEASES}{path}");
        let made = send(&admin, method, &path, lease.to_string().into(), &[("content-type", form)]).await;
        assert_eq!(made.code, 201, "{}", made.body);
        let metadata = &made.body["metadata"];
        assert_eq!(metadata["deletionTimestamp"], "2020-01-01T00:00:00Z", "{method}");
        assert_eq!(metadata["deletionGracePeriodSeconds"], 5, "{method}");
        let owned = &metadata["managedFields"][0]["fieldsV1"]["f:metadata"];
        assert!(owned.get("f:deletionTimestamp").is_some(), "{method}: {metadata}");
        lease["metadata"]["name"] = "c".into();
        lease["metadata"]["resourceVersion"] = "abc".into();
        let path = format!("{LEASES}/c?fieldManager=m");
        let refused = send(&admin, method, &path, lease.to_string().into(), &[("content-type", form)]).await;
        assert_eq!(refused.code, 500);
        assert_eq!(refused.body["message"], "strconv.ParseUint: parsing \"abc\": invalid syntax");
    }
    let made = ask(&s, "POST", LEASES, &json!({"metadata": {"name": "d", "deletionGracePeriodSeconds": 5}})).await;
    assert_eq!(made.body["metadata"].get("deletionGracePeriodSeconds"), None);
    let path = format!("{LEASES}/e");
    let lease = json!({"metadata": {"name": "e", "deletionTimestamp": "2020-01-01T00:00:00Z"}});
    s.put(&path, lease).await.expect(201);
    s.patch(&path, "merge", json!({"metadata": {"labels": {"a": "b"}}})).await.expect(200);
    assert_eq!(s.get(&path).await.code, 404, "nothing holds it");
}

#[tokio::test]
async fn an_incomplete_api_version_is_completed_or_refused() {
    let s = TestServer::start().await;
    for (version, code, why) in [
        ("/v1", 201, ""),
        ("/", 201, ""),
        (
            "foo/",
            400,
            "ConfigMap in version \"\" cannot be handled as a ConfigMap: Object 'apiVersion' is missing in \
             '{\"apiVersion\":\"foo/\",\"kind\":\"ConfigMap\",\"metadata\":{\"name\":\"a\"}}'",
        ),
    ] {
        let body = json!({"apiVersion": version, "kind": "ConfigMap", "metadata": {"name": "a"}});
        let answer = ask(&s, "POST", &format!("{MAPS}?dryRun=All"), &body).await;
        assert_eq!((answer.code, answer.body["message"].as_str().unwrap_or_default()), (code, why), "{version}");
    }
    ask(&s, "POST", MAPS, &json!({"metadata": {"name": "a"}})).await;
    let refused = ask(&s, "PATCH", &format!("{MAPS}/a"), &json!({"apiVersion": "foo/"})).await;
    let message = refused.body["message"].as_str().unwrap();
    assert!(
        refused.code == 422 && message.contains("\": Object 'apiVersion' is missing in '{\"apiVersion\""),
        "{message}"
    );
}

#[tokio::test]
async fn repeated_owners_are_dropped() {
    let s = TestServer::start().await;
    let owner = |name: &str| json!({"apiVersion": "v1", "kind": "Node", "name": name, "uid": "u"});
    let owners = json!([owner("a"), owner("b"), owner("a")]);
    let object = json!({"metadata": {"name": "a", "ownerReferences": owners}});
    for (method, path, when) in [
        ("POST", MAPS.to_owned(), ""),
        ("PUT", format!("{MAPS}/a"), ""),
        ("PATCH", format!("{MAPS}/a"), " after mutating admission happens"),
    ] {
        let answer = ask(&s, method, &path, &object).await;
        assert_eq!(answer.body["metadata"]["ownerReferences"], json!([owner("a"), owner("b")]), "{method}");
        let warning = answer.headers["warning"].to_str().unwrap().to_owned();
        let wanted = format!("299 - \".metadata.ownerReferences contains duplicate entries{when}; API server dedups");
        assert!(warning.starts_with(&wanted), "{warning}");
        assert!(warning.ends_with("duplicate UID(s) observed: u\""), "{warning}");
    }
}

#[tokio::test]
async fn reviews_lose_fields_that_only_the_server_sets() {
    let s = TestServer::start().await;
    let metadata = json!({"name": "a", "uid": "u", "deletionTimestamp": "2040-01-01T00:00:00Z"});
    let review = json!({"metadata": metadata, "spec": {"token": "t"}});
    let answer = ask(&s, "POST", "/apis/authentication.k8s.io/v1/tokenreviews", &review).await;
    assert_eq!(answer.code, 201);
    assert_eq!(answer.body["metadata"]["name"], "a");
    for field in ["uid", "deletionTimestamp"] {
        assert_eq!(answer.body["metadata"].get(field), None, "{field}");
    }
}

/// A write does not change the deletion of an object, though it owns the fields that it sent.
#[tokio::test]
async fn deletion_fields_in_writes() {
    let s = TestServer::start().await;
    let claims = "/apis/networking.k8s.io/v1/servicecidrs";
    ask(&s, "POST", claims, &json!({"metadata": {"name": "c"}, "spec": {"cidrs": ["10.9.0.0/24"]}})).await;
    let grace = json!({"metadata": {"deletionGracePeriodSeconds": 3}});
    let answer = ask(&s, "PATCH", &format!("{claims}/c/status"), &grace).await;
    assert_eq!(answer.code, 422, "{}", answer.body);

    let service = "/apis/apiregistration.k8s.io/v1/apiservices/v1.apps/status";
    let time = json!({"metadata": {"deletionTimestamp": "2040-01-01T00:00:00Z"}});
    assert_eq!(ask(&s, "PATCH", service, &time).await.code, 422);
    let pods = "/api/v1/namespaces/default/pods";
    let containers = json!([{"name": "c", "image": "i"}]);
    ask(&s, "POST", "/api/v1/namespaces/default/serviceaccounts", &json!({"metadata": {"name": "default"}})).await;
    ask(&s, "POST", pods, &json!({"metadata": {"name": "p"}, "spec": {"containers": containers}})).await;
    let answer = ask(&s, "PATCH", &format!("{pods}/p/status"), &time).await;
    assert_eq!((answer.code, &answer.body["metadata"]["deletionTimestamp"]), (200, &Value::Null));

    ask(&s, "POST", MAPS, &json!({"metadata": {"name": "a", "finalizers": ["x.io/a"]}})).await;
    let marked = s.delete(&format!("{MAPS}/a"), None).await.body;
    let answer = ask(&s, "PATCH", &format!("{MAPS}/a"), &time).await.body;
    assert_eq!(answer["metadata"]["deletionTimestamp"], marked["metadata"]["deletionTimestamp"]);
    let fields = &answer["metadata"]["managedFields"][0]["fieldsV1"]["f:metadata"];
    assert_eq!(fields["f:deletionTimestamp"], json!({}), "{fields}");
}

/// A scale is validated as an object of its own.
#[tokio::test]
async fn the_metadata_of_a_scale() {
    let s = TestServer::start().await;
    let sets = "/apis/apps/v1/namespaces/default/replicasets";
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let set =
        json!({"metadata": {"name": "x"}, "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": template}});
    ask(&s, "POST", sets, &set).await;
    let finalizers = "metadata.finalizers[0]: Invalid value: \"bad\": name is neither a standard finalizer name nor is it \
                      fully qualified";
    let replicas = "spec.replicas: Invalid value: -1: must be greater than or equal to 0";
    for (metadata, count, wanted) in [
        (json!({"name": "x", "finalizers": ["bad"]}), 1, finalizers.to_owned()),
        (json!({"name": "x"}), -1, replicas.to_owned()),
        (json!({"name": "x", "finalizers": ["bad"]}), -1, format!("[{finalizers}, {replicas}]")),
    ] {
        let answer =
            ask(&s, "PUT", &format!("{sets}/x/scale"), &json!({"metadata": metadata, "spec": {"replicas": count}}))
                .await;
        let wanted = format!("Scale.autoscaling \"x\" is invalid: {wanted}");
        assert_eq!((answer.code, answer.body["message"].as_str()), (422, Some(wanted.as_str())));
    }
}

#[tokio::test]
async fn a_status_with_indistinguishable_items_drops_the_managers() {
    const LEVELS: &str = "/apis/flowcontrol.apiserver.k8s.io/v1/prioritylevelconfigurations?dryRun=All";
    let s = TestServer::start().await;
    for (condition, is_owned) in [
        (json!({}), false),
        (json!({"type": ""}), false),
        (json!({"type": "a"}), true),
        (json!({"type": "a", "x": 1}), true),
    ] {
        let level = json!({"metadata": {"name": "a"}, "status": {"conditions": [condition]},
                           "spec": {"type": "Limited", "limited": {"limitResponse": {"type": "Reject"}}}});
        let answer = ask(&s, "POST", LEVELS, &level).await;
        assert_eq!(answer.code, 201, "{}", answer.body);
        assert_eq!(answer.body["metadata"].get("managedFields").is_some(), is_owned, "{condition}");
    }
}

/// Upstream stores a new claim without its phase and a new Job without the labels of its template, which it sets when
/// it reads them: the first write stores them, also if it changes nothing.
#[tokio::test]
async fn the_first_write_completes_the_stored_object() {
    let s = TestServer::start().await;
    let claim = json!({ "metadata": { "name": "m" }, "spec": { "accessModes": ["ReadWriteOnce"],
        "resources": { "requests": { "storage": "1Gi" } } } });
    let job = |labels: Value| {
        let pod = json!({ "restartPolicy": "Never", "containers": [{ "name": "c", "image": "i" }] });
        json!({ "metadata": { "name": "m", "labels": labels }, "spec": { "template": { "spec": pod } } })
    };
    const JOBS: &str = "/apis/batch/v1/namespaces/default/jobs";
    for (path, object, is_first_written) in [
        ("/api/v1/namespaces/default/persistentvolumeclaims", claim, true),
        (JOBS, job(json!({})), true),
        (JOBS, job(json!({ "a": "b" })), false),
        ("/api/v1/namespaces/default/configmaps", json!({ "metadata": { "name": "m" } }), false),
    ] {
        let mut before = s.post(path, object).await.expect(201);
        let path = format!("{path}/m");
        for is_written in [is_first_written, false] {
            let after = s.put(&path, before.clone()).await.expect(200);
            let version = |object: &Value| object["metadata"]["resourceVersion"].clone();
            assert_eq!(version(&after) != version(&before), is_written, "{after}");
            before = after;
        }
        let gone = json!({ "propagationPolicy": "Background", "gracePeriodSeconds": 0 });
        s.delete(&path, Some(gone)).await.expect(200);
    }
}

/// An unreadable resourceVersion is found only after admission, which knows no such namespace.
#[tokio::test]
async fn a_resource_version_is_parsed_after_admission() {
    let s = TestServer::start().await;
    let lease = json!({ "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": { "name": "m", "resourceVersion": "abc" } });
    for (namespace, code) in [("default", 500), ("nowhere", 404)] {
        let path = format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/m");
        s.put(&path, lease.clone()).await.expect(code);
        s.patch(&format!("{path}?fieldManager=a"), "application/apply-patch+yaml", lease.clone()).await.expect(code);
    }
}
