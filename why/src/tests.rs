//! Explanations of stuck objects: given these objects, this answer.

use corten_client::{Error, ListOptions, Resource};
use corten_meta::{Value, decode_yaml};
use expect_test::{Expect, expect};
use futures::future::BoxFuture;

use crate::{Placement, Reader, Sources, Subject, explain};

/// Objects in memory.
struct World(Vec<Value>);

impl World {
    fn new(yaml: &str) -> World {
        World(yaml.split("---\n").map(|one| decode_yaml(one.as_bytes()).unwrap()).collect())
    }

    fn of<'a>(&'a self, resource: &'a Resource, namespace: &'a str) -> impl Iterator<Item = &'a Value> {
        self.0.iter().filter(move |one| {
            let kind = one["kind"].as_str().unwrap().to_lowercase();
            let is_kind = resource.plural == format!("{kind}s") || resource.plural == format!("{kind}es");
            is_kind && (namespace.is_empty() || corten_meta::namespace(one) == namespace)
        })
    }
}

impl Reader for World {
    fn get<'a>(
        &'a self,
        resource: &'a Resource,
        namespace: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Option<Value>, Error>> {
        let found = self.of(resource, namespace).find(|one| corten_meta::name(one) == name).cloned();
        Box::pin(async move { Ok(found) })
    }

    fn list<'a>(
        &'a self,
        resource: &'a Resource,
        namespace: &'a str,
        options: ListOptions,
    ) -> BoxFuture<'a, Result<Vec<Value>, Error>> {
        let matches = |one: &&Value| {
            let labels = options.label_selector.split(',').filter(|pair| !pair.is_empty());
            let mut pairs = labels.filter_map(|pair| pair.split_once('='));
            let has_labels =
                pairs.all(|(key, value)| corten_meta::labels(one).get(key).is_some_and(|found| found == value));
            let field = options.field_selector.split_once('=');
            has_labels && field.is_none_or(|(_, uid)| one["involvedObject"]["uid"] == uid)
        };
        let found = self.of(resource, namespace).filter(matches).cloned().collect();
        Box::pin(async move { Ok(found) })
    }
}

/// A scheduler that says always the same.
struct Scheduler;

impl Placement for Scheduler {
    fn explain<'a>(&'a self, _: &'a str, name: &'a str) -> BoxFuture<'a, Result<String, String>> {
        Box::pin(async move { Ok(format!("n1 has too little cpu for {name}\n")) })
    }
}

