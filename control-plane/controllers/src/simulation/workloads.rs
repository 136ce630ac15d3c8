//! What keeps pods: Deployments, ReplicaSets and ReplicationControllers, StatefulSets, DaemonSets, Jobs.

use std::collections::BTreeMap;
use std::sync::Arc;

use corten_api::Typed;
use corten_api::k8s_openapi::api::core::v1::Pod;
use corten_meta::Value;
use serde_json::json;

use super::{Actor, Random, collect, kubelet, play};
use crate::model::Model;
use crate::workload::owner::controller_of;
use crate::workload::pods;
use crate::{daemonset, deployment, job, replicaset, statefulset};

/// How many seeds are played, and how many steps each before the faults end.
const SEEDS: u64 = 12;
const STEPS: usize = 350;
const KINDS: [&str; 7] =
    ["Deployment", "ReplicaSet", "ReplicationController", "StatefulSet", "DaemonSet", "Job", "Pod"];

struct World {
    server: Model,
    actors: Vec<Actor>,
    random: Random,
    /// The most pods that each owner ever asked for, by uid.
    most: BTreeMap<String, usize>,
}

impl World {
    fn new(seed: u64) -> World {
        let mut server = Model::logged();
        for name in ["a", "b", "c"] {
            server.put(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": {}}));
        }
        for object in workloads() {
            server.put(object);
        }
        let actors = vec![
            Actor::new(Arc::new(deployment::DeploymentController)),
            Actor::new(Arc::new(replicaset::REPLICA_SETS)),
            Actor::new(Arc::new(replicaset::REPLICATION_CONTROLLERS)),
            Actor::new(Arc::new(statefulset::StatefulSetController)),
            Actor::new(Arc::new(daemonset::DaemonSetController)),
            Actor::new(Arc::new(job::JobController)),
            Actor::new(Arc::new(job::UncountedPods)),
        ];
        World { server, actors, random: Random::new(seed), most: BTreeMap::new() }
    }

    fn step(&mut self, faults: bool) {
        let who = self.random.next(self.actors.len());
        match self.random.next(10) {
            0..4 => {
                let most = 1 + self.random.next(6);
                self.actors[who].listen(&self.server, most);
            }
            4..8 => self.actors[who].act(&mut self.server, &mut self.random, faults),
            8 => kubelet(&mut self.server, &mut self.random),
            _ if !faults => kubelet(&mut self.server, &mut self.random),
            _ => match self.random.next(12) {
                0 => self.actors[who].restart(&self.server),
                1 => self.user(),
                2 => self.lose_a_pod(),
                _ => self.meddle(),
            },
        }
        collect(&mut self.server);
        self.check();
    }

    /// Somebody changes what is asked for.
    fn user(&mut self) {
        let kind = ["Deployment", "StatefulSet", "DaemonSet", "ReplicationController"][self.random.next(4)];
        let Some(mut object) = self.server.find(kind, "default", "w") else { return };
        if kind != "DaemonSet" && self.random.chance(50) {
            object["spec"]["replicas"] = json!(self.random.next(6));
        } else {
            let image = format!("i{}", self.random.next(3));
            object["spec"]["template"]["spec"]["containers"][0]["image"] = json!(image);
        }
        object["metadata"]["generation"] = json!(corten_meta::generation(&object) + 1);
        self.server.put(object);
    }

    fn lose_a_pod(&mut self) {
        let all: Vec<Pod> = self.server.typed();
        let plain = |pod: &&Pod| pod.metadata.finalizers.as_ref().is_none_or(Vec::is_empty);
        if let Some(pod) = all.iter().filter(plain).nth(self.random.next(4)) {
            self.server.remove("Pod", pod.namespace(), pod.name());
        }
    }

    /// Somebody writes something that matters to nobody, but takes the version away.
    fn meddle(&mut self) {
        let kind = KINDS[self.random.next(KINDS.len())];
        let keys = self.server.keys(kind);
        let Some(key) = keys.get(self.random.next(keys.len())) else { return };
        let mut object = self.server.value(kind, &key.namespace, &key.name);
        object["metadata"]["labels"]["touched"] = json!(self.server.revision.to_string());
        self.server.put(object);
    }

    /// The pods of an owner that are neither ended nor ending.
    fn active(&self) -> BTreeMap<String, Vec<Pod>> {
        let mut by_owner: BTreeMap<String, Vec<Pod>> = BTreeMap::new();
        for pod in self.server.typed::<Pod>().into_iter().filter(pods::is_active) {
            let owner = controller_of(&pod.metadata).map(|owner| owner.uid.clone()).unwrap_or_default();
            by_owner.entry(owner).or_default().push(pod);
        }
        by_owner
    }

    fn check(&mut self) {
        for kind in ["ReplicaSet", "ReplicationController", "StatefulSet", "Job", "DaemonSet"] {
            for key in self.server.keys(kind) {
                let object = self.server.value(kind, &key.namespace, &key.name);
                let asked = match kind {
                    "DaemonSet" => Some(3),
                    "Job" => object["spec"]["parallelism"].as_u64(),
                    _ => object["spec"]["replicas"].as_u64(),
                };
                let most = self.most.entry(uid(&object)).or_default();
                *most = (*most).max(usize::try_from(asked.unwrap_or(0)).unwrap_or(0));
            }
        }
        for (owner, pods) in self.active() {
            let most = self.most.get(&owner).copied().unwrap_or(0);
            assert!(pods.len() <= most, "{} pods of {owner}, which never asked for more than {most}", pods.len());
        }
    }

    /// No more faults, everything is heard, until nobody has anything to do.
    fn settle(&mut self) {
        let mut quiet = 0;
        for _ in 0..3000 {
            let before = self.server.revision;
            for who in 0..self.actors.len() {
                self.actors[who].listen(&self.server, usize::MAX);
                self.actors[who].act(&mut self.server, &mut self.random, false);
            }
            for _ in 0..4 {
                kubelet(&mut self.server, &mut self.random);
            }
            collect(&mut self.server);
            self.check();
            // The kubelets pick their pods at random: some rounds without news are no sign yet.
            quiet = if self.server.revision == before { quiet + 1 } else { 0 };
            if quiet == 60 {
                return;
            }
        }
        panic!("it does not come to rest");
    }

    fn is_as_asked(&self) {
        let active = self.active();
        let of = |object: &Value| active.get(&uid(object)).map_or(0, Vec::len);
        let deployment = self.server.value("Deployment", "default", "w");
        let mut serving = 0;
        for key in self.server.keys("ReplicaSet") {
            let set = self.server.value("ReplicaSet", &key.namespace, &key.name);
            assert_eq!(json!(of(&set)), set["spec"]["replicas"], "{key}");
            let same = set["spec"]["template"]["spec"] == deployment["spec"]["template"]["spec"];
            assert!(same || of(&set) == 0, "{key} is of an old template and has pods");
            serving += of(&set);
        }
        assert_eq!(json!(serving), deployment["spec"]["replicas"]);
        let old = self.server.value("ReplicationController", "default", "w");
        assert_eq!(json!(of(&old)), old["spec"]["replicas"]);
        let set = self.server.value("StatefulSet", "default", "w");
        assert_eq!(json!(of(&set)), set["spec"]["replicas"]);
        assert_eq!(set["status"]["currentRevision"], set["status"]["updateRevision"]);
        let daemons = self.server.value("DaemonSet", "default", "w");
        assert_eq!((of(&daemons), &daemons["status"]["numberReady"]), (3, &json!(3)));
        let job = self.server.value("Job", "default", "w");
        assert_eq!((of(&job), &job["status"]["succeeded"]), (0, &job["spec"]["completions"]), "{}", job["status"]);
        let tracked = self.server.typed::<Pod>().into_iter().filter(pods::is_terminal);
        assert!(tracked.into_iter().all(|pod| pod.metadata.finalizers.is_none_or(|all| all.is_empty())), "a leak");
    }
}

fn uid(object: &Value) -> String {
    object["metadata"]["uid"].as_str().unwrap_or_default().to_owned()
}

fn workloads() -> Vec<Value> {
    let template = |restart: &str| json!({"metadata": {"labels": {"app": "w"}}, "spec": {"restartPolicy": restart, "containers": [{"name": "c", "image": "i0"}]}});
    let workload = |version: &str, kind: &str, spec: Value| {
        let labels = json!({"matchLabels": {"app": "w", "of": kind}});
        let mut object = json!({"apiVersion": version, "kind": kind, "metadata": {"namespace": "default", "name": "w"},
            "spec": {"selector": labels, "template": template(if kind == "Job" { "Never" } else { "Always" })}});
        object["spec"]["template"]["metadata"]["labels"]["of"] = json!(kind);
        corten_meta::patch::merge_patch(&mut object["spec"], &spec);
        object
    };
    vec![
        workload(
            "apps/v1",
            "Deployment",
            json!({"replicas": 4, "revisionHistoryLimit": 2, "strategy": {"type": "RollingUpdate"}}),
        ),
        workload(
            "apps/v1",
            "StatefulSet",
            json!({"replicas": 3, "podManagementPolicy": "OrderedReady", "updateStrategy": {"type": "RollingUpdate"}}),
        ),
        workload(
            "apps/v1",
            "DaemonSet",
            json!({"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1}}}),
        ),
        {
            let mut old = workload("v1", "ReplicationController", json!({"replicas": 3}));
            old["spec"]["selector"] = json!({"app": "w", "of": "ReplicationController"});
            old
        },
        workload(
            "batch/v1",
            "Job",
            json!({"parallelism": 2, "completions": 6, "backoffLimit": 1000, "completionMode": "NonIndexed"}),
        ),
    ]
}

#[test]
fn no_fault_makes_too_many_pods_or_leaves_any_behind() {
    play(SEEDS, |seed| {
        let mut world = World::new(seed);
        for _ in 0..STEPS {
            world.step(true);
        }
        world.settle();
        world.is_as_asked();
    });
}
