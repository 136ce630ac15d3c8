//! Field ownership: managedFields of every writer, and server-side apply.

use crate::server::{Answer, TestServer, call, send};
use serde_json::{Value, json};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";
const APPLY: &str = "application/apply-patch+yaml";

fn config_map(data: Value) -> Value {
    json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "m" }, "data": data })
}

fn deployment(replicas: Option<i64>) -> Value {
    let mut object = json!({ "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "d" },
        "spec": { "selector": { "matchLabels": { "app": "d" } },
                  "template": { "metadata": { "labels": { "app": "d" } },
                                "spec": { "containers": [{ "name": "c", "image": "i" }] } } } });
    if let Some(replicas) = replicas {
        object["spec"]["replicas"] = replicas.into();
    }
    object
}

async fn apply(s: &TestServer, path: &str, manager: &str, body: Value) -> Answer {
    let join = if path.contains('?') { '&' } else { '?' };
    s.patch(&format!("{path}{join}fieldManager={manager}"), APPLY, body).await
}

/// Returns the entry of a manager.
fn entry<'a>(object: &'a Value, manager: &str, operation: &str) -> &'a Value {
    let entries = object["metadata"]["managedFields"].as_array().map(Vec::as_slice).unwrap_or_default();
    entries.iter().find(|e| e["manager"] == manager && e["operation"] == operation).unwrap_or(&Value::Null)
}

#[tokio::test]
async fn every_writer_is_tracked() {
    let s = TestServer::start().await;
    let admin = s.user("a", &["system:masters"]);
    let body = config_map(json!({ "a": "1" })).to_string();
    let headers = [("content-type", "application/json"), ("user-agent", "kubectl/v1.36.0 (linux/amd64)")];
    let created = send(&admin, "POST", MAPS, body.into(), &headers).await.expect(201);
    let first = entry(&created, "kubectl", "Update");
    assert_eq!(first["fieldsV1"], json!({ "f:data": { ".": {}, "f:a": {} } }));
    assert_eq!((&first["apiVersion"], &first["fieldsType"]), (&json!("v1"), &json!("FieldsV1")));
    assert!(first["time"].is_string() && first.get("subresource").is_none());

    let path = format!("{MAPS}/m");
    let patched =
        s.patch(&format!("{path}?fieldManager=other"), "merge", json!({ "data": { "a": "2" } })).await.expect(200);
    assert_eq!(entry(&patched, "kubectl", "Update")["fieldsV1"], json!({ "f:data": {} }));
    assert_eq!(entry(&patched, "other", "Update")["fieldsV1"], json!({ "f:data": { "f:a": {} } }));
    // A repeated write changes nothing, not even a time.
    let again = s.put(&format!("{path}?fieldManager=third"), patched.clone()).await.expect(200);
    assert_eq!(again, patched);
    // After a reset, no manager is tracked.
    let reset = s.patch(&path, "merge", json!({ "metadata": { "managedFields": [{}] } })).await.expect(200);
    assert_eq!(reset["metadata"].get("managedFields"), None);
    let untracked = s.patch(&path, "merge", json!({ "data": { "a": "3" } })).await.expect(200);
    assert_eq!(untracked["metadata"].get("managedFields"), None);
}

