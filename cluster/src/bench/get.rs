//! Gets: consistent reads of single objects of 1 KiB.

use anyhow::Result;
use bytes::Bytes;
use http::Method;

use super::Run;
use super::measure::Report;

/// The number of objects that are read in turn.
const OBJECTS: u64 = 1000;

pub async fn measure(run: &Run<'_>, report: &mut Report) -> Result<()> {
    run.namespace.fill("get", OBJECTS).await?;
    let path = run.namespace.config_map("get-");
    let call = move |number| (Method::GET, format!("{path}{}", number % OBJECTS), Bytes::new());
    let load = run.load(run.flags.connections.into(), call).await?;
    report.requests("get", load.latencies, &load.cost, &run.processes);
    run.namespace.empty("get", OBJECTS).await
}
