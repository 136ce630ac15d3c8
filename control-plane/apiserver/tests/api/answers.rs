//! Responses that unmodified clients read, request by request, as upstream's API server gives them.
//!
//! Every row was observed: a request, the status code, and the message.

use crate::server::{TestServer, send};
use serde_json::{Value, json};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const PODS: &str = "/api/v1/namespaces/default/pods";
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";

#[tokio::test]
async fn paths_and_methods() {
    let s = TestServer::start().await;
    let not_found = "the server could not find the requested resource";
    let not_allowed = "the server does not allow this method on the requested resource";
    for (method, path, code, message) in [
        ("GET", "/api/v1/nope", 404, not_found),
        ("GET", "/api/v2", 404, not_found),
        ("GET", "/apis/apps/v9", 404, not_found),
        ("PUT", "/api/v1/nodes", 405, not_allowed),
        ("GET", "/api/v1/pods/x", 404, not_found),
        ("GET", "/api/v1/namespaces/default/namespaces", 404, not_found),
        ("GET", "/api/v1/bindings", 404, not_found),
        ("GET", "/api/v1/namespaces/default/pods/x/status/y", 404, not_found),
        ("POST", "/api/v1/pods", 405, not_allowed),
        ("DELETE", "/api/v1/pods", 405, not_allowed),
        ("DELETE", "/api/v1/namespaces", 405, not_allowed),
        ("HEAD", "/api/v1/pods", 405, not_allowed),
        ("GET", "/api/v1/namespaces/default/pods/x/binding", 405, not_allowed),
        ("GET", "/apis/authentication.k8s.io/v1/tokenreviews", 405, not_allowed),
        ("POST", "/version", 405, not_allowed),
        ("POST", "/api/v1/watch/configmaps", 405, not_allowed),
        ("GET", "/api/v1/watch/pods/x", 404, not_found),
        ("GET", "/api/v1/watch/componentstatuses", 404, not_found),
        ("GET", "/version/openshift", 404, not_found),
        ("POST", "/version/x/y/", 404, not_found),
        ("GET", "/api/v1/watch/namespaces/default/pods/x/log", 404, not_found),
        ("POST", "/api/v1", 405, not_allowed),
        ("GET", "/api/v1/namespaces/default/configmaps/x", 404, "configmaps \"x\" not found"),
        ("GET", "/api/v1/namespaces/default/pods/x//log", 404, not_found),
        ("GET", "/api/v1/namespaces/default/bindings/x", 404, not_found),
        ("PUT", "/apis/authentication.k8s.io/v1/tokenreviews/x", 404, not_found),
        ("GET", "/api/v1/namespaces//configmaps/x", 400, "Namespace parameter required."),
        ("DELETE", "/api/v1/namespaces//configmaps/x", 400, "Namespace parameter required."),
        ("DELETE", "/api/v1/namespaces//configmaps", 400, "Namespace parameter required."),
        ("PUT", "/api/v1/namespaces//configmaps", 405, not_allowed),
        ("DELETE", "/api/v1/namespaces//pods/x/status", 405, not_allowed),
        ("GET", "/api/v1/namespaces/default/pods/../x", 404, not_found),
        ("GET", "/api/v1/namespaces/default/pods//status", 400, "name must be provided"),
        ("DELETE", "/api/v1/namespaces/default/pods//proxy/x", 400, "name must be provided"),
        ("PUT", "/api/v1/namespaces//finalize", 400, "name must be provided"),
        ("GET", "/api/v1/namespaces/../pods", 500, "invalid key: \"/pods/..\""),
        ("GET", "/api/v1/namespaces/../pods?watch=1", 500, "invalid key: \"/pods/..\""),
        ("DELETE", "/apis/apps/v1/namespaces/%2e/deployments", 500, "invalid key: \"/deployments/.\""),
        ("GET", "/api/v1/namespaces/../services/x", 500, "invalid key: \"/services/specs/../x\""),
        ("GET", "/api/v1/namespaces/.", 400, "Name parameter invalid: \".\": may not be '.'"),
        ("GET", "/api/v1/namespaces/a/configmaps/%2e%2e", 400, "Name parameter invalid: \"..\": may not be '..'"),
    ] {
        let answer = s.raw(method, path, "").await;
        assert_eq!((answer.code, answer.body["message"].as_str()), (code, Some(message)), "{method} {path}");
    }
    let nowhere = [
        "/foo",
        "/apis/nope",
        "/apis/nope/v1",
        "/apis/nope/v1/things",
        "/livez/nope",
        "/livez/shutdown",
        "//api/v1/pods",
    ];
    for path in nowhere.into_iter().chain(["/apis//apps/v1/deployments"]) {
        let answer = s.raw("GET", path, "").await;
        assert_eq!((answer.code, answer.body.as_str()), (404, Some("404 page not found\n")), "{path}");
        assert_eq!(answer.headers["x-content-type-options"], "nosniff");
    }
    for path in ["/api/v1/watch?a=b&c", "/apis/apps/v1/proxy"] {
        let answer = s.raw("GET", path, "").await;
        let escaped = path.replace('&', "&amp;");
        let why = "failed to create RequestInfo: unable to determine kind and namespace from url";
        let text = format!("Internal Server Error: \"{escaped}\": {why}, {escaped}\n");
        assert_eq!((answer.code, answer.body.as_str()), (500, Some(text.as_str())), "{path}");
    }
    let map = r#"{"metadata":{"name":"x","namespace":"default"}}"#;
    for (path, code, message) in [
        ("/api/v1/namespaces//configmaps", 422, "ConfigMap \"x\" is invalid: metadata.namespace: Required value"),
        (
            "/api/v1/namespaces/../configmaps",
            400,
            "the namespace of the provided object does not match the namespace sent on the request",
        ),
    ] {
        let answer = s.raw("POST", path, map).await;
        assert_eq!((answer.code, answer.body["message"].as_str()), (code, Some(message)), "POST {path}");
    }
    let answer = s.raw("POST", "/api/v1/namespaces/../configmaps", r#"{"metadata":{"name":"x"}}"#).await;
    let message = "Internal error occurred: invalid resource name \"..\": [may not be '..']";
    assert_eq!((answer.code, answer.body["message"].as_str()), (500, Some(message)));
    for path in ["/healthz/", "/livez/ping/", "/metrics/", "/openapi/v2/", "/apis//", "/apis/example.com/v1/things"] {
        let answer = s.raw("GET", path, "").await;
        assert_eq!((answer.code, answer.body.as_str()), (404, Some("404 page not found\n")), "{path}");
    }
    for path in ["/version/", "/api/", "/apis/", "/api/v1/", "/openid/v1/jwks/", "/index.html"] {
        assert_eq!(s.raw("GET", path, "").await.code, 200, "{path}");
    }
    for path in ["/", "/apis", "/apis/apps", "/healthz"] {
        assert_eq!(s.raw("POST", path, "").await.code, 200, "{path} does not look at the method");
    }
}

/// Returns the code and the kind of a response, for a client that accepts this form.
async fn form(s: &TestServer, method: &str, path: &str, accept: &str, body: &str) -> (u16, String) {
    let admin = s.user("admin", &["system:masters"]);
    let headers = [("content-type", "application/json"), ("accept", accept)];
    let answer = send(&admin, method, path, body.to_owned().into(), &headers).await;
    let is = match &answer.body {
        Value::Object(object) => object.get("message").or_else(|| object.get("kind")).cloned().unwrap_or_default(),
        _ => answer.headers["content-type"].to_str().unwrap().into(),
    };
    (answer.code, is.as_str().unwrap_or_default().to_owned())
}

#[tokio::test]
async fn forms_of_subresources_and_of_objects_that_are_not_stored() {
    let s = TestServer::start().await;
    let template = r#"{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"a","image":"b"}]}}"#;
    let deployment = format!(
        r#"{{"metadata":{{"name":"d"}},"spec":{{"selector":{{"matchLabels":{{"a":"b"}}}},"template":{template}}}}}"#
    );
    assert_eq!(s.raw("POST", DEPLOYMENTS, &deployment).await.code, 201);
    let (pod, scale) = (format!("{PODS}/x"), format!("{DEPLOYMENTS}/d/scale"));
    let (claim, api) =
        ("/apis/resource.k8s.io/v1/namespaces/default/resourceclaims", "/apis/apiregistration.k8s.io/v1");
    let (claim, api) = (format!("{claim}/x/status"), format!("{api}/apiservices/v1./status"));
    let (table, partial) = ("as=Table;v=v1;g=meta.k8s.io", "as=PartialObjectMetadata;v=v1;g=meta.k8s.io");
    let list = partial.replace("Metadata", "MetadataList");
    let (json, proto) = ("application/json", "application/vnd.kubernetes.protobuf");
    let refused = "only the following media types are accepted: application/json, application/yaml, \
                   application/vnd.kubernetes.protobuf";
    let review = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    let question = r#"{"spec":{"nonResourceAttributes":{"path":"/x","verb":"get"}}}"#;
    for (method, path, accept, body, code, is) in [
        ("GET", scale.as_str(), format!("{json};{table}"), "", 200, "Table"),
        ("GET", &scale, format!("{json};{partial}"), "", 200, "PartialObjectMetadata"),
        ("GET", &scale, proto.to_owned(), "", 200, proto),
        ("GET", &scale, format!("{proto};{partial}"), "", 200, proto),
        ("GET", &scale, format!("{proto};{table}"), "", 406, refused),
        (
            "GET",
            &scale,
            format!("{json};{list}"),
            "",
            406,
            "you requested PartialObjectMetadataList, but the requested object is not a list (*autoscaling.Scale)",
        ),
        ("GET", &format!("{pod}/resize"), format!("{json};{table}"), "", 406, refused),
        ("GET", &format!("{pod}/log"), format!("{json};{table}"), "", 406, refused),
        ("GET", &format!("{pod}/log"), "text/plain".to_owned(), "", 406, refused),
        ("GET", &format!("{pod}/proxy"), "image/png".to_owned(), "", 404, "pods \"x\" not found"),
        ("GET", &claim, format!("{json};{table}"), "", 406, refused),
        ("GET", &api, format!("{json};{table}"), "", 406, refused),
        ("GET", &format!("{PODS}/x/status"), format!("{json};{table}"), "", 404, "pods \"x\" not found"),
        ("POST", review, format!("{json};{partial}"), question, 201, "PartialObjectMetadata"),
        ("POST", review, format!("{json};{table}"), question, 406, refused),
        ("POST", review, format!("{json};{table},{json}"), question, 201, "SelfSubjectAccessReview"),
        ("POST", review, proto.to_owned(), question, 201, proto),
        ("DELETE", &format!("{DEPLOYMENTS}/d"), proto.to_owned(), "", 200, proto),
    ] {
        let got = form(&s, method, path, &accept, body).await;
        assert_eq!((got.0, got.1.as_str()), (code, is), "{method} {path} as {accept}");
    }
}

#[tokio::test]
async fn rows_show_completed_objects() {
    let s = TestServer::start().await;
    let account = s.raw("POST", "/api/v1/namespaces/default/serviceaccounts", r#"{"metadata":{"name":"default"}}"#);
    assert_eq!(account.await.code, 201);
    let pod = r#"{"metadata":{"name":"p"},"spec":{"containers":[{"name":"a","image":"b"}]}}"#;
    assert_eq!(s.raw("POST", PODS, pod).await.code, 201);
    let admin = s.user("admin", &["system:masters"]);
    let headers =
        [("content-type", "application/merge-patch+json"), ("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")];
    for (phase, conditions) in [
        ("Running", Value::Null),
        (
            "Failed",
            json!([{ "type": "Completed", "status": "True", "reason": "Failed", "message": "The pod failed." }]),
        ),
    ] {
        let body = json!({ "status": { "phase": phase } }).to_string();
        let answer = send(&admin, "PATCH", &format!("{PODS}/p/status"), body.into(), &headers).await;
        assert_eq!((answer.code, &answer.body["rows"][0]["conditions"]), (200, &conditions), "{phase}");
    }
}

#[tokio::test]
async fn bodies_that_are_no_objects_are_refused() {
    let s = TestServer::start().await;
    let unrecognized = "the object provided is unrecognized (must be of type ConfigMap): ";
    for (body, code, message) in [
        ("", 400, "couldn't get version/kind; json parse error: unexpected end of JSON input (<empty>)"),
        ("{", 400, "couldn't get version/kind; json parse error: unexpected end of JSON input ({)"),
        (
            "kind: ConfigMap",
            400,
            "couldn't get version/kind; json parse error: invalid character 'k' looking for beginning of value (6b696e643a20436f6e6669674d6170)",
        ),
        (
            "5",
            400,
            r#"couldn't get version/kind; json parse error: json: cannot unmarshal number into Go value of type struct { APIVersion string "json:\"apiVersion,omitempty\""; Kind string "json:\"kind,omitempty\"" } (35)"#,
        ),
        (
            r#"{"apiVersion":"a/b/c","kind":"ConfigMap"}"#,
            400,
            r#"unexpected GroupVersion string: a/b/c ({"apiVersion":"a/b/c","kind":" ...)"#,
        ),
    ] {
        let answer = s.raw("POST", MAPS, body).await;
        assert_eq!(answer.code, code, "{body}");
        assert_eq!(answer.body["message"], format!("{unrecognized}{message}"), "{body}");
    }
    for (body, message) in [
        (
            r#"{"kind":"Pod"}"#,
            r#"Pod in version "v1" cannot be handled as a ConfigMap: converting (v1.Pod) to (core.ConfigMap): unknown conversion"#,
        ),
        (
            r#"{"apiVersion":"v2","kind":"ConfigMap"}"#,
            r#"ConfigMap in version "v2" cannot be handled as a ConfigMap: no kind "ConfigMap" is registered for version "v2" in scheme "pkg/api/legacyscheme/scheme.go:30""#,
        ),
        (
            r#"{"metadata":{"name":"a","creationTimestamp":"zz"}}"#,
            r#"ConfigMap in version "v1" cannot be handled as a ConfigMap: parsing time "zz" as "2006-01-02T15:04:05Z07:00": cannot parse "zz" as "2006""#,
        ),
    ] {
        assert_eq!(s.raw("POST", MAPS, body).await.message(400), message, "{body}");
    }
    let null = s.raw("POST", MAPS, "null").await.message(422);
    assert!(null.contains("metadata.name: Required value: name or generateName is required"), "{null}");
}

#[tokio::test]
async fn numbers_are_compared_by_their_spelling() {
    let s = TestServer::start().await;
    let map = r#"{"metadata":{"name":"a","generation":-0},"odd":1E400}"#;
    let answer = s.raw("POST", &format!("{MAPS}?dryRun=All"), map).await;
    assert_eq!((answer.code, answer.warnings()), (201, vec![r#"299 - "unknown field \"odd\"""#.to_owned()]));
    let strict = s.raw("POST", &format!("{MAPS}?fieldValidation=Strict"), map).await.message(400);
    assert!(strict.ends_with(r#"strict decoding error: unknown field "odd""#), "{strict}");
    const QUOTAS: &str = "/api/v1/namespaces/default/resourcequotas";
    let quota = r#"{"metadata":{"name":"a"},"spec":{"hard":{"cpu":1e5,"memory":100000000000000000000}}}"#;
    let quota = s.raw("POST", QUOTAS, quota).await.expect(201);
    assert_eq!(quota["spec"]["hard"], serde_json::json!({"cpu": "100e3", "memory": "100E"}));
    // The same claim once more is no change of an immutable field.
    const CLAIMS: &str = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims";
    let opaque = r#"{"driver":"a.b","parameters":{"n":1.0}}"#;
    let request = r#"{"name":"r","exactly":{"deviceClassName":"c"}}"#;
    let claim = format!(
        r#"{{"metadata":{{"name":"a"}},"spec":{{"devices":{{"requests":[{request}],"config":[{{"opaque":{opaque}}}]}}}}}}"#
    );
    s.raw("POST", CLAIMS, &claim).await.expect(201);
    s.raw("PUT", &format!("{CLAIMS}/a"), &claim).await.expect(200);
}

#[tokio::test]
async fn strict_errors_are_in_the_order_of_the_document() {
    let s = TestServer::start().await;
    let body = r#"{"metadata":{"name":"d"},"spec":{"template":{"spec":{"containers":[{"name":"a","name":"b","foo":1}]}},
                   "bar":1,"replicas":1,"replicas":2}}"#;
    let strict = s.raw("POST", &format!("{DEPLOYMENTS}?fieldValidation=Strict"), body).await.message(400);
    assert_eq!(
        strict,
        r#"Deployment in version "v1" cannot be handled as a Deployment: strict decoding error: duplicate field "spec.template.spec.containers[0].name", unknown field "spec.template.spec.containers[0].foo", unknown field "spec.bar", duplicate field "spec.replicas""#
    );
    // The object is invalid, and the client gets the warnings nevertheless.
    let refused = s.raw("POST", DEPLOYMENTS, body).await;
    assert_eq!((refused.code, refused.warnings().len()), (422, 4));
    let options = s.raw("POST", &format!("{MAPS}?fieldValidation=Foo&dryRun=Bar"), "{").await.message(422);
    assert_eq!(
        options,
        "CreateOptions.meta.k8s.io \"\" is invalid: [dryRun: Unsupported value: [\"Bar\"]: supported values: \"All\", fieldValidation: Unsupported value: \"Foo\": supported values: \"\", \"Ignore\", \"Strict\", \"Warn\"]"
    );
}

#[tokio::test]
async fn zero_values_count_as_absent() {
    let s = TestServer::start().await;
    let account = json!({ "metadata": { "name": "default" } });
    s.post("/api/v1/namespaces/default/serviceaccounts", account).await;
    let pod = json!({ "metadata": { "name": "p" }, "spec": {
        "hostNetwork": false, "nodeName": "", "nodeSelector": {}, "automountServiceAccountToken": false,
        "containers": [{ "name": "c", "image": "i", "args": [], "stdin": false }] } });
    let created = s.post(PODS, pod).await.expect(201);
    let spec = &created["spec"];
    for field in ["hostNetwork", "nodeName", "nodeSelector"] {
        assert!(spec.get(field).is_none(), "{field} cannot be distinguished from absent");
    }
    assert_eq!(spec["automountServiceAccountToken"], false, "this one can");
    assert!(spec["containers"][0].get("args").is_none() && spec["containers"][0].get("stdin").is_none());
    let owned = &created["metadata"]["managedFields"][0]["fieldsV1"]["f:spec"];
    assert!(owned.get("f:hostNetwork").is_none() && owned.get("f:automountServiceAccountToken").is_some());

    let role = json!({ "metadata": { "name": "r" } });
    let created = s.post("/apis/rbac.authorization.k8s.io/v1/clusterroles", role).await.expect(201);
    assert_eq!(created.get("rules"), Some(&Value::Null), "what is always written is written");
    let map = json!({ "metadata": { "name": "m" }, "data": { "a": null } });
    assert_eq!(s.post(MAPS, map).await.expect(201)["data"]["a"], "", "an item is never absent");
    let policy = json!({ "metadata": { "name": "w" }, "webhooks": [{ "name": "a.b.c", "failurePolicy": "",
        "clientConfig": { "url": "https://a.b" }, "sideEffects": "None", "admissionReviewVersions": ["v1"] }] });
    let path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
    let refused = s.post(path, policy).await.message(422);
    assert!(refused.contains("failurePolicy: Unsupported value: \"\""), "{refused}");
}

#[tokio::test]
async fn errors_show_empty_values_as_they_were_sent() {
    let s = TestServer::start().await;
    let deployment = |labels: Value| {
        let containers = json!([{ "name": "c", "image": "i" }]);
        json!({ "metadata": { "name": "d" }, "spec": { "selector": { "matchLabels": { "a": "b" } },
            "template": { "metadata": { "labels": labels }, "spec": { "containers": containers } } } })
    };
    for (labels, shown) in [(json!({}), "{}"), (Value::Null, "null")] {
        let message = s.post(DEPLOYMENTS, deployment(labels)).await.message(422);
        let expected = format!(
            "Deployment.apps \"d\" is invalid: spec.template.metadata.labels: Invalid value: {shown}: `selector` does not match template `labels`"
        );
        assert_eq!(message, expected);
    }
    let classes = "/apis/storage.k8s.io/v1/storageclasses";
    let class =
        |parameters: Value| json!({ "metadata": { "name": "c" }, "provisioner": "p", "parameters": parameters });
    s.post(classes, class(json!({ "a": "b" }))).await.expect(201);
    let message = s.put(&format!("{classes}/c"), class(json!({}))).await.message(422);
    assert_eq!(
        message,
        "StorageClass.storage.k8s.io \"c\" is invalid: parameters: Invalid value: {}: field is immutable"
    );
    let scaler = |policies: Value| {
        json!({ "metadata": { "name": "h" }, "spec": { "maxReplicas": 2, "behavior": { "scaleUp": { "policies": policies } },
            "scaleTargetRef": { "kind": "Deployment", "name": "d", "apiVersion": "apps/v1" } } })
    };
    let scalers = "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers";
    assert_eq!(
        s.post(scalers, scaler(json!([]))).await.message(422),
        "HorizontalPodAutoscaler.autoscaling \"h\" is invalid: spec.behavior.scaleUp.policies: Required value: must specify at least one Policy"
    );
    let created = s.post(scalers, scaler(Value::Null)).await.expect(201);
    assert_eq!(created["spec"]["behavior"]["scaleUp"]["policies"].as_array().map(Vec::len), Some(2));
}

#[tokio::test]
async fn unreadable_yaml_is_refused() {
    let s = TestServer::start().await;
    let admin = s.user("admin", &["system:masters"]);
    let yaml = [("content-type", "application/yaml")];
    let answer = send(&admin, "POST", MAPS, "a:\n  b: c: d".into(), &yaml).await.message(400);
    assert_eq!(
        answer,
        "the object provided is unrecognized (must be of type ConfigMap): yaml: line 2: mapping values are not allowed in this context (613a0a2020623a20633a2064)"
    );
    let apply = [("content-type", "application/apply-patch+yaml")];
    let path = format!("{MAPS}/m?fieldManager=f");
    assert_eq!(
        send(&admin, "PATCH", &path, "x: [".into(), &apply).await.message(400),
        "error decoding YAML: error converting YAML to JSON: yaml: line 1: did not find expected node content"
    );
    let unnamed = "apiVersion: v1\nkind: ConfigMap\n";
    assert_eq!(
        send(&admin, "PATCH", &path, unnamed.into(), &apply).await.message(400),
        "the name of the object (m based on URL) was undeterminable: name must be provided"
    );
}

#[tokio::test]
async fn version_three_documents_in_protobuf() {
    let s = TestServer::start().await;
    let admin = s.user("admin", &["system:masters"]);
    let get = async |accept: &str| {
        send(&admin, "GET", "/openapi/v3/version", bytes::Bytes::new(), &[("accept", accept)]).await
    };
    let (json, protobuf) = (
        get("application/json").await,
        get("application/com.github.proto-openapi.spec.v3@v1.0+protobuf, application/json").await,
    );
    assert_eq!(protobuf.headers["content-type"], "application/com.github.proto-openapi.spec.v3.v1.0+protobuf");
    assert_eq!(protobuf.headers["etag"], json.headers["etag"]);
    assert_eq!(get("application/com.github.proto-openapi.spec.v2@v1.0+protobuf").await.code, 406);
}

#[tokio::test]
async fn unsupported_media_types_are_refused() {
    let s = TestServer::start().await;
    let admin = s.user("admin", &["system:masters"]);
    let (table, html) = ("application/json;as=Table;v=v1;g=meta.k8s.io", "text/html");
    let discovery = "application/json;as=APIGroupDiscoveryList;v=v2;g=apidiscovery.k8s.io";
    let foo = format!("{MAPS}?includeObject=Foo");
    for (path, accept, code) in [
        ("/api", html, 406),
        ("/apis/apps/v1", html, 406),
        ("/version", html, 406),
        ("/version", "application/yaml", 406),
        ("/version", "application/json;q=0.5,application/yaml", 200),
        ("/openapi/v3", "application/yaml", 200),
        (MAPS, html, 406),
        (MAPS, discovery, 406),
        ("/api/v1", discovery, 406),
        ("/apis", "application/*", 200),
        ("/apis/apps", "application/*", 200),
        ("/apis/apps/v1", "application/*", 406),
        ("/apis/apps/v1/nothing", html, 404),
        ("/apis/nobody/v1/nothing", "application/*", 404),
        ("/api/v1/namespaces/default/serviceaccounts/x/token", html, 405),
        ("/.well-known/openid-configuration", html, 406),
        ("/apis/authorization.k8s.io/v1/subjectaccessreviews/x", "*/*", 404),
        ("/index.html", "*/*", 200),
        ("/openid/v1/jwks", "application/json", 406),
        (&format!("{MAPS}/none?includeObject=Foo"), table, 404),
        ("/apis/apiregistration.k8s.io", "application/*", 406),
        (&format!("{MAPS}?watch=1"), "application/yaml;as=Table;v=v1;g=meta.k8s.io", 406),
        (MAPS, table, 200),
        (&foo, table, 400),
        (&foo, "application/json", 200),
        (&format!("{MAPS}/none"), "application/yaml;as=Table;v=v1;g=meta.k8s.io", 404),
    ] {
        let answer = send(&admin, "GET", path, bytes::Bytes::new(), &[("accept", accept)]).await;
        assert_eq!(answer.code, code, "{path} {accept}: {}", answer.body);
        let is_json = (accept != "application/yaml" || code == 200) && !path.contains("nobody");
        assert_eq!(answer.body.is_object(), is_json, "{path} {accept}: {}", answer.body);
    }
    // The Content-Type of a request without a body is checked where each method has a route.
    for (path, form, code) in [
        ("/api", "foo/bar", 415),
        ("/apis/apps/v1", "text/plain", 415),
        ("/apis/apps/v1", "foo/bar, application/yaml; x=y", 200),
        ("/apis/apps", "foo/bar", 200),
        ("/version", "application/yaml", 415),
        ("/version", "application/json", 200),
        ("/openid/v1/jwks", "foo/bar", 200),
    ] {
        let answer = send(&admin, "GET", path, bytes::Bytes::new(), &[("content-type", form)]).await;
        assert_eq!(answer.code, code, "{path} {form}: {}", answer.body);
    }
}

#[tokio::test]
async fn lists() {
    let s = TestServer::start().await;
    for name in ["a", "b", "c"] {
        s.post(MAPS, json!({ "metadata": { "name": name } })).await.expect(201);
    }
    let list = s.get(MAPS).await.expect(200);
    assert!(list["items"][0].get("kind").is_none(), "the list says what its items are");
    assert_eq!(
        s.get(&format!("{MAPS}?limit=1&resourceVersion=0")).await.expect(200)["items"][2]["metadata"]["name"],
        "c"
    );
    assert_eq!(s.get(&format!("{MAPS}?limit=-1")).await.code, 200);
    for query in ["limit=1;watch=1", "limit=%zz", "fieldSelector=%3D", "resourceVersion=1"] {
        let items = s.get(&format!("{MAPS}?{query}")).await.expect(200)["items"].as_array().unwrap().len();
        assert_eq!(items, 3, "{query}");
    }
    let no_token =
        "invalid continue token: continue key is not valid: invalid character 'm' looking for beginning of value";
    for (query, code, message) in [
        ("limit=x", 400, "strconv.ParseInt: parsing \"x\": invalid syntax"),
        ("limit=", 400, "strconv.ParseInt: parsing \"\": invalid syntax"),
        ("limit=9999999999999999999", 400, "strconv.ParseInt: parsing \"9999999999999999999\": value out of range"),
        ("watch=1&limit=x", 400, "strconv.ParseInt: parsing \"x\": invalid syntax"),
        ("continue=bad", 400, no_token),
        ("continue=bad&resourceVersion=x", 400, no_token),
        (
            "watch=1&continue=x",
            422,
            "ListOptions.meta.k8s.io \"\" is invalid: resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden when continue is provided",
        ),
        (
            "resourceVersion=18446744073709551616",
            400,
            "invalid resource version: resourceVersion: Invalid value: \"18446744073709551616\": strconv.ParseUint: parsing \"18446744073709551616\": value out of range",
        ),
        (
            "fieldSelector=foo%3Dbar",
            400,
            "\"foo\" is not a known field selector: only \"metadata.name\", \"metadata.namespace\"",
        ),
        (
            "continue=e30",
            400,
            "invalid continue token: continue key is not valid: server does not recognize this encoded version ",
        ),
        (
            "resourceVersion=x",
            400,
            "invalid resource version: resourceVersion: Invalid value: \"x\": strconv.ParseUint: parsing \"x\": invalid syntax",
        ),
        (
            "sendInitialEvents=true",
            422,
            "ListOptions.meta.k8s.io \"\" is invalid: sendInitialEvents: Forbidden: sendInitialEvents is forbidden for list",
        ),
        (
            "watch=true&sendInitialEvents=true&resourceVersionMatch=Exact",
            422,
            "ListOptions.meta.k8s.io \"\" is invalid: [resourceVersionMatch: Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan, resourceVersionMatch: Unsupported value: \"Exact\": supported values: \"NotOlderThan\"]",
        ),
    ] {
        assert_eq!(s.get(&format!("{MAPS}?{query}")).await.message(code), message, "{query}");
    }
    for (path, message) in [
        ("/api/v1/pods?fieldSelector=spec.nodename%3Dx", "field label not supported: spec.nodename"),
        ("/api/v1/nodes?fieldSelector=metadata.namespace%3Dx", "field label not supported: metadata.namespace"),
        ("/apis/batch/v1/jobs?fieldSelector=a%3Db", "field label \"a\" not supported for Job"),
    ] {
        assert_eq!(s.get(path).await.message(400), message);
    }
    let page = s.get(&format!("{MAPS}?limit=1")).await.expect(200);
    let token = page["metadata"]["continue"].as_str().unwrap();
    assert_eq!(
        s.get(&format!("{MAPS}?continue={token}&resourceVersion=x")).await.message(400),
        "specifying resource version is not allowed when using continue"
    );
    let of_one = s.get(&format!("{MAPS}/a?resourceVersion=x")).await.message(500);
    assert_eq!(of_one, "resourceVersion: Invalid value: \"x\": strconv.ParseUint: parsing \"x\": invalid syntax");
    let warnings = s.get("/api/v1/endpoints").await.warnings();
    assert_eq!(warnings, ["299 - \"v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice\""]);
}

#[tokio::test]
async fn deletions() {
    let s = TestServer::start().await;
    s.post(MAPS, json!({ "metadata": { "name": "a" } })).await.expect(201);
    let path = format!("{MAPS}/a");
    for (options, code, message) in [
        (
            json!({ "propagationPolicy": "Foo" }),
            422,
            "DeleteOptions.meta.k8s.io \"\" is invalid: propagationPolicy: Unsupported value: \"Foo\": supported values: \"Foreground\", \"Background\", \"Orphan\", \"nil\"",
        ),
        (
            json!({ "orphanDependents": true, "propagationPolicy": "Orphan" }),
            422,
            "DeleteOptions.meta.k8s.io \"\" is invalid: propagationPolicy: Invalid value: \"Orphan\": orphanDependents and deletionPropagation cannot be both set",
        ),
        (
            json!({ "gracePeriodSeconds": "x" }),
            400,
            "json: cannot unmarshal string into Go struct field DeleteOptions.gracePeriodSeconds of type int64",
        ),
    ] {
        assert_eq!(s.delete(&path, Some(options)).await.message(code), message);
    }
    let unnamed = s.delete(&format!("{path}?propagationPolicy="), None).await.message(422);
    assert!(unnamed.contains("propagationPolicy: Unsupported value: \"\""), "{unnamed}");
    for by_query in ["uid=x", "resourceVersion=1"] {
        let conflict = s.delete(&format!("{path}?{by_query}"), None).await.message(409);
        assert!(conflict.contains("in the precondition ("), "{conflict}");
    }
    assert_eq!(s.delete("/api/v1/watch/namespaces/default/configmaps/a", None).await.code, 405);
    let conflict = s.delete(&path, Some(json!({ "preconditions": { "uid": "x" } }))).await.message(409);
    assert!(conflict.starts_with("Operation cannot be fulfilled on ConfigMap \"a\": the UID in the precondition (x)"));
    let system = "/apis/scheduling.k8s.io/v1/priorityclasses/system-node-critical";
    assert_eq!(
        s.delete(system, None).await.message(403),
        "priorityclasses.scheduling.k8s.io \"system-node-critical\" is forbidden: this is a system priority class and cannot be deleted"
    );
    s.delete("/apis/scheduling.k8s.io/v1/priorityclasses", None).await.expect(200);
    assert_eq!(s.get(system).await.code, 404, "who deletes all of them is not held back");
    let account = s.post("/api/v1/namespaces/default/serviceaccounts", json!({ "metadata": { "name": "x" } })).await;
    account.expect(201);
    let gone = s.delete("/api/v1/namespaces/default/serviceaccounts/x", None).await.expect(200);
    assert_eq!(gone["kind"], "ServiceAccount", "some kinds answer with what is gone");
}

#[tokio::test]
async fn patches() {
    let s = TestServer::start().await;
    s.post(MAPS, json!({ "metadata": { "name": "a" }, "data": { "k": "v" } })).await.expect(201);
    let path = format!("{MAPS}/a");
    let rejected = "the server rejected our request due to an error in our request";
    for patch in [
        json!([{ "op": "test", "path": "/data/k", "value": "w" }]),
        json!([{ "op": "remove", "path": "/nope" }]),
        json!([{ "op": "foo", "path": "/data" }]),
    ] {
        assert_eq!(s.patch(&path, "json", patch).await.message(422), rejected);
    }
    let wrong = s.patch(&path, "strategic", json!({ "data": { "k": { "a": 1 } } })).await.message(422);
    assert!(wrong.starts_with(" \"\" is invalid: patch: Invalid value: \"map[data:map[k:map[a:1]]]\": "), "{wrong}");
    let list = s.patch(&path, "merge", json!([])).await.message(400);
    assert_eq!(
        list,
        "error decoding patch: json: cannot unmarshal array into Go value of type map[string]interface {}"
    );
    let uid = s.patch(&path, "merge", json!({ "metadata": { "uid": "1" } })).await.message(422);
    assert_eq!(uid, "ConfigMap \"a\" is invalid: metadata.uid: Invalid value: \"1\": field is immutable");
    let media = s.patch(&path, "application/json", json!({})).await.message(415);
    assert_eq!(media, "415: Unsupported Media Type");
    let kind = s.patch(&path, "strategic", json!({ "kind": "Foo", "data": { "k": "w" } })).await.expect(200);
    assert_eq!((&kind["kind"], &kind["data"]["k"]), (&json!("ConfigMap"), &json!("w")));
}

#[tokio::test]
async fn reviews_and_bindings_are_validated() {
    let s = TestServer::start().await;
    let review = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
    assert_eq!(
        s.post(review, json!({ "metadata": { "name": "x" }, "spec": {} })).await.message(422),
        ".authorization.k8s.io \"\" is invalid: [spec.resourceAttributes: Invalid value: null: exactly one of nonResourceAttributes or resourceAttributes must be specified, spec.user: Invalid value: \"\": at least one of user or group must be specified, metadata: Invalid value: {\"name\":\"x\"}: must be empty]"
    );
    let bindings = "/api/v1/namespaces/default/bindings";
    let binding = json!({ "metadata": { "name": "p" }, "target": { "kind": "Foo" } });
    assert_eq!(
        s.post(bindings, binding).await.message(500),
        "[target.kind: Unsupported value: \"Foo\": supported values: \"Node\", \"<empty>\", target.name: Required value]"
    );
    let token = "/api/v1/namespaces/kube-system/serviceaccounts/none/token";
    assert_eq!(
        s.post(token, json!({ "metadata": { "name": "zz" } })).await.message(422),
        "TokenRequest.authentication.k8s.io \"none\" is invalid: metadata.name: Invalid value: \"zz\": must match the service account name if specified"
    );
}

#[tokio::test]
async fn a_review_is_no_table() {
    let s = TestServer::start().await;
    let admin = s.user("admin", &["system:masters"]);
    let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    let body = json!({ "spec": { "nonResourceAttributes": { "path": "/", "verb": "get" } } }).to_string();
    let headers = [("content-type", "application/json"), ("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")];
    assert_eq!(send(&admin, "POST", path, body.into(), &headers).await.code, 406);
}

#[tokio::test]
async fn events_are_selected_by_the_names_of_both_groups() {
    let s = TestServer::start().await;
    let event = json!({ "metadata": { "name": "e" }, "regarding": { "kind": "Pod", "namespace": "default", "name": "p" },
        "reason": "r", "action": "a", "eventTime": "2024-01-01T00:00:00.000000Z", "reportingController": "c",
        "reportingInstance": "i", "type": "Normal" });
    let events = "/apis/events.k8s.io/v1/namespaces/default/events";
    s.post(events, event).await.expect(201);
    for path in [
        format!("{events}?fieldSelector=reportingController%3Dc"),
        "/api/v1/namespaces/default/events?fieldSelector=source%3Dc".to_owned(),
    ] {
        assert_eq!(s.get(&path).await.expect(200)["items"][0]["metadata"]["name"], "e", "{path}");
    }
}

#[tokio::test]
async fn addresses_come_from_every_ready_service_cidr() {
    let s = TestServer::start().await;
    let cidrs = "/apis/networking.k8s.io/v1/servicecidrs";
    let range = json!({ "metadata": { "name": "more" }, "spec": { "cidrs": ["10.200.0.0/28"] } });
    s.post(cidrs, range).await.expect(201);
    let services = "/api/v1/namespaces/default/services";
    let service = json!({ "metadata": { "name": "s" },
        "spec": { "clusterIP": "10.200.0.5", "ports": [{ "port": 80 }] } });
    let refused = s.post(services, service.clone()).await.message(422);
    assert!(refused.contains("10.200.0.5: the provided network does not match the current range"), "{refused}");
    let refused = s.post(&format!("{services}?dryRun=All"), service.clone()).await.message(422);
    assert!(refused.contains("the provided IP (10.200.0.5) is not in the valid range"), "{refused}");
    let ready = json!({ "status": { "conditions": [{ "type": "Ready", "status": "True", "reason": "", "message": "",
        "lastTransitionTime": "2024-01-01T00:00:00Z" }] } });
    s.patch(&format!("{cidrs}/more/status"), "merge", ready).await.expect(200);
    // Admission reads ServiceCIDRs from a cache.
    let mut code = 0;
    for _ in 0..20_000 {
        code = s.post(services, service.clone()).await.code;
        if code == 201 {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    assert_eq!(code, 201);
    let wrong =
        json!({ "metadata": { "name": "w" }, "spec": { "ports": [{ "port": 80 }], "healthCheckNodePort": 31234 } });
    let refused = s.post(services, wrong).await.message(422);
    assert!(refused.ends_with("may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'"));
}

#[tokio::test]
async fn objects_of_the_first_start_have_a_manager() {
    let s = TestServer::start().await;
    for path in ["/api/v1/namespaces/default", "/apis/rbac.authorization.k8s.io/v1/clusterroles/view"] {
        let object = s.get(path).await.expect(200);
        assert_eq!(object["metadata"]["managedFields"][0]["manager"], "kube-apiserver", "{path}");
    }
    let schemas = "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas";
    let schema = s.get(&format!("{schemas}/exempt")).await.expect(200);
    let writers: Vec<String> = schema["metadata"]["managedFields"].as_array().unwrap().iter().map(writer).collect();
    let part = "api-priority-and-fairness-config";
    assert_eq!(writers, [format!("{part}-consumer-v1 Apply status"), format!("{part}-producer-v1 Update ")]);
    let table = [("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")];
    let admin = s.user("admin", &["system:masters"]);
    let rows = send(&admin, "GET", schemas, bytes::Bytes::new(), &table).await.expect(200)["rows"].clone();
    let precedence: Vec<i64> = rows.as_array().unwrap().iter().map(|r| r["cells"][2].as_i64().unwrap()).collect();
    assert!(precedence.is_sorted() && precedence.len() > 10, "{precedence:?}");
}

/// Returns the manager, the operation and the subresource of an entry.
fn writer(entry: &Value) -> String {
    let word = |field: &str| entry[field].as_str().unwrap_or_default().to_owned();
    format!("{} {} {}", word("manager"), word("operation"), word("subresource"))
}

#[tokio::test]
async fn generate_name_may_change() {
    let s = TestServer::start().await;
    s.post(MAPS, json!({ "metadata": { "name": "m", "generateName": "a-" } })).await.expect(201);
    let map = json!({ "metadata": { "name": "m", "generateName": "b-" } });
    let changed = s.put(&format!("{MAPS}/m"), map).await.expect(200);
    assert_eq!(changed["metadata"]["generateName"], "b-");
}

/// Unreadable options are reported before invalid combinations.
#[tokio::test]
async fn list_options_are_checked_in_order() {
    let s = TestServer::start().await;
    let label = "found ',', expected: !, identifier, or 'end of string'";
    let field = "invalid selector: 'x'; can't understand 'x'";
    for (query, code, message) in [
        ("timeoutSeconds=a&limit=b&labelSelector=,", 400, "strconv.ParseInt: parsing \"a\": invalid syntax"),
        ("limit=b&labelSelector=,", 400, "strconv.ParseInt: parsing \"b\": invalid syntax"),
        ("labelSelector=,&fieldSelector=x&sendInitialEvents=true", 400, label),
        ("fieldSelector=x&resourceVersionMatch=Exact", 400, field),
    ] {
        for watch in ["", "&watch=1"] {
            let answer = s.get(&format!("{MAPS}?{query}{watch}")).await;
            assert_eq!((answer.code, answer.body["message"].as_str()), (code, Some(message)), "{query}{watch}");
        }
    }
}

/// Names that equal their prefix, bytes as numbers, a namespace without a name.
#[tokio::test]
async fn odd_objects() {
    let s = TestServer::start().await;
    let addresses = "/apis/networking.k8s.io/v1/ipaddresses";
    let services = "/apis/apiregistration.k8s.io/v1/apiservices";
    let parent = json!({"resource": "services", "name": "x", "namespace": "default"});
    let service = json!({"group": "q.io", "version": "v1", "groupPriorityMinimum": 1, "versionPriority": 1});
    let wrong = "APIService.apiregistration.k8s.io \"v1.q.io\" is invalid: metadata.generateName: Invalid value: \"a-\": \
                 must be `spec.version+\".\"+spec.group`: \"v1.q.io\"";
    let forbidden =
        "pods \"x\" is forbidden: error looking up service account /default: serviceaccount \"default\" not found";
    let byte = "ConfigMap in version \"v1\" cannot be handled as a ConfigMap: json: cannot unmarshal number 256 into Go \
                struct field ConfigMap.binaryData of type uint8";
    for (path, body, code, message) in [
        (addresses, json!({"metadata": {"generateName": "10.0.0.9"}, "spec": {"parentRef": parent}}), 201, None),
        (services, json!({"metadata": {"name": "v1.q.io", "generateName": "a-"}, "spec": service}), 422, Some(wrong)),
        ("/api/v1/namespaces//pods", json!({"metadata": {"name": "x"}}), 403, Some(forbidden)),
        (MAPS, json!({"metadata": {"name": "x"}, "binaryData": {"a": [256]}}), 400, Some(byte)),
    ] {
        let answer = s.post(path, body).await;
        assert_eq!((answer.code, answer.body["message"].as_str()), (code, message), "{path}");
    }
    assert_eq!(s.get(&format!("{addresses}/10.0.0.9")).await.code, 200);
    let made = s.post(MAPS, json!({"metadata": {"name": "x"}, "binaryData": {"a": [1, null, 2]}})).await.body;
    assert_eq!(made["binaryData"], json!({"a": "AQAC"}));
    s.post("/api/v1/namespaces/default/serviceaccounts", json!({"metadata": {"name": "default"}})).await;
    let pod = json!({"metadata": {"name": "q"}, "spec": {"containers": [{"name": "c", "image": "i"}]},
        "status": {"qosClass": "Guaranteed", "phase": "Running", "podIP": "10.0.0.1"}});
    let made = s.post(PODS, pod).await.body;
    assert_eq!(made["status"], json!({"phase": "Pending", "qosClass": "Guaranteed"}), "a class that is set stays");
}

/// A full page is not the last while any object follows it, selected or not.
#[tokio::test]
async fn pages_of_a_selection() {
    let s = TestServer::start().await;
    for name in ["a", "b", "c"] {
        s.post(MAPS, json!({"metadata": {"name": name, "labels": {"l": name}}})).await;
    }
    for (query, found, has_more, left) in [
        ("limit=2", 2, true, json!(1)),
        ("limit=3", 3, false, Value::Null),
        ("limit=1&labelSelector=l%3Db", 1, true, Value::Null),
        ("limit=1&labelSelector=l%3Dc", 1, false, Value::Null),
        ("limit=2&labelSelector=l%3Db", 1, false, Value::Null),
        ("limit=1&fieldSelector=metadata.name%3Db", 1, false, Value::Null),
    ] {
        let path = format!("{MAPS}?{query}");
        for answer in [s.get(&path).await, s.delete(&format!("{path}&dryRun=All"), None).await] {
            let (items, meta) = (&answer.body["items"], &answer.body["metadata"]);
            assert_eq!(items.as_array().map(Vec::len), Some(found), "{query}");
            assert_eq!(meta["continue"].as_str().is_some_and(|token| !token.is_empty()), has_more, "{query}");
            assert_eq!(meta["remainingItemCount"], left, "{query}");
        }
    }
    let jobs = s.delete("/apis/batch/v1/namespaces/default/jobs?resourceVersion=x", None).await;
    assert!(jobs.code == 400 && jobs.headers.contains_key("warning"), "a client is warned also of what is refused");
}