#[tokio::test]
async fn subresources_have_their_own_entries() {
    let s = TestServer::start().await;
    s.post(&format!("{DEPLOYMENTS}?fieldManager=me"), deployment(Some(1))).await.expect(201);
    let path = format!("{DEPLOYMENTS}/d");
    let status = json!({ "status": { "replicas": 1 }, "spec": { "replicas": 7 } });
    let updated = s.patch(&format!("{path}/status?fieldManager=controller"), "merge", status).await.expect(200);
    let controller = entry(&updated, "controller", "Update");
    assert_eq!(
        (&controller["subresource"], &controller["fieldsV1"]),
        (&json!("status"), &json!({ "f:status": { "f:replicas": {} } }))
    );

    let scale = json!({ "spec": { "replicas": 3 } });
    s.patch(&format!("{path}/scale?fieldManager=kubectl"), "merge", scale).await.expect(200);
    let scaled = s.get(&path).await.expect(200);
    let kubectl = entry(&scaled, "kubectl", "Update");
    assert_eq!(
        (&kubectl["subresource"], &kubectl["apiVersion"], &kubectl["fieldsV1"]),
        (&json!("scale"), &json!("apps/v1"), &json!({ "f:spec": { "f:replicas": {} } }))
    );
    assert_eq!(entry(&scaled, "me", "Update")["fieldsV1"]["f:spec"].get("f:replicas"), None);
    assert_eq!(scaled["metadata"]["generation"], 2);

    // Replicas that were defaulted below an apply have no owner, also after they were scaled.
    let mut unset = deployment(None);
    unset["metadata"]["name"] = "unset".into();
    let path = format!("{DEPLOYMENTS}/unset");
    apply(&s, &path, "me", unset).await.expect(201);
    s.patch(&format!("{path}/scale?fieldManager=kubectl"), "merge", json!({ "spec": { "replicas": 3 } }))
        .await
        .expect(200);
    let scaled = s.get(&path).await.expect(200);
    assert_eq!((&scaled["spec"]["replicas"], entry(&scaled, "kubectl", "Update")), (&json!(3), &Value::Null));
}

#[tokio::test]
async fn an_apply_creates_changes_and_removes() {
    let s = TestServer::start().await;
    let path = format!("{MAPS}/m");
    let created = apply(&s, &path, "me", config_map(json!({ "a": "1", "b": "2" }))).await.expect(201);
    assert_eq!(created["data"], json!({ "a": "1", "b": "2" }));
    assert_eq!(entry(&created, "me", "Apply")["fieldsV1"], json!({ "f:data": { "f:a": {}, "f:b": {} } }));
    // The same apply again is no write.
    assert_eq!(apply(&s, &path, "me", config_map(json!({ "a": "1", "b": "2" }))).await.expect(200), created);
    // Another applier shares equal values, and keeps them when the first removes them.
    apply(&s, &path, "you", config_map(json!({ "b": "2", "c": "3" }))).await.expect(200);
    let left = apply(&s, &path, "me", config_map(json!({}))).await.expect(200);
    assert_eq!(left["data"], json!({ "b": "2", "c": "3" }));
    // A field of an updater conflicts, unless the apply is forced.
    s.patch(&format!("{path}?fieldManager=kubectl-edit"), "merge", json!({ "data": { "b": "9" } })).await.expect(200);
    let conflict = apply(&s, &path, "you", config_map(json!({ "b": "2", "c": "3" }))).await.expect(409);
    assert_eq!(
        (&conflict["message"], &conflict["reason"], &conflict["details"]["causes"]),
        (
            &json!("Apply failed with 1 conflict: conflict with \"kubectl-edit\" using v1: .data.b"),
            &json!("Conflict"),
            &json!([{ "reason": "FieldManagerConflict", "message": "conflict with \"kubectl-edit\" using v1", "field": ".data.b" }])
        )
    );
    let dry =
        apply(&s, &format!("{path}?force=true&dryRun=All"), "you", config_map(json!({ "b": "2" }))).await.expect(200);
    assert_eq!(dry["data"], json!({ "b": "2" }));
    let forced =
        apply(&s, &format!("{path}?force=true"), "you", config_map(json!({ "b": "2", "c": "3" }))).await.expect(200);
    assert_eq!(
        (&forced["data"], entry(&forced, "kubectl-edit", "Update")),
        (&json!({ "b": "2", "c": "3" }), &Value::Null)
    );
}

