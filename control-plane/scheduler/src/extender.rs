//! Extenders: others who have a say over HTTP, by upstream's protocol (`kube-scheduler/extender/v1`).
//!
//! Names and shapes of the messages are upstream's. An extender that does not answer fails the pod, unless it is
//! marked as ignorable.

use std::collections::BTreeMap;

use bytes::Bytes;
use corten_api::Typed;
use corten_api::k8s_openapi::api::core::v1::{Node, Pod};
use corten_client::{Client, Error, HttpsConfig, Pem};
use corten_meta::Value;
use http::{Method, Request};
use serde::Deserialize;
use serde_json::json;

use crate::config::ExtenderSpec;
use crate::cycle::{Rejected, Search};
use crate::framework::{MAX_SCORE, Reasons, Verdict};
use crate::preemption::Preemption;
use crate::rows::{PodRow, Snapshot};

/// The most an extender may give a node.
const MAX_EXTENDER_SCORE: i64 = 10;

#[derive(Default)]
pub struct Extenders(Vec<Extender>);

pub struct Extender {
    spec: ExtenderSpec,
    client: Result<Client, String>,
    path: String,
}

/// What extenders are asked about.
pub struct Consulted<'a> {
    pub client: &'a Client,
    pub pod: &'a Pod,
    pub row: &'a PodRow,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct FilterAnswer {
    nodes: Option<NodeList>,
    #[serde(alias = "nodenames")]
    node_names: Option<Vec<String>>,
    failed_nodes: BTreeMap<String, String>,
    failed_and_unresolvable_nodes: BTreeMap<String, String>,
    error: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct NodeList {
    items: Vec<Value>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct HostPriority {
    host: String,
    score: i64,
}

impl Extenders {
    pub fn new(specs: &[ExtenderSpec]) -> Extenders {
        Extenders(specs.iter().map(Extender::new).collect())
    }

    /// Whether anybody has a say about the pod.
    pub fn concern(&self, pod: &PodRow) -> bool {
        self.0.iter().any(|extender| extender.is_interested(pod))
    }

    fn interested<'a>(&'a self, pod: &'a PodRow) -> impl Iterator<Item = &'a Extender> {
        self.0.iter().filter(|extender| extender.is_interested(pod))
    }

    /// The one that binds the pod, if any does.
    pub fn binder(&self, pod: &PodRow) -> Option<&Extender> {
        let binds = |extender: &&Extender| extender.is_interested(pod) && !extender.spec.bind_verb.is_empty();
        self.0.iter().find(binds)
    }

    /// Leaves those of the feasible nodes that all extenders agree on.
    pub async fn filter(&self, asked: &Consulted<'_>, snapshot: &Snapshot, search: &mut Search) -> Result<(), Error> {
        for extender in self.interested(asked.row).filter(|extender| !extender.spec.filter_verb.is_empty()) {
            if search.feasible.is_empty() {
                break;
            }
            match extender.filter(asked, snapshot, &search.feasible).await {
                Ok((feasible, rejected)) => {
                    search.by_extender |= feasible.len() < search.feasible.len();
                    search.feasible = feasible;
                    search.rejected.extend(rejected);
                }
                Err(_) if extender.spec.ignorable => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// The extenders' weighted scores of the nodes, brought to the scale of the plugins'.
    pub async fn prioritize(
        &self,
        asked: &Consulted<'_>,
        snapshot: &Snapshot,
        nodes: &[usize],
    ) -> Result<Vec<i64>, Error> {
        let mut scores = vec![0; nodes.len()];
        let prioritizing = self.interested(asked.row).filter(|extender| !extender.spec.prioritize_verb.is_empty());
        for extender in prioritizing.filter(|_| nodes.len() > 1) {
            // Scores are advice: without them the plugins' own decide.
            let Ok(priorities) = extender.prioritize(asked, snapshot, nodes).await else { continue };
            for (score, slot) in scores.iter_mut().zip(nodes) {
                let given = priorities.iter().find(|one| one.host == snapshot.node(*slot).name);
                let given = given.map_or(0, |one| one.score * extender.spec.weight);
                *score += given * (MAX_SCORE / MAX_EXTENDER_SCORE);
            }
        }
        Ok(scores)
    }

    /// Whether all extenders that care about preemption agree with this one.
    pub async fn allow_preemption(&self, client: &Client, pod: &PodRow, room: &Preemption) -> bool {
        for extender in self.interested(pod).filter(|extender| !extender.spec.preempt_verb.is_empty()) {
            match extender.allows(client, pod, room).await {
                Ok(true) => {}
                Ok(false) => return false,
                Err(_) if extender.spec.ignorable => {}
                Err(error) => {
                    tracing::warn!(%error, extender = extender.spec.url_prefix, "no answer about a preemption");
                    return false;
                }
            }
        }
        true
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

    fn is_interested(&self, pod: &PodRow) -> bool {
        let managed = &self.spec.managed_resources;
        managed.is_empty() || managed.iter().any(|resource| pod.demand.requests.scalar.contains_key(&resource.name))
    }

    async fn post(&self, verb: &str, body: &Value) -> Result<Bytes, Error> {
        let client = self.client.as_ref().map_err(|error| Error::Config(error.clone()))?;
        let request = Request::builder()
            .method(Method::POST)
            .uri(format!("{}/{verb}", self.path))
            .header("content-type", "application/json")
            .body(Bytes::from(body.to_string()))
            .map_err(|error| Error::Config(error.to_string()))?;
        let answer = async {
            let response = client.request(request).await?;
            let status = response.status();
            let body = response.into_body().into_bytes().await?;
            match status.is_success() {
                true => Ok(body),
                false => Err(Error::Transport(format!(
                    "failed {verb} with extender at URL {}, code {}",
                    self.spec.url_prefix,
                    status.as_u16()
                ))),
            }
        };
        let late = || Err(Error::Transport(format!("extender at URL {} did not answer", self.spec.url_prefix)));
        tokio::time::timeout(self.spec.timeout, answer).await.unwrap_or_else(|_| late())
    }

    /// The pod and the nodes in question: by name for one that knows them, whole for others.
    async fn arguments(&self, asked: &Consulted<'_>, names: &[&str]) -> Result<Value, Error> {
        let mut body = json!({"pod": asked.pod.to_value()});
        if self.spec.node_cache_capable {
            body["nodenames"] = json!(names);
            return Ok(body);
        }
        let mut items = Vec::new();
        for name in names {
            items.push(asked.client.get::<Node>("", name).await?.to_value());
        }
        body["nodes"] = json!({"apiVersion": "v1", "kind": "NodeList", "metadata": {}, "items": items});
        Ok(body)
    }

    async fn filter(
        &self,
        asked: &Consulted<'_>,
        snapshot: &Snapshot,
        feasible: &[usize],
    ) -> Result<(Vec<usize>, Vec<Rejected>), Error> {
        let names: Vec<&str> = feasible.iter().map(|slot| snapshot.node(*slot).name.as_str()).collect();
        let answer = self.post(&self.spec.filter_verb, &self.arguments(asked, &names).await?).await?;
        let answer: FilterAnswer =
            serde_json::from_slice(&answer).map_err(|error| Error::Transport(error.to_string()))?;
        if !answer.error.is_empty() {
            return Err(Error::Transport(answer.error));
        }
        let name_of = |node: &Value| node["metadata"]["name"].as_str().map(str::to_owned);
        let listed = answer.nodes.map(|list| list.items.iter().filter_map(name_of).collect());
        let left: Vec<String> = answer.node_names.or(listed).unwrap_or_default();
        let slots = left.iter().filter_map(|name| snapshot.find(name)).map(|node| node.slot).collect();
        let rejected = |nodes: BTreeMap<String, String>, verdict: fn(Reasons) -> Verdict| {
            let of = move |(name, why): (String, String)| {
                let slot = snapshot.find(&name)?.slot;
                Some(Rejected { slot, plugin: "Extender", verdict: verdict(Reasons::Many([why].into())) })
            };
            nodes.into_iter().filter_map(of).collect::<Vec<_>>()
        };
        let mut all = rejected(answer.failed_nodes, Verdict::Unschedulable);
        all.extend(rejected(answer.failed_and_unresolvable_nodes, Verdict::Unresolvable));
        Ok((slots, all))
    }

    async fn prioritize(
        &self,
        asked: &Consulted<'_>,
        snapshot: &Snapshot,
        nodes: &[usize],
    ) -> Result<Vec<HostPriority>, Error> {
        let names: Vec<&str> = nodes.iter().map(|slot| snapshot.node(*slot).name.as_str()).collect();
        let answer = self.post(&self.spec.prioritize_verb, &self.arguments(asked, &names).await?).await?;
        serde_json::from_slice(&answer).map_err(|error| Error::Transport(error.to_string()))
    }

    async fn allows(&self, client: &Client, pod: &PodRow, room: &Preemption) -> Result<bool, Error> {
        let object = client.get::<Pod>(pod.namespace(), &pod.name).await?;
        let uids: Vec<Value> = room.victims.iter().map(|victim| json!({"uid": &*victim.uid})).collect();
        let mut body = json!({"pod": object.to_value()});
        if self.spec.node_cache_capable {
            let victims = json!({"pods": uids, "numPDBViolations": room.violations});
            body["nodeNameToMetaVictims"] = json!({&room.node: victims});
        } else {
            let mut pods = Vec::new();
            for victim in &room.victims {
                pods.push(client.get::<Pod>(victim.namespace(), &victim.name).await?.to_value());
            }
            let victims = json!({"pods": pods, "numPDBViolations": room.violations});
            body["nodeNameToVictims"] = json!({&room.node: victims});
        }
        let answer = self.post(&self.spec.preempt_verb, &body).await?;
        let answer: Value = serde_json::from_slice(&answer).map_err(|error| Error::Transport(error.to_string()))?;
        let left = answer.get("nodeNameToMetaVictims").or_else(|| answer.get("nodeNameToVictims"));
        Ok(left.and_then(|nodes| nodes.get(&room.node)).is_some_and(|victims| !victims.is_null()))
    }

    /// Binds in the scheduler's stead.
    pub async fn bind(&self, pod: &PodRow) -> Result<(), Error> {
        let body = json!({"podName": pod.name, "podNamespace": pod.namespace(), "podUID": &*pod.uid,
            "node": pod.node_name});
        let answer = self.post(&self.spec.bind_verb, &body).await?;
        let answer: Value = serde_json::from_slice(&answer).unwrap_or(Value::Null);
        match answer["error"].as_str().filter(|error| !error.is_empty()) {
            Some(error) => Err(Error::Transport(error.to_owned())),
            None => Ok(()),
        }
    }
}
