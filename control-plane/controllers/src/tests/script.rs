//! Tests of controllers as text: the files in `scripts`, run on a model of the cluster.
//!
//! A line of the fixture language puts an object into the model. The other commands:
//!
//! | command | effect and output |
//! |---|---|
//! | `converge QUEUE KEY` | reconciles and applies until no write is planned; prints the writes and the requeue |
//! | `reconcile QUEUE KEY` | the same, once |
//! | `plan QUEUE KEY` | prints the plan of one reconcile without applying it |
//! | `settle [pending] QUEUE/KIND… [show PATH…]` | see below |
//! | `change OBJECT WORD…` | changes objects, and the generation with the spec |
//! | `quietly COMMAND` | runs a command without its output |
//! | `repeat COUNT LINE` | puts objects; `{}` in the line is their number |
//! | `delete OBJECT`, `list KIND`, `count KIND`, `show OBJECT PATH…` | |
//! | `events`, `removed` | prints the new events, and all directories that were removed |
//! | `start` | binds the pods and makes them ready |
//! | `wakes QUEUE OLD => NEW` | prints the keys that a change enqueues; each side is a line, an `OBJECT` or `nothing` |
//! | `now +90s` | advances the clock |
//! | `failure REASON MESSAGE` | sets the last failure of a write, or `none` |
//! | `scale APIVERSION KIND NAME ANSWER` | sets the server's answer about the scale of a custom resource |
//! | `config OPTION=VALUE` | changes the configuration |
//! | `graceful` | lets deleted pods stay until their kubelet removes them |
//!
//! `OBJECT` is `KIND/NAME` or `KIND/NAMESPACE/NAME`; `*` in the name stands for anything, `[PATH=VALUE]` after it
//! selects. `KEY` is `NAME` in the namespace default, `NAMESPACE/NAME`, or `/NAME`. `QUEUE` is the name of the
//! controller's queue in metrics, `#2` after it means the second of that name.
//!
//! `settle` reconciles every object of each kind in turn, and makes one pod ready per turn unless they are `pending`.
//! It prints the bounds of the numbers of pods and ready pods, or each new state of the paths.

use std::cell::Cell;
use std::sync::Arc;

use corten_client::Change;
use corten_meta::{Key, Object, Value};
use jiff::{SignedDuration, Timestamp};
use serde_json::json;
use testkit_fixture::script::counted;
use testkit_fixture::{change, changes, duration, named, show, split, title};

use super::model::{Model, NOW, decide_at};
use crate::runtime::{Action, Decide, Failure, Plan, ScaleQuestion};
use crate::{AddressRange, Config, LoadBalancerAddresses, registry};

thread_local! {
    /// The time of the case on this thread.
    pub static CLOCK: Cell<Option<Timestamp>> = const { Cell::new(None) };
}

/// The state of one case.
pub struct Scene {
    pub model: Model,
    config: Config,
    controllers: Vec<(String, Arc<dyn Decide>)>,
    now: Timestamp,
    started: Timestamp,
}

impl Default for Scene {
    fn default() -> Scene {
        let config = Config { root_ca: "PEM".to_owned(), local_volumes: true, ..Config::default() };
        let started = NOW.checked_sub(SignedDuration::from_hours(1)).unwrap();
        let mut scene = Scene { model: Model::default(), config, controllers: Vec::new(), now: *NOW, started };
        scene.configure("").expect("the default configuration");
        scene
    }
}

/// Runs one command and returns its output.
pub fn run(scene: &mut Scene, command: &str) -> String {
    scene.run(command).unwrap_or_else(|error| format!("error: {error}"))
}