#[tokio::test]
async fn an_apply_owns_only_its_fields() {
    let s = TestServer::start().await;
    let path = format!("{DEPLOYMENTS}/d");
    let mut with_status = deployment(Some(2));
    with_status["status"] = json!({ "replicas": 9 });
    let created = apply(&s, &path, "me", with_status).await.expect(201);
    assert_eq!((&created["status"], entry(&created, "me", "Apply")["fieldsV1"].get("f:status")), (&json!({}), None));
    assert_eq!(created["spec"]["strategy"]["type"], "RollingUpdate");

    let status = json!({ "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "d" },
                         "spec": { "replicas": 5 }, "status": { "replicas": 2 } });
    let applied = apply(&s, &format!("{path}/status"), "controller", status).await.expect(200);
    assert_eq!((&applied["spec"]["replicas"], &applied["status"]["replicas"]), (&json!(2), &json!(2)));
    assert_eq!(entry(&applied, "controller", "Apply")["fieldsV1"], json!({ "f:status": { "f:replicas": {} } }));
    assert_eq!(entry(&applied, "controller", "Apply")["subresource"], "status");

    let scale = json!({ "apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": { "name": "d" }, "spec": { "replicas": 4 } });
    let conflict = apply(&s, &format!("{path}/scale"), "scaler", scale.clone()).await.message(409);
    assert_eq!(conflict, "Apply failed with 1 conflict: conflict with \"me\": .spec.replicas");
    apply(&s, &format!("{path}/scale?force=true"), "scaler", scale).await.expect(200);
    let scaled = s.get(&path).await.expect(200);
    assert_eq!(scaled["spec"]["replicas"], 4);
    assert_eq!(entry(&scaled, "scaler", "Apply")["fieldsV1"], json!({ "f:spec": { "f:replicas": {} } }));
    // The first applier no longer sets replicas, and does not remove them.
    let again = apply(&s, &path, "me", deployment(None)).await.expect(200);
    assert_eq!(
        (&again["spec"]["replicas"], &again["metadata"]["generation"]),
        (&json!(4), &scaled["metadata"]["generation"])
    );
}

