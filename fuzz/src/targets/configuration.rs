//! Configuration files of the control plane, of a node and of clients.

use corten_meta::codec;

use super::{json, text, texts};
use crate::Target;

pub const TARGETS: &[Target] = &[
    Target { name: "encryption-configuration", seeds: encryption_seeds, run: encryption },
    Target { name: "authorization-configuration", seeds: authorization_seeds, run: authorization },
    Target { name: "authentication-configuration", seeds: authentication_seeds, run: authentication },
    Target { name: "audit-policy", seeds: audit_seeds, run: audit },
    Target { name: "scheduler-configuration", seeds: scheduler_seeds, run: scheduler },
    Target { name: "kubelet-configuration", seeds: kubelet_seeds, run: kubelet },
    Target { name: "kubeconfig", seeds: kubeconfig_seeds, run: kubeconfig },
    Target { name: "watch-event", seeds: watch_seeds, run: watch_event },
];

fn encryption_seeds() -> Vec<Vec<u8>> {
    texts(&[
        "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n- resources: [secrets, '*.apps', '*.*']\n  providers:\n  - aescbc: {keys: [{name: a, secret: AAAAAAAAAAAAAAAAAAAAAA==}]}\n  - secretbox: {keys: [{name: b, secret: AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=}]}\n  - kms: {apiVersion: v2, name: k, endpoint: 'unix:///s', timeout: 3s}\n  - identity: {}\n",
    ])
}

fn encryption(input: &[u8]) {
    let _ = text(input).map(corten_apiserver::fuzz::encryption_configuration);
}

fn authorization_seeds() -> Vec<Vec<u8>> {
    texts(&[
        "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\nauthorizers:\n- {type: Node, name: node}\n- {type: RBAC, name: rbac}\n- type: Webhook\n  name: w\n  webhook:\n    timeout: 3s\n    failurePolicy: Deny\n    subjectAccessReviewVersion: v1\n    matchConditionSubjectAccessReviewVersion: v1\n    authorizedTTL: 30s\n    connectionInfo: {type: KubeConfigFile, kubeConfigFile: /f}\n    matchConditions: [{expression: \"request.user == 'a'\"}]\n",
    ])
}

fn authorization(input: &[u8]) {
    let _ = text(input).map(corten_apiserver::fuzz::authorization_configuration);
}

fn authentication_seeds() -> Vec<Vec<u8>> {
    texts(&[
        "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\nanonymous: {enabled: true, conditions: [{path: /livez}]}\njwt:\n- issuer: {url: 'https://i.example', audiences: [a, b], audienceMatchPolicy: MatchAny}\n  claimMappings: {username: {claim: sub, prefix: 'p:'}, groups: {expression: claims.groups}, extra: [{key: a.b/c, valueExpression: claims.x}]}\n  claimValidationRules: [{expression: 'claims.exp > 1', message: m}]\n  userValidationRules: [{expression: \"!user.username.startsWith('system:')\", message: m}]\n",
    ])
}

fn authentication(input: &[u8]) {
    let _ = text(input).map(corten_apiserver::fuzz::authentication_configuration);
}

fn audit_seeds() -> Vec<Vec<u8>> {
    texts(&[
        "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules:\n- level: Metadata\n  users: [a]\n  verbs: [get]\n  namespaces: ['']\n  resources: [{group: '', resources: [pods/log, '*']}]\n- {level: None, nonResourceURLs: ['/healthz*']}\n",
    ])
}

fn audit(input: &[u8]) {
    let _ = text(input).map(corten_apiserver::fuzz::audit_policy);
}

