//! Tests of Pods.

use corten_api::Role;
use serde_json::{Value, json};

use super::{Subject, texts};

fn pod() -> Subject {
    let container = json!({"name": "a", "image": "i", "env": [], "volumeMounts": [], "resources": {}});
    Subject::new("", "pods", json!({"spec": {"containers": [container]}}))
}

#[test]
fn containers() {
    let c = |field: &str| format!("/spec/containers/0/{field}");
    pod().creates(&[
        ("/spec/containers", json!([]), &["spec.containers: Required value"]),
        (&c("image"), json!(""), &["spec.containers[0].image: Required value"]),
        (
            &c("image"),
            json!(" i"),
            &["spec.containers[0].image: Invalid value: \" i\": must not have leading or trailing whitespace"],
        ),
        (
            "/spec/containers",
            json!([{"name": "a", "image": "i"}, {"name": "a", "image": "i"}]),
            &["spec.containers[1].name: Duplicate value: \"a\""],
        ),
        (
            &c("ports"),
            json!([{"containerPort": 80, "hostPort": 80}, {"containerPort": 81, "hostPort": 80}]),
            &["spec.containers[0].ports[1].hostPort: Duplicate value: \"TCP//80\""],
        ),
        (&c("ports"), json!([{"name": "web"}]), &["spec.containers[0].ports[0].containerPort: Required value"]),
        (
            &c("volumeMounts"),
            json!([{"name": "v", "mountPath": "/x"}]),
            &["spec.containers[0].volumeMounts[0].name: Not found: \"v\""],
        ),
        (
            &c("restartPolicyRules"),
            json!([{"action": "Restart"}]),
            &[
                "spec.containers[0].restartPolicy: Required value: must specify restartPolicy when restart rules are used",
                "spec.containers[0].restartPolicyRules[0].exitCodes: Required value: must be specified",
            ],
        ),
        (
            &c("resizePolicy"),
            json!([{"resourceName": "disk", "restartPolicy": "NotRequired"}]),
            &["spec.containers[0].resizePolicy: Unsupported value: \"disk\": supported values: \"cpu\", \"memory\""],
        ),
        (
            "/spec/initContainers",
            json!([{"name": "b", "image": "i", "livenessProbe": {"exec": {"command": ["x"]}}}]),
            &[
                "spec.initContainers[0].livenessProbe: Forbidden: may not be set for init containers without restartPolicy=Always",
            ],
        ),
        (
            "/spec/ephemeralContainers",
            json!([{"name": "b", "image": "i", "ports": [{"containerPort": 1}]}]),
            &[
                "spec.ephemeralContainers[0].ports: Forbidden: cannot be set for an Ephemeral Container",
                "spec.ephemeralContainers: Forbidden: cannot be set on create",
            ],
        ),
    ]);
}

#[test]
fn resources() {
    let set = |resources: Value| ("/spec/containers/0/resources", resources);
    let case = |resources: Value, wanted: &'static [&'static str]| {
        let (pointer, value) = set(resources);
        (pointer, value, wanted)
    };
    pod().creates(&[
        case(json!({"limits": {"cpu": "1"}}), &[]),
        case(json!({"limits": {"example.com/gpu": "1"}}), &[]),
        case(
            json!({"limits": {"cpu": "1"}, "requests": {"cpu": "2"}}),
            &[
                "spec.containers[0].resources.requests: Invalid value: \"2\": must be less than or equal to cpu limit of 1",
            ],
        ),
        case(
            json!({"limits": {"gpu": "1"}}),
            &[
                "spec.containers[0].resources.limits[gpu]: Invalid value: \"gpu\": must be a standard resource type or fully qualified",
                "spec.containers[0].resources.limits[gpu]: Invalid value: \"gpu\": must be a standard resource for containers",
                "spec.containers[0].resources.requests[gpu]: Invalid value: \"gpu\": must be a standard resource type or fully qualified",
                "spec.containers[0].resources.requests[gpu]: Invalid value: \"gpu\": must be a standard resource for containers",
            ],
        ),
        case(
            json!({"limits": {"example.com/gpu": "500m"}}),
            &[
                "spec.containers[0].resources.limits[example.com/gpu]: Invalid value: \"500m\": must be an integer",
                "spec.containers[0].resources.requests[example.com/gpu]: Invalid value: \"500m\": must be an integer",
            ],
        ),
        case(
            json!({"limits": {"hugepages-2Mi": "4Mi"}}),
            &["spec.containers[0].resources: Forbidden: HugePages require cpu or memory"],
        ),
        case(
            json!({"claims": [{"name": "x"}]}),
            &[
                "spec.containers[0].resources.claims[0]: Not found: \"x\": must be one of the names in pod.spec.resourceClaims which is empty",
            ],
        ),
        (
            "/spec/resources",
            json!({"requests": {"cpu": "1"}, "limits": {"storage": "1"}}),
            &[
                "spec.resources.limits[storage]: Unsupported value: \"storage\": supported values: \"cpu\", \"hugepages-\", \"memory\"",
            ],
        ),
    ]);
}

