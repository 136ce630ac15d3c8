//! Extenders: HTTP services that filter, prioritize, preempt or bind, by upstream's protocol
//! (`kube-scheduler/extender/v1`).
//!
//! The messages are upstream's: encoded as Go encodes fields without tags, decoded as Go does, ignoring the case of
//! field names. An extender that does not answer fails the pod, unless it is ignorable.

use std::sync::Arc;

use bytes::Bytes;
use corten_client::{Cache, Client, Error, HttpsConfig, Pem};
use corten_meta::{Key, Object, Value};
use http::{Method, Request};
use serde_json::json;

use crate::config::ExtenderSpec;
use crate::framework::{MAX_SCORE, Reasons, Verdict};
use crate::framework::{Rejected, Search};
use crate::preemption::{Preemption, importance};
use crate::rows::{PodRow, Snapshot};

/// The highest score of an extender.
const MAX_EXTENDER_SCORE: i64 = 10;

#[derive(Default)]
pub struct Extenders(Vec<Extender>);

pub struct Extender {
    spec: ExtenderSpec,
    client: Result<Client, String>,
    path: String,
}

/// The pod that extenders are called for, and the caches of the objects that are sent to them.
pub struct Consulted<'a> {
    pub row: &'a PodRow,
    pub pod: Arc<Object>,
    pub nodes: &'a Cache,
    pub pods: &'a Cache,
}

/// Returns a field of a response as Go finds it: ignoring the case of its name.
fn field<'a>(answer: &'a Value, name: &str) -> Option<&'a Value> {
    let fields = answer.as_object()?.iter();
    fields.filter(|(_, value)| !value.is_null()).find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value)
}

fn text<'a>(answer: &'a Value, name: &str) -> &'a str {
    field(answer, name).and_then(Value::as_str).unwrap_or_default()
}

fn items<'a>(answer: &'a Value, name: &str) -> Option<&'a [Value]> {
    field(answer, name).and_then(Value::as_array).map(Vec::as_slice)
}

impl Extenders {
    pub fn new(specs: &[ExtenderSpec]) -> Extenders {
        Extenders(specs.iter().map(Extender::new).collect())
    }

    /// Reports whether an extender is interested in the pod before it is bound.
    pub fn concern(&self, pod: &PodRow) -> bool {
        let decides = |spec: &ExtenderSpec| {
            !(spec.filter_verb.is_empty() && spec.prioritize_verb.is_empty() && spec.preempt_verb.is_empty())
        };
        self.interested(pod).any(|extender| decides(&extender.spec))
    }

    fn interested<'a>(&'a self, pod: &'a PodRow) -> impl Iterator<Item = &'a Extender> {
        self.0.iter().filter(|extender| extender.is_interested(pod))
    }

    /// Returns the extender that binds the pod, if there is one.
    pub fn binder(&self, pod: &PodRow) -> Option<&Extender> {
        self.0.iter().find(|extender| !extender.spec.bind_verb.is_empty() && extender.is_interested(pod))
    }

