//! What creates other things than pods: endpoint slices and Endpoints, claims for pods, volumes for claims, Jobs of
//! schedules, and what every namespace has.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use corten_meta::{Key, Value};
use serde_json::json;

use super::{Actor, Random, collect, play};
use crate::model::{Model, pod};
use crate::{
    cronjob, endpoints, ephemeral_volume, local_volumes, resourceclaim, root_ca, serviceaccount, volume_binding,
};

const SEEDS: u64 = 16;
const STEPS: usize = 400;
const SERVICE_NAME: &str = "kubernetes.io/service-name";
const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";

struct World {
    server: Model,
    actors: Vec<Actor>,
    random: Random,
}

fn actors() -> Vec<Actor> {
    let root_ca = root_ca::RootCaPublisher { root_ca: "PEM".to_owned() };
    vec![
        Actor::new(Arc::new(endpoints::EndpointSliceController)),
        Actor::new(Arc::new(endpoints::EndpointsController)),
        Actor::new(Arc::new(endpoints::EndpointSliceMirroringController)),
        Actor::new(Arc::new(resourceclaim::ClaimMaker)),
        Actor::new(Arc::new(ephemeral_volume::EphemeralVolumeController)),
        Actor::new(Arc::new(volume_binding::ClaimBinder)),
        Actor::new(Arc::new(volume_binding::VolumePhases::default())),
        Actor::new(Arc::new(local_volumes::Provisioner)),
        Actor::new(Arc::new(local_volumes::Reclaimer)),
        Actor::new(Arc::new(cronjob::CronJobController)),
        Actor::new(Arc::new(serviceaccount::ServiceAccountController)),
        Actor::new(Arc::new(root_ca)),
    ]
}

fn backend(number: usize) -> Value {
    let claims = json!([{"name": "g", "resourceClaimTemplateName": "gpu"}]);
    let template = json!({"metadata": {"annotations": {"volume.kubernetes.io/selected-node": "a"}},
        "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "standard",
            "resources": {"requests": {"storage": "1Gi"}}}});
    pod(&format!("p{number}"))
        .label("app", "web")
        .phase("Running")
        .on("a")
        .ready(5)
        .ip(&format!("10.0.0.{}", number + 1))
        .set("/spec/resourceClaims", claims)
        .set("/spec/volumes", json!([{"name": "scratch", "ephemeral": {"volumeClaimTemplate": template}}]))
        .value()
}

fn objects() -> Vec<Value> {
    let service = |name: &str, selector: Value| {
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "default", "name": name},
            "spec": {"clusterIP": "10.96.0.5", "ipFamilies": ["IPv4"], "selector": selector,
                "ports": [{"name": "http", "port": 80, "targetPort": 8080, "protocol": "TCP"}]}})
    };
    let mut all = vec![
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a", "labels": {"kubernetes.io/hostname": "a"},
            "annotations": {"corten/local-volumes": "/data"}}}),
        json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "standard"},
            "provisioner": local_volumes::PROVISIONER, "reclaimPolicy": "Delete",
            "volumeBindingMode": "WaitForFirstConsumer"}),
        json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate",
            "metadata": {"namespace": "default", "name": "gpu"},
            "spec": {"spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "c"}}]}}}}),
        json!({"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"namespace": "default", "name": "tick",
            "creationTimestamp": "2026-01-02T03:00:30Z"},
            "spec": {"schedule": "* * * * *", "jobTemplate": {"spec": {"template": {"spec": {"containers": []}}}}}}),
        service("web", json!({"app": "web"})),
        service("outside", Value::Null),
        json!({"apiVersion": "v1", "kind": "Endpoints", "metadata": {"namespace": "default", "name": "outside"},
            "subsets": [{"addresses": [{"ip": "192.0.2.1"}], "ports": [{"name": "http", "port": 80, "protocol": "TCP"}]}]}),
    ];
    for name in ["default", "other"] {
        all.push(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}));
    }
    all.extend((0..3).map(backend));
    all
}

impl World {
    fn new(seed: u64) -> World {
        let mut server = Model::logged();
        objects().into_iter().for_each(|object| server.put(object));
        World { server, actors: actors(), random: Random::new(seed) }
    }

    fn step(&mut self) {
        let who = self.random.next(self.actors.len());
        match self.random.next(20) {
            0..8 => {
                let most = 1 + self.random.next(6);
                self.actors[who].listen(&self.server, most);
            }
            8..17 => self.actors[who].act(&mut self.server, &mut self.random, true),
            17 => self.actors[who].restart(&self.server),
            18 => self.replace_a_pod(),
            _ => self.meddle(),
        }
        collect(&mut self.server);
        self.check();
    }

    /// A pod goes or comes.
    fn replace_a_pod(&mut self) {
        let number = self.random.next(4);
        let name = format!("p{number}");
        if self.server.find("Pod", "default", &name).is_none() {
            let mut new = backend(number);
            new["metadata"]["uid"] = json!(format!("uid-of-{name}-{}", self.server.revision));
            return self.server.put(new);
        }
        self.server.remove("Pod", "default", &name);
    }