impl Scene {
    fn run(&mut self, command: &str) -> Result<String, String> {
        let words = split(command)?;
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        match words.as_slice() {
            ["quietly", ..] => {
                let output = self.run(command.trim_start_matches("quietly"))?;
                Ok(if output.starts_with("refused") { output } else { String::new() })
            }
            ["converge", queue, key] => self.converge(queue, key),
            ["reconcile", queue, key] => {
                let plan = self.decide(queue, key)?;
                Ok(counted(self.applied(&plan).into_iter().chain(requeue(&plan)).chain(none(&plan))))
            }
            ["plan", queue, key] => {
                let plan = self.decide(queue, key)?;
                let writes = plan.actions.iter().map(|action| self.written(action));
                Ok(counted(writes.chain(requeue(&plan)).chain(none(&plan))))
            }
            ["settle", rest @ ..] => self.settle(rest),
            ["change", objects, rest @ ..] => self.change(objects, rest),
            ["delete", objects] => {
                for value in self.select(objects)? {
                    let kind = value["kind"].as_str().unwrap_or_default();
                    self.model.remove(kind, corten_meta::namespace(&value), corten_meta::name(&value));
                }
                Ok(String::new())
            }
            ["repeat", count, ..] => {
                let line = command.split_once(count).map_or("", |(_, line)| line);
                for number in 0..count.parse::<usize>().map_err(|_| "repeat COUNT LINE")? {
                    self.model.put(testkit_fixture::parse(&line.replace("{}", &number.to_string()))?);
                }
                Ok(String::new())
            }
            ["removed"] => Ok(or_nothing(self.model.removed.iter().cloned().collect::<Vec<_>>().join(" "))),
            ["count", kind] => Ok(self.model.names(&named(kind)?.kind).len().to_string()),
            ["list", kind] => Ok(or_nothing(self.model.names(&named(kind)?.kind).join(" "))),
            ["show", objects, paths @ ..] => self.show(objects, paths),
            ["events"] => Ok(or_nothing(counted(std::mem::take(&mut self.model.events)))),
            ["start"] => {
                self.start();
                Ok(String::new())
            }
            ["wakes", queue, ..] => self.wakes(queue, command.split_once(queue).map_or("", |(_, rest)| rest)),
            ["now", later] => {
                let later = duration(later.trim_start_matches('+')).ok_or("a duration")?;
                self.now = self.now.checked_add(later).map_err(|error| error.to_string())?;
                CLOCK.set(Some(self.now));
                Ok(String::new())
            }
            ["failure", reason, message @ ..] => {
                let message = message.join(" ");
                self.model.failure = (*reason != "none").then(|| Failure { reason: (*reason).to_owned(), message });
                Ok(String::new())
            }
            ["scale", api_version, kind, name, answer @ ..] => self.scale(api_version, kind, name, &answer.join(" ")),
            ["config", option] => self.configure(option),
            ["graceful"] => {
                self.model.graceful = true;
                Ok(String::new())
            }
            _ => {
                self.model.put(testkit_fixture::parse(command)?);
                Ok(String::new())
            }
        }
    }

    /// Makes the controllers again, with one option changed.
    fn configure(&mut self, option: &str) -> Result<String, String> {
        let (name, value) = option.split_once('=').unwrap_or((option, ""));
        let number = || value.parse().map_err(|_| format!("{value:?} is no number"));
        match name {
            "" => {}
            "started" => self.started = *NOW,
            "cluster-cidr" => self.config.cluster_cidr = Some(value.to_owned()),
            "terminated-pod-threshold" => self.config.terminated_pod_threshold = number()?,
            "load-balancer-nodes" => {
                let kept_ports = value.split(',').filter_map(|port| port.parse().ok()).collect();
                self.config.load_balancer = Some(LoadBalancerAddresses::Nodes { kept_ports });
            }
            "address-pools" => self.config.address_pools = true,
            "load-balancer-pool" => {
                let range = AddressRange::parse(value).ok_or("no range of addresses")?;
                self.config.load_balancer = Some(LoadBalancerAddresses::Pool(vec![range]));
            }
            _ => return Err(format!("no option is named {name}")),
        }
        CLOCK.set(Some(self.started));
        let all = registry::controllers(&self.config).map_err(|error| error.to_string())?;
        self.controllers = all.into_iter().map(|(_, queue, controller)| (queue.to_owned(), controller)).collect();
        let snapshots = crate::snapshots::controllers().into_iter().chain(crate::volume_backups::controllers());
        self.controllers.extend(snapshots.map(|(queue, controller)| (queue.to_owned(), controller)));
        CLOCK.set(Some(self.now));
        Ok(String::new())
    }

