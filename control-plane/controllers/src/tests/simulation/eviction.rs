//! The eviction of a pod in the API in memory: it spends from the current status of the budget.

use corten_api::Kind;
use corten_meta::{Status, Value};
use serde_json::json;

use super::api::{Answer, Api, Place};

pub fn is_ready(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
    conditions.into_iter().any(|one| one["type"] == "Ready" && one["status"] == "True")
}

/// Reports whether a selector matches the labels of an object.
pub fn selects(selector: &Value, object: &Value) -> bool {
    let wanted = selector["matchLabels"].as_object().into_iter().flatten();
    wanted.into_iter().all(|(key, value)| object["metadata"]["labels"][key] == *value)
}

impl Api {
    /// Marks the pod and deletes it, if its budget allows. A `lost` eviction is charged, and the pod is never deleted.
    pub fn evict(&mut self, kind: &Kind, place: &Place, eviction: &Value) -> Answer {
        let mut pod = self.present(kind, place)?;
        let exempt = ["Succeeded", "Failed", "Pending"].iter().any(|phase| pod["status"]["phase"] == *phase)
            || !pod["metadata"]["deletionTimestamp"].is_null();
        if !exempt {
            self.spend(&pod)?;
        }
        let before = pod.clone();
        let mut conditions = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.retain(|one| one["type"] != "DisruptionTarget");
        conditions.push(json!({"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI",
            "lastTransitionTime": corten_meta::time::rfc3339(self.now)}));
        pod["status"]["conditions"] = json!(conditions);
        let marked = self.replace(kind, &before, pod)?;
        match eviction["lost"] == true {
            true => Ok(marked),
            false => self.delete(kind, place, &json!({})),
        }
    }

    /// Takes one disruption from the budget of the pod, or rejects the eviction.
    fn spend(&mut self, pod: &Value) -> Result<(), Status> {
        let keys = self.model.keys("PodDisruptionBudget").into_iter();
        let budgets = keys.map(|key| self.model.value("PodDisruptionBudget", &key.namespace, &key.name));
        let mut budgets = budgets.filter(|budget| selects(&budget["spec"]["selector"], pod));
        let Some(mut budget) = budgets.next() else { return Ok(()) };
        drop(budgets);
        let status = &budget["status"];
        let number = |field: &str| status[field].as_i64().unwrap_or(0);
        let desired = number("desiredHealthy");
        if !is_ready(pod) && number("currentHealthy") >= desired && desired > 0 {
            return Ok(());
        }
        let stale = number("observedGeneration") < corten_meta::generation(&budget);
        let left = number("disruptionsAllowed");
        if stale || left <= 0 {
            return Err(Status::too_many_requests("it would violate the pod's disruption budget", 10));
        }
        budget["status"]["disruptionsAllowed"] = json!(left - 1);
        budget["status"]["disruptedPods"][corten_meta::name(pod)] = json!(corten_meta::time::rfc3339(self.now));
        self.model.put(budget);
        Ok(())
    }
}
