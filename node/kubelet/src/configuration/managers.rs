//! The fields of the CPU, memory and topology managers, and of graceful node shutdown.

use std::collections::BTreeMap;

use corten_meta::Value;
use serde_json::json;

use super::Field;
use super::fields::{Setting, choice, field};
use crate::config::topology_options::MOST_NODES;
use crate::cpus::Options;
use crate::shutdown::Period;
use crate::topology::Policy;

const CLOSEST: &str = "prefer-closest-numa-nodes";
const MOST: &str = "max-allowable-numa-nodes";

pub(super) const FIELDS: &[Field] = &[
    Field {
        name: "cgroupDriver",
        // The runtime reports the cgroup driver, as with upstream; a runtime with the systemd driver is refused.
        get: |_| "cgroupfs".into(),
        set: |_, value| match String::read(value)?.as_str() {
            "cgroupfs" | "systemd" => Ok(()),
            other => Err(format!("{other:?} is neither cgroupfs nor systemd")),
        },
    },
    choice!("cpuManagerPolicy", static_cpu_policy, "none", "static"),
    Field {
        name: "cpuManagerPolicyOptions",
        get: |config| {
            let mut options = config.cpu_options;
            let named = Options::ALL.iter().filter(|(_, option)| *option(&mut options));
            options_of(named.map(|(name, _)| ((*name).to_owned(), "true".to_owned())))
        },
        set: |config, value| {
            config.cpu_options = Options::default();
            for (name, value) in <BTreeMap<String, String>>::read(value)? {
                let known = Options::ALL.iter().find(|(known, _)| *known == name);
                let (_, option) = known.ok_or_else(|| match name.as_str() {
                    "align-by-socket" | "distribute-cpus-across-cores" => {
                        format!("CPU Manager Policy Alpha-level Options not enabled, but option {name:?} provided")
                    }
                    _ => format!("unknown CPU Manager Policy option: {name:?}"),
                })?;
                *option(&mut config.cpu_options) = parse_bool(&name, &value)?;
            }
            Ok(())
        },
    },
    Field {
        name: "reservedSystemCPUs",
        get: |config| config.reserved_cpus.clone().map_or(Value::Null, Value::from),
        set: |config, value| {
            let cpus = Some(String::read(value)?).filter(|cpus| !cpus.is_empty());
            if cpus.as_deref().is_some_and(|cpus| crate::cpus::set::parse(cpus).is_none()) {
                return Err(format!("{value} is not a list of processors"));
            }
            config.reserved_cpus = cpus;
            Ok(())
        },
    },
    choice!("memoryManagerPolicy", static_memory_policy, "None", "Static"),
    Field {
        name: "reservedMemory",
        get: |config| {
            let entry = |(node, limits): &(u32, BTreeMap<String, u64>)| {
                let limits: BTreeMap<&String, String> =
                    limits.iter().map(|(kind, size)| (kind, size.to_string())).collect();
                json!({"numaNode": node, "limits": limits})
            };
            match config.reserved_memory.as_slice() {
                [] => Value::Null,
                entries => entries.iter().map(entry).collect(),
            }
        },
        set: |config, value| {
            let list = value.as_array().ok_or_else(|| format!("{value} is not a list"))?;
            config.reserved_memory = list.iter().map(reserved).collect::<Result<_, String>>()?;
            Ok(())
        },
    },
    Field {
        name: "topologyManagerPolicy",
        get: |config| {
            let named = Policy::ALL.iter().find(|(_, policy)| *policy == config.topology_policy);
            named.map_or(Value::Null, |(name, _)| (*name).into())
        },
        set: |config, value| {
            let wanted = String::read(value)?;
            let found = Policy::ALL.iter().find(|(name, _)| *name == wanted);
            config.topology_policy = found.map(|(_, policy)| *policy).ok_or_else(|| {
                let names: Vec<&str> = Policy::ALL.iter().map(|(name, _)| *name).collect();
                format!("{wanted:?} is none of {}", names.join(", "))
            })?;
            Ok(())
        },
    },
    choice!("topologyManagerScope", topology_of_pods, "container", "pod"),
    Field {
        name: "topologyManagerPolicyOptions",
        get: |config| {
            let options = &config.topology_options;
            let most = (options.most_nodes != MOST_NODES).then(|| (MOST, options.most_nodes.to_string()));
            let closest = options.closest.then(|| (CLOSEST, "true".to_owned()));
            options_of(most.into_iter().chain(closest).map(|(name, value)| (name.to_owned(), value)))
        },
        set: |config, value| {
            let options = &mut config.topology_options;
            *options = crate::topology::Options::default();
            for (name, value) in <BTreeMap<String, String>>::read(value)? {
                match name.as_str() {
                    CLOSEST => options.closest = parse_bool(&name, &value)?,
                    MOST => {
                        let wrong = |_| format!("unable to convert policy option to integer {name:?}: {value:?}");
                        options.most_nodes = value.parse().map_err(wrong)?;
                        if options.most_nodes < MOST_NODES {
                            return Err(format!("the minimum value of {name:?} should not be less than {MOST_NODES}"));
                        }
                    }
                    _ => return Err(format!("unknown Topology Manager Policy option: {name:?}")),
                }
            }
            Ok(())
        },
    },
    field!("shutdownGracePeriod", shutdown.grace_period),
    field!("shutdownGracePeriodCriticalPods", shutdown.critical_grace_period),
    Field {
        name: "shutdownGracePeriodByPodPriority",
        get: |config| {
            let period =
                |period: &Period| json!({"priority": period.priority, "shutdownGracePeriodSeconds": period.seconds});
            match config.shutdown.by_priority.as_slice() {
                [] => Value::Null,
                periods => periods.iter().map(period).collect(),
            }
        },
        set: |config, value| {
            let list = value.as_array().ok_or_else(|| format!("{value} is not a list"))?;
            let field = |entry: &Value, name: &str| entry.get(name).cloned().unwrap_or(Value::Null);
            let period = |entry: &Value| {
                let seconds = Setting::read(&field(entry, "shutdownGracePeriodSeconds"))?;
                Ok(Period { priority: Setting::read(&field(entry, "priority"))?, seconds })
            };
            config.shutdown.by_priority = list.iter().map(period).collect::<Result<_, String>>()?;
            Ok(())
        },
    },
];

fn options_of(named: impl Iterator<Item = (String, String)>) -> Value {
    let named: BTreeMap<String, String> = named.collect();
    if named.is_empty() { Value::Null } else { json!(named) }
}

/// Parses a bool as Go does.
fn parse_bool(name: &str, value: &str) -> Result<bool, String> {
    match value {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err(format!("bad value for option {name:?}: parsing {value:?}: invalid syntax")),
    }
}

/// Parses `{numaNode: 0, limits: {memory: 1Gi}}`.
fn reserved(value: &Value) -> Result<(u32, BTreeMap<String, u64>), String> {
    let limits = <BTreeMap<String, String>>::read(value.get("limits").unwrap_or(&Value::Null))?;
    let sizes = limits.into_iter().map(|(kind, size)| {
        let size = corten_meta::Quantity::parse(&size).map_err(|error| error.to_string())?.as_i64();
        if kind != "memory" && !kind.starts_with("hugepages-") {
            return Err(format!("{kind:?} is not a kind of memory"));
        }
        Ok((kind, u64::try_from(size).map_err(|_| format!("{size} is not a size"))?))
    });
    Ok((Setting::read(value.get("numaNode").unwrap_or(&Value::Null))?, sizes.collect::<Result<_, String>>()?))
}
