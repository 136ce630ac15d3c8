//! The annotations of a Service for AWS, `service.beta.kubernetes.io/aws-load-balancer-*`, as settings.

use crate::provider::{Annotation, Error};

const PREFIX: &str = "service.beta.kubernetes.io/aws-load-balancer-";
/// Upstream's annotation for source ranges, which is not AWS's own.
const SOURCE_RANGES: &str = "service.beta.kubernetes.io/load-balancer-source-ranges";

/// The settings of a load balancer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    pub is_internal: bool,
    pub targets_addresses: bool,
    pub has_proxy_protocol: bool,
    pub is_cross_zone: bool,
    pub health: HealthOptions,
    pub tags: Vec<Pair>,
    /// The IDs or names of subnets; those of the cluster if empty.
    pub subnets: Vec<String>,
    pub elastic_addresses: Vec<String>,
    pub certificates: Vec<String>,
    /// The ports with TLS, by number or name; all if empty.
    pub tls_ports: Vec<String>,
    pub tls_policy: Option<String>,
    pub alpn_policy: Option<String>,
    /// Whether the load balancer speaks TLS to nodes.
    pub has_tls_targets: bool,
    pub attributes: Vec<Pair>,
    pub target_attributes: Vec<Pair>,
    pub source_ranges: Vec<String>,
    /// Sentences about annotations that have no effect.
    pub warnings: Vec<String>,
}

/// The settings of health checks; AWS's defaults where they are absent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HealthOptions {
    pub protocol: Option<String>,
    pub port: Option<String>,
    pub path: Option<String>,
    pub interval: Option<u32>,
    pub timeout: Option<u32>,
    pub healthy_threshold: Option<u32>,
    pub unhealthy_threshold: Option<u32>,
    pub success_codes: Option<String>,
}

/// A key and its value, such as a tag.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pair {
    pub key: String,
    pub value: String,
}

impl Options {
    /// Reads the annotations; the error names the annotation and the values that it takes.
    pub fn parse(annotations: &[Annotation]) -> Result<Options, Error> {
        let mut options = Options::default();
        for annotation in annotations {
            if annotation.name == SOURCE_RANGES {
                options.source_ranges = words(&annotation.value);
            }
            if let Some(name) = annotation.name.strip_prefix(PREFIX) {
                let problem = |expected: String| {
                    let Annotation { name, value } = annotation;
                    Error::Invalid(format!("the annotation {name} is {value:?}, and takes {expected}"))
                };
                options.set(name, annotation.value.trim()).map_err(problem)?;
            }
        }
        Ok(options)
    }

    /// Sets one annotation; the error is what it takes instead.
    fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        match name {
            "internal" => self.is_internal = value == "0.0.0.0/0" || boolean(value)?,
            "scheme" => self.is_internal = one_of(value, ["internal", "internet-facing"])? == "internal",
            "type" => self.targets_addresses |= one_of(value, ["nlb", "external", "nlb-ip"])? == "nlb-ip",
            "nlb-target-type" => self.targets_addresses = one_of(value, ["instance", "ip"])? == "ip",
            "proxy-protocol" => self.has_proxy_protocol = one_of(value, ["*"])? == "*",
            "cross-zone-load-balancing-enabled" => self.is_cross_zone = boolean(value)?,
            "additional-resource-tags" => self.tags = pairs(value)?,
            "subnets" => self.subnets = words(value),
            "eip-allocations" => self.elastic_addresses = words(value),
            "ssl-cert" => self.set_certificates(value),
            "ssl-ports" => self.tls_ports = words(value).into_iter().filter(|port| port != "*").collect(),
            "ssl-negotiation-policy" => self.tls_policy = Some(value.to_owned()),
            "alpn-policy" => self.alpn_policy = Some(value.to_owned()),
            "backend-protocol" => self.has_tls_targets = one_of(value, ["tcp", "ssl"])? == "ssl",
            "attributes" => self.attributes = pairs(value)?,
            "target-group-attributes" => self.target_attributes = pairs(value)?,
            other => match other.strip_prefix("healthcheck-") {
                Some(health) => return self.set_health(health, value),
                None => self.ignore(other),
            },
        }
        Ok(())
    }

    fn set_certificates(&mut self, value: &str) {
        self.certificates = words(value);
        if self.certificates.len() > 1 {
            self.certificates.truncate(1);
            self.warnings
                .push(format!("the annotation {PREFIX}ssl-cert names several certificates; the first is used"));
        }
    }

    fn set_health(&mut self, name: &str, value: &str) -> Result<(), String> {
        let health = &mut self.health;
        match name {
            "protocol" => {
                health.protocol = Some(one_of(&value.to_uppercase(), ["TCP", "HTTP", "HTTPS"])?.to_owned());
            }
            "port" => {
                let is_port = value == "traffic-port" || value.parse::<u16>().is_ok_and(|port| port > 0);
                health.port = Some(value.to_owned()).filter(|_| is_port);
                health.port.as_ref().ok_or("traffic-port or a port's number")?;
            }
            "path" => {
                health.path = Some(value.to_owned()).filter(|path| path.starts_with('/'));
                health.path.as_ref().ok_or("a path that begins with /")?;
            }
            "interval" => health.interval = Some(number(value, 5, 300)?),
            "timeout" => health.timeout = Some(number(value, 2, 120)?),
            "healthy-threshold" => health.healthy_threshold = Some(number(value, 2, 10)?),
            "unhealthy-threshold" => health.unhealthy_threshold = Some(number(value, 2, 10)?),
            "success-codes" => health.success_codes = Some(value.to_owned()),
            other => self.ignore(&format!("healthcheck-{other}")),
        }
        Ok(())
    }

    fn ignore(&mut self, name: &str) {
        self.warnings.push(format!("the annotation {PREFIX}{name} is not known and has no effect"));
    }
}

