//! Explanations of stuck objects, in `tests.txt`: given these objects, this answer.

use corten_client::{Error, ListOptions, Resource};
use corten_meta::Value;
use expect_test::expect_file;
use futures::future::BoxFuture;

use crate::{Placement, Reader, Sources, Subject, explain};

/// Objects in memory.
#[derive(Default)]
struct World(Vec<Value>);

impl World {
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

/// Runs a line: an object, or `why RESOURCE NAME`.
fn run(world: &mut World, command: &str) -> String {
    let Some((plural, name)) = command.strip_prefix("why ").and_then(|rest| rest.split_once(' ')) else {
        world.0.push(testkit_fixture::object(command));
        return String::new();
    };
    let group = match plural {
        "deployments" => "apps",
        "jobs" => "batch",
        "ingresses" => "networking.k8s.io",
        "httproutes" => "gateway.networking.k8s.io",
        "volumesnapshots" => "snapshot.storage.k8s.io",
        "horizontalpodautoscalers" => "autoscaling",
        _ => "",
    };
    let namespace = if matches!(plural, "nodes" | "namespaces") { "" } else { "a" };
    let resource = Resource::new(group, "v1", plural, !namespace.is_empty());
    let subject = Subject { resource, namespace: namespace.into(), name: name.into() };
    let sources = Sources { objects: world, placement: &Scheduler };
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let findings = runtime.block_on(explain(sources, &subject)).unwrap();
    findings.iter().map(ToString::to_string).collect()
}

#[test]
fn stuck_objects_are_explained() {
    testkit_fixture::script::check(expect_file!["tests.txt"], World::default, run);
}
