//! The users of the cluster. They create, change and delete workloads at random, and remember what was acknowledged.

use std::collections::BTreeMap;

use corten_client::{Client, DeleteOptions, Dynamic, Error, ListOptions, Patch, Propagation, Resource};
use serde_json::{Value, json};
use testkit_machine::random::Random;

use crate::host;
use crate::world::NODES;

/// The namespace of the workloads, and the one with a quota.
pub const NAMESPACE: &str = "work";
pub const LIMITED: &str = "limited";
/// The most pods of the namespace with a quota.
pub const QUOTA: u64 = 5;
/// The names of each kind are this many, so that users meet what others made.
const NAMES: u64 = 4;
/// The most replicas of a workload. All fit on the nodes.
const REPLICAS: u64 = 4;
/// The attempts at a write when no fault is left.
const ATTEMPTS: usize = 20;

/// The users that increment one number at the same time.
const TELLERS: usize = 3;

/// The numbers of a ConfigMap, which count up.
#[derive(Clone, Copy, Debug, Default)]
pub struct Written {
    /// The last number that the server acknowledged; for a number that is incremented, how often it was.
    pub acknowledged: u64,
    /// The last number that was sent; for one that is incremented, how often it may have been.
    pub sent: u64,
}

/// All users.
pub struct Users {
    client: Client,
    random: Random,
    /// The ConfigMaps by name.
    pub written: BTreeMap<String, Written>,
    /// The acts, with their times.
    pub journal: Vec<String>,
    count: u64,
}

impl Users {
    pub fn new(client: Client, seed: u64) -> Users {
        Users { client, random: Random::new(seed), written: BTreeMap::new(), journal: Vec::new(), count: 0 }
    }

    /// Creates the namespaces and what limits them, before any fault.
    pub async fn prepare(&self) -> Result<(), Error> {
        for name in [NAMESPACE, LIMITED] {
            self.core("namespaces").create("", &named("v1", "Namespace", name, json!({}))).await?;
        }
        let quota = named("v1", "ResourceQuota", "pods", json!({"spec": {"hard": {"pods": QUOTA.to_string()}}}));
        self.core("resourcequotas").create(LIMITED, &quota).await?;
        let budget = json!({"spec": {"maxUnavailable": 1, "selector": {"matchLabels": {"tier": "web"}}}});
        let budgets = self.client.dynamic(&Resource::new("policy", "v1", "poddisruptionbudgets", true));
        budgets.create(NAMESPACE, &named("policy/v1", "PodDisruptionBudget", "web", budget)).await?;
        Ok(())
    }

    /// Does one thing. Failures are part of life.
    pub async fn act(&mut self) {
        self.count += 1;
        let name = self.random.below(NAMES);
        let replicas = self.random.below(REPLICAS + 1);
        let act = self.random.below(16);
        let outcome = match act {
            0 | 1 => self.apps("deployments").create(NAMESPACE, &deployment(name, replicas)).await.map(drop),
            2 => self.scale("deployments", &format!("d{name}"), replicas).await,
            3 => self.roll_out("deployments", &format!("d{name}")).await,
            4 => self.delete(self.apps("deployments"), &format!("d{name}")).await,
            5 => self.apps("statefulsets").create(NAMESPACE, &stateful_set(name, replicas)).await.map(drop),
            6 => self.scale("statefulsets", &format!("s{name}"), replicas).await,
            7 => self.roll_out("statefulsets", &format!("s{name}")).await,
            8 => self.jobs().create(NAMESPACE, &job(self.count)).await.map(drop),
            9 => self.core("services").create(NAMESPACE, &service(name, self.random.once_in(2))).await.map(drop),
            10 => self.delete(self.core("services"), &format!("v{name}")).await,
            11 => self.count_up(&format!("c{name}")).await,
            12 => self.change_limited().await,
            13 => self.disturb_pod().await,
            14 => self.increment_together(&format!("i{}", name % 2)).await,
            _ => self.cordon(replicas.is_multiple_of(2)).await,
        };
        let outcome = outcome.map_or_else(|error| error.to_string(), |()| "done".to_owned());
        self.journal.push(format!("{:>9.3} act {act} on {name}, {replicas}: {outcome}", host::seconds()));
    }

