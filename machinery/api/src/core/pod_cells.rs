//! The row of a pod in `kubectl get`: one word summarizes the state of its containers.

use corten_meta::Value;
use jiff::Timestamp;

use crate::cells::{age, boolean, list, name, number, or, text, time};

/// Returns name, ready, status, restarts, age; address, node, nominated node, readiness gates.
pub(super) fn cells(pod: &Value, now: Timestamp) -> Vec<Value> {
    let summary = Summary::of(pod);
    let restarts = match summary.last_restart {
        Some(at) if summary.restarts != 0 => {
            let ago = corten_meta::time::human_duration(now.duration_since(at));
            format!("{} ({ago} ago)", summary.restarts)
        }
        _ => summary.restarts.to_string(),
    };
    vec![
        name(pod),
        format!("{}/{}", summary.ready, summary.total).into(),
        summary.reason.into(),
        restarts.into(),
        age(pod, now),
        or(text(pod, "/status/podIPs/0/ip"), "<none>").into(),
        or(text(pod, "/spec/nodeName"), "<none>").into(),
        or(text(pod, "/status/nominatedNodeName"), "<none>").into(),
        readiness_gates(pod).into(),
    ]
}

struct Summary {
    reason: String,
    ready: usize,
    total: usize,
    restarts: i64,
    last_restart: Option<Timestamp>,
}

impl Summary {
    fn of(pod: &Value) -> Summary {
        let mut summary = Summary {
            reason: initial_reason(pod),
            ready: 0,
            total: list(pod, "/spec/containers").len()
                + list(pod, "/spec/initContainers").iter().filter(|c| is_sidecar(c)).count(),
            restarts: 0,
            last_restart: None,
        };
        let (sidecar_restarts, sidecar_last, initializing) = summary.init_containers(pod);
        if !initializing || condition_is_true(pod, "Initialized") {
            summary.restarts = sidecar_restarts;
            summary.last_restart = sidecar_last;
            summary.containers(pod);
        }
        if !crate::defaulting::absent(pod, "/metadata/deletionTimestamp") {
            let phase = text(pod, "/status/phase");
            if text(pod, "/status/reason") == "NodeLost" {
                summary.reason = "Unknown".to_string();
            } else if phase != "Succeeded" && phase != "Failed" {
                summary.reason = "Terminating".to_string();
            }
        }
        summary
    }

    /// Returns the restarts of sidecars, the time of the last of them, and whether the pod is still initializing.
    fn init_containers(&mut self, pod: &Value) -> (i64, Option<Timestamp>, bool) {
        let specs = list(pod, "/spec/initContainers");
        let mut sidecar_restarts = 0;
        let mut sidecar_last = None;
        for (at, status) in list(pod, "/status/initContainerStatuses").iter().enumerate() {
            let sidecar = specs.iter().find(|c| text(c, "/name") == text(status, "/name")).is_some_and(is_sidecar);
            self.restarts += number(status, "/restartCount");
            let finished = time(status, "/lastState/terminated/finishedAt");
            self.last_restart = self.last_restart.max(finished);
            if sidecar {
                sidecar_restarts += number(status, "/restartCount");
                sidecar_last = sidecar_last.max(finished);
            }
            let terminated = status.pointer("/state/terminated").filter(|t| t.is_object());
            if terminated.is_some_and(|t| number(t, "/exitCode") == 0) {
                continue;
            }
            if sidecar && boolean(status, "/started") {
                self.ready += usize::from(boolean(status, "/ready"));
                continue;
            }
            let waiting = text(status, "/state/waiting/reason");
            self.reason = match terminated {
                Some(terminated) => format!("Init:{}", exit_reason(terminated)),
                None if !waiting.is_empty() && waiting != "PodInitializing" => format!("Init:{waiting}"),
                None => format!("Init:{at}/{}", specs.len()),
            };
            return (sidecar_restarts, sidecar_last, true);
        }
        (sidecar_restarts, sidecar_last, false)
    }

    fn containers(&mut self, pod: &Value) {
        let mut running = false;
        let mut error_reason = String::new();
        for status in list(pod, "/status/containerStatuses").iter().rev() {
            self.restarts += number(status, "/restartCount");
            self.last_restart = self.last_restart.max(time(status, "/lastState/terminated/finishedAt"));
            let waiting = text(status, "/state/waiting/reason");
            if !waiting.is_empty() {
                self.reason = waiting.to_string();
            } else if let Some(terminated) = status.pointer("/state/terminated").filter(|t| t.is_object()) {
                self.reason = exit_reason(terminated);
                if number(terminated, "/exitCode") != 0 {
                    error_reason = self.reason.clone();
                }
            } else if boolean(status, "/ready") && status.pointer("/state/running").is_some_and(Value::is_object) {
                running = true;
                self.ready += 1;
            }
        }
        if self.reason == "Completed" {
            if running && condition_is_true(pod, "Ready") {
                self.reason = "Running".to_string();
            } else if !error_reason.is_empty() {
                self.reason = error_reason;
            } else if running {
                self.reason = "NotReady".to_string();
            }
        }
    }
}