#[test]
fn probes_and_hooks() {
    let c = |field: &str| format!("/spec/containers/0/{field}");
    pod().creates(&[
        (
            &c("livenessProbe"),
            json!({}),
            &["spec.containers[0].livenessProbe: Required value: must specify a handler type"],
        ),
        (
            &c("livenessProbe"),
            json!({"exec": {"command": ["x"]}, "tcpSocket": {"port": 80}}),
            &["spec.containers[0].livenessProbe.tcpSocket: Forbidden: may not specify more than 1 handler type"],
        ),
        (
            &c("livenessProbe"),
            json!({"exec": {"command": ["x"]}, "successThreshold": 2}),
            &["spec.containers[0].livenessProbe.successThreshold: Invalid value: 2: must be 1"],
        ),
        (
            &c("readinessProbe"),
            json!({"httpGet": {"port": 80}, "terminationGracePeriodSeconds": 5}),
            &[
                "spec.containers[0].readinessProbe.terminationGracePeriodSeconds: Invalid value: 5: must not be set for readinessProbes",
            ],
        ),
        (
            &c("readinessProbe"),
            json!({"httpGet": {"port": 80, "scheme": "FTP"}}),
            &[
                "spec.containers[0].readinessProbe.httpGet.scheme: Unsupported value: \"FTP\": supported values: \"HTTP\", \"HTTPS\"",
            ],
        ),
        (
            &c("lifecycle"),
            json!({"preStop": {"sleep": {"seconds": 60}}}),
            &[
                "spec.containers[0].lifecycle.preStop.sleep: Invalid value: 60: must be non-negative and less than terminationGracePeriodSeconds (30)",
            ],
        ),
    ]);
}

#[test]
fn volumes() {
    let volume = |source: Value| {
        let mut volume = json!({"name": "v"});
        volume.as_object_mut().unwrap().extend(source.as_object().unwrap().clone());
        ("/spec/volumes", json!([volume]))
    };
    let case = |source: Value, wanted: &'static [&'static str]| {
        let (pointer, value) = volume(source);
        (pointer, value, wanted)
    };
    pod().creates(&[
        case(json!({}), &[]),
        case(json!({"secret": {"secretName": "s", "items": [{"key": "k", "path": "p"}]}}), &[]),
        case(
            json!({"hostPath": {"path": "/a"}, "emptyDir": {}}),
            &["spec.volumes[0].hostPath: Forbidden: may not specify more than 1 volume type"],
        ),
        case(
            json!({"hostPath": {"path": "/a/../b"}}),
            &["spec.volumes[0].hostPath.path: Invalid value: \"/a/../b\": must not contain '..'"],
        ),
        case(
            json!({"secret": {"secretName": "s", "defaultMode": 1000, "items": [{"key": "k", "path": "/p"}]}}),
            &[
                "spec.volumes[0].secret.defaultMode: Invalid value: 1000: must be a number between 0 and 0777 (octal), both inclusive",
                "spec.volumes[0].secret.items[0].path: Invalid value: \"/p\": must be a relative path",
            ],
        ),
        case(
            json!({"nfs": {"server": "s", "path": "p"}}),
            &["spec.volumes[0].nfs.path: Invalid value: \"p\": must be an absolute path"],
        ),
        case(
            json!({"iscsi": {"targetPortal": "p", "iqn": "x", "lun": 300}}),
            &[
                "spec.volumes[0].iscsi.iqn: Invalid value: \"x\": must be valid format starting with iqn, eui, or naa",
                "spec.volumes[0].iscsi.lun: Invalid value: 300: must be between 0 and 255, inclusive",
            ],
        ),
        case(json!({"iscsi": {"targetPortal": "p", "iqn": "iqn.2015-02.example.com:test", "lun": 0}}), &[]),
        case(
            json!({"downwardAPI": {"items": [{"path": "p"}]}}),
            &["spec.volumes[0].downwardAPI: Required value: one of fieldRef and resourceFieldRef is required"],
        ),
        case(
            json!({"projected": {"sources": [
                {"configMap": {"name": "a", "items": [{"key": "k", "path": "p"}]}},
                {"secret": {"name": "b", "items": [{"key": "k", "path": "p"}]}}]}}),
            &["spec.volumes[0].projected: Invalid value: \"b\": conflicting duplicate paths"],
        ),
        case(
            json!({"projected": {"sources": [{"serviceAccountToken": {"path": "t", "expirationSeconds": 5}}]}}),
            &[
                "spec.volumes[0].projected.sources[0].serviceAccountToken.expirationSeconds: Invalid value: 5: may not specify a duration less than 10 minutes",
                "spec.volumes[0].projected.sources[0].serviceAccountToken: Forbidden: must not be specified when serviceAccountName is not set",
            ],
        ),
        case(
            json!({"ephemeral": {"volumeClaimTemplate": {"spec": {"accessModes": ["ReadWriteOnce"]}}}}),
            &["spec.volumes[0].ephemeral.volumeClaimTemplate.spec.resources[storage]: Required value"],
        ),
        case(json!({"image": {}}), &["spec.volumes[0].image.reference: Required value"]),
    ]);
}

