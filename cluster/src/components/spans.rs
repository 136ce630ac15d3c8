//! The tracer of the API server: reads upstream's TracingConfiguration, and runs the exporter.

use std::path::Path;

use anyhow::{Context, Result, bail};
use corten_meta::Value;
use corten_spans::{Attribute, Configuration, Tracer};

use crate::files;
use crate::tasks::Tasks;

const GROUP: &str = "apiserver.config.k8s.io";
const VERSIONS: [&str; 3] = ["v1", "v1beta1", "v1alpha1"];
/// The name of the component, as upstream's exporter names it.
const SERVICE: &str = "apiserver";

/// Starts the tracer of a configuration file, if there is one.
pub fn tracer(path: Option<&Path>, instance: &str, tasks: &mut Tasks) -> Result<Option<Tracer>> {
    let Some(path) = path else { return Ok(None) };
    let configuration = read(&files::read(path)?).with_context(|| format!("{} is invalid", path.display()))?;
    let resource =
        vec![Attribute::text("service.name", SERVICE), Attribute::text("service.instance.id", instance.to_owned())];
    let (tracer, exporter) = Tracer::new(&configuration, resource);
    let shutdown = tasks.shutdown();
    tasks.spawn("exporter of spans", async move {
        exporter.run(shutdown).await;
        Ok::<(), anyhow::Error>(())
    });
    Ok(Some(tracer))
}

fn read(text: &str) -> Result<Configuration> {
    let document: Value = corten_meta::decode_yaml(text.as_bytes())?;
    let api_version = document["apiVersion"].as_str().unwrap_or_default();
    let is_known = VERSIONS.iter().any(|version| api_version == format!("{GROUP}/{version}"));
    if !is_known || document["kind"] != "TracingConfiguration" {
        bail!("it is no TracingConfiguration of {GROUP}/v1");
    }
    let known = ["apiVersion", "kind", "endpoint", "samplingRatePerMillion"];
    let fields = document.as_object().into_iter().flatten();
    if let Some((field, _)) = fields.into_iter().find(|(field, _)| !known.contains(&field.as_str())) {
        bail!("unknown field \"{field}\"");
    }
    Configuration::read(&document).map_err(anyhow::Error::msg)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configurations_are_read_strictly() {
        let of = |fields: &str| {
            let head = "apiVersion: apiserver.config.k8s.io/v1beta1\nkind: TracingConfiguration\n";
            read(&format!("{head}{fields}")).map_err(|error| error.to_string())
        };
        let read_one = of("endpoint: collector:4317\nsamplingRatePerMillion: 100").unwrap();
        assert_eq!((read_one.endpoint.as_str(), read_one.sampling_rate_per_million), ("collector:4317", 100));
        assert_eq!(of("").unwrap().endpoint, "localhost:4317");
        assert_eq!(of("rate: 1").unwrap_err(), "unknown field \"rate\"");
        assert!(of("samplingRatePerMillion: 2000000").unwrap_err().contains("one million"));
        let other = read("apiVersion: v1\nkind: Pod").unwrap_err().to_string();
        assert_eq!(other, "it is no TracingConfiguration of apiserver.config.k8s.io/v1");
    }
}
