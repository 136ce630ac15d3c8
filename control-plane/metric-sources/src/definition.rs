//! The CustomResourceDefinition of MetricSources.

use corten_meta::Value;
use serde_json::json;

pub const GROUP: &str = "metrics.corten.dev";
pub const VERSION: &str = "v1alpha1";
pub const PLURAL: &str = "metricsources";

/// Returns the CustomResourceDefinition of MetricSources.
pub fn definition() -> Value {
    let schema = json!({
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": spec(),
        },
    });
    let column = |name: &str, path: &str| json!({"name": name, "type": "string", "jsonPath": path});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{PLURAL}.{GROUP}")},
        "spec": {
            "group": GROUP,
            "scope": "Cluster",
            "names": {
                "kind": "MetricSource", "listKind": "MetricSourceList", "plural": PLURAL, "singular": "metricsource",
            },
            "versions": [{
                "name": VERSION,
                "served": true,
                "storage": true,
                "schema": {"openAPIV3Schema": schema},
                "additionalPrinterColumns": [
                    column("URL", ".spec.prometheus.url"),
                    column("Service", ".spec.prometheus.service.name"),
                    column("Adapter", ".spec.adapter.service.name"),
                    column("Metrics", ".spec.metrics[*].name"),
                ],
            }],
        },
    })
}

fn spec() -> Value {
    let name = json!({"type": "string", "minLength": 1, "maxLength": 253});
    let port = json!({"type": "integer", "minimum": 1, "maximum": 65535});
    let service = json!({
        "type": "object",
        "required": ["namespace", "name", "port"],
        "properties": {
            "namespace": name, "name": name, "port": port,
            "scheme": {"type": "string", "enum": ["http", "https"], "default": "http"},
            "path": {"type": "string", "maxLength": 1024, "pattern": "^/"},
        },
    });
    let prometheus = json!({
        "type": "object",
        "properties": {
            "url": {"type": "string", "maxLength": 2048, "pattern": "^https?://.+"},
            "service": service,
            "secretName": name,
            "timeoutSeconds": {"type": "integer", "minimum": 1, "maximum": 30, "default": 10},
        },
        "x-kubernetes-validations": [
            {"rule": "has(self.url) != has(self.service)", "message": "name either a url or a service"},
        ],
    });
    let adapter = json!({
        "type": "object",
        "required": ["service"],
        "properties": {
            "service": {
                "type": "object",
                "required": ["namespace", "name"],
                "properties": {"namespace": name, "name": name, "port": port},
            },
            "caBundle": {"type": "string", "format": "byte", "maxLength": 65536},
            "insecureSkipTLSVerify": {"type": "boolean"},
            "groups": {
                "type": "array",
                "maxItems": 2,
                "items": {"type": "string", "enum": [crate::CUSTOM_METRICS, crate::EXTERNAL_METRICS]},
            },
        },
    });
    let metric = json!({
        "type": "object",
        "required": ["name", "query"],
        "properties": {
            "name": {"type": "string", "minLength": 1, "maxLength": 253, "pattern": "^[A-Za-z0-9_:.-]+$"},
            "resource": {"type": "string", "maxLength": 253, "pattern": "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"},
            "query": {"type": "string", "minLength": 1, "maxLength": 8192},
            "label": {"type": "string", "maxLength": 253, "pattern": "^[A-Za-z_][A-Za-z0-9_]*$"},
        },
    });
    json!({
        "type": "object",
        "properties": {
            "prometheus": prometheus,
            "adapter": adapter,
            "metrics": {"type": "array", "maxItems": 256, "items": metric},
        },
        "x-kubernetes-validations": [
            {"rule": "has(self.prometheus) != has(self.adapter)", "message": "name either prometheus or an adapter"},
            {"rule": "has(self.prometheus) || !has(self.metrics)", "message": "an adapter has metrics of its own"},
        ],
    })
}
