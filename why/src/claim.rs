//! Claims that wait for a volume.

use corten_client::{ListOptions, Resource};
use corten_meta::Value;

use crate::events;
use crate::objects::{self, items, text};
use crate::{Finding, Sources, generic, snapshot};

const DEFAULT: &str = "/metadata/annotations/storageclass.kubernetes.io~1is-default-class";

pub async fn explain(sources: Sources<'_>, claim: &Value) -> Vec<Finding> {
    match text(claim, "/status/phase") {
        "Bound" => [resize(claim), copy(sources, claim).await].concat(),
        "Lost" => vec![Finding::new(format!(
            "Its volume {} does not exist any more; the data is lost unless a backup has it.",
            text(claim, "/spec/volumeName")
        ))],
        _ => vec![pending(sources, claim).await],
    }
}

/// Explains a claim that a pod needs, if it keeps the pod from being scheduled.
pub async fn blocking(sources: Sources<'_>, namespace: &str, name: &str) -> Vec<Finding> {
    let found = sources.objects.get(&objects::claims(), namespace, name).await;
    let claim = match found {
        Ok(Some(claim)) => claim,
        Ok(None) => {
            return vec![Finding::new(format!("Its claim {name} does not exist in namespace {namespace}."))];
        }
        Err(_) => return Vec::new(),
    };
    if text(&claim, "/status/phase") == "Bound" {
        return Vec::new();
    }
    let finding = pending(sources, &claim).await;
    // A claim that waits for its first consumer is not what keeps that consumer waiting.
    match finding.cause.contains("first pod") {
        true => Vec::new(),
        false => vec![Finding { cause: format!("Its claim {name} is not bound. {}", finding.cause), ..finding }],
    }
}

async fn pending(sources: Sources<'_>, claim: &Value) -> Finding {
    let wanted = claim.pointer("/spec/storageClassName").and_then(Value::as_str);
    let classes = sources.objects.list(&objects::storage_classes(), "", ListOptions::default()).await;
    let classes = classes.unwrap_or_default();
    let name = match wanted {
        Some("") => {
            return Finding::new("It asks for no class, and no volume without a class fits it.")
                .because(wish(claim))
                .help("kubectl get pv");
        }
        Some(name) => name,
        None => match classes.iter().find(|class| text(class, DEFAULT) == "true") {
            Some(class) => corten_meta::name(class),
            None => {
                return Finding::new("It names no class, and the cluster has no default class.")
                    .help("kubectl get storageclass")
                    .help("kubectl annotate storageclass NAME storageclass.kubernetes.io/is-default-class=true");
            }
        },
    };
    let Some(class) = classes.iter().find(|class| corten_meta::name(class) == name) else {
        return Finding::new(format!("Its class {name} does not exist.")).help("kubectl get storageclass");
    };
    if let Some(finding) = source(sources, claim).await {
        return finding;
    }
    let warnings = events::warnings(sources, claim).await;
    if let Some(warning) = warnings.first() {
        return Finding::new(format!("The provisioner {} cannot make its volume.", text(class, "/provisioner")))
            .because(format!("{}: {}", warning.reason, warning.message))
            .because(wish(claim));
    }
    if text(class, "/volumeBindingMode") == "WaitForFirstConsumer" {
        return Finding::new(
            "It waits for its first pod: its class binds when a pod that uses the claim is scheduled.",
        )
        .because(format!("class {name}, volumeBindingMode WaitForFirstConsumer"));
    }
    Finding::new(format!("It waits for the provisioner {}.", text(class, "/provisioner")))
        .because(wish(claim))
        .help("kubectl get pods -A | grep -i csi")
}

/// Explains a claim that is made of a backup which does not exist, or is not ready.
async fn backup(sources: Sources<'_>, claim: &Value) -> Option<Finding> {
    let name = text(claim, "/spec/dataSourceRef/name");
    let namespace = corten_meta::namespace(claim);
    let resource = Resource::new("storage.corten.dev", "v1alpha1", "volumebackups", true);
    match sources.objects.get(&resource, namespace, name).await {
        Ok(None) => Some(
            Finding::new(format!("The VolumeBackup {name}, of which it is to be made, does not exist."))
                .help(format!("kubectl get volumebackups -n {namespace}")),
        ),
        Ok(Some(found)) => generic::explain(&found, &[]).into_iter().next().map(|why| {
            let cause = format!("The VolumeBackup {name}, of which it is to be made, is not ready. {}", why.cause);
            Finding { cause, ..why }
        }),
        _ => None,
    }
}

/// Explains a claim that is made of a snapshot or a backup which does not exist, or is not ready.
async fn source(sources: Sources<'_>, claim: &Value) -> Option<Finding> {
    if text(claim, "/spec/dataSourceRef/kind") == "VolumeBackup" {
        return backup(sources, claim).await;
    }
    if text(claim, "/spec/dataSource/kind") != "VolumeSnapshot" {
        return None;
    }
    let name = text(claim, "/spec/dataSource/name");
    let namespace = corten_meta::namespace(claim);
    match sources.objects.get(&snapshot::snapshots(), namespace, name).await {
        Ok(None) => Some(
            Finding::new(format!("The snapshot {name}, of which it is to be made, does not exist."))
                .help(format!("kubectl get volumesnapshots -n {namespace}")),
        ),
        Ok(Some(found)) if !snapshot::is_ready(&found) => {
            let why = snapshot::unready(sources, &found).await;
            let cause = format!("The snapshot {name}, of which it is to be made, is not ready. {}", why.cause);
            Some(Finding { cause, ..why })
        }
        _ => None,
    }
}

fn wish(claim: &Value) -> String {
    let modes: Vec<&str> = items(claim, "/spec/accessModes").filter_map(Value::as_str).collect();
    format!("it asks for {} ({})", text(claim, "/spec/resources/requests/storage"), modes.join(", "))
}

/// Explains the copy of a claim's volume on another node, if it should have one and has none that is in time.
async fn copy(sources: Sources<'_>, claim: &Value) -> Vec<Finding> {
    let resource = Resource::new("storage.corten.dev", "v1alpha1", "volumereplicas", false);
    let name = text(claim, "/spec/volumeName");
    let Ok(Some(replica)) = sources.objects.get(&resource, "", name).await else { return Vec::new() };
    let synced = items(&replica, "/status/conditions").find(|one| text(one, "/type") == "Synced");
    if synced.is_some_and(|one| text(one, "/status") == "True") {
        return Vec::new();
    }
    let cause = match text(&replica, "/status/standby/syncedTime") {
        "" => "Its volume has no copy on another node: with its node its data are lost.".to_owned(),
        time => {
            format!("The copy of its volume on another node is of {time}: what was written since is on one node only.")
        }
    };
    let message = synced.map_or("the controller has not seen it yet", |one| text(one, "/message"));
    let nodes = format!(
        "primary {}, standby {}, epoch {}",
        text(&replica, "/spec/primaryNode"),
        Some(text(&replica, "/spec/standbyNode")).filter(|node| !node.is_empty()).unwrap_or("none"),
        replica.pointer("/spec/epoch").and_then(Value::as_u64).unwrap_or_default()
    );
    let finding = Finding::new(cause).because(message).because(nodes);
    vec![finding.help(format!("kubectl describe volumereplica {name}"))]
}

/// Explains a bound claim whose growth is not done.
fn resize(claim: &Value) -> Vec<Finding> {
    let growing = items(claim, "/status/conditions").filter(|one| text(one, "/type").contains("Resiz"));
    growing
        .map(|one| Finding::new(format!("Its size changes: {}.", text(one, "/type"))).because(text(one, "/message")))
        .collect()
}
