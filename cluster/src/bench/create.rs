//! Creates: objects of 1 KiB, as fast as the connections allow.

use anyhow::Result;
use http::Method;

use super::measure::Report;
use super::{Run, objects};

pub async fn measure(run: &Run<'_>, report: &mut Report) -> Result<()> {
    let path = run.namespace.config_maps();
    let call = move |number| (Method::POST, path.clone(), objects::config_map(&format!("create-{number}")));
    let load = run.load(run.flags.connections.into(), call).await?;
    let made = load.latencies.count() as u64;
    report.requests("create", load.latencies, &load.cost, &run.processes);
    report.memory("create", &run.processes);
    run.namespace.empty("create", made).await
}
