//! The annotations of a Service for Hetzner, `load-balancer.hetzner.cloud/*`, as settings.

use crate::provider::{Annotation, Error};

const PREFIX: &str = "load-balancer.hetzner.cloud/";

/// The settings of a load balancer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    pub location: Option<String>,
    pub network_zone: Option<String>,
    pub kind: Option<String>,
    pub algorithm: Option<String>,
    pub uses_private_ip: bool,
    pub has_proxy_protocol: bool,
    /// Sentences about annotations that have no effect.
    pub warnings: Vec<String>,
}

impl Options {
    pub fn parse(annotations: &[Annotation]) -> Result<Options, Error> {
        let mut options = Options::default();
        for Annotation { name, value } in annotations {
            let Some(key) = name.strip_prefix(PREFIX) else { continue };
            let boolean = || match value.as_str() {
                "true" => Ok(true),
                "false" => Ok(false),
                _ => Err(Error::Invalid(format!("the annotation {name} is {value:?}, and takes true or false"))),
            };
            match key {
                "location" => options.location = Some(value.clone()),
                "network-zone" => options.network_zone = Some(value.clone()),
                "type" => options.kind = Some(value.clone()),
                "algorithm-type" => options.algorithm = Some(value.clone()),
                "use-private-ip" => options.uses_private_ip = boolean()?,
                "uses-proxyprotocol" => options.has_proxy_protocol = boolean()?,
                _ => options.warnings.push(format!("the annotation {name} is not known and has no effect")),
            }
        }
        Ok(options)
    }
}
