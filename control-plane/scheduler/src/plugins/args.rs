//! The arguments of plugins, each validated when it is read.

use std::time::Duration;

use corten_api::Typed;
use corten_api::k8s_openapi::api::core::v1::{NodeAffinity as Affinity, Pod, PodSpec};
use corten_meta::Value;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::json;

use super::node_resources::{ResourceSpec, Strategy, cpu_and_memory};
use super::{
    DefaultPreemption, Defaults, InterPodAffinity, NodeAffinity, NodeResourcesBalancedAllocation, NodeResourcesFit,
    PodTopologySpread, VolumeBinding,
};
use crate::framework::Limits;
use crate::rows::{Spread, demand};

/// The version of the configuration and of the arguments in it.
pub const API_VERSION: &str = "kubescheduler.config.k8s.io/v1";

/// The arguments of all plugins of a profile; those that are not set have upstream's defaults.
#[derive(Clone, Debug)]
pub struct Args {
    added_affinity: Option<Affinity>,
    ignored_resources: Vec<String>,
    ignored_groups: Vec<String>,
    strategy: Strategy,
    fit_resources: Vec<ResourceSpec>,
    balanced_resources: Vec<ResourceSpec>,
    bind_timeout: Duration,
    /// None means the system defaults.
    default_constraints: Option<Vec<Spread>>,
    hard_pod_affinity_weight: i64,
    ignore_preferred_terms_of_existing_pods: bool,
    preemption: Limits,
}

impl Default for Args {
    fn default() -> Args {
        Args {
            added_affinity: None,
            ignored_resources: Vec::new(),
            ignored_groups: Vec::new(),
            strategy: Strategy::LeastAllocated,
            fit_resources: cpu_and_memory(),
            balanced_resources: cpu_and_memory(),
            bind_timeout: Duration::from_secs(600),
            default_constraints: None,
            hard_pod_affinity_weight: 1,
            ignore_preferred_terms_of_existing_pods: false,
            preemption: DefaultPreemption::default().0,
        }
    }
}

impl Args {
    pub fn node_affinity(&self) -> NodeAffinity {
        NodeAffinity::with_added(self.added_affinity.clone())
    }

    pub fn node_resources_fit(&self) -> NodeResourcesFit {
        NodeResourcesFit {
            ignored_resources: self.ignored_resources.clone(),
            ignored_groups: self.ignored_groups.clone(),
            strategy: self.strategy.clone(),
            resources: self.fit_resources.clone(),
        }
    }

    pub fn balanced_allocation(&self) -> NodeResourcesBalancedAllocation {
        NodeResourcesBalancedAllocation { resources: self.balanced_resources.clone() }
    }

    pub fn volume_binding(&self) -> VolumeBinding {
        VolumeBinding { timeout: self.bind_timeout }
    }

    pub fn pod_topology_spread(&self) -> PodTopologySpread {
        let defaults = self.default_constraints.clone().map_or(Defaults::System, Defaults::List);
        PodTopologySpread { defaults }
    }

    pub fn inter_pod_affinity(&self) -> InterPodAffinity {
        InterPodAffinity {
            hard_pod_affinity_weight: self.hard_pod_affinity_weight,
            ignore_preferred_terms_of_existing_pods: self.ignore_preferred_terms_of_existing_pods,
        }
    }

    pub fn default_preemption(&self) -> DefaultPreemption {
        DefaultPreemption(self.preemption)
    }

    /// Ignores resources that an extender manages alone.
    pub fn ignore_resources(&mut self, names: impl Iterator<Item = String>) {
        self.ignored_resources.extend(names);
    }

    /// Sets the arguments of one plugin.
    pub fn set(&mut self, plugin: &str, args: Value) -> Result<(), String> {
        let args = untyped(plugin, args)?;
        match plugin {
            "NodeAffinity" => self.set_node_affinity(args),
            "NodeResourcesFit" => self.set_fit(decode(args)?),
            "NodeResourcesBalancedAllocation" => {
                let given: BalancedArgs = decode(args)?;
                self.balanced_resources = resources(given.resources, 1)?;
                Ok(())
            }
            "VolumeBinding" => self.set_volume_binding(&decode(args)?),
            "PodTopologySpread" => self.set_spread(decode(args)?),
            "InterPodAffinity" => self.set_inter_pod_affinity(&decode(args)?),
            "DefaultPreemption" => self.set_preemption(&decode(args)?),
            _ if args.as_object().is_some_and(serde_json::Map::is_empty) => Ok(()),
            _ => Err("the plugin takes no arguments".to_owned()),
        }
    }