#[test]
fn security() {
    pod().creates(&[
        ("/spec/containers/0/securityContext", json!({"runAsUser": -1}), &[
            "spec.containers[0].securityContext.runAsUser: Invalid value: -1: must be between 0 and 2147483647, inclusive",
        ]),
        (
            "/spec/containers/0/securityContext",
            json!({"privileged": true, "allowPrivilegeEscalation": false}),
            &[
                "spec.containers[0].securityContext: Invalid value: {\"allowPrivilegeEscalation\":false,\"privileged\":true}: cannot set `allowPrivilegeEscalation` to false and `privileged` to true",
            ],
        ),
        (
            "/spec/securityContext",
            json!({"seccompProfile": {"type": "Localhost"}}),
            &[
                "spec.securityContext.seccompProfile.localhostProfile: Required value: must be set when seccomp type is Localhost",
            ],
        ),
        (
            "/spec/securityContext",
            json!({"sysctls": [{"name": "a..b", "value": "1"}]}),
            &[
                "spec.securityContext.sysctls[0].name: Invalid value: \"a..b\": must have at most 253 characters and match regex ^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$",
            ],
        ),
        (
            "/spec/securityContext",
            json!({"appArmorProfile": {"type": "Nope"}}),
            &[
                "spec.securityContext.appArmorProfile.type: Unsupported value: \"Nope\": supported values: \"Localhost\", \"RuntimeDefault\", \"Unconfined\"",
            ],
        ),
        ("/spec/os", json!({"name": "plan9"}), &[
            "spec.os: Unsupported value: \"plan9\": supported values: \"linux\", \"windows\"",
        ]),
    ]);
}

#[test]
fn scheduling() {
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    pod().creates(&[
        (
            "/spec/tolerations",
            json!([{"operator": "Equal", "value": "x"}]),
            &[
                "spec.tolerations[0].operator: Invalid value: \"Equal\": operator must be Exists when `key` is empty, which means \"match all values and all keys\"",
            ],
        ),
        (
            "/spec/affinity",
            json!({"nodeAffinity": {required: {"nodeSelectorTerms": []}}}),
            &[
                "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms: Required value: must have at least one node selector term",
            ],
        ),
        (
            "/spec/affinity",
            json!({"podAntiAffinity": {required: [{"labelSelector": {}, "topologyKey": ""}]}}),
            &[
                "spec.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].topologyKey: Required value: can not be empty",
                "spec.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].topologyKey: Invalid value: \"\": name part must be non-empty",
                "spec.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].topologyKey: Invalid value: \"\": name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')",
            ],
        ),
        (
            "/spec/topologySpreadConstraints",
            json!([{"maxSkew": 0, "topologyKey": "z", "whenUnsatisfiable": "Maybe"}]),
            &[
                "spec.topologySpreadConstraints[0].maxSkew: Invalid value: 0: must be greater than zero",
                "spec.topologySpreadConstraints[0].whenUnsatisfiable: Unsupported value: \"Maybe\": supported values: \"DoNotSchedule\", \"ScheduleAnyway\"",
            ],
        ),
        ("/spec/schedulingGates", json!([{"name": "a"}, {"name": "a"}]), &[
            "spec.schedulingGates[1]: Duplicate value: \"a\"",
        ]),
    ]);
}