#[tokio::test]
async fn an_invalid_apply_is_refused() {
    let s = TestServer::start().await;
    let path = format!("{MAPS}/m");
    let cases = [
        (
            s.patch(&path, APPLY, config_map(json!({}))).await,
            422,
            "PatchOptions.meta.k8s.io \"\" is invalid: fieldManager: Required value: is required for apply patch",
        ),
        (
            s.patch(&format!("{path}?force=true"), "merge", json!({})).await,
            422,
            "PatchOptions.meta.k8s.io \"\" is invalid: force: Forbidden: may not be specified for non-apply patch",
        ),
        (
            apply(&s, &path, "me", json!({ "kind": "Secret", "apiVersion": "v1" })).await,
            400,
            "invalid object type: /v1, Kind=Secret",
        ),
        (
            apply(
                &s,
                &path,
                "me",
                json!({ "kind": "ConfigMap", "apiVersion": "v1", "metadata": { "name": "m", "managedFields": [] } }),
            )
            .await,
            400,
            "metadata.managedFields must be nil",
        ),
        (
            apply(
                &s,
                &path,
                "me",
                json!({ "kind": "ConfigMap", "apiVersion": "v1", "metadata": { "name": "m" }, "datas": {} }),
            )
            .await,
            500,
            "failed to create typed patch object (/m; /v1, Kind=ConfigMap): .datas: field not declared in schema",
        ),
        (
            apply(&s, &format!("{MAPS}/other"), "me", config_map(json!({}))).await,
            400,
            "the name of the object (m) does not match the name on the URL (other)",
        ),
    ];
    for (answer, code, message) in cases {
        assert_eq!(answer.message(code), message);
    }
    assert_eq!(s.patch(&path, "application/apply-patch+cbor", json!({})).await.code, 415);
    // A user who may only patch cannot create by an apply.
    let role = json!({ "metadata": { "name": "patcher" }, "rules": [{ "apiGroups": [""], "resources": ["configmaps"], "verbs": ["patch"] }] });
    s.post("/apis/rbac.authorization.k8s.io/v1/clusterroles", role).await.expect(201);
    let binding = json!({ "metadata": { "name": "patcher" }, "subjects": [{ "kind": "User", "name": "p", "apiGroup": "rbac.authorization.k8s.io" }],
                          "roleRef": { "kind": "ClusterRole", "name": "patcher", "apiGroup": "rbac.authorization.k8s.io" } });
    s.post("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding).await.expect(201);
    let patcher = s.user("p", &[]);
    let target = format!("{path}?fieldManager=me");
    let mut refused = String::new();
    // The authorizer reads the binding from a cache.
    for _ in 0..20_000 {
        refused = call(&patcher, "PATCH", &target, Some(config_map(json!({}))), APPLY).await.message(403);
        if !refused.contains("cannot patch") {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    assert!(refused.contains("cannot create resource \"configmaps\""), "{refused}");
    // A resourceVersion is a precondition.
    apply(&s, &path, "me", config_map(json!({}))).await.expect(201);
    let mut stale = config_map(json!({ "a": "1" }));
    stale["metadata"]["resourceVersion"] = "1".into();
    assert_eq!(apply(&s, &path, "me", stale).await.code, 409);
}

#[tokio::test]
async fn kubectl_migrates_from_client_side_apply() {
    let s = TestServer::start().await;
    let mut object = config_map(json!({ "a": "1" }));
    let last = object.to_string();
    object["metadata"]["annotations"] = json!({ "kubectl.kubernetes.io/last-applied-configuration": last });
    s.post(&format!("{MAPS}?fieldManager=kubectl-client-side-apply"), object).await.expect(201);
    // The annotation lists fields that kubectl applied, so kubectl may change them; another manager may not.
    let changed = config_map(json!({ "a": "2" }));
    assert_eq!(apply(&s, &format!("{MAPS}/m"), "other", changed.clone()).await.code, 409);
    let applied = apply(&s, &format!("{MAPS}/m"), "kubectl", changed.clone()).await.expect(200);
    assert_eq!(applied["data"], json!({ "a": "2" }));
    let annotation =
        applied["metadata"]["annotations"]["kubectl.kubernetes.io/last-applied-configuration"].as_str().unwrap();
    assert_eq!(serde_json::from_str::<Value>(annotation).unwrap(), changed);
}

#[tokio::test]
async fn custom_resources_are_applied_by_their_schema() {
    let s = TestServer::start().await;
    let schema = json!({ "type": "object", "properties": { "spec": { "type": "object", "properties": {
        "hosts": { "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"], "items": {
            "type": "object", "required": ["name"], "properties": { "name": { "type": "string" }, "port": { "type": "integer" } } } } } } } });
    let definition = json!({ "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": { "name": "gates.example.com" },
        "spec": { "group": "example.com", "scope": "Namespaced",
            "versions": [{ "name": "v1", "served": true, "storage": true, "schema": { "openAPIV3Schema": schema } }],
            "names": { "plural": "gates", "singular": "gate", "kind": "Gate", "listKind": "GateList" } } });
    s.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition).await.expect(201);
    let path = "/apis/example.com/v1/namespaces/default/gates/g";
    let gate = |hosts: Value| json!({ "apiVersion": "example.com/v1", "kind": "Gate", "metadata": { "name": "g" }, "spec": { "hosts": hosts } });
    let mut created = apply(&s, path, "me", gate(json!([{ "name": "a", "port": 1 }]))).await;
    for _ in 0..20_000 {
        if created.code == 201 {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        created = apply(&s, path, "me", gate(json!([{ "name": "a", "port": 1 }]))).await;
    }
    created.expect(201);
    let both = apply(&s, path, "you", gate(json!([{ "name": "b", "port": 2 }]))).await.expect(200);
    assert_eq!(both["spec"]["hosts"], json!([{ "name": "a", "port": 1 }, { "name": "b", "port": 2 }]));
    let conflict = apply(&s, path, "you", gate(json!([{ "name": "a", "port": 9 }]))).await.message(409);
    assert_eq!(conflict, "Apply failed with 1 conflict: conflict with \"me\": .spec.hosts[name=\"a\"].port");
}

#[tokio::test]
async fn a_map_that_an_apply_empties_stays_with_its_other_owners() {
    let s = TestServer::start().await;
    let path = format!("{MAPS}/m");
    s.post(&format!("{MAPS}?fieldManager=maker"), config_map(json!({ "k": "v" }))).await.expect(201);
    apply(&s, &format!("{path}?force=true"), "me", config_map(json!({ "k": "w" }))).await.expect(200);
    let emptied = apply(&s, &path, "me", config_map(json!({}))).await.expect(200);
    assert_eq!(emptied.get("data"), None);
    assert_eq!(entry(&emptied, "maker", "Update")["fieldsV1"], json!({ "f:data": {} }));
}

#[tokio::test]
async fn a_configuration_that_is_not_of_its_type_is_refused_with_upstreams_errors() {
    let s = TestServer::start().await;
    s.post(DEPLOYMENTS, deployment(Some(2))).await.expect(201);
    let path = format!("{DEPLOYMENTS}/d");
    let with = |spec: Value| json!({ "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "d" }, "spec": spec });
    let typed = "failed to create typed patch object (/d; apps/v1, Kind=Deployment): ";
    let converted = "failed to convert new object (/d; apps/v1, Kind=Deployment) to proper version: \
                     unable to convert unstructured object to apps/v1, Kind=Deployment: ";
    for (body, code, wanted) in [
        (with(json!({ "replicas": 1.5 })), 500, format!("{converted}cannot convert float64 to int32")),
        (
            with(json!({ "replicas": "x" })),
            500,
            format!("{typed}.spec.replicas: expected numeric (int or float), got string"),
        ),
        (json!({ "apiVersion": "a/b/c", "kind": "Deployment" }), 400, "invalid object type: /, Kind=".to_owned()),
        (
            json!({ "apiVersion": "apps/v1", "kind": "Deployment", "zzz": 1 }),
            500,
            "failed to create typed patch object (/; apps/v1, Kind=Deployment): .zzz: field not declared in schema"
                .to_owned(),
        ),
    ] {
        let refused = apply(&s, &format!("{path}?force=true"), "me", body.clone()).await;
        assert_eq!(refused.message(code), wanted, "{body}");
    }
    let nameless = json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": "a" },
                           "secrets": [{ "kind": "x" }, { "kind": "y" }] });
    let refused = apply(&s, "/api/v1/namespaces/default/serviceaccounts/a", "me", nameless).await.message(500);
    assert_eq!(
        refused,
        "failed to create typed patch object (/a; /v1, Kind=ServiceAccount): .secrets: element 0: associative list with \
         keys has an element that omits all key fields [\"name\"] (and doesn't have default values for any key fields)"
    );
    // A number that is too big for its type is truncated, as Go does.
    let cut = apply(&s, &format!("{path}?force=true"), "me", with(json!({ "replicas": 4_294_967_299_i64 }))).await;
    assert_eq!(cut.expect(200)["spec"]["replicas"], 3);
}

#[tokio::test]
async fn patches_respond_as_upstreams() {
    let s = TestServer::start().await;
    let path = format!("{MAPS}/m");
    let admin = s.user("a", &["system:masters"]);
    let headers = [("content-type", "application/json-patch+json")];
    // A patch is read only if the object exists.
    send(&admin, "PATCH", &path, "[5".into(), &headers).await.expect(404);
    s.post(MAPS, config_map(json!({ "k": "v" }))).await.expect(201);
    send(&admin, "PATCH", &path, "[5".into(), &headers).await.expect(400);
    let message = s.patch(&path, "merge", json!({ "metadata": { "uid": "another" } })).await.message(422);
    assert!(message.contains("metadata.uid: Invalid value: \"another\": field is immutable"), "{message}");
    let message = s.patch(&path, "merge", json!({ "apiVersion": null })).await.message(400);
    assert!(message.contains("undeterminable"), "{message}");
    let message = s.patch(&path, "strategic", json!({ "$retainKeys": "x" })).await.message(400);
    assert_eq!(message, "invalid patch format of retainKeys");
    let twice = r#"{"data": {"k": "a", "k": "b"}}"#;
    let strict = format!("{path}?fieldValidation=Strict");
    let headers = [("content-type", "application/merge-patch+json")];
    let message = send(&admin, "PATCH", &strict, twice.into(), &headers).await.message(422);
    assert!(message.ends_with("strict decoding error: duplicate field \"data.k\""), "{message}");
    let moved = json!([{ "op": "copy", "from": "/nothing", "path": "/data/k" }]);
    assert_eq!(s.patch(&path, "json", moved).await.expect(200)["data"]["k"], "");
}

/// An apply without the metadata that it owned removes all of it, and with it the name.
#[tokio::test]
async fn an_apply_may_set_metadata() {
    let s = TestServer::start().await;
    let path = format!("{MAPS}/m");
    let mut config = config_map(json!({ "a": "1" }));
    config["metadata"]["labels"] = json!({ "l": "1" });
    apply(&s, &path, "x", config).await.expect(201);
    let unnamed = "the name of the object (m based on URL) was undeterminable: name must be provided";
    let untyped = "failed to create typed patch object (/; /v1, Kind=ConfigMap): .metadata: expected map, got &{x}";
    let missing = "strconv.ParseUint: parsing \"abc\": invalid syntax";
    for (path, manager, metadata, code, message) in [
        (&path, "x", Value::Null, 200, None),
        (&path, "x", json!({}), 200, None),
        (&path, "x", json!({ "name": "" }), 400, Some(unnamed)),
        (&path, "y", json!({ "name": "" }), 400, Some(unnamed)),
        (&path, "x", json!("x"), 500, Some(untyped)),
        (&format!("{MAPS}/new"), "x", json!({ "name": "new", "resourceVersion": "abc" }), 500, Some(missing)),
    ] {
        let body = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata });
        let answer = apply(&s, &format!("{path}?dryRun=All"), manager, body).await;
        assert_eq!((answer.code, answer.body["message"].as_str()), (code, message), "{manager} {metadata}");
    }
    let bare = json!({ "apiVersion": "v1", "kind": "ConfigMap" });
    let answer = apply(&s, &path, "x", bare.clone()).await;
    assert_eq!((answer.code, answer.body["message"].as_str()), (400, Some(unnamed)));
    apply(&s, &path, "y", bare).await.expect(200);
}

