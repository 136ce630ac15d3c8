//! The usage that a ResourceQuota counts for an object, and the quotas that apply to it.
//!
//! The only implementation of these rules, for admission, which refuses requests beyond a quota, and for the
//! controller, which reports the usage. Pure, on JSON: quotas count every kind, custom ones included.

use std::collections::{BTreeMap, BTreeSet};

use corten_meta::{Quantity, Value};

/// Quantities by resource name of a quota.
pub type ResourceList = BTreeMap<String, Quantity>;

/// The extended resources by which pods request devices, by the name of their DeviceClass.
pub type ExtendedResources = BTreeMap<String, String>;

/// An object that a quota counts, with its group and plural.
pub struct Counted<'a> {
    pub group: &'a str,
    pub plural: &'a str,
    pub object: Value,
}

impl Counted<'_> {
    fn is(&self, group: &str, plural: &str) -> bool {
        (self.group, self.plural) == (group, plural)
    }
}

/// The group and the plural of ResourceClaims.
const RESOURCE_CLAIMS: (&str, &str) = ("resource.k8s.io", "resourceclaims");

/// The end of the name by which quotas count the devices of a class.
const DEVICES: &str = ".deviceclass.resource.k8s.io/devices";

/// The resources that a pod also counts by these names.
const PLAIN: &[&str] = &["cpu", "memory", "ephemeral-storage"];

/// The most devices of an allocated ResourceClaim.
const MAX_ALLOCATED_DEVICES: usize = 32;

/// The kinds of the core group that quotas also count by their bare name.
const COUNTED: &[&str] = &[
    "configmaps",
    "persistentvolumeclaims",
    "pods",
    "replicationcontrollers",
    "resourcequotas",
    "secrets",
    "services",
];

/// Returns the quantities of a JSON object.
pub fn resource_list(value: Option<&Value>) -> ResourceList {
    let map = value.and_then(Value::as_object).into_iter().flatten();
    map.filter_map(|(name, quantity)| Some((name.clone(), Quantity::from_json(quantity).ok()?))).collect()
}

/// Reports whether objects of a kind can use any resource that a quota limits.
pub fn concerns(hard: &ResourceList, group: &str, plural: &str) -> bool {
    // Pods and claims have resources by any name; all other kinds are counted under known names.
    let by_any_name =
        matches!((group, plural), ("", "pods" | "persistentvolumeclaims") | ("resource.k8s.io", "resourceclaims"));
    by_any_name || usage(group, plural, &Value::Null).keys().any(|name| hard.contains_key(name))
}

/// Returns the usage of one object of `plural` in `group`.
pub fn usage(group: &str, plural: &str, object: &Value) -> ResourceList {
    let mut used = ResourceList::new();
    if group.is_empty() && plural == "pods" && is_terminal(object) {
        return used;
    }
    let counted = if group.is_empty() { format!("count/{plural}") } else { format!("count/{plural}.{group}") };
    used.insert(counted, number(1));
    if group.is_empty() && COUNTED.contains(&plural) {
        used.insert(plural.to_owned(), number(1));
    }
    match (group, plural) {
        ("", "pods") => used.extend(pod(object)),
        ("", "services") => used.extend(service(object)),
        ("", "persistentvolumeclaims") => used.extend(claim(object)),
        ("resource.k8s.io", "resourceclaims") => used.extend(devices(object)),
        _ => {}
    }
    used
}

/// Adds `more` to `sum`.
pub fn add(sum: &mut ResourceList, more: &ResourceList) {
    for (name, quantity) in more {
        *sum.entry(name.clone()).or_insert_with(Quantity::zero) += quantity;
    }
}

/// Returns the extended resources that DeviceClasses name.
pub fn extended_resources(classes: impl Iterator<Item = Value>) -> ExtendedResources {
    let of = |class: Value| {
        let name = class.pointer("/spec/extendedResourceName")?.as_str()?.to_owned();
        Some((corten_meta::name(&class).to_owned(), name))
    };
    classes.filter_map(of).collect()
}

