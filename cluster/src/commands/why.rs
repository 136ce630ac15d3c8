//! `corten why KIND/NAME`: why an object is not as it should be, and what would help.

use anyhow::{Context, Result, bail};
use corten_client::Client;
use corten_gateway::explain::{Subject as RouteSubject, World};
use corten_gateway::trace::Question as RouteQuestion;
use corten_meta::Key;
use corten_why::{Finding, Subject, find_resource};

use super::why_questions::{Question, ask};
use crate::answers::explain;
use crate::user_cli::Why;
use crate::{config, kubeconfig};

pub async fn run(flags: &Why) -> Result<()> {
    if let Some(question) = Question::read(flags)? {
        return ask(flags, question).await;
    }
    if let Some(word) = flags.words.first() {
        bail!("{word:?} is too much: name one object");
    }
    let (word, name) = flags.object.split_once('/').unwrap_or(("pods", flags.object.as_str()));
    if name.is_empty() {
        bail!("name an object: corten why pod/NAME");
    }
    let client = client(flags)?;
    let scheduler = config::scheduler(flags.scheduler_config.as_deref())?;
    let resource = find_resource(&client, word).await.context("the server's resources cannot be read")?;
    let Some(resource) = resource else { bail!("the server has no resource {word:?}") };
    let namespace = if resource.namespaced { flags.namespace.clone() } else { String::new() };
    let subject = Subject { resource, namespace, name: name.to_owned() };
    let routes = RouteSubject::new(
        &subject.resource.group,
        &subject.resource.plural,
        Key::new(subject.namespace.clone(), subject.name.clone()),
    );
    if flags.url.is_none() {
        print(&explain(client.clone(), scheduler, &subject).await?);
    }
    match (routes, &flags.url) {
        (Some(routes), url) => print_routes(client, &routes, url.as_deref(), flags).await,
        (None, Some(_)) => bail!("--url explains an Ingress, HTTPRoute or GRPCRoute"),
        (None, None) => Ok(()),
    }
}

/// Returns the client of the user's kubeconfig.
pub fn client(flags: &Why) -> Result<Client> {
    let path = kubeconfig::user_file(flags.kubeconfig.as_deref()).context("no kubeconfig: name one by --kubeconfig")?;
    Client::from_kubeconfig(&path, None).with_context(|| format!("{} cannot be used", path.display()))
}

/// Prints the rules of an Ingress or route, or the way of a request.
async fn print_routes(client: Client, subject: &RouteSubject, url: Option<&str>, flags: &Why) -> Result<()> {
    let Some(url) = url else {
        let world = World::load(client).await.context("the routes cannot be read")?;
        println!("\nRoutes:");
        world.routes(subject).iter().for_each(|line| println!("  {line}"));
        return Ok(());
    };
    let headers = flags.header.iter().map(|header| {
        let (name, value) = header.split_once(':').with_context(|| format!("{header:?} is no NAME: VALUE"))?;
        let name = http::HeaderName::from_bytes(name.trim().as_bytes()).context("the name of a header is invalid")?;
        Ok((name, http::HeaderValue::from_str(value.trim()).context("the value of a header is invalid")?))
    });
    let headers: http::HeaderMap = headers.collect::<Result<_>>()?;
    let question = RouteQuestion::new(url, &flags.method, headers)?;
    let world = World::load(client).await.context("the routes cannot be read")?;
    world.request(subject, &question).await.iter().for_each(|line| println!("{line}"));
    Ok(())
}

fn print(findings: &[Finding]) {
    if findings.is_empty() {
        println!("Nothing is wrong with it.");
    }
    print_findings(findings);
}

pub fn print_findings(findings: &[Finding]) {
    for (at, finding) in findings.iter().enumerate() {
        if at > 0 {
            println!();
        }
        print!("{finding}");
    }
}