    fn controller(&self, queue: &str) -> Result<Arc<dyn Decide>, String> {
        let (name, number) = queue.split_once('#').unwrap_or((queue, "1"));
        let mut found = self.controllers.iter().filter(|(known, _)| known == name);
        let number: usize = number.parse().map_err(|_| format!("{queue}: no number"))?;
        let controller = found.nth(number.saturating_sub(1)).map(|(_, controller)| controller.clone());
        controller.ok_or_else(|| format!("no queue is named {queue}"))
    }

    fn decide(&self, queue: &str, key: &str) -> Result<Plan, String> {
        let (namespace, name) = key.split_once('/').unwrap_or(("default", key));
        self.decide_key(queue, &Key::new(namespace, name))
    }

    fn decide_key(&self, queue: &str, key: &Key) -> Result<Plan, String> {
        Ok(decide_at(&*self.controller(queue)?, &self.model, key, self.now))
    }

    /// Applies a plan and returns its lines, written before the model changes.
    fn applied(&mut self, plan: &Plan) -> Vec<String> {
        let mut lines = Vec::new();
        for action in &plan.actions {
            lines.push(self.written(action));
            if let Err(refused) = self.model.attempt(action) {
                lines.push(format!("refused: {refused}"));
                break;
            }
        }
        lines
    }

    fn converge(&mut self, queue: &str, key: &str) -> Result<String, String> {
        let mut lines = Vec::new();
        for _ in 0..100 {
            let plan = self.decide(queue, key)?;
            lines.extend(self.applied(&plan));
            // Repeated events change nothing.
            if plan.actions.iter().all(Action::is_event) {
                let nothing = lines.is_empty().then(|| "nothing".to_owned());
                return Ok(counted(lines.into_iter().chain(nothing).chain(requeue(&plan))));
            }
        }
        Err(format!("{queue} does not converge on {key}"))
    }

    fn settle(&mut self, words: &[&str]) -> Result<String, String> {
        let (words, paths) = match words.iter().position(|word| *word == "show") {
            Some(at) => (&words[..at], &words[at + 1..]),
            None => (words, &[][..]),
        };
        let pending = words.first() == Some(&"pending");
        let mut bounds: Option<[usize; 4]> = None;
        let mut states: Vec<String> = Vec::new();
        for _ in 0..300 {
            let mut quiet = true;
            for word in words.iter().filter(|word| **word != "pending") {
                let (queue, kind) = word.split_once('/').ok_or("QUEUE/KIND")?;
                for key in self.model.keys(&named(kind)?.kind) {
                    let plan = self.decide_key(queue, &key)?;
                    quiet &= plan.actions.iter().all(Action::is_event);
                    self.model.apply(&plan);
                }
            }
            let active: Vec<Value> = self.pods().into_iter().filter(|pod| !is_over(pod)).collect();
            let ready = active.iter().filter(|pod| is_ready(pod)).count();
            let known = bounds.get_or_insert([active.len(), active.len(), ready, ready]);
            *known = [known[0].min(active.len()), known[1].max(active.len()), known[2].min(ready), known[3].max(ready)];
            let state = self.show("pod/*", paths)?.replace('\n', ", ");
            if states.last() != Some(&state) {
                states.push(state);
            }
            let next = active.into_iter().find(|pod| !is_ready(pod)).filter(|_| !pending);
            quiet &= next.is_none();
            if let Some(pod) = next {
                self.model.put(started(pod));
            }
            if quiet {
                let [fewest, most, least_ready, most_ready] = bounds.unwrap_or_default();
                return Ok(match paths {
                    [] if most == 0 => String::new(),
                    [] => format!("pods {fewest}..{most}, ready {least_ready}..{most_ready}"),
                    _ => states.join("\n"),
                });
            }
        }
        Err("never settles".to_owned())
    }

    fn change(&mut self, objects: &str, words: &[&str]) -> Result<String, String> {
        for old in self.select(objects)? {
            let mut value = old.clone();
            change(&mut value, words)?;
            if value["spec"] != old["spec"] {
                value["metadata"]["generation"] = json!(corten_meta::generation(&old) + 1);
            }
            self.model.put(value);
        }
        Ok(String::new())
    }

