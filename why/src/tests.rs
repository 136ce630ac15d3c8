//! Explanations of stuck objects, in `tests.txt`: given these objects, this answer.

use corten_client::{Error, ListOptions, Resource};
use corten_meta::Value;
use expect_test::expect_file;
use futures::future::BoxFuture;
use serde_json::json;

use crate::{
    Access, Connection, DEFAULT_DOMAIN, Finding, Lookup, Placement, Reader, Sources, Subject, Target, explain,
    explain_access, explain_connection, explain_event, explain_lookup,
};

/// Objects in memory, and the reason for which requests are allowed, if they are.
#[derive(Default)]
struct World {
    objects: Vec<Value>,
    allowed: Option<String>,
}

impl World {
    fn of<'a>(&'a self, resource: &'a Resource, namespace: &'a str) -> impl Iterator<Item = &'a Value> {
        self.objects.iter().filter(move |one| {
            let kind = one["kind"].as_str().unwrap().to_lowercase();
            let is_kind = resource.plural == format!("{kind}s")
                || resource.plural == format!("{kind}es")
                || resource.plural.strip_suffix("ies").is_some_and(|stem| kind == format!("{stem}y"));
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

    fn review<'a>(&'a self, _: &'a Value) -> BoxFuture<'a, Result<Value, Error>> {
        let answer = json!({"status": {"allowed": self.allowed.is_some(), "reason": self.allowed}});
        Box::pin(async move { Ok(answer) })
    }
}

/// A scheduler that says always the same.
struct Scheduler;

impl Placement for Scheduler {
    fn explain<'a>(&'a self, _: &'a str, name: &'a str) -> BoxFuture<'a, Result<String, String>> {
        Box::pin(async move { Ok(format!("n1 has too little cpu for {name}\n")) })
    }
}

/// Runs a line: an object, `allow REASON`, `why RESOURCE NAME`, `can-i USER VERB GROUP/RESOURCE`,
/// `connection FROM TO PORT/PROTOCOL`, `dns NAME [FROM]` or `audit JSON`.
fn run(world: &mut World, command: &str) -> String {
    if let Some(reason) = command.strip_prefix("allow ") {
        world.allowed = Some(reason.to_owned());
        return String::new();
    }
    if let Some(findings) = answer(world, command) {
        return findings.iter().map(ToString::to_string).collect();
    }
    let Some((plural, name)) = command.strip_prefix("why ").and_then(|rest| rest.split_once(' ')) else {
        world.objects.push(testkit_fixture::object(command));
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

/// Answers a question that is not about one object.
fn answer(world: &World, command: &str) -> Option<Vec<Finding>> {
    let sources = Sources { objects: world, placement: &Scheduler };
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let words: Vec<&str> = command.split(' ').collect();
    let findings = match words[..] {
        ["can-i", user, verb, resource] => {
            let (group, plural) = resource.split_once('/').unwrap();
            let (plural, subresource) = plural.split_once(':').unwrap_or((plural, ""));
            let target = Target::Resource {
                group: group.to_owned(),
                plural: plural.to_owned(),
                subresource: subresource.to_owned(),
                namespace: "a".to_owned(),
                name: "x".to_owned(),
            };
            let access = Access { verb: verb.to_owned(), target, user: user.to_owned(), groups: Vec::new() };
            runtime.block_on(explain_access(sources, &access))
        }
        ["connection", from, to, port] => {
            let (port, protocol) = port.split_once('/').unwrap();
            let connection = Connection {
                from: from.to_owned(),
                to: to.to_owned(),
                port: port.parse().unwrap(),
                protocol: protocol.to_owned(),
                namespace: "a".to_owned(),
            };
            runtime.block_on(explain_connection(sources, &connection))
        }
        ["dns", name, ref from @ ..] => {
            let lookup = Lookup {
                name: name.to_owned(),
                from: from.first().map(|from| (*from).to_owned()),
                namespace: "a".to_owned(),
                domain: DEFAULT_DOMAIN.to_owned(),
            };
            runtime.block_on(explain_lookup(sources, &lookup))
        }
        ["audit", ..] => Ok(explain_event(&serde_json::from_str(command.strip_prefix("audit ")?).unwrap())),
        _ => return None,
    };
    Some(findings.unwrap())
}

#[test]
fn stuck_objects_are_explained() {
    testkit_fixture::script::check(expect_file!["tests.txt"], World::default, run);
}