#[test]
fn the_rest_of_the_spec() {
    pod().creates(&[
        ("/spec/restartPolicy", json!("Sometimes"), &[
            "spec.restartPolicy: Unsupported value: \"Sometimes\": supported values: \"Always\", \"OnFailure\", \"Never\"",
        ]),
        ("/spec/dnsPolicy", json!("None"), &[
            "spec.dnsConfig: Required value: must provide `dnsConfig` when `dnsPolicy` is None",
        ]),
        ("/spec/dnsConfig", json!({"nameservers": ["x"], "searches": ["a_b.c", "."]}), &[
            "spec.dnsConfig.nameservers[0]: Invalid value: \"x\": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)",
        ]),
        ("/spec/hostAliases", json!([{"ip": "010.1.1.1", "hostnames": ["h"]}]), &[
            "spec.hostAliases[0].ip: Invalid value: \"010.1.1.1\": must not have leading 0s",
        ]),
        ("/spec/activeDeadlineSeconds", json!(0), &[
            "spec.activeDeadlineSeconds: Invalid value: 0: must be between 1 and 2147483647, inclusive",
        ]),
        ("/metadata/annotations", json!({"controller.kubernetes.io/pod-deletion-cost": "+5"}), &[
            "metadata.annotations[controller.kubernetes.io/pod-deletion-cost]: Invalid value: \"+5\": must be a 32bit integer",
        ]),
        ("/spec/resourceClaims", json!([{"name": "c"}]), &[
            "spec.resourceClaims[0]: Invalid value: {\"name\":\"c\"}: must specify one of: `resourceClaimName`, `resourceClaimTemplateName`",
        ]),
    ]);
}

const FIXED: &str = "spec: Forbidden: pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)\n";

#[test]
fn a_running_pod_changes_little() {
    let mut subject = pod();
    subject.good["spec"]["tolerations"] = json!([{"key": "k", "operator": "Exists"}]);
    subject.updates(&[
        ("/spec/containers/0/image", json!("j"), &[]),
        ("/spec/activeDeadlineSeconds", json!(5), &[]),
        ("/spec/hostNetwork", json!(false), &[]),
        ("/spec/nodeName", json!("n"), &[FIXED]),
        ("/spec/containers/0/command", json!(["x"]), &[FIXED]),
        ("/spec/tolerations", json!([]), &[
            "spec.tolerations: Forbidden: existing toleration can not be modified except its tolerationSeconds",
        ]),
        ("/spec/containers", json!([{"name": "a", "image": "i"}, {"name": "b", "image": "i"}]), &[
            "spec.containers: Forbidden: pod updates may not add or remove containers",
        ]),
        ("/metadata/annotations", json!({"kubernetes.io/config.mirror": "x"}), &[
            "metadata.annotations[kubernetes.io/config.mirror]: Invalid value: \"x\": must set spec.nodeName if mirror pod annotation is set",
            "metadata.annotations[kubernetes.io/config.mirror]: Forbidden: may not add mirror pod annotation",
        ]),
    ]);
}

#[test]
fn a_gated_pod_is_narrowed() {
    let mut subject = pod();
    subject.good["spec"]["schedulingGates"] = json!([{"name": "g"}]);
    subject.good["spec"]["nodeSelector"] = json!({"a": "b"});
    subject.updates(&[
        ("/spec/nodeSelector", json!({"a": "b", "c": "d"}), &[]),
        ("/spec/nodeSelector", json!({"a": "c"}), &[
            "spec.nodeSelector: Invalid value: {\"a\":\"c\"}: only additions to spec.nodeSelector are allowed (no mutations or deletions)",
        ]),
        ("/spec/schedulingGates", json!([]), &[]),
        ("/spec/schedulingGates", json!([{"name": "h"}]), &[
            "spec.schedulingGates[0].name: Forbidden: only deletion is allowed, but found new scheduling gate 'h'",
        ]),
        ("/spec/schedulingGates", json!([{"name": "h"}, {"name": "h"}]), &[
            "spec.schedulingGates[1]: Duplicate value: \"h\"",
            "spec.schedulingGates[1].name: Forbidden: only deletion is allowed, but found new scheduling gate 'h'",
        ]),
        ("/spec/affinity", json!({"nodeAffinity": {}}), &[]),
        ("/spec/affinity", json!({}), &[
            "spec: Forbidden: pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)\n",
        ]),
    ]);
}

