//! Upstream's TracingConfiguration: the collector, and how many requests are sampled.

use serde_json::Value;

/// The collector of a configuration that names none.
const DEFAULT_ENDPOINT: &str = "localhost:4317";
const MILLION: i64 = 1_000_000;

/// The settings of tracing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Configuration {
    /// The collector's gRPC endpoint, without a scheme or with `dns` or `unix`.
    pub endpoint: String,
    /// The requests that are sampled of a million that no sampled parent has.
    pub sampling_rate_per_million: u32,
}

impl Configuration {
    /// Reads the fields `endpoint` and `samplingRatePerMillion`; errors have upstream's words.
    pub fn read(value: &Value) -> Result<Configuration, String> {
        let endpoint = match value.get("endpoint") {
            None | Some(Value::Null) => DEFAULT_ENDPOINT,
            Some(Value::String(endpoint)) => endpoint,
            Some(other) => return Err(format!("endpoint: Invalid value: {other}: it is no string")),
        };
        check_endpoint(endpoint)?;
        let rate = match value.get("samplingRatePerMillion") {
            None | Some(Value::Null) => 0,
            Some(rate) => {
                let invalid = |detail: &str| format!("samplingRatePerMillion: Invalid value: {rate}: {detail}");
                match rate.as_i64().ok_or_else(|| invalid("it is no number"))? {
                    ..0 => return Err(invalid("sampling rate must be positive")),
                    rate @ 0..=MILLION => u32::try_from(rate).unwrap_or_default(),
                    _ => return Err(invalid("sampling rate per million must be less than or equal to one million")),
                }
            }
        };
        Ok(Configuration { endpoint: endpoint.to_owned(), sampling_rate_per_million: rate })
    }

    /// Returns the URL by which the collector is dialled.
    pub fn url(&self) -> String {
        if self.endpoint.starts_with("unix:") {
            return self.endpoint.clone();
        }
        let address = self.endpoint.strip_prefix("dns:").unwrap_or(&self.endpoint);
        format!("http://{}", address.trim_start_matches('/'))
    }
}

fn check_endpoint(endpoint: &str) -> Result<(), String> {
    let invalid = |detail: &str| format!("endpoint: Invalid value: \"{endpoint}\": {detail}");
    match endpoint.split_once("//").map(|(scheme, _)| scheme.trim_end_matches(':')) {
        _ if endpoint.is_empty() => Err(invalid("it is empty")),
        None | Some("dns" | "unix") => Ok(()),
        Some(scheme) => Err(invalid(&format!("unsupported scheme: {scheme}.  Options are none, dns or unix."))),
    }
}