    fn set_node_affinity(&mut self, args: Value) -> Result<(), String> {
        let given: NodeAffinityArgs = decode(args)?;
        let spec = pod_spec(json!({"affinity": {"nodeAffinity": given.added_affinity}}))?;
        self.added_affinity = spec.affinity.and_then(|affinity| affinity.node_affinity);
        Ok(())
    }

    fn set_fit(&mut self, given: FitArgs) -> Result<(), String> {
        self.ignored_resources = given.ignored_resources;
        self.ignored_groups = given.ignored_resource_groups;
        if let Some(group) = self.ignored_groups.iter().find(|group| group.contains('/')) {
            return Err(format!("ignoredResourceGroups: {group:?} must not contain '/'"));
        }
        let Some(strategy) = given.scoring_strategy else { return Ok(()) };
        self.fit_resources = resources(strategy.resources, 100)?;
        self.strategy = match strategy.kind.as_str() {
            "" | "LeastAllocated" => Strategy::LeastAllocated,
            "MostAllocated" => Strategy::MostAllocated,
            "RequestedToCapacityRatio" => {
                let shape = strategy.requested_to_capacity_ratio.unwrap_or_default().shape;
                Strategy::RequestedToCapacityRatio(shape_of(&shape)?)
            }
            other => return Err(format!("scoringStrategy.type: {other:?} is not known")),
        };
        Ok(())
    }

    fn set_volume_binding(&mut self, given: &VolumeBindingArgs) -> Result<(), String> {
        if given.shape.is_some() {
            return Err("shape: needs the feature StorageCapacityScoring, which is not there".to_owned());
        }
        let seconds = given.bind_timeout_seconds.unwrap_or(600);
        let seconds = u64::try_from(seconds).map_err(|_| "bindTimeoutSeconds: must not be negative".to_owned())?;
        self.bind_timeout = Duration::from_secs(seconds);
        Ok(())
    }

    fn set_spread(&mut self, given: SpreadArgs) -> Result<(), String> {
        match given.defaulting_type.as_str() {
            "" | "System" if given.default_constraints.is_empty() => {
                self.default_constraints = None;
                return Ok(());
            }
            "List" => {}
            "" | "System" => return Err("defaultConstraints: needs defaultingType List".to_owned()),
            other => return Err(format!("defaultingType: {other:?} is not known")),
        }
        let spec = pod_spec(json!({"topologySpreadConstraints": given.default_constraints}))?;
        let mut constraints = Vec::new();
        for constraint in spec.topology_spread_constraints.into_iter().flatten() {
            if constraint.label_selector.is_some() {
                return Err("defaultConstraints: labelSelector must not be set".to_owned());
            }
            if constraint.max_skew < 1 || constraint.topology_key.is_empty() {
                return Err("defaultConstraints: maxSkew must be positive and topologyKey set".to_owned());
            }
            if !matches!(constraint.when_unsatisfiable.as_str(), "DoNotSchedule" | "ScheduleAnyway") {
                return Err("defaultConstraints: whenUnsatisfiable must be DoNotSchedule or ScheduleAnyway".to_owned());
            }
            constraints.push(demand::spread(&constraint, &Default::default()));
        }
        self.default_constraints = Some(constraints);
        Ok(())
    }

    fn set_inter_pod_affinity(&mut self, given: &InterPodAffinityArgs) -> Result<(), String> {
        let weight = given.hard_pod_affinity_weight.unwrap_or(1);
        if !(0..=100).contains(&weight) {
            return Err("hardPodAffinityWeight: must be from 0 to 100".to_owned());
        }
        self.hard_pod_affinity_weight = weight;
        self.ignore_preferred_terms_of_existing_pods = given.ignore_preferred_terms_of_existing_pods;
        Ok(())
    }