    /// Somebody writes something that matters to nobody, or takes away what must be there.
    fn meddle(&mut self) {
        let kinds = ["Service", "Endpoints", "EndpointSlice", "PersistentVolume", "CronJob", "Pod", "ServiceAccount"];
        let kind = kinds[self.random.next(kinds.len())];
        let keys = self.server.keys(kind);
        let Some(key) = keys.get(self.random.next(keys.len())) else { return };
        if ["EndpointSlice", "ServiceAccount"].contains(&kind) && self.random.chance(50) {
            return self.server.remove(kind, &key.namespace, &key.name);
        }
        let mut object = self.server.value(kind, &key.namespace, &key.name);
        object["metadata"]["annotations"]["touched"] = json!(self.server.revision.to_string());
        self.server.put(object);
    }

    fn all(&self, kind: &str) -> Vec<Value> {
        self.server.keys(kind).iter().map(|key| self.server.value(kind, &key.namespace, &key.name)).collect()
    }

    /// How often there is something for each of those that it is made for.
    fn counts(&self, kind: &str, whose: fn(&Value) -> String) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for object in self.all(kind) {
            *counts.entry(whose(&object)).or_default() += 1;
        }
        counts
    }

    /// Nothing is made twice.
    fn check(&self) {
        let owner =
            |object: &Value| object["metadata"]["ownerReferences"][0]["uid"].as_str().unwrap_or_default().to_owned();
        for (kind, whose) in [
            ("EndpointSlice", slice_of as fn(&Value) -> String),
            ("ResourceClaim", owner),
            ("PersistentVolumeClaim", owner),
            ("PersistentVolume", |volume| volume["spec"]["claimRef"]["uid"].to_string()),
            ("Job", owner),
        ] {
            for (of, count) in self.counts(kind, whose) {
                assert!(count <= 1, "{count} objects of kind {kind} for {of}");
            }
        }
    }

    fn settle(&mut self) {
        let mut quiet = 0;
        for _ in 0..3000 {
            let before = self.server.revision;
            for who in 0..self.actors.len() {
                self.actors[who].listen(&self.server, usize::MAX);
                self.actors[who].act(&mut self.server, &mut self.random, false);
            }
            collect(&mut self.server);
            self.check();
            quiet = if self.server.revision == before { quiet + 1 } else { 0 };
            if quiet == 20 {
                return;
            }
        }
        panic!("it does not come to rest");
    }

    fn is_as_asked(&self) {
        let pods = self.all("Pod");
        let slices = self.all("EndpointSlice");
        let of = |name: &'static str| slices.iter().filter(move |one| one["metadata"]["labels"][SERVICE_NAME] == name);
        let listed: usize = of("web").filter_map(|slice| slice["endpoints"].as_array()).map(Vec::len).sum();
        assert_eq!(listed, pods.len(), "every backend is told once");
        assert_eq!(of("outside").count(), 1);
        let endpoints = self.server.value("Endpoints", "default", "web");
        let addresses = endpoints["subsets"][0]["addresses"].as_array().map_or(0, Vec::len);
        assert_eq!(addresses, pods.len());
        for kind in ["ResourceClaim", "PersistentVolumeClaim", "PersistentVolume"] {
            assert_eq!(self.server.keys(kind).len(), pods.len(), "{kind}");
        }
        // Every volume that went took its directory along, and none that stayed.
        let made = self.server.log.iter().flatten().filter(|told| told.kind == "PersistentVolume");
        let names: BTreeSet<String> = made.map(|told| told.change.key.name.clone()).collect();
        for name in names {
            let gone = self.server.find("PersistentVolume", "", &name).is_none();
            let removed = self.server.removed.iter().any(|one| one.starts_with(&format!("a/{name}_")));
            assert_eq!(gone, removed, "{name}");
        }
        assert!(self.all("PersistentVolume").iter().all(|volume| volume["status"]["phase"] == "Bound"));
        assert_eq!(self.server.keys("Job").len(), 1);
        for namespace in ["default", "other"] {
            let there = |kind: &str, name: &str| self.server.keys(kind).contains(&Key::new(namespace, name));
            assert!(there("ServiceAccount", "default") && there("ConfigMap", "kube-root-ca.crt"), "{namespace}");
        }
    }
}

/// The Service, the manager and the family that a slice is of.
fn slice_of(slice: &Value) -> String {
    let labels = &slice["metadata"]["labels"];
    format!("{} {} {}", labels[SERVICE_NAME], labels[MANAGED_BY], slice["addressType"])
}

#[test]
fn no_fault_makes_anything_twice_or_leaves_it_behind() {
    play(SEEDS, |seed| {
        let mut world = World::new(seed);
        for _ in 0..STEPS {
            world.step();
        }
        world.settle();
        world.is_as_asked();
    });
}
