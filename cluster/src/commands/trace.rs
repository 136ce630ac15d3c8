//! `corten trace KIND/NAME` and `corten trace -f FILE`: how a change travels through the cluster.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use corten_client::{Client, Patch};
use corten_meta::Value;
use corten_outbound::https::Endpoint;
use corten_trace::{Root, Step, Tracer, Watched, is_settled, table_header};
use corten_why::find_resource;
use futures::StreamExt as _;
use http::{Request, header};
use http_body_util::Full;
use jiff::Timestamp;
use tokio::time::Instant;

use crate::answers::root;
use crate::user_cli::{Trace, TraceOutput};
use crate::{files, kubeconfig};

/// The field manager of objects that are applied.
const MANAGER: &str = "corten-trace";
/// The largest manifest.
const MAX_MANIFEST: u64 = 16 << 20;
/// The time that steps after the last object settled have: the endpoints of a Service come last.
const AFTERWARDS: Duration = Duration::from_millis(500);
/// The time that a collector has to take the spans.
const COLLECTOR_DEADLINE: Duration = Duration::from_secs(10);

pub async fn run(flags: &Trace) -> Result<()> {
    let path = kubeconfig::user_file(flags.kubeconfig.as_deref()).context("no kubeconfig: name one by --kubeconfig")?;
    let client = Client::from_kubeconfig(&path, None).with_context(|| format!("{} cannot be used", path.display()))?;
    let steps = match (&flags.object, &flags.file) {
        (Some(object), None) if flags.watch => {
            let root = named_root(&client, object).await?;
            live(&client, flags, vec![root], Vec::new()).await?
        }
        (Some(object), None) => past(&client, flags, named_root(&client, object).await?).await?,
        (None, Some(file)) => {
            let manifest = read(file)?;
            let roots = manifest.iter().filter_map(root_of).collect();
            live(&client, flags, roots, manifest).await?
        }
        _ => bail!("name an object, or a manifest by -f: corten trace deployment/web"),
    };
    let name = flags.object.as_deref().unwrap_or("manifest");
    if flags.output == TraceOutput::Svg {
        print!("{}", corten_trace::svg(&steps));
    }
    if let Some(collector) = &flags.otlp {
        export(collector, &steps, name).await?;
    }
    Ok(())
}

/// Returns the root that the words of the command line name.
async fn named_root(client: &Client, object: &str) -> Result<Root> {
    let (word, name) = object.split_once('/').with_context(|| format!("{object:?} is not KIND/NAME"))?;
    root(client, word, name).await
}

/// Reads the objects of a manifest.
fn read(file: &Path) -> Result<Vec<Value>> {
    let size = std::fs::metadata(file).with_context(|| format!("cannot read {}", file.display()))?.len();
    ensure!(size <= MAX_MANIFEST, "{} is larger than {MAX_MANIFEST} bytes", file.display());
    let text = std::fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    let objects = corten_meta::codec::decode_yaml_documents(&text);
    let objects = objects.map_err(|error| anyhow::anyhow!("{}: {error}", file.display()))?;
    ensure!(!objects.is_empty(), "{} has no objects", file.display());
    Ok(objects)
}

fn root_of(object: &Value) -> Option<Root> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    Some(Root { kind: text(&object["kind"])?, name: text(&object["metadata"]["name"])? })
}

/// Prints the steps that objects remember.
async fn past(client: &Client, flags: &Trace, root: Root) -> Result<Vec<Step>> {
    let mut tracer = Tracer::new(vec![root.clone()]);
    corten_trace::read(client, &flags.namespace, &mut tracer).await?;
    ensure!(
        tracer.roots().iter().all(Option::is_some),
        "there is no {} {:?} in {}",
        root.kind,
        root.name,
        flags.namespace
    );
    let steps = corten_trace::history(tracer.objects());
    let mut printer = Printer::new(flags);
    printer.print(&steps);
    Ok(steps)
}