/// One version of an autoscaler has fields in its status that the other has in annotations. Each manager owns paths of
/// its own version, and objects are compared in that version.
#[tokio::test]
async fn managers_of_two_versions_share_an_object() {
    const VERSION_1: &str = "/apis/autoscaling/v1/namespaces/default/horizontalpodautoscalers";
    const VERSION_2: &str = "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers";
    const CURRENT: &str = "f:autoscaling.alpha.kubernetes.io/current-metrics";
    let s = TestServer::start().await;
    let autoscaler = |version: &str, status: Value| {
        json!({ "apiVersion": format!("autoscaling/{version}"), "kind": "HorizontalPodAutoscaler",
                "metadata": { "name": "h" }, "status": status,
                "spec": { "maxReplicas": 3, "scaleTargetRef": { "kind": "Deployment", "name": "d", "apiVersion": "apps/v1" } } })
    };
    // The status of a new object is dropped, but the annotation for it is owned by its creator.
    let with_status = autoscaler("v1", json!({ "currentCPUUtilizationPercentage": 5 }));
    let created = s.post(&format!("{VERSION_1}?fieldManager=one"), with_status).await.expect(201);
    assert_eq!(created["metadata"].get("annotations"), None);
    let owned = &entry(&created, "one", "Update")["fieldsV1"]["f:metadata"];
    assert_eq!(*owned, json!({ "f:annotations": { ".": {}, CURRENT: {} } }));

    // A client that sets in the second version what the first annotates owns the annotation, though it may not write
    // the status.
    let metrics = json!({ "status": { "currentMetrics": [{ "type": "Resource", "resource": {
        "name": "cpu", "current": { "averageUtilization": 9, "averageValue": "1" } } }] } });
    let (main, status) =
        (format!("{VERSION_2}/h?fieldManager=two"), format!("{VERSION_2}/h/status?fieldManager=three"));
    let updated = s.patch(&main, "merge", metrics.clone()).await.expect(200);
    assert_eq!(entry(&updated, "one", "Update")["fieldsV1"].get("f:metadata"), None);
    assert_eq!(entry(&updated, "two", "Update"), &Value::Null);

    // The second version shows only the load that was set in the first.
    let load = json!({ "status": { "currentCPUUtilizationPercentage": 7 } });
    s.patch(&format!("{VERSION_1}/h/status?fieldManager=four"), "merge", load).await.expect(200);
    let shown = s.get(&format!("{VERSION_2}/h")).await.expect(200);
    assert_eq!(shown["status"]["currentMetrics"][0]["resource"]["current"], json!({ "averageUtilization": 7 }));

    // A field that is no longer applied stays while a manager of the other version exists: in the conversion the empty
    // list is written, so it is not removed.
    let applied = autoscaler("v2", metrics["status"].clone());
    apply(&s, &format!("{status}&force=true"), "five", applied).await.expect(200);
    let left = apply(&s, &format!("{VERSION_2}/h/status"), "five", autoscaler("v2", json!({}))).await.expect(200);
    assert_eq!(left["status"]["currentMetrics"], metrics["status"]["currentMetrics"]);
}

