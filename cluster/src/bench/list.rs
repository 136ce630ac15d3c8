//! Lists: the complete collection at once, consistent (without a resourceVersion) and from the server's cache (with 0).

use anyhow::Result;
use bytes::Bytes;
use http::Method;

use super::Run;
use super::measure::Report;

/// The number of connections: lists are large, so that few are enough to keep a server busy.
const CONNECTIONS: usize = 4;

pub async fn measure(run: &Run<'_>, report: &mut Report) -> Result<()> {
    let objects = u64::from(run.flags.objects);
    run.namespace.fill("list", objects).await?;
    report.memory("objects to list", &run.processes);
    report.stored("objects to list", run.stored().await?, &run.processes);
    let mut size = 0;
    for (name, query) in [("list", ""), ("list, resourceVersion=0", "?resourceVersion=0")] {
        let path = format!("{}{query}", run.namespace.config_maps());
        let load = run.load(CONNECTIONS, move |_| (Method::GET, path.clone(), Bytes::new())).await?;
        size = size.max(load.bytes);
        report.requests(name, load.latencies, &load.cost, &run.processes);
    }
    report.add("list, size", size as f64 / 1e6, "MB");
    report.memory("list", &run.processes);
    run.namespace.empty("list", objects).await
}