fn check(plural: &str, name: &str, yaml: &str, wanted: Expect) {
    let world = World::new(yaml);
    let group = match plural {
        "deployments" => "apps",
        "jobs" => "batch",
        "ingresses" => "networking.k8s.io",
        "httproutes" => "gateway.networking.k8s.io",
        "horizontalpodautoscalers" => "autoscaling",
        _ => "",
    };
    let namespace = if matches!(plural, "nodes" | "namespaces") { "" } else { "a" };
    let resource = Resource::new(group, "v1", plural, !namespace.is_empty());
    let subject = Subject { resource, namespace: namespace.into(), name: name.into() };
    let sources = Sources { objects: &world, placement: &Scheduler };
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let findings = runtime.block_on(explain(sources, &subject)).unwrap();
    wanted.assert_eq(&findings.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"));
}

#[test]
fn a_pod_without_a_node_has_the_reckoning_of_the_scheduler() {
    check(
        "pods",
        "web",
        r"
kind: Pod
metadata: {namespace: a, name: web, uid: u1}
spec: {volumes: [{persistentVolumeClaim: {claimName: data}}]}
status:
  phase: Pending
  conditions: [{type: PodScheduled, status: 'False', message: '0/1 nodes are available'}]
---
kind: PersistentVolumeClaim
metadata: {namespace: a, name: data, uid: u2}
spec: {storageClassName: fast}
status: {phase: Pending}
",
        expect![[r#"
            Its claim data is not bound. Its class fast does not exist.
            What helps:
              kubectl get storageclass

            No node takes it.
              0/1 nodes are available
              n1 has too little cpu for web
        "#]],
    );
}

#[test]
fn a_container_that_ends_again_and_again_shows_how_it_ended() {
    check(
        "pods",
        "web",
        r"
kind: Pod
metadata: {namespace: a, name: web, uid: u1}
spec: {nodeName: n1}
status:
  phase: Running
  containerStatuses:
  - name: app
    restartCount: 4
    state: {waiting: {reason: CrashLoopBackOff}}
    lastState: {terminated: {exitCode: 137, reason: OOMKilled, finishedAt: '2026-01-01T00:00:00Z'}}
---
kind: Node
metadata: {name: n1}
status: {conditions: [{type: Ready, status: 'True'}]}
",
        expect![[r#"
            Container app ends again and again; it was restarted 4 times.
              app ended with exit code 137 (OOMKilled) at 2026-01-01T00:00:00Z
              it took more memory than its limit
            What helps:
              raise resources.limits.memory
              kubectl logs -n a web -c app --previous
        "#]],
    );
}

#[test]
fn a_container_without_its_secret_names_the_secret() {
    check(
        "pods",
        "web",
        r"
kind: Pod
metadata: {namespace: a, name: web, uid: u1}
spec:
  nodeName: n1
  containers:
  - name: app
    env: [{name: PASSWORD, valueFrom: {secretKeyRef: {name: db, key: password}}}]
    envFrom: [{configMapRef: {name: settings}}]
status:
  phase: Pending
  containerStatuses:
  - {name: app, state: {waiting: {reason: CreateContainerConfigError, message: secret not found}}}
---
kind: ConfigMap
metadata: {namespace: a, name: settings}
---
kind: Node
metadata: {name: n1}
status: {conditions: [{type: Ready, status: Unknown, message: Kubelet stopped posting node status.}]}
",
        expect![[r#"
            Its node n1 is not ready.
              Kubelet stopped posting node status.
              last heartbeat 
            What helps:
              on n1: corten status; corten logs

            Container app cannot be created: CreateContainerConfigError.
              secret not found
              secrets db does not exist in namespace a
            What helps:
              kubectl create secret -n a db …
        "#]],
    );
}

#[test]
fn a_deployment_has_the_cause_of_its_worst_pod() {
    check(
        "deployments",
        "web",
        r"
kind: Deployment
metadata: {namespace: a, name: web, uid: u0}
spec: {replicas: 2, selector: {matchLabels: {app: web}}}
status: {readyReplicas: 1}
---
kind: Pod
metadata: {namespace: a, name: web-1, uid: u1, labels: {app: web}}
spec: {nodeName: n1}
status: {phase: Running, containerStatuses: [{name: app, ready: true, state: {running: {}}}]}
---
kind: Pod
metadata: {namespace: a, name: web-2, uid: u2, labels: {app: web}}
spec: {nodeName: n1}
status:
  phase: Pending
  containerStatuses: [{name: app, image: 'web:2', state: {waiting: {reason: ImagePullBackOff, message: Back-off}}}]
---
kind: Node
metadata: {name: n1}
status: {conditions: [{type: Ready, status: 'True'}]}
---
kind: Event
metadata: {namespace: a, name: e}
type: Warning
reason: Failed
message: 'Failed to pull image web:2: not found'
involvedObject: {uid: u2}
",
        expect![[r#"
            1 of 2 pods are ready. Pod web-2: The image web:2 of container app is not there.
              Back-off
              Failed to pull image web:2: not found
              the pod names no imagePullSecrets
            What helps:
              check the name and the tag
              a machine without a registry: corten image import FILE.tar
        "#]],
    );
}

#[test]
fn a_service_without_endpoints_shows_which_label_is_wrong() {
    check(
        "services",
        "web",
        r"
kind: Service
metadata: {namespace: a, name: web, uid: u0}
spec: {type: ClusterIP, selector: {app: web, tier: front}}
---
kind: Pod
metadata: {namespace: a, name: web-1, uid: u1, labels: {app: web}}
",
        expect![[r#"
            No pod of the namespace a has the labels app=web,tier=front.
              1 pods have app=web
              0 pods have tier=front
            What helps:
              kubectl get pods -n a --show-labels
        "#]],
    );
}

#[test]
fn a_service_without_an_address_shows_the_reason_of_the_pools() {
    check(
        "services",
        "web",
        r"
kind: Service
metadata: {namespace: a, name: web, uid: u0}
spec: {type: LoadBalancer, selector: {app: web}}
status:
  conditions:
    - {type: network.corten.dev/AddressAssigned, status: 'False', message: 'no IPv4 address of the pools is free: public'}
---
kind: EndpointSlice
metadata: {namespace: a, name: web-1, uid: u2, labels: {kubernetes.io/service-name: web}}
endpoints: [{addresses: [10.0.0.1], conditions: {ready: true}}]
",
        expect![[r#"
            It has no external address: no pool of addresses gives it one.
              no IPv4 address of the pools is free: public
            What helps:
              kubectl get addresspools; kubectl describe addresspools
        "#]],
    );
}

#[test]
fn a_claim_that_waits_for_its_first_pod_says_so() {
    check(
        "persistentvolumeclaims",
        "data",
        r"
kind: PersistentVolumeClaim
metadata: {namespace: a, name: data, uid: u2}
spec: {accessModes: [ReadWriteOnce]}
status: {phase: Pending}
---
kind: StorageClass
metadata: {name: local, annotations: {storageclass.kubernetes.io/is-default-class: 'true'}}
provisioner: corten.dev/local
volumeBindingMode: WaitForFirstConsumer
",
        expect![[r#"
            It waits for its first pod: its class binds when a pod that uses the claim is scheduled.
              class local, volumeBindingMode WaitForFirstConsumer
        "#]],
    );
}

#[test]
fn an_object_that_is_not_deleted_names_its_finalizers() {
    check(
        "persistentvolumeclaims",
        "data",
        r"
kind: PersistentVolumeClaim
metadata:
  namespace: a
  name: data
  uid: u2
  deletionTimestamp: '2026-01-01T00:00:00Z'
  finalizers: [kubernetes.io/pvc-protection, example.com/own]
status: {phase: Bound}
---
kind: Pod
metadata: {namespace: a, name: db-0, uid: u1}
spec: {volumes: [{persistentVolumeClaim: {claimName: data}}]}
",
        expect![[r#"
            It is being deleted since 2026-01-01T00:00:00Z, and waits for kubernetes.io/pvc-protection, example.com/own.
              kubernetes.io/pvc-protection waits until no pod uses the claim
              example.com/own belongs to the controller that set it; see whether it runs
              pod db-0 uses it
            What helps:
              kubectl delete pod -n a db-0
        "#]],
    );
}

#[test]
fn an_ingress_names_what_does_not_exist() {
    check(
        "ingresses",
        "web",
        r"
kind: Ingress
metadata: {namespace: a, name: web, uid: u0}
spec:
  ingressClassName: nginx
  tls: [{secretName: web-tls}]
  rules: [{http: {paths: [{backend: {service: {name: web}}}]}}]
",
        expect![[r#"
            Its class nginx does not exist.
            What helps:
              kubectl get ingressclass

            Its backend, Service web, does not exist.

            Its certificate, Secret web-tls, does not exist.
            What helps:
              kubectl create secret tls -n a web-tls --cert=FILE --key=FILE
        "#]],
    );
}

#[test]
fn objects_of_other_kinds_have_their_conditions_or_warnings() {
    check(
        "httproutes",
        "web",
        r"
kind: HTTPRoute
metadata: {namespace: a, name: web, uid: u0}
spec: {parentRefs: [{name: front}]}
status:
  parents:
  - parentRef: {name: front}
    conditions: [{type: ResolvedRefs, status: 'False', reason: BackendNotFound, message: no Service web}]
",
        expect![[r#"
            At Gateway front it is not ResolvedRefs: BackendNotFound.
              no Service web
        "#]],
    );
    check(
        "widgets",
        "one",
        "kind: Widget\nmetadata: {namespace: a, name: one, uid: u0}\nstatus: {conditions: [{type: Ready, status: 'True'}]}",
        expect![[r#""#]],
    );
    check(
        "pods",
        "none",
        "kind: Widget",
        expect![[r#"
        There is no pods none in namespace a.
        What helps:
          kubectl get pods -A
    "#]],
    );
}
