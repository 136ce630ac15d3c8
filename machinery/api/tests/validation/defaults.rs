//! Tests of defaults, of the number of errors, and of updates of invalid objects.

use serde_json::json;

use super::{Subject, texts};

fn pod() -> Subject {
    Subject::new("", "pods", json!({"spec": {"containers": [{"name": "a", "image": "i"}]}}))
}

#[test]
fn changes_are_validated_with_their_objects() {
    let toleration = json!([{"key": "k", "operator": "Exists", "tolerationSeconds": 1}]);
    let invalid = "effect must be 'NoExecute' when `tolerationSeconds` is set";
    let messages = format!("spec.tolerations[0].effect: Invalid value: \"\": {invalid}");
    let subject = pod();
    let old = subject.changed("", &json!(null));
    let new = subject.changed("/spec/tolerations", &toleration);
    let causes: Vec<String> = subject.kind.validate_update(&new, &old).iter().map(ToString::to_string).collect();
    assert_eq!(causes, [messages.clone(), messages], "once for the pod, once for the change");
}

#[test]
fn defaults_of_several_fields_agree() {
    let defaulted = |plural: &str, mut object: serde_json::Value| {
        corten_api::lookup("", "v1", plural).expect("kind").default(&mut object);
        object["spec"].clone()
    };
    let pod_level = |resources: serde_json::Value, containers: serde_json::Value| {
        defaulted("pods", json!({"spec": {"resources": resources, "containers": containers}}))["resources"].clone()
    };
    let containers = json!([{"name": "a", "resources": {"requests": {"cpu": "100m", "ex.io/x": "1"}}},
        {"name": "b", "resources": {"limits": {"cpu": "200m", "hugepages-2Mi": "2Mi"}}}]);
    assert_eq!(
        pod_level(json!({"limits": {"cpu": "1", "memory": "1Gi"}}), containers.clone()),
        json!({"limits": {"cpu": "1", "memory": "1Gi", "hugepages-2Mi": "2Mi"},
               "requests": {"cpu": "300m", "memory": "1Gi", "hugepages-2Mi": "2Mi"}})
    );
    assert_eq!(pod_level(json!({}), containers), json!({}));
    let node = json!({"spec": {"podCIDR": "10.0.0.0/24", "podCIDRs": ["10.1.0.0/24", "fd00::/64"]}});
    assert_eq!(defaulted("nodes", node)["podCIDRs"], json!(["10.0.0.0/24"]));
    let volume = json!({"spec": {"azureDisk": {"diskName": "d", "diskURI": "u"}}});
    assert_eq!(defaulted("persistentvolumes", volume)["azureDisk"]["readOnly"], false);
}

#[test]
fn each_cause_is_listed() {
    let mut class = json!({"provisioner": "p", "metadata": {"name": "c"}, "allowedTopologies": [{}, {}]});
    let classes = corten_api::lookup("storage.k8s.io", "v1", "storageclasses").expect("kind");
    classes.default(&mut class);
    assert_eq!(classes.validate(&class).len(), 5);
}

/// Errors refuse every update, also one that leaves the field unchanged.
#[test]
fn an_update_is_refused_for_old_errors() {
    let subject = Subject::new("", "services", json!({"spec": {"ports": [{"port": 80, "appProtocol": "Bad Value!"}]}}));
    let old = subject.changed("/spec/clusterIP", &json!("None"));
    let mut labelled = old.clone();
    labelled["metadata"]["labels"] = json!({"a": "b"});
    for errors in [subject.kind.validate(&old), subject.kind.validate_update(&labelled, &old)] {
        assert!(texts(&errors).iter().any(|error| error.contains("appProtocol")), "{errors:?}");
    }
}

#[test]
fn a_device_taint_has_its_time() {
    let kind = corten_api::lookup("resource.k8s.io", "v1", "resourceslices").expect("kind");
    let slice =
        |since: serde_json::Value| json!({"spec": {"devices": [{"taints": [{"key": "k", "timeAdded": since}]}]}});
    for (input, wanted) in
        [(serde_json::Value::Null, "1970-01-01T00:00:00Z"), ("2020-01-01T00:00:00Z".into(), "2020-01-01T00:00:00Z")]
    {
        let mut slice = slice(input);
        kind.behaviour.default_times(&mut slice, jiff::Timestamp::UNIX_EPOCH);
        assert_eq!(slice["spec"]["devices"][0]["taints"][0]["timeAdded"], wanted);
    }
}

#[test]
fn a_local_api_service_is_available_at_once() {
    let kind = corten_api::lookup("apiregistration.k8s.io", "v1", "apiservices").expect("kind");
    for (spec, wanted) in [(json!({}), json!("Local")), (json!({"service": {"name": "s"}}), serde_json::Value::Null)] {
        let mut service = json!({"metadata": {"creationTimestamp": "2020-01-01T00:00:00Z"}, "spec": spec});
        kind.behaviour.prepare_create(&mut service);
        assert_eq!(service["status"]["conditions"][0]["reason"], wanted);
    }
}