/// The two versions of an Event are of two groups, and a writer of one drops the managers of the other.
#[tokio::test]
async fn managers_of_another_group_are_dropped() {
    let s = TestServer::start().await;
    let event = json!({ "metadata": { "name": "e" }, "involvedObject": { "namespace": "default", "kind": "Pod" }, "reason": "r" });
    let path = "/api/v1/namespaces/default/events";
    s.post(&format!("{path}?fieldManager=one"), event).await.expect(201);
    let label = json!({ "metadata": { "labels": { "a": "b" } } });
    let path = "/apis/events.k8s.io/v1/namespaces/default/events/e?fieldManager=two";
    let patched = s.patch(path, "merge", label).await.expect(200);
    assert_eq!(patched["metadata"]["managedFields"].as_array().map(Vec::len), Some(1));
    assert_eq!(entry(&patched, "two", "Update")["apiVersion"], "events.k8s.io/v1");
    let changed = s.patch(path, "merge", json!({ "deprecatedCount": 2 })).await.message(422);
    assert_eq!(changed, "Event \"e\" is invalid: count: Invalid value: 2: field is immutable");
}

/// A manager that never changed anything has no time. When it gets one it comes after the others, and that is a write.
#[tokio::test]
async fn times_are_written_if_they_change_the_order() {
    let s = TestServer::start().await;
    let path = format!("{DEPLOYMENTS}/d");
    apply(&s, &path, "me", deployment(Some(1))).await.expect(201);
    let shared = apply(&s, &path, "you", deployment(Some(1))).await.expect(200);
    assert_eq!(entry(&shared, "you", "Apply").get("time"), None);
    let mut with_status = deployment(Some(1));
    with_status["status"] = json!({ "replicas": 5 });
    let timed = apply(&s, &path, "you", with_status.clone()).await.expect(200);
    assert!(entry(&timed, "you", "Apply")["time"].is_string());
    assert_ne!(timed["metadata"]["resourceVersion"], shared["metadata"]["resourceVersion"]);
    assert_eq!(apply(&s, &path, "you", with_status).await.expect(200), timed);
}