    /// Leaves workloads that fit on the nodes, which take pods again.
    pub async fn settle(&self) -> Result<(), Error> {
        for node in 0..NODES {
            let uncordon = Patch::Merge(json!({"spec": {"unschedulable": null}}));
            retried(async || self.core("nodes").send_patch("", &format!("node-{node:05}"), &uncordon).await).await?;
        }
        for kind in ["deployments", "statefulsets"] {
            let workloads = retried(async || self.apps(kind).list(NAMESPACE, &ListOptions::default()).await).await?;
            for workload in workloads.items {
                let name = corten_meta::name(&workload);
                retried(async || self.scale(kind, name, 2).await).await?;
            }
        }
        Ok(())
    }

    async fn scale(&self, kind: &str, name: &str, replicas: u64) -> Result<(), Error> {
        self.apps(kind).send_patch(NAMESPACE, name, &Patch::Merge(json!({"spec": {"replicas": replicas}}))).await
    }

    async fn roll_out(&self, kind: &str, name: &str) -> Result<(), Error> {
        let count = self.count.to_string();
        let template = json!({"spec": {"template": {"metadata": {"annotations": {"count": count}}}}});
        self.apps(kind).send_patch(NAMESPACE, name, &Patch::Merge(template)).await
    }

    async fn delete(&self, objects: Dynamic, name: &str) -> Result<(), Error> {
        let options = DeleteOptions { propagation: Some(Propagation::Background), ..DeleteOptions::default() };
        objects.delete(NAMESPACE, name, &options).await
    }

    /// Writes the next number of a ConfigMap.
    async fn count_up(&mut self, name: &str) -> Result<(), Error> {
        let written = self.written.entry(name.to_owned()).or_default();
        written.sent += 1;
        let number = written.sent;
        let object = named("v1", "ConfigMap", name, json!({"data": {"number": number.to_string()}}));
        let apply = Patch::Apply { object, manager: "users".to_owned(), force: true };
        self.core("configmaps").send_patch(NAMESPACE, name, &apply).await?;
        self.written.entry(name.to_owned()).or_default().acknowledged = number;
        Ok(())
    }

    /// Lets several users increment one number at the same time. Each reads it first, and a write of one that another user
    /// has changed since is refused: no increment that was acknowledged is lost.
    async fn increment_together(&mut self, name: &str) -> Result<(), Error> {
        let outcomes = futures::future::join_all((0..TELLERS).map(|_| self.increment(name))).await;
        let written = self.written.entry(name.to_owned()).or_default();
        for outcome in &outcomes {
            written.acknowledged += u64::from(outcome.is_ok());
            written.sent += u64::from(outcome.as_ref().err().is_none_or(Error::is_outcome_unknown));
        }
        outcomes.into_iter().collect()
    }

    async fn increment(&self, name: &str) -> Result<(), Error> {
        let objects = self.core("configmaps");
        let with = |number: u64| named("v1", "ConfigMap", name, json!({"data": {"number": number.to_string()}}));
        let found = match objects.get(NAMESPACE, name).await {
            Ok(found) => found,
            Err(error) if error.is_not_found() => return objects.post(NAMESPACE, &with(1)).await,
            Err(error) => return Err(error),
        };
        let number = found["data"]["number"].as_str().and_then(|text| text.parse::<u64>().ok()).unwrap_or_default();
        let mut next = with(number + 1);
        next["metadata"]["namespace"] = NAMESPACE.into();
        next["metadata"]["resourceVersion"] = found["metadata"]["resourceVersion"].clone();
        objects.update(&next).await.map(drop)
    }

    /// Creates a pod where there is a quota, or deletes one.
    async fn change_limited(&mut self) -> Result<(), Error> {
        let pods = self.core("pods");
        if !self.random.once_in(3) {
            let pod = named("v1", "Pod", &format!("p{}", self.count), json!({"spec": pod_spec("Always")}));
            return pods.create(LIMITED, &pod).await.map(drop);
        }
        match self.any(&pods, LIMITED).await? {
            Some(name) => pods.delete(LIMITED, &name, &DeleteOptions::default()).await,
            None => Ok(()),
        }
    }

