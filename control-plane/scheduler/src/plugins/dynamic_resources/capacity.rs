//! Shareable devices: the capacity that a request consumes, by the device's request policy.

use std::collections::BTreeMap;

use corten_api::k8s_openapi::api::resource::v1::{CapacityRequestPolicy, CapacityRequirements, Device, DeviceCapacity};
use corten_meta::Quantity;
use corten_meta::quantity::Format;

/// The consumed capacities, by name.
pub type Taken = BTreeMap<String, Quantity>;

/// Returns the capacity that a request consumes; none if it names a capacity that the device lacks, if the policy
/// forbids the quantity, or if the whole device has less.
pub fn taken(device: &Device, requested: Option<&CapacityRequirements>) -> Option<Taken> {
    let requested = requested.and_then(|requested| requested.requests.as_ref());
    let has = |name: &String| device.capacity.as_ref().is_some_and(|capacity| capacity.contains_key(name));
    if !requested.into_iter().flatten().all(|(name, _)| has(name)) {
        return None;
    }
    let mut taken = Taken::new();
    for (name, capacity) in device.capacity.iter().flatten() {
        let wanted = requested.and_then(|requested| requested.get(name)).map(|quantity| &*quantity.0);
        let consumed = consumed(wanted, capacity)?;
        let policy = capacity.request_policy.as_ref();
        if consumed > quantity(&capacity.value.0)? || !policy.is_none_or(|policy| allows(policy, &consumed)) {
            return None;
        }
        taken.insert(name.clone(), consumed);
    }
    Some(taken)
}

fn quantity(text: &str) -> Option<Quantity> {
    Quantity::parse(text).ok()
}

/// Returns the requested quantity, rounded up by the policy; without a request, the policy's default or the whole
/// capacity.
fn consumed(wanted: Option<&str>, capacity: &DeviceCapacity) -> Option<Quantity> {
    let policy = capacity.request_policy.as_ref();
    let Some(wanted) = wanted else {
        let usual = policy.and_then(|policy| policy.default.as_ref());
        return quantity(&usual.unwrap_or(&capacity.value).0);
    };
    let wanted = quantity(wanted)?;
    if let Some(range) = policy.and_then(|policy| policy.valid_range.as_ref()) {
        let least = quantity(&range.min.0)?;
        return Some(match &range.step {
            _ if wanted < least => least,
            None => wanted,
            Some(step) => {
                let (step, least) = (quantity(&step.0)?.as_value().max(1), least.as_value());
                let steps = (wanted.as_value() - least + step - 1) / step;
                Quantity::from_value(i64::try_from(least + steps * step).ok()?, Format::BinarySi)
            }
        });
    }
    let values = policy.and_then(|policy| policy.valid_values.as_deref()).unwrap_or_default();
    let values: Vec<Quantity> = values.iter().filter_map(|value| quantity(&value.0)).collect();
    Some(values.into_iter().find(|value| *value >= wanted).unwrap_or(wanted))
}

fn allows(policy: &CapacityRequestPolicy, consumed: &Quantity) -> bool {
    if policy.default.as_ref().and_then(|usual| quantity(&usual.0)).as_ref() == Some(consumed) {
        return true;
    }
    if let Some(range) = &policy.valid_range {
        let within = range.max.as_ref().and_then(|most| quantity(&most.0)).is_none_or(|most| *consumed <= most);
        let least = quantity(&range.min.0).map_or(0, |least| least.as_value());
        let step = range.step.as_ref().and_then(|step| quantity(&step.0)).map_or(1, |step| step.as_value().max(1));
        return within && (range.step.is_none() || (consumed.as_value() - least) % step == 0);
    }
    let values = policy.valid_values.as_deref().unwrap_or_default();
    values.is_empty() || values.iter().filter_map(|value| quantity(&value.0)).any(|value| value == *consumed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use corten_api::Typed;
    use corten_api::k8s_openapi::api::resource::v1::ResourceSlice;
    use serde_json::{Value, json};

    fn of(policy: Value, requested: Value) -> Option<String> {
        let device = json!({"name": "d", "capacity": {"memory": {"value": "16Gi", "requestPolicy": policy}}});
        let spec = json!({"driver": "d", "allNodes": true, "devices": [device],
            "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1}});
        let slice = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "s"}, "spec": spec});
        let slice = ResourceSlice::from_value(slice).unwrap();
        let requests = requested.as_object().unwrap().iter();
        let text = |value: &Value| {
            corten_api::k8s_openapi::apimachinery::pkg::api::resource::Quantity(value.as_str().unwrap().to_owned())
        };
        let requested = CapacityRequirements {
            requests: Some(requests.map(|(name, value)| (name.clone(), text(value))).collect()),
        };
        taken(&slice.spec.devices.unwrap()[0], Some(&requested)).map(|taken| taken["memory"].to_string())
    }

    #[test]
    fn quantities_follow_the_policy() {
        let values = json!({"default": "2Gi", "validValues": ["2Gi", "4Gi", "8Gi"]});
        let range = json!({"default": "1Gi", "validRange": {"min": "1Gi", "max": "8Gi", "step": "2Gi"}});
        for (policy, requested, expected) in [
            (Value::Null, json!({}), Some("16Gi")),
            (Value::Null, json!({"memory": "3Gi"}), Some("3Gi")),
            (Value::Null, json!({"memory": "17Gi"}), None),
            (Value::Null, json!({"cores": "1"}), None),
            (values.clone(), json!({}), Some("2Gi")),
            (values.clone(), json!({"memory": "3Gi"}), Some("4Gi")),
            (values, json!({"memory": "9Gi"}), None),
            (range.clone(), json!({"memory": "512Mi"}), Some("1Gi")),
            (range.clone(), json!({"memory": "2Gi"}), Some("3Gi")),
            (range.clone(), json!({"memory": "5Gi"}), Some("5Gi")),
            (range, json!({"memory": "8Gi"}), None),
        ] {
            assert_eq!(of(policy.clone(), requested.clone()).as_deref(), expected, "{policy} {requested}");
        }
    }
}
