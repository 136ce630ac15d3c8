//! All plugins, one file each, and the ordered list that is registry, order and default weights.

pub mod args;
mod default_binder;
mod default_preemption;
pub mod dynamic_resources;
mod image_locality;
mod inter_pod_affinity;
mod node_affinity;
mod node_declared_features;
mod node_name;
mod node_ports;
pub mod node_resources;
mod node_resources_balanced_allocation;
mod node_resources_fit;
mod node_unschedulable;
mod node_volume_limits;
mod pod_topology_spread;
mod priority_sort;
mod scheduling_gates;
mod taint_toleration;
mod volume_binding;
mod volume_restrictions;
mod volume_zone;

use crate::framework::{Plugin, Point};

use args::Args;
pub use default_binder::DefaultBinder;
pub use default_preemption::DefaultPreemption;
pub use dynamic_resources::DynamicResources;
pub use image_locality::ImageLocality;
pub use inter_pod_affinity::InterPodAffinity;
pub use node_affinity::NodeAffinity;
pub use node_declared_features::NodeDeclaredFeatures;
pub use node_name::NodeName;
pub use node_ports::NodePorts;
pub use node_resources_balanced_allocation::NodeResourcesBalancedAllocation;
pub use node_resources_fit::NodeResourcesFit;
pub use node_unschedulable::NodeUnschedulable;
pub use node_volume_limits::NodeVolumeLimits;
pub use pod_topology_spread::{Defaults, PodTopologySpread};
pub use priority_sort::PrioritySort;
pub use scheduling_gates::SchedulingGates;
pub use taint_toleration::TaintToleration;
pub use volume_binding::VolumeBinding;
pub use volume_restrictions::VolumeRestrictions;
pub use volume_zone::VolumeZone;

/// A plugin in the registry: its default weight, its extension points, and its constructor.
pub struct Registered {
    pub name: &'static str,
    pub weight: i64,
    pub points: &'static [Point],
    pub make: fn(&Args) -> Box<dyn Plugin>,
}

macro_rules! plugin {
    ($name:literal, $weight:literal, [$($point:ident),*], $make:expr) => {
        Registered { name: $name, weight: $weight, points: &[$(Point::$point),*], make: $make }
    };
}

/// The default profile, in order.
pub static PLUGINS: [Registered; 20] = [
    plugin!("SchedulingGates", 0, [PreEnqueue], |_| Box::new(SchedulingGates)),
    plugin!("PrioritySort", 0, [QueueSort], |_| Box::new(PrioritySort)),
    plugin!("NodeUnschedulable", 0, [Filter], |_| Box::new(NodeUnschedulable)),
    plugin!("NodeName", 0, [Filter], |_| Box::new(NodeName)),
    plugin!("TaintToleration", 3, [Filter, PreScore, Score], |_| Box::new(TaintToleration)),
    plugin!("NodeAffinity", 2, [PreFilter, Filter, PreScore, Score], |args| Box::new(args.node_affinity())),
    plugin!("NodePorts", 0, [PreFilter, Filter], |_| Box::new(NodePorts)),
    plugin!("NodeResourcesFit", 1, [PreFilter, Filter, PreScore, Score], |args| Box::new(args.node_resources_fit())),
    plugin!("VolumeRestrictions", 0, [PreFilter, Filter], |_| Box::new(VolumeRestrictions)),
    plugin!("NodeVolumeLimits", 0, [PreFilter, Filter], |_| Box::new(NodeVolumeLimits)),
    plugin!("VolumeBinding", 0, [PreFilter, Filter, Reserve, PreBind], |args| Box::new(args.volume_binding())),
    plugin!("VolumeZone", 0, [PreFilter, Filter], |_| Box::new(VolumeZone)),
    plugin!("PodTopologySpread", 2, [PreFilter, Filter, PreScore, Score], |args| Box::new(args.pod_topology_spread())),
    plugin!("InterPodAffinity", 2, [PreFilter, Filter, PreScore, Score], |args| Box::new(args.inter_pod_affinity())),
    plugin!(
        "DynamicResources",
        2,
        [PreEnqueue, PreFilter, Filter, PostFilter, PreScore, Score, Reserve, PreBind],
        |_| Box::new(DynamicResources::default())
    ),
    plugin!("DefaultPreemption", 0, [PostFilter], |args| Box::new(args.default_preemption())),
    plugin!("NodeResourcesBalancedAllocation", 1, [PreScore, Score], |args| Box::new(args.balanced_allocation())),
    plugin!("ImageLocality", 1, [Score], |_| Box::new(ImageLocality)),
    plugin!("DefaultBinder", 0, [Bind], |_| Box::new(DefaultBinder)),
    plugin!("NodeDeclaredFeatures", 0, [PreFilter, Filter], |_| Box::new(NodeDeclaredFeatures)),
];

pub fn registered(name: &str) -> Option<&'static Registered> {
    PLUGINS.iter().find(|plugin| plugin.name == name)
}