fn boolean(value: &str) -> Result<bool, String> {
    Ok(one_of(value, ["true", "false"])? == "true")
}

fn one_of<'a, const N: usize>(value: &'a str, known: [&str; N]) -> Result<&'a str, String> {
    if known.contains(&value) { Ok(value) } else { Err(known.join(" or ")) }
}

fn number(value: &str, least: u32, most: u32) -> Result<u32, String> {
    let number = value.parse().ok().filter(|number| (least..=most).contains(number));
    number.ok_or_else(|| format!("a number from {least} to {most}"))
}

fn words(value: &str) -> Vec<String> {
    value.split(',').map(str::trim).filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

fn pairs(value: &str) -> Result<Vec<Pair>, String> {
    let pair = |word: String| {
        let (key, value) = word.split_once('=').unwrap_or((&word, ""));
        let key = key.trim().to_owned();
        let is_own = key.starts_with("kubernetes.io/") || key.starts_with("aws:");
        let expected = "KEY=VALUE,… without keys of kubernetes.io/ and aws:";
        if key.is_empty() || is_own {
            return Err(expected.to_owned());
        }
        Ok(Pair { key, value: value.trim().to_owned() })
    };
    words(value).into_iter().map(pair).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(lines: &[(&str, &str)]) -> Result<Options, String> {
        let annotation =
            |(name, value): &(&str, &str)| Annotation { name: format!("{PREFIX}{name}"), value: (*value).to_owned() };
        let annotations: Vec<Annotation> = lines.iter().map(annotation).collect();
        Options::parse(&annotations).map_err(|error| error.to_string())
    }

    #[test]
    fn annotations_become_settings() {
        let options = parse(&[
            ("scheme", "internal"),
            ("nlb-target-type", "ip"),
            ("proxy-protocol", "*"),
            ("cross-zone-load-balancing-enabled", "true"),
            ("healthcheck-port", "10256"),
            ("healthcheck-interval", "10"),
            ("additional-resource-tags", "team=a, cost = 1"),
            ("subnets", "subnet-1, private"),
        ])
        .unwrap();
        assert!(options.is_internal && options.targets_addresses && options.has_proxy_protocol);
        assert!(options.is_cross_zone);
        assert_eq!(options.health.port.as_deref(), Some("10256"));
        assert_eq!(options.tags[1], Pair { key: "cost".to_owned(), value: "1".to_owned() });
        assert_eq!(options.subnets, ["subnet-1", "private"]);
        assert!(options.warnings.is_empty(), "{:?}", options.warnings);
    }

    #[test]
    fn bad_values_are_refused_and_unknown_annotations_reported() {
        for (name, value, expected) in [
            ("internal", "yes", "true or false"),
            ("type", "clb", "nlb or external or nlb-ip"),
            ("backend-protocol", "http", "tcp or ssl"),
            ("healthcheck-interval", "1", "a number from 5 to 300"),
            ("healthcheck-path", "healthz", "a path that begins with /"),
            (
                "additional-resource-tags",
                "kubernetes.io/cluster/x=owned",
                "KEY=VALUE,… without keys of kubernetes.io/ and aws:",
            ),
        ] {
            let error = parse(&[(name, value)]).unwrap_err();
            assert_eq!(error, format!("the annotation {PREFIX}{name} is {value:?}, and takes {expected}"));
        }
        let unknown = parse(&[("connection-idle-timeout", "60")]).unwrap();
        assert_eq!(
            unknown.warnings,
            [format!("the annotation {PREFIX}connection-idle-timeout is not known and has no effect")]
        );
    }
}
