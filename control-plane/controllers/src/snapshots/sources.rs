//! The source of a snapshot: the bound claim, its volume, and the node that alone reaches the volume.

use corten_api::Typed;
use corten_api::k8s_openapi::api::core::v1::{
    Node, NodeSelectorRequirement, NodeSelectorTerm, PersistentVolume, PersistentVolumeClaim,
};
use corten_meta::Key;

use crate::runtime::View;

/// The label by which volumes of one node select it.
const HOSTNAME: &str = "kubernetes.io/hostname";

/// A claim of which a snapshot can be taken, with its volume.
#[derive(Clone, Debug, PartialEq)]
pub struct Source {
    pub claim: PersistentVolumeClaim,
    pub volume: PersistentVolume,
    pub driver: String,
    pub handle: String,
}

/// Finds the volume of a claim. Fails with upstream's sentence on why no snapshot can be taken.
pub fn source(view: &dyn View, claim: PersistentVolumeClaim) -> Result<Source, String> {
    let phase = claim.status.as_ref().and_then(|status| status.phase.as_deref());
    if phase != Some("Bound") {
        let name = claim.name();
        return Err(format!("the PVC {name} is not yet bound to a PV, will not attempt to take a snapshot"));
    }
    let name = claim.spec.as_ref().and_then(|spec| spec.volume_name.clone()).unwrap_or_default();
    let volume: Option<PersistentVolume> = view.typed(&Key::new("", name.clone()));
    let volume = volume.ok_or_else(|| format!("failed to retrieve PV {name} from the API server: not found"))?;
    let spec = volume.spec.clone().unwrap_or_default();
    let is_bound = spec.claim_ref.as_ref().is_some_and(|reference| {
        reference.name.as_deref() == Some(claim.name())
            && reference.namespace.as_deref() == Some(claim.namespace())
            && (reference.uid.is_none() || reference.uid == claim.metadata.uid)
    });
    if !is_bound {
        return Err("claim in dataSource not bound or invalid".to_owned());
    }
    let Some(csi) = spec.csi else {
        return Err(format!("snapshotting non-CSI volumes is not supported, volume: {name}"));
    };
    Ok(Source { claim, volume, driver: csi.driver, handle: csi.volume_handle })
}

/// Returns the node that alone reaches a volume: its loops take the snapshots.
pub fn node_of(view: &dyn View, volume: &PersistentVolume) -> Option<String> {
    let spec = volume.spec.as_ref()?;
    let terms = &spec.node_affinity.as_ref()?.required.as_ref()?.node_selector_terms;
    let nodes: Vec<Node> = view.all("");
    let is_reached = |node: &&Node| terms.iter().any(|term| selects(term, node));
    let matching: Vec<&Node> = nodes.iter().filter(is_reached).collect();
    match (matching.as_slice(), terms.as_slice()) {
        ([node], _) => Some(node.name().to_owned()),
        (_, [term]) => hostname(term),
        _ => None,
    }
}

/// Returns the hostname that a term demands.
fn hostname(term: &NodeSelectorTerm) -> Option<String> {
    let demanded = term.match_expressions.iter().flatten().find(|one| one.key == HOSTNAME && one.operator == "In")?;
    match demanded.values.as_deref() {
        Some([name]) => Some(name.clone()),
        _ => None,
    }
}

/// Reports whether all expressions of a term hold for the labels of a node. Storage drivers demand values of topology
/// keys, and our own that the label of a volume's new primary does not exist.
fn selects(term: &NodeSelectorTerm, node: &Node) -> bool {
    let labels = node.metadata.labels.clone().unwrap_or_default();
    let holds = |one: &NodeSelectorRequirement| {
        let value = labels.get(&one.key);
        let is_listed = value.is_some_and(|value| one.values.iter().flatten().any(|allowed| allowed == value));
        match one.operator.as_str() {
            "In" => is_listed,
            "DoesNotExist" => value.is_none(),
            _ => false,
        }
    };
    term.match_fields.is_none() && term.match_expressions.iter().flatten().all(holds)
}