fn initial_reason(pod: &Value) -> String {
    let gated = list(pod, "/status/conditions")
        .iter()
        .any(|c| text(c, "/type") == "PodScheduled" && text(c, "/reason") == "SchedulingGated");
    if gated {
        return "SchedulingGated".to_string();
    }
    or(text(pod, "/status/reason"), text(pod, "/status/phase")).to_string()
}

fn exit_reason(terminated: &Value) -> String {
    let reason = text(terminated, "/reason");
    let signal = number(terminated, "/signal");
    if !reason.is_empty() {
        reason.to_string()
    } else if signal != 0 {
        format!("Signal:{signal}")
    } else {
        format!("ExitCode:{}", number(terminated, "/exitCode"))
    }
}

fn is_sidecar(container: &Value) -> bool {
    text(container, "/restartPolicy") == "Always"
}

fn condition_is_true(pod: &Value, kind: &str) -> bool {
    list(pod, "/status/conditions").iter().any(|c| text(c, "/type") == kind && text(c, "/status") == "True")
}

fn readiness_gates(pod: &Value) -> String {
    let gates = list(pod, "/spec/readinessGates");
    if gates.is_empty() {
        return "<none>".to_string();
    }
    let met = gates.iter().filter(|g| condition_is_true(pod, text(g, "/conditionType"))).count();
    format!("{met}/{}", gates.len())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn row(spec: Value, status: Value) -> String {
        let pod = json!({
            "metadata": {"name": "p", "creationTimestamp": "2026-01-01T00:00:00Z"}, "spec": spec, "status": status,
        });
        let now: Timestamp = "2026-01-01T00:10:00Z".parse().expect("time");
        let cells = cells(&pod, now);
        cells.iter().map(|c| c.as_str().unwrap_or_default()).collect::<Vec<_>>().join("|")
    }

    #[test]
    fn rows() {
        let one = || json!({"containers": [{"name": "a"}], "nodeName": "n"});
        let cases = [
            (one(), json!({"phase": "Pending"}), "p|0/1|Pending|0|10m|<none>|n|<none>|<none>"),
            (
                one(),
                json!({"phase": "Running", "podIPs": [{"ip": "10.0.0.1"}], "containerStatuses": [
                    {"name": "a", "ready": true, "restartCount": 2, "state": {"running": {}},
                     "lastState": {"terminated": {"finishedAt": "2026-01-01T00:05:00Z"}}}]}),
                "p|1/1|Running|2 (5m ago)|10m|10.0.0.1|n|<none>|<none>",
            ),
            (
                one(),
                json!({"phase": "Running", "containerStatuses": [{"state": {"waiting": {"reason": "CrashLoopBackOff"}}}]}),
                "p|0/1|CrashLoopBackOff|0|10m|<none>|n|<none>|<none>",
            ),
            (
                json!({"containers": [{"name": "a"}], "initContainers": [{"name": "i"}, {"name": "j"}]}),
                json!({"phase": "Pending", "initContainerStatuses": [
                    {"name": "i", "state": {"terminated": {"exitCode": 0}}}, {"name": "j", "state": {"running": {}}}]}),
                "p|0/1|Init:1/2|0|10m|<none>|<none>|<none>|<none>",
            ),
            (
                json!({"containers": [{"name": "a"}], "initContainers": [{"name": "s", "restartPolicy": "Always"}]}),
                json!({"phase": "Running", "initContainerStatuses": [
                    {"name": "s", "started": true, "ready": true, "state": {"running": {}}}],
                    "containerStatuses": [{"ready": true, "state": {"running": {}}}]}),
                "p|2/2|Running|0|10m|<none>|<none>|<none>|<none>",
            ),
            (
                one(),
                json!({"phase": "Failed", "containerStatuses": [{"state": {"terminated": {"exitCode": 3}}}]}),
                "p|0/1|ExitCode:3|0|10m|<none>|n|<none>|<none>",
            ),
        ];
        for (spec, status, wanted) in cases {
            assert_eq!(row(spec, status), wanted);
        }
    }
}
