//! Answers to the questions of the console's pages, read with the rights of a client.

use anyhow::{Context, Result, bail, ensure};
use corten_client::Client;
use corten_console::{ObjectName, Question, QuestionKind};
use corten_meta::{Key, Value};
use corten_scheduler::Config;
use corten_trace::{Root, Step, Tracer};
use corten_why::{ClientReader, Finding, Placement, Sources, Subject, find_resource};
use futures::future::BoxFuture;
use serde_json::json;

/// The most steps of an answer: a page has a row for each.
const MAX_STEPS: usize = 1000;

/// Answers a question.
pub async fn answer(client: Client, question: Question) -> Result<Value> {
    // The server takes a slash in a name for the next segment of the path.
    for name in [&question.object.namespace, &question.object.name] {
        let errors = corten_meta::names::path_segment_name(name);
        ensure!(errors.is_empty(), "{name:?} is not a name: it {}", errors.join(", "));
    }
    match question.kind {
        QuestionKind::Why => findings(client, question.object).await,
        QuestionKind::Trace => steps(&client, &question.object).await,
    }
}

/// Returns the name by which the resource of an object is found.
fn resource_name(object: &ObjectName) -> String {
    match object.group.as_str() {
        "" => object.plural.clone(),
        group => format!("{}.{group}", object.plural),
    }
}

/// Returns the findings about an object.
async fn findings(client: Client, object: ObjectName) -> Result<Value> {
    let name = resource_name(&object);
    let resource = find_resource(&client, &name).await?.with_context(|| format!("the server has no {name}"))?;
    let subject = Subject { resource, namespace: object.namespace, name: object.name };
    let scheduler = crate::config::scheduler(None)?;
    Ok(json!({"findings": explain(client, scheduler, &subject).await?}))
}

/// Returns the last steps of an object and of those that it owns, and how many came before them.
async fn steps(client: &Client, object: &ObjectName) -> Result<Value> {
    let root = root(client, &resource_name(object), &object.name).await?;
    let mut tracer = Tracer::new(vec![root.clone()]);
    corten_trace::read(client, &object.namespace, &mut tracer).await?;
    let is_found = tracer.roots().iter().all(Option::is_some);
    ensure!(is_found, "there is no {} {:?} that can be traced in {}", root.kind, root.name, object.namespace);
    let steps = corten_trace::history(tracer.objects());
    let Some(first) = steps.first().map(|step| step.at) else { return Ok(json!({"steps": [], "omitted": 0})) };
    let entry = |step: &Step| {
        json!({
            "time": step.at.to_string(), "milliseconds": step.milliseconds_since(first),
            "component": step.actor.name(), "object": step.object, "text": step.text,
        })
    };
    let omitted = steps.len().saturating_sub(MAX_STEPS);
    let entries: Vec<Value> = steps[omitted..].iter().map(entry).collect();
    Ok(json!({"steps": entries, "omitted": omitted}))
}

/// Explains an object with the rights of a client.
pub async fn explain(client: Client, scheduler: Config, subject: &Subject) -> Result<Vec<Finding>> {
    let objects = ClientReader(client.clone());
    let placement = Plugins { client, scheduler };
    Ok(corten_why::explain(Sources { objects: &objects, placement: &placement }, subject).await?)
}

/// Returns the root of a resource and a name.
pub async fn root(client: &Client, word: &str, name: &str) -> Result<Root> {
    let resource = find_resource(client, word).await.context("the server's resources cannot be read")?;
    let Some(resource) = resource else { bail!("the server has no resource {word:?}") };
    let kinds = client.get_raw(&discovery(&resource)).await.context("the server's resources cannot be read")?;
    let list: Value = serde_json::from_slice(&kinds).context("the server's resources cannot be read")?;
    let mut resources = list["resources"].as_array().into_iter().flatten();
    let found = resources.find(|known| known["name"] == *resource.plural);
    let kind = found.and_then(|found| found["kind"].as_str()).context("the server does not name its kind")?;
    Ok(Root { kind: kind.to_owned(), name: name.to_owned() })
}

/// Returns the path of the resources of a group version.
fn discovery(resource: &corten_client::Resource) -> String {
    match resource.group.as_str() {
        "" => format!("/api/{}", resource.version),
        group => format!("/apis/{group}/{}", resource.version),
    }
}

/// The scheduler's plugins, asked about one pod.
pub struct Plugins {
    pub client: Client,
    pub scheduler: Config,
}

impl Placement for Plugins {
    fn explain<'a>(&'a self, namespace: &'a str, name: &'a str) -> BoxFuture<'a, Result<String, String>> {
        let key = Key { namespace: namespace.to_owned(), name: name.to_owned() };
        Box::pin(async move {
            let explained = corten_scheduler::explain(&self.scheduler, self.client.clone(), &key).await;
            explained.map(|explanation| explanation.to_string()).map_err(|error| error.to_string())
        })
    }
}
