//! Every plugin, one file each, and the one ordered list that is registry, order and weights.

mod image_locality;
mod inter_pod_affinity;
mod node_affinity;
mod node_name;
mod node_ports;
mod node_resources_balanced_allocation;
mod node_resources_fit;
mod node_unschedulable;
mod pod_topology_spread;
mod priority_sort;
mod scheduling_gates;
mod taint_toleration;

use crate::framework::Plugin;

/// The default profile: a plugin and the weight of its score.
pub const PLUGINS: [(&dyn Plugin, i64); 12] = [
    (&scheduling_gates::SchedulingGates, 0),
    (&priority_sort::PrioritySort, 0),
    (&node_unschedulable::NodeUnschedulable, 0),
    (&node_name::NodeName, 0),
    (&taint_toleration::TaintToleration, 3),
    (&node_affinity::NodeAffinity, 2),
    (&node_ports::NodePorts, 0),
    (&node_resources_fit::NodeResourcesFit, 1),
    (&pod_topology_spread::PodTopologySpread, 2),
    (&inter_pod_affinity::InterPodAffinity, 2),
    (&node_resources_balanced_allocation::NodeResourcesBalancedAllocation, 1),
    (&image_locality::ImageLocality, 1),
];

/// Where a plugin stands in the list.
pub fn by_name(name: &str) -> Option<&'static dyn Plugin> {
    PLUGINS.iter().map(|(plugin, _)| *plugin).find(|plugin| plugin.name() == name)
}