/// Returns the usage of a quota's limited resources, from every object of its namespace.
pub fn in_use(quota: &Value, extended: &ExtendedResources, objects: &[Counted<'_>]) -> ResourceList {
    let hard = resource_list(quota.pointer("/spec/hard"));
    let mut used: ResourceList = hard.keys().map(|name| (name.clone(), Quantity::zero())).collect();
    for counted in objects {
        if is_in_scope(quota, counted.plural, &counted.object) {
            let taken = usage_among(counted, extended, objects);
            add(&mut used, &taken.into_iter().filter(|(name, _)| hard.contains_key(name)).collect());
        }
    }
    used
}

/// Returns the usage of one object among those of its namespace. A ResourceClaim also counts for the extended resources
/// that stand for its devices, unless the pod that it was made for counts for them.
pub fn usage_among(counted: &Counted<'_>, extended: &ExtendedResources, objects: &[Counted<'_>]) -> ResourceList {
    let mut used = usage(counted.group, counted.plural, &counted.object);
    if (counted.group, counted.plural) != RESOURCE_CLAIMS {
        return used;
    }
    let pod = claiming_pod(&counted.object, objects).map(|pod| usage("", "pods", pod)).unwrap_or_default();
    for (name, quantity) in devices(&counted.object) {
        let Some(class) = name.strip_suffix(DEVICES) else { continue };
        let implicit = format!("requests.deviceclass.resource.kubernetes.io/{class}");
        let explicit = extended.get(class).map(|name| format!("requests.{name}"));
        for name in [Some(implicit), explicit].into_iter().flatten() {
            let mut more = quantity.clone();
            if let Some(counted) = pod.get(&name) {
                more -= counted;
            }
            if more > Quantity::zero() {
                used.insert(name, more);
            }
        }
    }
    used
}