/// An updater of the parent is no manager of its scale: its replicas become an entry of their own when the scale is
/// written, also with the same count, and of two entries of one manager the later counts.
#[tokio::test]
async fn a_scale_splits_the_entries_of_updaters() {
    let s = TestServer::start().await;
    let path = format!("{DEPLOYMENTS}/d");
    s.post(&format!("{DEPLOYMENTS}?fieldManager=me"), deployment(Some(1))).await.expect(201);
    let scale = json!({ "apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": { "name": "d" }, "spec": { "replicas": 1 } });
    s.put(&format!("{path}/scale?fieldManager=other"), scale).await.expect(200);
    let scaled = s.get(&path).await.expect(200);
    let entries = scaled["metadata"]["managedFields"].as_array().unwrap();
    let shown: Vec<_> = entries
        .iter()
        .map(|e| (&e["manager"], e["time"].is_string(), e["fieldsV1"]["f:spec"].get("f:replicas")))
        .collect();
    assert_eq!(shown, [(&json!("me"), false, Some(&json!({}))), (&json!("me"), true, None)]);

    let label = json!({ "metadata": { "labels": { "a": "b" } } });
    let labelled = s.patch(&format!("{path}?fieldManager=other"), "merge", label).await.expect(200);
    assert_eq!(entry(&labelled, "me", "Update")["fieldsV1"]["f:spec"].get("f:replicas"), None);
    assert_eq!(labelled["metadata"]["managedFields"].as_array().map(Vec::len), Some(2));
}