    /// Keeps the feasible nodes that all extenders accept.
    pub async fn filter(
        &self,
        consulted: &Consulted<'_>,
        snapshot: &Snapshot,
        search: &mut Search,
    ) -> Result<(), Error> {
        for extender in self.interested(consulted.row).filter(|extender| !extender.spec.filter_verb.is_empty()) {
            if search.feasible.is_empty() {
                break;
            }
            match extender.filter(consulted, snapshot, &search.feasible).await {
                Ok((feasible, rejected)) => {
                    search.by_extender |= feasible.len() < search.feasible.len();
                    search.feasible = feasible;
                    search.rejected.extend(rejected);
                }
                Err(error) if extender.spec.ignorable => extender.is_ignored(&error),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Returns the extenders' weighted scores of the nodes, scaled to those of the plugins.
    pub async fn prioritize(&self, consulted: &Consulted<'_>, snapshot: &Snapshot, nodes: &[usize]) -> Vec<i64> {
        let mut scores = vec![0_i64; nodes.len()];
        let prioritizing = self.interested(consulted.row).filter(|extender| !extender.spec.prioritize_verb.is_empty());
        for extender in prioritizing.filter(|_| nodes.len() > 1) {
            // Scores are advice: without them the plugins' own decide.
            let Ok(priorities) = extender.prioritize(consulted, snapshot, nodes).await else { continue };
            for (score, slot) in scores.iter_mut().zip(nodes) {
                let name = &snapshot.node(*slot).name;
                let given = priorities.as_array().into_iter().flatten().find(|one| text(one, "Host") == name);
                let given = given.and_then(|one| field(one, "Score")?.as_i64()).unwrap_or(0);
                *score = score.saturating_add(extender.weighted(given));
            }
        }
        scores
    }

    /// Keeps the candidates for preemption that all extenders accept, with the victims they name.
    pub async fn process_preemption(
        &self,
        consulted: &Consulted<'_>,
        snapshot: &Snapshot,
        candidates: &mut Vec<Arc<Preemption>>,
    ) -> Result<(), Error> {
        for extender in self.interested(consulted.row).filter(|extender| !extender.spec.preempt_verb.is_empty()) {
            if candidates.is_empty() {
                break;
            }
            let left = match extender.process_preemption(consulted, snapshot, candidates).await {
                Ok(left) => left,
                Err(error) if extender.spec.ignorable => {
                    extender.is_ignored(&error);
                    continue;
                }
                Err(error) => return Err(error),
            };
            let empty = left.iter().find(|room| room.victims.is_empty()).filter(|_| !extender.spec.ignorable);
            if let Some(room) = empty {
                return Err(Error::Transport(format!("expected at least one victim pod on node {:?}", room.node)));
            }
            *candidates = left.into_iter().filter(|room| !room.victims.is_empty()).collect();
        }
        Ok(())
    }
}

impl Extender {
    fn new(spec: &ExtenderSpec) -> Extender {
        let after_scheme = spec.url_prefix.find("://").map_or(0, |at| at + 3);
        let path_at = spec.url_prefix[after_scheme..].find('/').map_or(spec.url_prefix.len(), |at| after_scheme + at);
        let tls = spec.tls.clone().unwrap_or_default();
        let config = HttpsConfig {
            server: spec.url_prefix[..path_at].to_owned(),
            ca: tls.ca.map(Pem::from),
            client_certificate: tls.certificate.map(Pem::from),
            client_key: tls.key.map(Pem::from),
            tls_server_name: tls.server_name,
            insecure_skip_tls_verify: tls.insecure,
            ..HttpsConfig::default()
        };
        Extender {
            path: spec.url_prefix[path_at..].to_owned(),
            client: Client::https(config).map_err(|error| error.to_string()),
            spec: spec.clone(),
        }
    }

    /// Returns the weighted score of this extender; saturates.
    fn weighted(&self, given: i64) -> i64 {
        given.saturating_mul(self.spec.weight).saturating_mul(MAX_SCORE / MAX_EXTENDER_SCORE)
    }

    fn is_ignored(&self, error: &Error) {
        tracing::info!(%error, extender = self.spec.url_prefix, "an extender that may be ignored is ignored");
    }

    fn is_interested(&self, pod: &PodRow) -> bool {
        let (managed, requests) = (&self.spec.managed_resources, &pod.demand.requests);
        let asks = |name: &str| requests.scalar.contains_key(name) || requests.get(name) > 0;
        managed.is_empty() || managed.iter().any(|resource| asks(&resource.name))
    }

    async fn post(&self, verb: &str, body: Vec<u8>) -> Result<Value, Error> {
        let client = self.client.as_ref().map_err(|error| Error::Config(error.clone()))?;
        let url = format!("{}/{verb}", self.spec.url_prefix);
        let request = Request::builder()
            .method(Method::POST)
            .uri(format!("{}/{verb}", self.path))
            .header("content-type", "application/json")
            .body(Bytes::from(body))
            .map_err(|error| Error::Config(error.to_string()))?;
        let answer = async {
            let response = client.request(request).await?;
            let status = response.status().as_u16();
            let body = response.into_body().into_bytes().await?;
            if status != 200 {
                let why = format!("failed {verb} with extender at URL {url}, code {status}");
                return Err(Error::Transport(why));
            }
            serde_json::from_slice(&body).map_err(|error| Error::Transport(error.to_string()))
        };
        let late = || Err(Error::Transport(format!("Post {url:?}: context deadline exceeded")));
        tokio::time::timeout(self.spec.timeout, answer).await.unwrap_or_else(|_| late())
    }

    /// Returns the pod and the nodes: by name for an extender that caches nodes, whole for others.
    fn arguments(&self, consulted: &Consulted<'_>, names: &[&str]) -> Vec<u8> {
        let mut body = b"{\"Pod\":".to_vec();
        consulted.pod.write_wire(&mut body);
        if self.spec.node_cache_capable {
            body.extend_from_slice(b",\"Nodes\":null,\"NodeNames\":");
            body.extend_from_slice(json!(names).to_string().as_bytes());
            body.push(b'}');
            return body;
        }
        body.extend_from_slice(b",\"Nodes\":{\"metadata\":{},\"items\":[");
        let objects = names.iter().filter_map(|name| consulted.nodes.get(&Key::new("", *name)));
        join(objects, &mut body);
        body.extend_from_slice(b"]},\"NodeNames\":null}");
        body
    }

    async fn filter(
        &self,
        consulted: &Consulted<'_>,
        snapshot: &Snapshot,
        feasible: &[usize],
    ) -> Result<(Vec<usize>, Vec<Rejected>), Error> {
        let names: Vec<&str> = feasible.iter().map(|slot| snapshot.node(*slot).name.as_str()).collect();
        let answer = self.post(&self.spec.filter_verb, self.arguments(consulted, &names)).await?;
        let error = text(&answer, "Error");
        if !error.is_empty() {
            return Err(Error::Transport(error.to_owned()));
        }
        let named = items(&answer, "NodeNames").filter(|_| self.spec.node_cache_capable);
        let listed = field(&answer, "Nodes").and_then(|list| items(list, "items")).unwrap_or_default();
        let left: Vec<&str> = match named {
            Some(names) => names.iter().filter_map(Value::as_str).collect(),
            None => listed.iter().filter_map(|node| node["metadata"]["name"].as_str()).collect(),
        };
        let mut slots = Vec::with_capacity(left.len());
        for name in left {
            let slot = feasible.iter().find(|slot| snapshot.node(**slot).name == name).ok_or_else(|| {
                let url = &self.spec.url_prefix;
                let why = "which is not found in the input node list";
                Error::Transport(format!("extender {url:?} claims a filtered node {name:?} {why}"))
            })?;
            slots.push(*slot);
        }
        Ok((slots, rejections(&answer, snapshot)))
    }

    async fn prioritize(
        &self,
        consulted: &Consulted<'_>,
        snapshot: &Snapshot,
        nodes: &[usize],
    ) -> Result<Value, Error> {
        let names: Vec<&str> = nodes.iter().map(|slot| snapshot.node(*slot).name.as_str()).collect();
        self.post(&self.spec.prioritize_verb, self.arguments(consulted, &names)).await
    }

    async fn process_preemption(
        &self,
        consulted: &Consulted<'_>,
        snapshot: &Snapshot,
        candidates: &[Arc<Preemption>],
    ) -> Result<Vec<Arc<Preemption>>, Error> {
        let answer = self.post(&self.spec.preempt_verb, self.preemption_arguments(consulted, candidates)).await?;
        let left = field(&answer, "NodeNameToMetaVictims").and_then(Value::as_object);
        let mut rooms = Vec::new();
        for (name, given) in left.into_iter().flatten() {
            let unknown = || Error::Transport(format!("nodeinfo not found for node name {name:?}"));
            let node = snapshot.find(name).ok_or_else(unknown)?;
            let mut victims = Vec::new();
            for uid in items(given, "Pods").unwrap_or_default().iter().map(|pod| text(pod, "UID")) {
                let victim = node.pods.iter().find(|pod| *pod.uid == *uid).ok_or_else(|| {
                    let url = &self.spec.url_prefix;
                    let why = "but the pod is not found on that node";
                    Error::Transport(format!(
                        "extender: {url} claims to preempt pod (UID: {uid}) on node: {name}, {why}"
                    ))
                })?;
                victims.push(victim.clone());
            }
            victims.sort_by(|a, b| importance(a).cmp(&importance(b)));
            let violations = field(given, "NumPDBViolations").and_then(Value::as_u64).unwrap_or(0);
            rooms.push(Arc::new(Preemption::new(name.clone(), victims, violations as usize)));
        }
        Ok(rooms)
    }

    /// Returns the pod and every candidate for preemption: victims by UID for an extender that caches nodes, whole for
    /// others.
    fn preemption_arguments(&self, consulted: &Consulted<'_>, candidates: &[Arc<Preemption>]) -> Vec<u8> {
        let by_uid = self.spec.node_cache_capable;
        let (given, other) = match by_uid {
            true => ("NodeNameToMetaVictims", "NodeNameToVictims"),
            false => ("NodeNameToVictims", "NodeNameToMetaVictims"),
        };
        let mut body = b"{\"Pod\":".to_vec();
        consulted.pod.write_wire(&mut body);
        body.extend_from_slice(format!(",\"{other}\":null,\"{given}\":{{").as_bytes());
        for (number, room) in candidates.iter().enumerate() {
            let comma = if number > 0 { "," } else { "" };
            body.extend_from_slice(format!("{comma}{}:{{\"Pods\":[", json!(room.node)).as_bytes());
            if by_uid {
                let uids: Vec<String> = room.victims.iter().map(|pod| json!({"UID": &*pod.uid}).to_string()).collect();
                body.extend_from_slice(uids.join(",").as_bytes());
            } else {
                join(room.victims.iter().filter_map(|pod| consulted.pods.get(&pod.key())), &mut body);
            }
            body.extend_from_slice(format!("],\"NumPDBViolations\":{}}}", room.violations).as_bytes());
        }
        body.extend_from_slice(b"}}");
        body
    }

    /// Binds the pod. Returns false if it failed and the extender is ignorable: then the scheduler binds.
    pub async fn bind(&self, pod: &PodRow) -> Result<bool, Error> {
        let body = json!({"PodName": pod.name, "PodNamespace": pod.namespace(), "PodUID": &*pod.uid,
            "Node": pod.node_name});
        let answer = self.post(&self.spec.bind_verb, body.to_string().into_bytes()).await;
        let bound = answer.and_then(|answer| match text(&answer, "Error") {
            "" => Ok(true),
            error => Err(Error::Transport(error.to_owned())),
        });
        match bound {
            Err(error) if self.spec.ignorable => {
                self.is_ignored(&error);
                Ok(false)
            }
            bound => bound,
        }
    }
}

/// Writes objects as the items of a list.
fn join(objects: impl Iterator<Item = Arc<Object>>, body: &mut Vec<u8>) {
    for (number, object) in objects.enumerate() {
        if number > 0 {
            body.push(b',');
        }
        object.write_item(body);
    }
}

/// Returns the nodes that an extender rejects. An unresolvable rejection takes precedence.
fn rejections(answer: &Value, snapshot: &Snapshot) -> Vec<Rejected> {
    let of = |name: &str| field(answer, name).and_then(Value::as_object);
    let unresolvable = of("FailedAndUnresolvableNodes");
    let failed = of("FailedNodes").into_iter().flatten();
    let failed = failed.filter(|(name, _)| unresolvable.is_none_or(|nodes| !nodes.contains_key(*name)));
    let verdict = |name: &str, why: &Value, verdict: fn(Reasons) -> Verdict| {
        let why = why.as_str().unwrap_or_default().to_owned();
        let slot = snapshot.find(name)?.slot;
        Some(Rejected { slot, plugin: "Extender", verdict: verdict(Reasons::Many([why].into())) })
    };
    let failed = failed.filter_map(|(name, why)| verdict(name, why, Verdict::Unschedulable));
    let hopeless = unresolvable.into_iter().flatten();
    failed.chain(hopeless.filter_map(|(name, why)| verdict(name, why, Verdict::Unresolvable))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_score_beyond_all_numbers_is_the_largest() {
        let of_weight = |weight| Extender::new(&ExtenderSpec { weight, ..ExtenderSpec::default() });
        assert_eq!(of_weight(2).weighted(10), 200);
        assert_eq!(of_weight(1).weighted(i64::MAX), i64::MAX);
        assert_eq!(of_weight(i64::MAX).weighted(i64::MIN), i64::MIN);
    }
}