    fn show(&self, objects: &str, paths: &[&str]) -> Result<String, String> {
        let paths: Vec<String> = paths.iter().map(|path| (*path).to_owned()).collect();
        let line = |value: Value| {
            let shown = show(&value, &paths)?;
            Ok(format!("{} {shown}", corten_meta::name(&value)).trim_end().to_owned())
        };
        let lines = self.select(objects)?.into_iter().map(line).collect::<Result<Vec<_>, String>>()?;
        Ok(or_nothing(lines.join("\n")))
    }

    fn pods(&self) -> Vec<Value> {
        self.select("pod/*").unwrap_or_default()
    }

    fn start(&mut self) {
        for pod in self.pods().into_iter().filter(|pod| !is_ready(pod)) {
            self.model.put(started(pod));
        }
    }

    fn wakes(&self, queue: &str, changed: &str) -> Result<String, String> {
        let (old, new) = changed.split_once("=>").ok_or("OLD => NEW")?;
        let old = self.side(old)?;
        let new = self.side(new)?;
        let kind = new.as_ref().or(old.as_ref()).ok_or("an object")?["kind"].clone();
        let object = |value: &Value| Arc::new(Object::from_value(value, 1).expect("a valid object"));
        let (old, new) = (old.as_ref().map(object), new.as_ref().map(object));
        let key = new.as_ref().or(old.as_ref()).ok_or("an object")?.key();
        let mut keys = Vec::new();
        for change in (Change { key, old, new }).steps() {
            for watch in self.controller(queue)?.watches().iter().filter(|watch| kind == watch.resource.kind) {
                keys.extend((watch.keys)(&self.model, &change).iter().map(Key::to_string));
            }
        }
        Ok(or_nothing(keys.join(" ")))
    }

    fn side(&self, side: &str) -> Result<Option<Value>, String> {
        match split(side)?.as_slice() {
            [nothing] if nothing == "nothing" => Ok(None),
            [reference] => self.select(reference)?.into_iter().next().map(Some).ok_or(format!("no {reference}")),
            _ => testkit_fixture::parse(side).map(Some),
        }
    }

    fn scale(&mut self, api_version: &str, kind: &str, name: &str, answer: &str) -> Result<String, String> {
        let key = Key::new("default", name);
        let question = ScaleQuestion { api_version: api_version.to_owned(), kind: kind.to_owned(), key };
        let answer = match answer.split_once(" replicas=") {
            Some((uid, replicas)) => Ok(Some((uid.to_owned(), replicas.parse().map_err(|_| "replicas")?))),
            None if answer == "absent" => Ok(None),
            None => Err(answer.to_owned()),
        };
        self.model.scales.insert(question, answer);
        Ok(String::new())
    }

    /// Returns the objects that `KIND/[NAMESPACE/]NAME[PATH=VALUE]` selects.
    fn select(&self, reference: &str) -> Result<Vec<Value>, String> {
        let (reference, filter) = match reference.split_once('[') {
            Some((reference, filter)) => (reference, Some(filter.trim_end_matches(']'))),
            None => (reference, None),
        };
        let (kind, key) = reference.split_once('/').ok_or_else(|| format!("{reference}: no KIND/NAME"))?;
        let (namespace, name) = key.split_once('/').map_or((None, key), |(space, name)| (Some(space), name));
        let kind = named(kind)?.kind;
        let mut found = Vec::new();
        for key in self.model.keys(&kind) {
            let matches_name = match name.split_once('*') {
                Some((before, after)) => key.name.starts_with(before) && key.name.ends_with(after),
                None => key.name == name,
            };
            if !matches_name || namespace.is_some_and(|namespace| namespace != key.namespace) {
                continue;
            }
            let value = self.model.value(&kind, &key.namespace, &key.name);
            if let Some((path, wanted)) = filter.and_then(|filter| filter.rsplit_once('=')) {
                let shown = show(&value, &[path.to_owned()])?;
                if shown.split_once('=').map_or("", |(_, shown)| shown) != wanted {
                    continue;
                }
            }
            found.push(value);
        }
        Ok(found)
    }