/// Upstream compares an atomic list with the empty values in its items, before it drops the fields of disabled
/// features.
#[tokio::test]
async fn an_empty_list_in_an_item_is_written() {
    let s = TestServer::start().await;
    let device = json!({ "name": "d", "attributes": { "a": { "string": "x" } } });
    let slice = json!({ "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": { "name": "m" },
        "spec": { "driver": "d.io", "nodeName": "n", "pool": { "name": "p", "resourceSliceCount": 1 },
                  "devices": [device] } });
    let role = json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": { "name": "m" },
        "rules": [{ "verbs": ["get"], "apiGroups": [""], "resources": ["pods"] }] });
    for (path, object, empty, owned) in [
        ("/apis/rbac.authorization.k8s.io/v1/namespaces/default/roles", role, "/rules/0/resourceNames", "/f:rules"),
        ("/apis/resource.k8s.io/v1/resourceslices", slice, "/spec/devices/0/attributes/a/bools", "/f:spec/f:devices"),
    ] {
        s.post(path, object).await.expect(201);
        let path = format!("{path}/m?fieldManager=other");
        let patch = json!([{ "op": "add", "path": empty, "value": [] }]);
        let written = s.patch(&path, "json", patch).await.expect(200);
        assert_eq!(written.pointer(empty), None);
        assert!(entry(&written, "other", "Update")["fieldsV1"].pointer(owned).is_some(), "{written}");
    }
}

/// Such a list is compared as it was sent: with the spelling of quantities, and with fractions of seconds. Values that
/// are compared field by field are not.
#[tokio::test]
async fn a_quantity_in_another_form_is_written_in_a_list() {
    let s = TestServer::start().await;
    let range = |cpu: &str| {
        json!({ "apiVersion": "v1", "kind": "LimitRange", "metadata": { "name": "m" },
            "spec": { "limits": [{ "type": "Container", "max": { "cpu": cpu } }] } })
    };
    let quota = |cpu: &str| {
        json!({ "apiVersion": "v1", "kind": "ResourceQuota", "metadata": { "name": "m" },
            "spec": { "hard": { "cpu": cpu } } })
    };
    let taint = |at: &str| json!({ "key": "a", "effect": "NoExecute", "timeAdded": at });
    let slice = |at: &str| {
        json!({ "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": { "name": "m" },
            "spec": { "driver": "d.io", "nodeName": "n", "pool": { "name": "p", "resourceSliceCount": 1 },
                      "devices": [{ "name": "d", "taints": [taint(at)] }] } })
    };
    const RANGES: &str = "/api/v1/namespaces/default/limitranges";
    const SLICES: &str = "/apis/resource.k8s.io/v1/resourceslices";
    let second = "2024-01-01T00:00:00Z";
    for (path, stored, sent, owned) in [
        (RANGES, range("1"), range("1"), None),
        (RANGES, range("1"), range("1000m"), Some("/f:spec/f:limits")),
        ("/api/v1/namespaces/default/resourcequotas", quota("1"), quota("1000m"), None),
        (SLICES, slice(second), slice("2024-01-01T02:00:00+02:00"), None),
        (SLICES, slice(second), slice("2024-01-01T00:00:00.5Z"), Some("/f:spec/f:devices")),
    ] {
        let created = s.post(path, stored).await.expect(201);
        let path = format!("{path}/m");
        let written = s.put(&format!("{path}?fieldManager=other"), sent).await.expect(200);
        assert_eq!(written["spec"], created["spec"]);
        let fields = &entry(&written, "other", "Update")["fieldsV1"];
        assert_eq!(owned.is_some_and(|owned| fields.pointer(owned).is_some()), owned.is_some(), "{written}");
        assert_eq!(fields.is_null(), owned.is_none(), "{written}");
        // Another fraction of a second is another time, another spelling of a quantity is the same quantity.
        if let (Some(before), Some(after)) =
            (created["metadata"]["generation"].as_i64(), written["metadata"]["generation"].as_i64())
        {
            assert_eq!(after - before, i64::from(owned.is_some()), "{written}");
        }
        s.delete(&path, None).await.expect(200);
    }
}