    fn set_preemption(&mut self, given: &PreemptionArgs) -> Result<(), String> {
        let percentage = given.min_candidate_nodes_percentage.unwrap_or(10);
        let absolute = given.min_candidate_nodes_absolute.unwrap_or(100);
        if percentage > 100 {
            return Err("minCandidateNodesPercentage: must be from 0 to 100".to_owned());
        }
        if percentage == 0 && absolute == 0 {
            return Err("minCandidateNodesPercentage and minCandidateNodesAbsolute cannot both be zero".to_owned());
        }
        self.preemption = Limits { percentage, absolute };
        Ok(())
    }
}

/// Removes `apiVersion` and `kind`, which must be the plugin's own if set.
fn untyped(plugin: &str, mut args: Value) -> Result<Value, String> {
    let Some(fields) = args.as_object_mut() else { return Err("must be an object".to_owned()) };
    let kind = fields.remove("kind").unwrap_or(Value::Null);
    let version = fields.remove("apiVersion").unwrap_or(Value::Null);
    if !kind.is_null() && kind != format!("{plugin}Args") {
        return Err(format!("kind must be {plugin}Args"));
    }
    if !version.is_null() && version != API_VERSION {
        return Err(format!("apiVersion must be {}", API_VERSION));
    }
    Ok(args)
}

pub fn decode<T: DeserializeOwned>(value: Value) -> Result<T, String> {
    serde_json::from_value(value).map_err(|error| error.to_string())
}

/// Decodes API types through a pod spec, as their own package does.
fn pod_spec(spec: Value) -> Result<PodSpec, String> {
    let pod = Pod::from_value(json!({"apiVersion": "v1", "kind": "Pod", "spec": spec})).map_err(|e| e.to_string())?;
    Ok(pod.spec.unwrap_or_default())
}

/// Returns the resources; without a list, CPU and memory.
fn resources(given: Vec<ResourceSpec>, most: i64) -> Result<Vec<ResourceSpec>, String> {
    if given.is_empty() {
        return Ok(cpu_and_memory());
    }
    match given.iter().find(|resource| !(1..=most).contains(&resource.weight)) {
        Some(wrong) => Err(format!("resources: weight of {} must be from 1 to {most}", wrong.name)),
        None => Ok(given),
    }
}

fn shape_of(points: &[ShapePoint]) -> Result<Vec<(i64, i64)>, String> {
    let rising = points.windows(2).all(|pair| pair[0].utilization < pair[1].utilization);
    let within = points.iter().all(|p| (0..=100).contains(&p.utilization) && (0..=10).contains(&p.score));
    match !points.is_empty() && rising && within {
        true => Ok(points.iter().map(|point| (point.utilization, point.score * 10)).collect()),
        false => Err("shape: points must have rising utilization from 0 to 100 and scores from 0 to 10".to_owned()),
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct NodeAffinityArgs {
    #[serde(default)]
    added_affinity: Value,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct FitArgs {
    #[serde(default)]
    ignored_resources: Vec<String>,
    #[serde(default)]
    ignored_resource_groups: Vec<String>,
    scoring_strategy: Option<ScoringStrategy>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ScoringStrategy {
    #[serde(default, rename = "type")]
    kind: String,
    #[serde(default)]
    resources: Vec<ResourceSpec>,
    requested_to_capacity_ratio: Option<Ratio>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Ratio {
    #[serde(default)]
    shape: Vec<ShapePoint>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ShapePoint {
    utilization: i64,
    score: i64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BalancedArgs {
    #[serde(default)]
    resources: Vec<ResourceSpec>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct VolumeBindingArgs {
    bind_timeout_seconds: Option<i64>,
    shape: Option<Value>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct SpreadArgs {
    #[serde(default)]
    default_constraints: Vec<Value>,
    #[serde(default)]
    defaulting_type: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct InterPodAffinityArgs {
    hard_pod_affinity_weight: Option<i64>,
    #[serde(default)]
    ignore_preferred_terms_of_existing_pods: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct PreemptionArgs {
    min_candidate_nodes_percentage: Option<usize>,
    min_candidate_nodes_absolute: Option<usize>,
}
