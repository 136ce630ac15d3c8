//! Section 5: RBAC, pods, networks and namespaces, by the objects of the cluster.

use corten_meta::Value;

use super::bindings::{self, Right, has_wildcard};
use super::facts::Facts;
use super::pods::{self, Level};
use super::{Item, Outcome, item};
use crate::cli::NetworkBackend;

const TAKE_RIGHT: &str = "take the right out of the role, or delete the binding";
const BASELINE: &str = "kubectl label namespace NAME pod-security.kubernetes.io/enforce=baseline";
const RESTRICTED: &str = "kubectl label namespace NAME pod-security.kubernetes.io/enforce=restricted";
const RBAC: &str = "rbac.authorization.k8s.io";
const WRITES: &[&str] = &["create", "update", "patch", "delete"];

pub const ITEMS: &[Item] = &[
    item("5.1.1", "Only administrators are cluster-admin", "delete the binding", |facts| {
        Outcome::of(bindings::of_role(facts, "cluster-admin"), "no binding gives cluster-admin to others")
    }),
    item("5.1.2", "Few may read Secrets", TAKE_RIGHT, |facts| {
        right(facts, &Right { group: "", resources: &["secrets"], verbs: &["get", "list", "watch"] })
    }),
    item("5.1.3", "Roles name what they are for", "name groups, resources and verbs in place of *", |facts| {
        let lists = ["apiGroups", "resources", "verbs"];
        let found = bindings::granted(facts, |rule| lists.iter().any(|list| has_wildcard(&rule[list])));
        Outcome::of(found, "no role that is given to others has a wildcard")
    }),
    item("5.1.4", "Few may create pods", TAKE_RIGHT, |facts| {
        right(facts, &Right { group: "", resources: &["pods"], verbs: &["create"] })
    }),
    item(
        "5.1.5",
        "Default ServiceAccounts have no rights and are not used",
        "give each workload an account",
        default_account,
    ),
    item(
        "5.1.6",
        "Pods without rights have no token",
        "set automountServiceAccountToken: false in the pod or its ServiceAccount",
        needless_tokens,
    ),
    item("5.1.7", "The group system:masters is not used", "give rights by RBAC instead", |facts| {
        let mut found = bindings::naming(facts, "Group", "system:masters");
        found.retain(|binding| binding != "ClusterRoleBinding cluster-admin gives cluster-admin to system:masters");
        Outcome::of(found, "only the first binding of every cluster names it")
    }),
    item("5.1.8", "Few may bind, escalate or impersonate", TAKE_RIGHT, |facts| {
        let roles = Right { group: RBAC, resources: &["roles", "clusterroles"], verbs: &["bind", "escalate"] };
        let resources = &["users", "groups", "serviceaccounts"];
        let mut found = bindings::holders(facts, &roles);
        found.extend(bindings::holders(facts, &Right { group: "", resources, verbs: &["impersonate"] }));
        Outcome::of(found, "no binding gives the right to others")
    }),
    item("5.1.9", "Few may create PersistentVolumes", TAKE_RIGHT, |facts| {
        right(facts, &Right { group: "", resources: &["persistentvolumes"], verbs: &["create"] })
    }),
    item("5.1.10", "Few may reach kubelets through the API server", TAKE_RIGHT, |facts| {
        right(facts, &Right { group: "", resources: &["nodes/proxy"], verbs: &["get", "create"] })
    }),
    item("5.1.11", "Few may approve certificates", TAKE_RIGHT, |facts| {
        let resources = &["certificatesigningrequests/approval"];
        right(facts, &Right { group: "certificates.k8s.io", resources, verbs: &["update", "patch"] })
    }),
    item("5.1.12", "Few may change admission webhooks", TAKE_RIGHT, |facts| {
        let resources = &["validatingwebhookconfigurations", "mutatingwebhookconfigurations"];
        right(facts, &Right { group: "admissionregistration.k8s.io", resources, verbs: WRITES })
    }),
    item("5.1.13", "Few may make tokens of ServiceAccounts", TAKE_RIGHT, |facts| {
        right(facts, &Right { group: "", resources: &["serviceaccounts/token"], verbs: &["create"] })
    }),
    item("5.2.1", "Namespaces with pods have a policy", BASELINE, |facts| pods::admits(facts, Level::Baseline)),
    item("5.2.2", "Namespaces admit no privileged containers", BASELINE, |facts| pods::admits(facts, Level::Baseline)),
    item("5.2.3", "Namespaces admit no pods that see the node's processes", BASELINE, |facts| {
        pods::admits(facts, Level::Baseline)
    }),
    item("5.2.4", "Namespaces admit no pods that share the node's IPC", BASELINE, |facts| {
        pods::admits(facts, Level::Baseline)
    }),
    item("5.2.5", "Namespaces admit no pods on the node's network", BASELINE, |facts| {
        pods::admits(facts, Level::Baseline)
    }),
    item("5.2.6", "Namespaces admit no escalation of privileges", RESTRICTED, |facts| {
        pods::admits(facts, Level::Restricted)
    }),
    item("5.2.7", "Namespaces admit no containers that run as root", RESTRICTED, |facts| {
        pods::admits(facts, Level::Restricted)
    }),
    item("5.2.8", "Namespaces admit no containers with NET_RAW", RESTRICTED, |facts| {
        pods::admits(facts, Level::Restricted)
    }),
    item("5.2.9", "Namespaces admit no added capabilities", BASELINE, |facts| pods::admits(facts, Level::Baseline)),
    item("5.2.10", "Namespaces admit only containers that drop all capabilities", RESTRICTED, |facts| {
        pods::admits(facts, Level::Restricted)
    }),
    item("5.2.11", "Namespaces admit no Windows containers on the host", BASELINE, |_| {
        Outcome::NotApplicable("there are no Windows nodes")
    }),
    item("5.2.12", "Namespaces admit no hostPath volumes", BASELINE, |facts| pods::admits(facts, Level::Baseline)),
    item("5.2.13", "Namespaces admit no host ports", BASELINE, |facts| pods::admits(facts, Level::Baseline)),
    item("5.3.1", "The pod network enforces NetworkPolicies", "use a network backend of Corten's own", |facts| {
        if facts.flags.network_backend == Some(NetworkBackend::Cni) {
            return Outcome::NotApplicable("CNI plugins make the network, and enforce what they can");
        }
        let has_table = facts.tables.iter().any(|table| table == "corten-policy");
        Outcome::when(has_table, "the kernel has the table corten-policy", "the table corten-policy is missing")
    }),
    item(
        "5.3.2",
        "Namespaces with pods have NetworkPolicies",
        "make a NetworkPolicy that denies by default",
        |facts| {
            let has = |name: &str| facts.objects.network_policies.iter().any(|policy| pods::namespace(policy) == name);
            let used = pods::used_namespaces(facts);
            let open = used.keys().filter(|name| !has(name)).map(|name| format!("namespace {name} has none"));
            Outcome::of(open.collect(), format!("{} namespaces with pods have one", used.len()))
        },
    ),
    item("5.4.1", "Secrets are files in containers, not variables", "mount the Secret as a volume", |facts| {
        pods::without(facts, "none has a Secret in its environment", |pod| {
            let uses = pods::containers(pod).any(has_secret_variable);
            uses.then(|| "has a Secret in its environment".to_owned())
        })
    }),
    item(
        "5.4.2",
        "Secrets are kept outside of the cluster",
        "use a KMS plugin by --encryption-provider-config",
        |_| Outcome::NotApplicable("whether an outside store is worth it is the operator's to say"),
    ),
    item(
        "5.5.1",
        "Images are admitted by their origin",
        "register an admission webhook or policy that checks images",
        |_| {
            Outcome::NotApplicable(
                "the plugin ImagePolicyWebhook is not supported; admission webhooks and policies do the same",
            )
        },
    ),
    item("5.7.1", "Namespaces divide what belongs to different people", "make a namespace for each of them", |_| {
        Outcome::NotApplicable("who shares the cluster is not known to it")
    }),
    item("5.7.2", "Pods have a seccomp profile", "remove seccompProfile Unconfined, or set seccompDefault", seccomp),
    item("5.7.3", "Pods have a security context", "set securityContext in the pod and its containers", |facts| {
        pods::without(facts, "each has a security context", |pod| {
            let is_set = |context: &Value| context.as_object().is_some_and(|fields| !fields.is_empty());
            let has = is_set(&pod["spec"]["securityContext"])
                || pods::containers(pod).all(|container| is_set(&container["securityContext"]));
            (!has).then(|| "has no security context".to_owned())
        })
    }),
    item("5.7.4", "The default namespace is not used", "make a namespace for the workload", |facts| {
        let in_default = |object: &&Value| pods::namespace(object) == "default";
        let pods = facts.objects.pods.iter().filter(in_default).map(|pod| format!("pod {}", pods::name(pod)));
        let services = facts.objects.services.iter().filter(in_default);
        let services = services.filter(|service| service["metadata"]["name"] != "kubernetes");
        let services = services.map(|service| format!("Service {}", pods::name(service)));
        Outcome::of(pods.chain(services).collect(), "it holds the Service kubernetes alone")
    }),
];