    /// Deletes a pod, or evicts it.
    async fn disturb_pod(&mut self) -> Result<(), Error> {
        let pods = self.core("pods");
        let Some(name) = self.any(&pods, NAMESPACE).await? else { return Ok(()) };
        if self.random.once_in(2) {
            return pods.delete(NAMESPACE, &name, &DeleteOptions::default()).await;
        }
        let eviction = named("policy/v1", "Eviction", &name, json!({}));
        pods.post_subresource(NAMESPACE, &name, "eviction", &eviction).await
    }

    async fn cordon(&mut self, is_on: bool) -> Result<(), Error> {
        let node = format!("node-{:05}", self.random.below(u64::from(NODES)));
        let unschedulable = if is_on { json!(true) } else { Value::Null };
        let patch = Patch::Merge(json!({"spec": {"unschedulable": unschedulable}}));
        self.core("nodes").send_patch("", &node, &patch).await
    }

    /// Returns the name of any object of a namespace.
    async fn any(&mut self, objects: &Dynamic, namespace: &str) -> Result<Option<String>, Error> {
        let list = objects.list(namespace, &ListOptions::default()).await?;
        Ok(self.random.pick(&list.items).map(|object| corten_meta::name(object).to_owned()))
    }

    fn core(&self, plural: &str) -> Dynamic {
        let is_namespaced = !matches!(plural, "namespaces" | "nodes");
        self.client.dynamic(&Resource::new("", "v1", plural, is_namespaced))
    }

    fn apps(&self, plural: &str) -> Dynamic {
        self.client.dynamic(&Resource::new("apps", "v1", plural, true))
    }

    fn jobs(&self) -> Dynamic {
        self.client.dynamic(&Resource::new("batch", "v1", "jobs", true))
    }
}

/// Repeats a request that failed: without faults, only a conflict or a full server refuses it.
async fn retried<T>(request: impl AsyncFn() -> Result<T, Error>) -> Result<T, Error> {
    let mut outcome = request().await;
    for _ in 0..ATTEMPTS {
        if outcome.is_ok() {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        outcome = request().await;
    }
    outcome
}

fn named(api_version: &str, kind: &str, name: &str, mut rest: Value) -> Value {
    rest["apiVersion"] = api_version.into();
    rest["kind"] = kind.into();
    rest["metadata"] = json!({"name": name});
    rest
}

fn pod_spec(restart_policy: &str) -> Value {
    json!({
        "restartPolicy": restart_policy,
        "containers": [{"name": "main", "image": "test.local/main:1", "resources": {"requests": {"cpu": "1"}}}],
    })
}

fn template(app: &str) -> Value {
    json!({"metadata": {"labels": {"app": app, "tier": "web"}}, "spec": pod_spec("Always")})
}

fn deployment(name: u64, replicas: u64) -> Value {
    let app = format!("d{name}");
    let spec = json!({"replicas": replicas, "selector": {"matchLabels": {"app": app}}, "template": template(&app)});
    named("apps/v1", "Deployment", &app, json!({"spec": spec}))
}

fn stateful_set(name: u64, replicas: u64) -> Value {
    let app = format!("s{name}");
    let spec = json!({
        "replicas": replicas, "serviceName": app, "selector": {"matchLabels": {"app": app}}, "template": template(&app),
    });
    named("apps/v1", "StatefulSet", &app, json!({"spec": spec}))
}

fn job(count: u64) -> Value {
    let spec = json!({"completions": 3, "parallelism": 2, "template": {"spec": pod_spec("Never")}});
    named("batch/v1", "Job", &format!("j{count}"), json!({"spec": spec}))
}

fn service(name: u64, has_node_port: bool) -> Value {
    let kind = if has_node_port { "NodePort" } else { "ClusterIP" };
    let spec = json!({"type": kind, "selector": {"app": format!("d{name}")}, "ports": [{"port": 80}]});
    named("v1", "Service", &format!("v{name}"), json!({"spec": spec}))
}