fn scheduler_seeds() -> Vec<Vec<u8>> {
    texts(&[
        "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\nparallelism: 16\npercentageOfNodesToScore: 50\nprofiles:\n- schedulerName: s\n  plugins: {score: {disabled: [{name: '*'}], enabled: [{name: NodeResourcesFit, weight: 3}]}, multiPoint: {enabled: [{name: NodeAffinity}]}}\n  pluginConfig:\n  - name: NodeResourcesFit\n    args: {scoringStrategy: {type: RequestedToCapacityRatio, resources: [{name: cpu, weight: 1}], requestedToCapacityRatio: {shape: [{utilization: 0, score: 0}, {utilization: 100, score: 10}]}}}\n  - name: PodTopologySpread\n    args: {defaultingType: List, defaultConstraints: [{maxSkew: 1, topologyKey: z, whenUnsatisfiable: ScheduleAnyway}]}\nextenders: [{urlPrefix: 'http://e', filterVerb: f, weight: 2, httpTimeout: 3s}]\nleaderElection: {leaderElect: true, leaseDuration: 15s}\n",
    ])
}

fn scheduler(input: &[u8]) {
    let Ok(document) = codec::decode_yaml(input) else { return };
    let _ = corten_scheduler::Config::from_document(document);
}

fn kubelet_seeds() -> Vec<Vec<u8>> {
    texts(&[
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nmaxPods: 50\nevictionHard: {memory.available: 100Mi, nodefs.available: 5%}\nevictionSoft: {memory.available: 1Gi}\nevictionSoftGracePeriod: {memory.available: 1m30s}\nsystemReserved: {cpu: 100m}\nreservedSystemCPUs: 0-1\ncpuManagerPolicy: static\nregisterWithTaints: [{key: a, effect: NoSchedule}]\nshutdownGracePeriod: 30s\nauthentication: {anonymous: {enabled: false}, webhook: {cacheTTL: 2m0s}}\nclusterDNS: [10.96.0.10]\nimageGCHighThresholdPercent: 85\nreservedMemory: [{numaNode: 0, limits: {memory: 1Gi}}]\n",
    ])
}

fn kubelet(input: &[u8]) {
    let Ok(document) = codec::decode_yaml(input) else { return };
    let mut config = corten_kubelet::Config::default();
    if corten_kubelet::configuration::apply(&mut config, &document).is_ok() {
        let written = corten_kubelet::configuration::document(&config);
        let mut again = corten_kubelet::Config::default();
        let _ = corten_kubelet::configuration::apply(&mut again, &written);
    }
}

fn kubeconfig_seeds() -> Vec<Vec<u8>> {
    texts(&[
        "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{name: k, cluster: {server: 'https://127.0.0.1:6443', certificate-authority-data: AAAA, tls-server-name: n}}]\nusers: [{name: u, user: {token: t, client-certificate-data: AAAA, client-key-data: AAAA}}]\ncontexts: [{name: c, context: {cluster: k, user: u, namespace: n}}]\n",
    ])
}

/// Reads a kubeconfig without the files that it names.
fn kubeconfig(input: &[u8]) {
    let Ok(config) = corten_client::Kubeconfig::parse(input) else { return };
    let mut merged = corten_client::Kubeconfig::default();
    merged.merge(&config);
    merged.merge(&config);
    let written = merged.to_yaml();
    let again = corten_client::Kubeconfig::parse(written.as_bytes()).expect("what was written is read");
    assert_eq!(again.to_yaml(), written);
    let file_fields = ["certificate-authority:", "client-certificate:", "client-key:", "tokenFile:"];
    if !file_fields.iter().any(|field| written.contains(field)) {
        let _ = merged.https_config(None);
    }
}

fn watch_seeds() -> Vec<Vec<u8>> {
    texts(&[
        r#"{"type":"ADDED","object":{"apiVersion":"v1","kind":"Pod","metadata":{"resourceVersion":"7","name":"a"}}}"#,
        r#"{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"9","annotations":{"k8s.io/initial-events-end":"true"}}}}"#,
        r#"{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired"}}"#,
    ])
}

fn watch_event(input: &[u8]) {
    let _ = corten_client::watch::decode_frame(input);
    let _ = json(input).as_ref().map(corten_meta::annotations);
}