    /// Writes an action as a line, with the fields that it changes.
    fn written(&self, action: &Action) -> String {
        match action {
            Action::Create { resource, object, .. } => {
                let name = match corten_meta::name(object) {
                    "" => format!("{}*", object["metadata"]["generateName"].as_str().unwrap_or_default()),
                    name => name.to_owned(),
                };
                let owners = json!({"metadata": {"ownerReferences": object["metadata"]["ownerReferences"]}});
                line("create", resource.kind, &name, changes(&Value::Null, &owners))
            }
            Action::Update { resource, object } => self.changed("update", resource.kind, object),
            Action::UpdateStatus { resource, object } => self.changed("status", resource.kind, object),
            Action::Patch { resource, key, patch, subresource } => {
                let current = self.model.find(resource.kind, &key.namespace, &key.name).unwrap_or_default();
                let mut new = current.clone();
                corten_meta::patch::merge_patch(&mut new, patch);
                line(subresource.unwrap_or("patch"), resource.kind, &key.name, stripped(&current, &new))
            }
            Action::Delete { resource, key, version, grace_period_seconds, propagation, .. } => {
                let unchanged = version.is_some().then(|| "if-unchanged".to_owned());
                let grace = grace_period_seconds.map(|seconds| format!("grace={seconds}"));
                let policy = propagation.map(|policy| format!("propagation={policy:?}"));
                line("delete", resource.kind, &key.name, grace.into_iter().chain(policy).chain(unchanged))
            }
            Action::Event(event) => {
                let kind = if event.warning { "Warning" } else { "Normal" };
                format!("event {kind} {} {}", event.reason, event.message)
            }
            Action::RemoveLocalVolume { node, name, .. } => format!("remove {node}/{name}"),
            Action::RemoveDirectory { path, .. } => format!("remove {path}"),
            Action::Relay { pod, reason, prefix, .. } => format!("relay the events of {pod} as {reason} {prefix}"),
            Action::Unused { claim } => {
                format!("check that no pod uses {}", claim.metadata.name.as_deref().unwrap_or(""))
            }
            Action::Absent { resource, key } => format!("check that {} {} is absent", title(resource.kind), key.name),
            Action::AskScale(question) => {
                format!("ask for the scale of {} {} {}", question.api_version, question.kind, question.key)
            }
        }
    }

    fn changed(&self, verb: &str, kind: &str, object: &Value) -> String {
        let (namespace, name) = (corten_meta::namespace(object), corten_meta::name(object));
        let current = self.model.find(kind, namespace, name).unwrap_or_default();
        line(verb, kind, name, stripped(&current, object))
    }
}

/// Returns the changed fields, without the word `status` before them.
fn stripped(old: &Value, new: &Value) -> Vec<String> {
    changes(old, new).into_iter().map(|word| word.replacen("status.", "", 1)).collect()
}

fn line(verb: &str, kind: &str, name: &str, words: impl IntoIterator<Item = String>) -> String {
    let words = [verb.to_owned(), title(kind), name.to_owned()].into_iter().chain(words);
    words.collect::<Vec<_>>().join(" ")
}

fn or_nothing(output: String) -> String {
    if output.is_empty() { "nothing".to_owned() } else { output }
}

fn requeue(plan: &Plan) -> Option<String> {
    plan.requeue_after.map(|after| format!("requeue {after:?}"))
}

fn none(plan: &Plan) -> Option<String> {
    (plan.is_empty() && plan.requeue_after.is_none()).then(|| "nothing".to_owned())
}

fn is_over(pod: &Value) -> bool {
    ["Succeeded", "Failed"].iter().any(|phase| pod["status"]["phase"] == *phase)
        || !pod["metadata"]["deletionTimestamp"].is_null()
}

fn is_ready(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array();
    conditions.is_some_and(|all| all.iter().any(|one| one["type"] == "Ready" && one["status"] == "True"))
}

/// Binds a pod to the node that its affinity names, and makes it ready.
fn started(mut pod: Value) -> Value {
    let terms = "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms";
    let node = pod.pointer(&format!("{terms}/0/matchFields/0/values/0")).cloned();
    if let Some(node) = node {
        pod["spec"]["nodeName"] = node;
    }
    change(&mut pod, &["Running", "ready"]).expect("words for a pod");
    pod
}

testkit_fixture::scripts! {
    Scene::default, run;
    attach_detach
    cronjob
    daemonset
    deployment
    disruption
    endpoints
    identities
    job
    local_volumes
    node
    replicaset
    resourceclaim
    services
    snapshots
    statefulset
    storage_protection
    volume_backups
    volume_binding
    volume_replicas
}