/// An empty list equals none, also inside of an affinity.
#[test]
fn a_gated_pod_keeps_its_terms() {
    const TERMS: &str = "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms";
    let mut subject = pod();
    let term = json!([{"matchExpressions": [{"key": "k", "operator": "Exists"}]}]);
    subject.good["spec"]["schedulingGates"] = json!([{"name": "g"}]);
    subject.good["spec"]["affinity"] =
        json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": term}}});
    subject.updates(&[
        (TERMS, json!([{"matchExpressions": [{"key": "k", "operator": "Exists", "values": []}]}]), &[]),
        (TERMS, json!([{"matchExpressions": [{"key": "k", "operator": "DoesNotExist"}]}]), &[
            "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0]: Invalid value: {\"matchExpressions\":[{\"key\":\"k\",\"operator\":\"DoesNotExist\"}]}: only additions are allowed (no mutations or deletions)",
        ]),
    ]);
}

#[test]
fn statuses() {
    let mut subject = pod();
    let ended = json!([{"name": "a", "state": {"terminated": {"exitCode": 0}}}]);
    subject.good["spec"]["restartPolicy"] = "Never".into();
    subject.good["status"] = json!({"qosClass": "BestEffort", "containerStatuses": ended});
    subject.status_updates(&[
        ("/status/qosClass", json!("Guaranteed"), &["status.qosClass: Invalid value: \"Guaranteed\": field is immutable"]),
        ("/status/containerStatuses", json!([{"name": "a", "state": {"running": {}}}]), &[
            "status.containerStatuses[0].state: Forbidden: may not be transitioned to non-terminated state",
        ]),
        ("/status/podIPs", json!([{"ip": "10.0.0.1"}, {"ip": "10.0.0.2"}]), &[
            "status.podIPs: Invalid value: [{\"ip\":\"10.0.0.1\"},{\"ip\":\"10.0.0.2\"}]: may specify no more than one IP for each IP family",
        ]),
        ("/status/conditions", json!([{"type": "a b", "status": "True"}]), &[
            "status.conditions[0].Type: Invalid value: \"a b\": name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')",
        ]),
    ]);
}

#[test]
fn parts_change_alone() {
    let mut subject = pod();
    subject.good["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": "1"}, "limits": {"cpu": "2"}});
    subject.good["spec"]["ephemeralContainers"] = json!([{"name": "e", "image": "i"}]);
    subject.good["status"] = json!({"qosClass": "Burstable"});
    let old = subject.changed("", &Value::Null);
    let part = |role: Role, pointer: &str, value: Value| {
        texts(&subject.kind.validate_part_update(role, &subject.changed(pointer, &value), &old))
    };
    let none: [&str; 0] = [];
    let resources = "/spec/containers/0/resources";
    assert_eq!(part(Role::Resize, resources, json!({"requests": {"cpu": "500m"}, "limits": {"cpu": "2"}})), none);
    assert_eq!(
        part(Role::Resize, resources, json!({"requests": {"cpu": "1"}})),
        ["spec.containers[0].resources.limits: Forbidden: resource limits cannot be removed"]
    );
    assert_eq!(
        part(Role::Resize, "/spec/containers/0/image", json!("j")),
        ["spec: Forbidden: only cpu and memory resources are mutable"]
    );
    // Claims are validated by their references, not for being changed.
    let claims = json!({"requests": {"cpu": "1"}, "limits": {"cpu": "2"}, "claims": [{"name": "c"}]});
    assert_eq!(
        part(Role::Resize, resources, claims),
        [
            "spec.containers[0].resources.claims[0]: Not found: \"c\": must be one of the names in pod.spec.resourceClaims which is empty",
        ]
    );
    let ruled = json!([{"name": "e", "image": "i"}, {"name": "f", "image": "i", "restartPolicyRules": []}]);
    assert_eq!(
        part(Role::EphemeralContainers, "/spec/ephemeralContainers", ruled),
        ["spec.ephemeralContainers[1].restartPolicyRules: Forbidden: cannot be set for an Ephemeral Container"]
    );
    let two = json!([{"name": "e", "image": "i"}, {"name": "f", "image": "i"}]);
    assert_eq!(part(Role::EphemeralContainers, "/spec/ephemeralContainers", two), none);
    assert_eq!(
        part(Role::EphemeralContainers, "/spec/ephemeralContainers", json!([])),
        ["spec.ephemeralContainers: Forbidden: existing ephemeral containers \"e\" may not be removed\n"]
    );
}