/// Applies objects, and prints the steps that follow until the roots are settled.
async fn live(client: &Client, flags: &Trace, roots: Vec<Root>, manifest: Vec<Value>) -> Result<Vec<Step>> {
    let mut tracer = Tracer::new(roots);
    let watched = corten_trace::follow(client, &flags.namespace).await?;
    tokio::pin!(watched);
    let applying = apply(client, &flags.namespace, &manifest);
    tokio::pin!(applying);
    let mut applied = manifest.is_empty();
    let mut end = Instant::now() + flags.timeout;
    let mut steps = Vec::new();
    let mut printer = Printer::new(flags);
    loop {
        tokio::select! {
            outcome = &mut applying, if !applied => {
                outcome?;
                applied = true;
            }
            next = watched.next() => {
                let Some(Watched { at, object, existed }) = next.transpose()? else { break };
                let found = tracer.see(object, at, existed);
                printer.print(&found);
                steps.extend(found);
            }
            () = tokio::time::sleep_until(end) => break,
        }
        let arrived = applied && tracer.roots().iter().all(|root| root.is_some_and(is_settled));
        if arrived && !flags.watch && !steps.is_empty() {
            end = end.min(Instant::now() + AFTERWARDS);
        }
    }
    steps.sort_by_key(|step| step.at);
    Ok(steps)
}

/// Applies the objects of a manifest by server-side apply.
async fn apply(client: &Client, namespace: &str, manifest: &[Value]) -> Result<()> {
    for object in manifest {
        let kind = object["kind"].as_str().unwrap_or_default();
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        let word = match object["apiVersion"].as_str().and_then(|version| version.split_once('/')) {
            Some((group, _)) => format!("{}.{group}", kind.to_lowercase()),
            None => kind.to_lowercase(),
        };
        let resource = match find_resource(client, &word).await? {
            Some(resource) => resource,
            None => find_resource(client, &kind.to_lowercase()).await?.with_context(|| format!("no kind {kind:?}"))?,
        };
        let namespace = object["metadata"]["namespace"].as_str().unwrap_or(namespace);
        let namespace = if resource.namespaced { namespace } else { "" };
        let patch = Patch::Apply { object: object.clone(), manager: MANAGER.to_owned(), force: false };
        let applied = client.dynamic(&resource).patch(namespace, name, &patch, None).await;
        applied.with_context(|| format!("{kind} {name:?} cannot be applied"))?;
    }
    Ok(())
}

/// Prints the table as steps arrive.
struct Printer {
    is_table: bool,
    first: Option<Timestamp>,
}

impl Printer {
    fn new(flags: &Trace) -> Printer {
        Printer { is_table: flags.output == TraceOutput::Table, first: None }
    }

    fn print(&mut self, steps: &[Step]) {
        if !self.is_table {
            return;
        }
        for step in steps {
            let first = *self.first.get_or_insert_with(|| {
                println!("{}", table_header());
                step.at
            });
            println!("{}", step.line(first));
        }
    }
}

/// Sends the steps as OpenTelemetry spans to a collector.
async fn export(collector: &str, steps: &[Step], name: &str) -> Result<()> {
    let endpoint = Endpoint::new(collector, &files::trusted_roots()).map_err(anyhow::Error::msg)?;
    let identity = Timestamp::now().as_nanosecond().unsigned_abs() ^ (u128::from(std::process::id()) << 96);
    let body = serde_json::to_vec(&corten_trace::spans(steps, name, identity))?;
    let request = Request::post(format!("{}/v1/traces", endpoint.prefix()))
        .header(header::HOST, endpoint.authority())
        .header(header::CONTENT_TYPE, "application/json")
        .body(Full::new(Bytes::from(body)))?;
    let answer = endpoint.send(request, COLLECTOR_DEADLINE).await;
    let answer = answer.map_err(|error| anyhow::anyhow!("the collector {collector}: {error}"))?;
    ensure!(answer.head.status.is_success(), "the collector {collector} answered {}", answer.head.status);
    Ok(())
}
