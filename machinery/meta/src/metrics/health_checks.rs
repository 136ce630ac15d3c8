//! The results of a component's health checks: the page `/metrics/slis`, under upstream's names.
//!
//! The page always shows when the process started, so that it is not empty before the first check. The names of checks
//! must come from the component, never from a client.

use super::{Exposition, Registry};

crate::families! {
    LAST = Gauge "kubernetes_healthcheck" ["name", "type"],
        "[STABLE] This metric records the result of a single healthcheck.";
    ALL = Counter "kubernetes_healthchecks_total" ["name", "status", "type"],
        "[STABLE] This metric records the results of all healthcheck.";
    STARTED = Gauge "process_start_time_seconds" [], "Start time of the process since unix epoch in seconds.";
}

/// The results of a component's health checks.
#[derive(Debug, Default)]
pub struct HealthChecks(Registry);

impl HealthChecks {
    /// Counts the result of the check `name` on `endpoint`: `healthz`, `livez` or `readyz`.
    pub fn observe(&self, name: &str, endpoint: &str, is_healthy: bool) {
        let status = if is_healthy { "success" } else { "error" };
        self.0.series(&LAST, &[name, endpoint]).set(f64::from(u8::from(is_healthy)));
        self.0.series(&ALL, &[name, status, endpoint]).add(1.0);
    }

    /// Renders the page in the text format. `started` is the start time of the process, in Unix seconds.
    pub fn render(&self, started: Option<f64>) -> String {
        let mut process = Exposition::default();
        if let Some(started) = started {
            process.single(&STARTED, started);
        }
        self.0.render() + &process.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(page: &str) -> Vec<&str> {
        page.lines().filter(|line| !line.starts_with('#')).collect()
    }

    #[test]
    fn the_page_is_never_empty() {
        assert_eq!(samples(&HealthChecks::default().render(Some(17.0))), ["process_start_time_seconds 17"]);
    }

    #[test]
    fn results_are_counted_by_check_endpoint_and_status() {
        let checks = HealthChecks::default();
        checks.observe("ping", "livez", true);
        checks.observe("ping", "livez", true);
        checks.observe("ping", "livez", false);
        checks.observe("etcd", "readyz", true);
        let page = checks.render(None);
        let expected = [
            r#"kubernetes_healthcheck{name="etcd",type="readyz"} 1"#,
            r#"kubernetes_healthcheck{name="ping",type="livez"} 0"#,
            r#"kubernetes_healthchecks_total{name="etcd",status="success",type="readyz"} 1"#,
            r#"kubernetes_healthchecks_total{name="ping",status="error",type="livez"} 1"#,
            r#"kubernetes_healthchecks_total{name="ping",status="success",type="livez"} 2"#,
        ];
        assert_eq!(samples(&page), expected);
    }
}
