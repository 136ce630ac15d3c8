//! The settings of AWS: the cloud configuration, with upstream's keys, and the environment, with AWS's names.

use std::path::PathBuf;

use corten_outbound::https::Endpoint;
use corten_outbound::sign::Credentials;

use super::credentials::{Metadata, Source};
use crate::providers::{Setup, ini};

/// The address of the metadata service on every instance.
const METADATA: &str = "http://169.254.169.254";

/// The cloud configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    pub region: String,
    /// The VPC of the cluster; that of its nodes if empty.
    pub vpc: String,
    pub route_table: String,
    /// The cluster's name in tags, instead of `--cluster-name`.
    pub cluster: String,
    /// Whether the security groups of nodes are left alone.
    pub leaves_security_groups: bool,
    /// The ARN of the role to assume with the web identity, instead of the environment's.
    pub role: String,
    overrides: Vec<Override>,
}

/// Another endpoint for a service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Override {
    section: String,
    service: String,
    url: String,
}

impl Settings {
    pub fn parse(text: &str) -> Result<Settings, String> {
        let mut settings = Settings::default();
        for line in ini::parse(text)? {
            let value = line.value.clone();
            if line.section.starts_with("ServiceOverride") {
                settings.override_service(&line)?;
                continue;
            }
            if line.section != "Global" {
                return Err(ini::unknown(&line));
            }
            match line.key.as_str() {
                "Region" => settings.region = value,
                // A zone is its region and a letter.
                "Zone" if settings.region.is_empty() => {
                    settings.region = value.trim_end_matches(|last: char| last.is_ascii_lowercase()).to_owned();
                }
                "Zone" => {}
                "VPC" => settings.vpc = value,
                "RouteTableID" => settings.route_table = value,
                "RoleARN" => settings.role = value,
                "KubernetesClusterID" | "KubernetesClusterTag" => settings.cluster = value,
                "DisableSecurityGroupIngress" => settings.leaves_security_groups = value == "true",
                _ => return Err(ini::unknown(&line)),
            }
        }
        Ok(settings)
    }

    fn override_service(&mut self, line: &ini::Line) -> Result<(), String> {
        if self.overrides.last().is_none_or(|last| last.section != line.section) {
            self.overrides.push(Override { section: line.section.clone(), ..Override::default() });
        }
        let Some(last) = self.overrides.last_mut() else { return Ok(()) };
        match line.key.as_str() {
            "Service" => last.service = line.value.clone(),
            "URL" => last.url = line.value.clone(),
            "Region" | "SigningRegion" | "SigningMethod" | "SigningName" => {}
            _ => return Err(ini::unknown(line)),
        }
        Ok(())
    }

    /// Returns the endpoint of a service: of the configuration, of the environment, or AWS's own in the region.
    pub fn endpoint(&self, service: Service, setup: &Setup, region: &str) -> Result<Endpoint, String> {
        let overridden = self.overrides.iter().find(|one| one.service == service.name).map(|one| one.url.clone());
        let url =
            overridden.or_else(|| (setup.variable)(service.variable)).or_else(|| (setup.variable)("AWS_ENDPOINT_URL"));
        let url = match url {
            Some(url) => url,
            None => default_url(service.name, region)?,
        };
        Endpoint::new(&url, &setup.roots)
    }
}

/// A service of AWS.
#[derive(Clone, Copy)]
pub struct Service {
    /// The name in signatures and in the host name.
    pub name: &'static str,
    /// The variable of another endpoint.
    variable: &'static str,
}

pub const EC2: Service = Service { name: "ec2", variable: "AWS_ENDPOINT_URL_EC2" };
pub const ELB: Service =
    Service { name: "elasticloadbalancing", variable: "AWS_ENDPOINT_URL_ELASTIC_LOAD_BALANCING_V2" };
const STS: Service = Service { name: "sts", variable: "AWS_ENDPOINT_URL_STS" };

fn default_url(service: &str, region: &str) -> Result<String, String> {
    let is_region = region.split('-').count() >= 3
        && region.chars().all(|one| one.is_ascii_lowercase() || one.is_ascii_digit() || one == '-');
    if !is_region {
        return Err(format!("{region:?} is no region of AWS, such as eu-central-1"));
    }
    let domain = if region.starts_with("cn-") { "amazonaws.com.cn" } else { "amazonaws.com" };
    Ok(format!("https://{service}.{region}.{domain}"))
}

/// Returns the metadata service of the instance.
pub fn metadata(setup: &Setup) -> Result<Metadata, String> {
    let url = (setup.variable)("AWS_EC2_METADATA_SERVICE_ENDPOINT").unwrap_or_else(|| METADATA.to_owned());
    Endpoint::new(&url, &setup.roots).map(Metadata)
}

/// Returns the source of credentials, in the order of AWS's tools: environment, web identity, file, instance.
pub fn source(settings: &Settings, setup: &Setup, region: &str) -> Result<Source, String> {
    let variable = &setup.variable;
    if let (Some(access_key), Some(secret_key)) = (variable("AWS_ACCESS_KEY_ID"), variable("AWS_SECRET_ACCESS_KEY")) {
        let session_token = variable("AWS_SESSION_TOKEN");
        return Ok(Source::Fixed(Credentials { access_key, secret_key, session_token }));
    }
    let role = Some(settings.role.clone()).filter(|role| !role.is_empty()).or_else(|| variable("AWS_ROLE_ARN"));
    if let (Some(token_file), Some(role)) = (variable("AWS_WEB_IDENTITY_TOKEN_FILE"), role) {
        let session = variable("AWS_ROLE_SESSION_NAME").unwrap_or_else(|| "cloud-controller-manager".to_owned());
        let sts = settings.endpoint(STS, setup, region)?;
        return Ok(Source::WebIdentity { token_file: token_file.into(), role, session, sts });
    }
    let usual = || variable("HOME").map(|home| PathBuf::from(home).join(".aws/credentials"));
    let named = variable("AWS_SHARED_CREDENTIALS_FILE").map(PathBuf::from);
    if let Some(path) = named.or_else(|| usual().filter(|path| path.exists())) {
        let profile = variable("AWS_PROFILE").unwrap_or_else(|| "default".to_owned());
        return Ok(Source::File { path, profile });
    }
    metadata(setup).map(Source::Instance)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configurations_have_upstreams_keys() {
        let text = "[Global]\nZone=eu-central-1a\nVPC=vpc-1\nKubernetesClusterID=prod\nDisableSecurityGroupIngress=true\n\
                    [ServiceOverride \"1\"]\nService=ec2\nURL=http://127.0.0.1:1\n";
        let settings = Settings::parse(text).unwrap();
        assert_eq!((settings.region.as_str(), settings.vpc.as_str()), ("eu-central-1", "vpc-1"));
        assert_eq!((settings.cluster.as_str(), settings.leaves_security_groups), ("prod", true));
        assert_eq!(settings.overrides[0].url, "http://127.0.0.1:1");
        let error = Settings::parse("[Global]\nVcp=x\n").unwrap_err();
        assert_eq!(error, "the cloud configuration has the unknown key \"Vcp\" in section \"Global\"");
    }

    #[test]
    fn regions_name_their_endpoints() {
        assert_eq!(default_url("ec2", "eu-central-1").unwrap(), "https://ec2.eu-central-1.amazonaws.com");
        assert_eq!(default_url("sts", "cn-north-1").unwrap(), "https://sts.cn-north-1.amazonaws.com.cn");
        assert_eq!(default_url("ec2", "moon").unwrap_err(), "\"moon\" is no region of AWS, such as eu-central-1");
    }
}