/// Returns the pod whose extended resources the scheduler made the claim for. A pod has one such claim: the one that its
/// status names, or else the oldest.
fn claiming_pod<'a>(claim: &Value, objects: &'a [Counted<'_>]) -> Option<&'a Value> {
    let owner = owner_of_extended(claim)?;
    let mut pods = objects.iter().filter(|counted| counted.is("", "pods")).map(|counted| &counted.object);
    let pod = pods.find(|pod| pod["metadata"]["uid"] == owner)?;
    let named = pod.pointer("/status/extendedResourceClaimStatus/resourceClaimName").and_then(Value::as_str);
    let is_the_one = match named {
        Some(name) => name == corten_meta::name(claim),
        None => {
            let claims = objects.iter().filter(|counted| counted.is(RESOURCE_CLAIMS.0, RESOURCE_CLAIMS.1));
            let mut others = claims.filter(|counted| owner_of_extended(&counted.object) == Some(owner));
            others.all(|counted| age(claim) <= age(&counted.object))
        }
    };
    is_the_one.then_some(pod)
}

/// Returns the uid of the pod that controls a claim of extended resources.
fn owner_of_extended(claim: &Value) -> Option<&str> {
    let annotation = claim.pointer("/metadata/annotations/resource.kubernetes.io~1extended-resource-claim")?;
    let owners = claim.pointer("/metadata/ownerReferences").filter(|_| annotation == "true")?.as_array()?;
    let owner = owners.iter().find(|owner| owner["controller"] == true)?;
    (owner["kind"] == "Pod" && owner["apiVersion"] == "v1").then(|| owner["uid"].as_str())?
}

fn age(claim: &Value) -> (&str, &str) {
    let created = claim.pointer("/metadata/creationTimestamp").and_then(Value::as_str).unwrap_or_default();
    (created, corten_meta::name(claim))
}

fn number(count: usize) -> Quantity {
    Quantity::from_json(&serde_json::json!(count)).unwrap_or_default()
}

fn is_terminal(pod: &Value) -> bool {
    let phase = pod.pointer("/status/phase").and_then(Value::as_str).unwrap_or_default();
    matches!(phase, "Succeeded" | "Failed")
}

fn pod(pod: &Value) -> ResourceList {
    let mut used = ResourceList::new();
    for (field, prefix) in [("requests", "requests."), ("limits", "limits.")] {
        for (name, quantity) in pod_resources(pod, field) {
            if field == "requests" && (PLAIN.contains(&name.as_str()) || name.starts_with("hugepages-")) {
                used.insert(name.clone(), quantity.clone());
            }
            used.insert(format!("{prefix}{name}"), quantity);
        }
    }
    used
}

/// Returns the peak resources of the pod, with its overhead.
pub fn pod_resources(pod: &Value, field: &str) -> ResourceList {
    let mut total = pod_sum(pod, field);
    let mut overhead = resource_list(pod.pointer("/spec/overhead"));
    overhead.retain(|name, _| field == "requests" || total.contains_key(name));
    add(&mut total, &overhead);
    total
}

/// Returns the peak resources of the pod, without its overhead: its containers and sidecars together, or an init
/// container with the sidecars that started before it. Pod-level resources override those of its containers.
pub fn pod_sum(pod: &Value, field: &str) -> ResourceList {
    let list =
        |name: &str| pod.pointer(&format!("/spec/{name}")).and_then(Value::as_array).cloned().unwrap_or_default();
    let of = |container: &Value| resource_list(container.pointer(&format!("/resources/{field}")));
    let mut total = ResourceList::new();
    let mut sidecars = ResourceList::new();
    let mut greediest = ResourceList::new();
    for container in list("containers") {
        add(&mut total, &of(&container));
    }
    for container in list("initContainers") {
        let mut during = of(&container);
        if container["restartPolicy"] == "Always" {
            add(&mut total, &during);
            add(&mut sidecars, &during);
            continue;
        }
        add(&mut during, &sidecars);
        raise(&mut greediest, during);
    }
    raise(&mut total, greediest);
    total.extend(resource_list(pod.pointer(&format!("/spec/resources/{field}"))));
    total
}

/// Raises each quantity to the greater of both, by name.
fn raise(sum: &mut ResourceList, other: ResourceList) {
    for (name, quantity) in other {
        let slot = sum.entry(name).or_insert_with(Quantity::zero);
        if *slot < quantity {
            *slot = quantity;
        }
    }
}

fn service(service: &Value) -> ResourceList {
    let kind = service.pointer("/spec/type").and_then(Value::as_str).unwrap_or_default();
    let ports = service.pointer("/spec/ports").and_then(Value::as_array).cloned().unwrap_or_default();
    let unasked = service.pointer("/spec/allocateLoadBalancerNodePorts") == Some(&Value::Bool(false));
    let node_ports = match kind {
        "NodePort" => ports.len(),
        "LoadBalancer" if unasked => ports.iter().filter(|port| port["nodePort"].as_i64().unwrap_or(0) != 0).count(),
        "LoadBalancer" => ports.len(),
        _ => 0,
    };
    ResourceList::from([
        ("services.nodeports".to_owned(), number(node_ports)),
        ("services.loadbalancers".to_owned(), number(usize::from(kind == "LoadBalancer"))),
    ])
}

fn claim(claim: &Value) -> ResourceList {
    let storage = resource_list(claim.pointer("/spec/resources/requests")).remove("storage");
    let annotated = claim.pointer("/metadata/annotations/volume.beta.kubernetes.io~1storage-class");
    let class = annotated.or_else(|| claim.pointer("/spec/storageClassName")).and_then(Value::as_str);
    let mut used = ResourceList::new();
    if let Some(class) = class.filter(|class| !class.is_empty()) {
        used.insert(format!("{class}.storageclass.storage.k8s.io/persistentvolumeclaims"), number(1));
        if let Some(storage) = &storage {
            used.insert(format!("{class}.storageclass.storage.k8s.io/requests.storage"), storage.clone());
        }
    }
    used.extend(storage.map(|storage| ("requests.storage".to_owned(), storage)));
    used
}

/// Returns the most devices of each class that a ResourceClaim may get.
fn devices(claim: &Value) -> ResourceList {
    let mut used = ResourceList::new();
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    for request in list(&claim["spec"]["devices"]["requests"]) {
        let exactly = request.get("exactly").filter(|exactly| exactly.is_object());
        let alternatives = exactly.map_or_else(|| list(&request["firstAvailable"]), |exactly| vec![exactly.clone()]);
        let mut most = ResourceList::new();
        for one in &alternatives {
            let class = one["deviceClassName"].as_str().unwrap_or_default();
            let name = format!("{class}{DEVICES}");
            let count = device_count(one);
            let known = most.entry(name).or_insert_with(Quantity::zero);
            if *known < count {
                *known = count;
            }
        }
        add(&mut used, &most);
    }
    used
}

fn device_count(request: &Value) -> Quantity {
    match request["allocationMode"].as_str() {
        Some("All") => number(MAX_ALLOCATED_DEVICES),
        Some("ExactCount") => {
            number(request["count"].as_u64().and_then(|count| usize::try_from(count).ok()).unwrap_or(0))
        }
        _ => Quantity::zero(),
    }
}

/// Reports whether a quota's scopes select the object. A quota with scopes applies to pods, or to claims if it selects
/// them by their VolumeAttributesClass.
pub fn is_in_scope(quota: &Value, plural: &str, object: &Value) -> bool {
    let list = |pointer: &str| quota.pointer(pointer).and_then(Value::as_array).cloned().unwrap_or_default();
    let scopes = list("/spec/scopes");
    let terms = list("/spec/scopeSelector/matchExpressions");
    scopes.iter().all(|scope| matches_scope(scope.as_str().unwrap_or_default(), plural, object))
        && terms.iter().all(|term| matches_term(term, plural, object))
}

/// Reports whether an update moves an object from the scope of some quotas to that of others: a pod that gets a
/// deadline.
pub fn changes_scope(plural: &str, old: &Value, new: &Value) -> bool {
    match plural {
        "pods" => is_terminating(old) != is_terminating(new),
        "persistentvolumeclaims" => attributes_classes(old) != attributes_classes(new),
        _ => false,
    }
}

/// Returns the VolumeAttributesClasses of a claim: the requested one, the volume's current one, and the one that the
/// volume is being changed to. The claim counts for each.
fn attributes_classes(claim: &Value) -> BTreeSet<&str> {
    let fields = [
        "/spec/volumeAttributesClassName",
        "/status/currentVolumeAttributesClassName",
        "/status/modifyVolumeStatus/targetVolumeAttributesClassName",
    ];
    let names = fields.into_iter().filter_map(|field| claim.pointer(field)?.as_str());
    names.filter(|name| !name.is_empty()).collect()
}

/// Reports whether the pod ends by itself, at its deadline.
fn is_terminating(pod: &Value) -> bool {
    pod.pointer("/spec/activeDeadlineSeconds").and_then(Value::as_i64).is_some()
}

fn matches_scope(scope: &str, plural: &str, pod: &Value) -> bool {
    plural == "pods"
        && match scope {
            "Terminating" => is_terminating(pod),
            "NotTerminating" => !is_terminating(pod),
            "BestEffort" => is_best_effort(pod),
            "NotBestEffort" => !is_best_effort(pod),
            "CrossNamespacePodAffinity" => has_cross_namespace_affinity(pod),
            _ => false,
        }
}

/// Reports whether the pod has no requests or limits of CPU or memory.
fn is_best_effort(pod: &Value) -> bool {
    let asks = |value: &Value| {
        let mut all =
            ["requests", "limits"].into_iter().flat_map(|f| resource_list(value.pointer(&format!("/resources/{f}"))));
        all.any(|(name, quantity)| matches!(name.as_str(), "cpu" | "memory") && !quantity.is_zero())
    };
    let of = |field: &str| pod["spec"][field].as_array().cloned().unwrap_or_default();
    !asks(&pod["spec"]) && !of("containers").iter().chain(&of("initContainers")).any(asks)
}

/// Reports whether the pod's affinity to other pods names namespaces, or selects them.
fn has_cross_namespace_affinity(pod: &Value) -> bool {
    let (required, preferred) =
        ("requiredDuringSchedulingIgnoredDuringExecution", "preferredDuringSchedulingIgnoredDuringExecution");
    let across = |term: &Value| {
        term["namespaces"].as_array().is_some_and(|names| !names.is_empty()) || !term["namespaceSelector"].is_null()
    };
    ["podAffinity", "podAntiAffinity"].into_iter().any(|kind| {
        let affinity = &pod["spec"]["affinity"][kind];
        let plain = affinity[required].as_array().into_iter().flatten();
        let weighted = affinity[preferred].as_array().into_iter().flatten().map(|term| &term["podAffinityTerm"]);
        plain.chain(weighted).any(across)
    })
}

fn matches_term(term: &Value, plural: &str, object: &Value) -> bool {
    let scope = term["scopeName"].as_str().unwrap_or_default();
    let classes: BTreeSet<&str> = match (scope, plural) {
        ("PriorityClass", "pods") => {
            let class = object.pointer("/spec/priorityClassName").and_then(Value::as_str);
            class.into_iter().filter(|class| !class.is_empty()).collect()
        }
        ("VolumeAttributesClass", "persistentvolumeclaims") => attributes_classes(object),
        _ => return matches_scope(scope, plural, object),
    };
    let is_named = |class: &&str| term["values"].as_array().is_some_and(|values| values.iter().any(|v| v == class));
    match term["operator"].as_str().unwrap_or_default() {
        "In" => classes.iter().any(is_named),
        "NotIn" => classes.is_empty() || !classes.iter().all(is_named),
        "Exists" => !classes.is_empty(),
        "DoesNotExist" => classes.is_empty(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn show(resource_list: &ResourceList) -> String {
        resource_list.iter().map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn objects_use_what_they_request() {
        let pod = json!({ "spec": {
            "containers": [{ "resources": { "requests": { "cpu": "100m" }, "limits": { "cpu": "1" } } }, { "resources": { "requests": { "cpu": "200m" } } }],
            "initContainers": [{ "resources": { "requests": { "cpu": "500m", "memory": "1Mi" } } }] } });
        assert_eq!(
            show(&usage("", "pods", &pod)),
            "count/pods=1 cpu=500m limits.cpu=1 memory=1Mi pods=1 requests.cpu=500m requests.memory=1Mi"
        );
        let done = json!({ "status": { "phase": "Failed" } });
        assert_eq!(show(&usage("", "pods", &done)), "");
        let service = json!({ "spec": { "type": "NodePort", "ports": [{}, {}] } });
        assert_eq!(
            show(&usage("", "services", &service)),
            "count/services=1 services=1 services.loadbalancers=0 services.nodeports=2"
        );
        let unasked = json!({ "spec": { "type": "LoadBalancer", "allocateLoadBalancerNodePorts": false, "ports": [{}, {"nodePort": 30000}] } });
        assert_eq!(
            show(&usage("", "services", &unasked)),
            "count/services=1 services=1 services.loadbalancers=1 services.nodeports=1"
        );
        assert_eq!(show(&usage("apps", "deployments", &json!({}))), "count/deployments.apps=1");
        let claim =
            json!({ "spec": { "storageClassName": "gold", "resources": { "requests": { "storage": "1Gi" } } } });
        assert_eq!(
            show(&usage("", "persistentvolumeclaims", &claim)),
            "count/persistentvolumeclaims=1 gold.storageclass.storage.k8s.io/persistentvolumeclaims=1 gold.storageclass.storage.k8s.io/requests.storage=1Gi persistentvolumeclaims=1 requests.storage=1Gi"
        );
    }

    #[test]
    fn an_init_container_runs_beside_the_sidecars_before_it() {
        let container = |cpu: &str, always: bool| {
            let mut container = json!({ "resources": { "requests": { "cpu": cpu } } });
            if always {
                container["restartPolicy"] = json!("Always");
            }
            container
        };
        let pod = json!({ "spec": {
            "initContainers": [container("100m", true), container("500m", false), container("200m", true)],
            "containers": [container("150m", false)] } });
        assert_eq!(show(&pod_resources(&pod, "requests")), "cpu=600m");
    }

    #[test]
    fn a_resource_claim_counts_its_devices_by_class() {
        let exactly = |class: &str, mode: &str, count: u64| json!({ "exactly": { "deviceClassName": class, "allocationMode": mode, "count": count } });
        let either = json!({ "firstAvailable": [
            { "deviceClassName": "gold", "allocationMode": "ExactCount", "count": 3 },
            { "deviceClassName": "gold", "allocationMode": "ExactCount", "count": 1 },
            { "deviceClassName": "tin", "allocationMode": "ExactCount", "count": 2 },
        ] });
        let requests = [exactly("gold", "ExactCount", 2), exactly("iron", "All", 0), either];
        let claim = json!({ "spec": { "devices": { "requests": requests } } });
        assert_eq!(
            show(&usage("resource.k8s.io", "resourceclaims", &claim)),
            "count/resourceclaims.resource.k8s.io=1 gold.deviceclass.resource.k8s.io/devices=5 \
             iron.deviceclass.resource.k8s.io/devices=32 tin.deviceclass.resource.k8s.io/devices=2"
        );
    }

    #[test]
    fn devices_count_once_for_a_pod_and_its_claim_of_extended_resources() {
        let implicit = "deviceclass.resource.kubernetes.io/gpu";
        let quota = json!({ "spec": { "hard": {
            "requests.example.com/gpu": "9", (format!("requests.{implicit}")): "9",
            "gpu.deviceclass.resource.k8s.io/devices": "9" } } });
        let requests = json!({ "requests": { "example.com/gpu": "1", (implicit): "1" } });
        let pod =
            json!({ "metadata": { "name": "p", "uid": "u" }, "spec": { "containers": [{ "resources": requests }] } });
        let claim = |name: &str, count: u64, owner: Option<&str>| {
            let exactly = json!({ "deviceClassName": "gpu", "allocationMode": "ExactCount", "count": count });
            let mut claim = json!({ "metadata": { "name": name }, "spec": { "devices": { "requests": [{ "exactly": exactly }] } } });
            if let Some(uid) = owner {
                claim["metadata"]["annotations"] = json!({ "resource.kubernetes.io/extended-resource-claim": "true" });
                let owner = json!({ "apiVersion": "v1", "kind": "Pod", "name": "p", "uid": uid, "controller": true });
                claim["metadata"]["ownerReferences"] = json!([owner]);
            }
            claim
        };
        let class = json!({ "metadata": { "name": "gpu" }, "spec": { "extendedResourceName": "example.com/gpu" } });
        let extended = extended_resources([class].into_iter());
        let used = |claims: Vec<Value>| {
            let claims =
                claims.into_iter().map(|object| Counted { group: "resource.k8s.io", plural: "resourceclaims", object });
            let pod = Counted { group: "", plural: "pods", object: pod.clone() };
            let objects: Vec<Counted<'_>> = [pod].into_iter().chain(claims).collect();
            in_use(&quota, &extended, &objects).values().map(ToString::to_string).collect::<Vec<_>>().join(" ")
        };
        // The devices, the implicit name and the explicit one, in this order.
        assert_eq!(used(vec![claim("made", 2, Some("u"))]), "2 2 2", "one more than the pod requests");
        assert_eq!(used(vec![claim("made", 1, Some("u"))]), "1 1 1", "as many as the pod requests");
        assert_eq!(used(vec![claim("made", 2, Some("u")), claim("external", 1, None)]), "3 3 3");
        assert_eq!(used(vec![claim("made", 2, Some("other"))]), "2 3 3", "it is another pod's");
        assert_eq!(used(vec![claim("a", 2, Some("u")), claim("b", 2, Some("u"))]), "4 4 4", "a pod has one such claim");
    }

    #[test]
    fn scopes_select_pods() {
        let quota = |scope: &str| json!({ "spec": { "scopes": [scope] } });
        let pod = json!({ "spec": { "containers": [{}], "activeDeadlineSeconds": 5 } });
        assert!(is_in_scope(&quota("Terminating"), "pods", &pod) && is_in_scope(&quota("BestEffort"), "pods", &pod));
        assert!(
            !is_in_scope(&quota("NotBestEffort"), "pods", &pod)
                && !is_in_scope(&quota("Terminating"), "services", &pod)
        );
        let by_class = json!({ "spec": { "scopeSelector": { "matchExpressions": [{ "scopeName": "PriorityClass", "operator": "In", "values": ["high"] }] } } });
        assert!(!is_in_scope(&by_class, "pods", &pod));
        assert!(is_in_scope(&by_class, "pods", &json!({ "spec": { "priorityClassName": "high" } })));
        let across = json!({ "spec": { "affinity": { "podAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": [{ "namespaces": ["x"] }] } } } });
        let quota = quota("CrossNamespacePodAffinity");
        assert!(is_in_scope(&quota, "pods", &across) && !is_in_scope(&quota, "pods", &pod));
    }

    #[test]
    fn a_claim_is_in_the_scope_of_every_class_that_it_has_or_requests() {
        let quota = |operator: &str, values: &[&str]| {
            let term = json!({ "scopeName": "VolumeAttributesClass", "operator": operator, "values": values });
            json!({ "spec": { "scopeSelector": { "matchExpressions": [term] } } })
        };
        let claim = |requested: &str, has: &str| {
            json!({ "spec": { "volumeAttributesClassName": requested },
                    "status": { "currentVolumeAttributesClassName": has } })
        };
        let is_in = |operator: &str, values: &[&str], claim: &Value| {
            is_in_scope(&quota(operator, values), "persistentvolumeclaims", claim)
        };
        let changing = claim("silver", "gold");
        assert!(is_in("In", &["silver"], &changing) && is_in("In", &["gold"], &changing));
        assert!(!is_in("In", &["bronze"], &changing) && is_in("NotIn", &["gold"], &changing));
        assert!(!is_in("NotIn", &["gold"], &claim("gold", "gold")));
        assert!(is_in("DoesNotExist", &[], &json!({})) && is_in("Exists", &[], &changing));
        let changes = |old: &Value, new: &Value| changes_scope("persistentvolumeclaims", old, new);
        assert!(changes(&claim("gold", "gold"), &changing) && !changes(&changing, &claim("gold", "silver")));
    }

    #[test]
    fn usage_is_the_sum_of_the_limited_resources() {
        let quota =
            json!({ "spec": { "hard": { "pods": "5", "count/widgets.example.com": "1", "requests.cpu": "1" } } });
        let pod = || json!({ "spec": { "containers": [{ "resources": { "requests": { "cpu": "200m" } } }] } });
        let objects = [("", "pods", pod()), ("", "pods", pod()), ("example.com", "widgets", json!({}))];
        let objects = objects.map(|(group, plural, object)| Counted { group, plural, object });
        assert_eq!(
            show(&in_use(&quota, &ExtendedResources::new(), &objects)),
            "count/widgets.example.com=1 pods=2 requests.cpu=400m"
        );
        let hard = resource_list(quota.pointer("/spec/hard"));
        assert!(concerns(&hard, "example.com", "widgets") && !concerns(&hard, "", "secrets"));
    }
}