fn right(facts: &Facts, right: &Right) -> Outcome {
    Outcome::of(bindings::holders(facts, right), "no binding gives the right to others")
}

fn account_of(pod: &Value) -> &str {
    pod["spec"]["serviceAccountName"].as_str().unwrap_or("default")
}

fn default_account(facts: &Facts) -> Outcome {
    let mut found = bindings::naming(facts, "ServiceAccount", "default");
    for pod in pods::of_users(facts).filter(|pod| account_of(pod) == "default" && has_token(facts, pod)) {
        found.push(format!("pod {} has a token of the account default", pods::name(pod)));
    }
    Outcome::of(found, "no binding names one, and no pod has a token of one")
}

/// Reports whether the token of its ServiceAccount is mounted into a pod: the pod decides, then the account.
fn has_token(facts: &Facts, pod: &Value) -> bool {
    let accounts = &facts.objects.service_accounts;
    let account = accounts.iter().find(|account| {
        pods::namespace(account) == pods::namespace(pod) && account["metadata"]["name"] == account_of(pod)
    });
    let of_account = account.and_then(|account| account["automountServiceAccountToken"].as_bool());
    pod["spec"]["automountServiceAccountToken"].as_bool().or(of_account).unwrap_or(true)
}

fn needless_tokens(facts: &Facts) -> Outcome {
    pods::without(facts, "none has a token that is good for nothing", |pod| {
        let has_rights = bindings::binds_account(facts, pods::namespace(pod), account_of(pod));
        (has_token(facts, pod) && !has_rights).then(|| "has a token whose account has no rights".to_owned())
    })
}

fn has_secret_variable(container: &Value) -> bool {
    let list = |key: &str| container[key].as_array().cloned().unwrap_or_default();
    let named = list("env").iter().any(|variable| !variable["valueFrom"]["secretKeyRef"].is_null());
    named || list("envFrom").iter().any(|source| !source["secretRef"].is_null())
}

fn seccomp(facts: &Facts) -> Outcome {
    let by_default = facts.nodes.iter().all(|node| node.configuration["seccompDefault"] == true);
    pods::without(facts, "each has one, its own or the runtime's", |pod| {
        let of_pod = &pod["spec"]["securityContext"]["seccompProfile"]["type"];
        let unconfined = pods::containers(pod).any(|container| {
            let own = &container["securityContext"]["seccompProfile"]["type"];
            let profile = if own.is_null() { of_pod } else { own };
            profile == "Unconfined" || profile.is_null() && !by_default
        });
        unconfined.then(|| "runs without a profile".to_owned())
    })
}
