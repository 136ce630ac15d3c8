//! The cloud configuration of AWS, with upstream's keys.

use corten_aws::Preferences;
use corten_aws::account::ServiceUrl;

use crate::providers::ini;

/// The cloud configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// The region, the role of the web identity, and other endpoints.
    pub preferences: Preferences,
    /// The VPC of the cluster; that of its nodes if empty.
    pub vpc: String,
    pub route_table: String,
    /// The cluster's name in tags, instead of `--cluster-name`.
    pub cluster: String,
    /// Whether the security groups of nodes are left alone.
    pub leaves_security_groups: bool,
    /// The section of the last override.
    section: String,
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
                "Region" => settings.preferences.region = value,
                // A zone is its region and a letter.
                "Zone" if settings.preferences.region.is_empty() => {
                    settings.preferences.region =
                        value.trim_end_matches(|last: char| last.is_ascii_lowercase()).to_owned();
                }
                "Zone" => {}
                "VPC" => settings.vpc = value,
                "RouteTableID" => settings.route_table = value,
                "RoleARN" => settings.preferences.role = value,
                "KubernetesClusterID" | "KubernetesClusterTag" => settings.cluster = value,
                "DisableSecurityGroupIngress" => settings.leaves_security_groups = value == "true",
                _ => return Err(ini::unknown(&line)),
            }
        }
        Ok(settings)
    }

    fn override_service(&mut self, line: &ini::Line) -> Result<(), String> {
        let endpoints = &mut self.preferences.endpoints;
        if endpoints.is_empty() || self.section != line.section {
            self.section = line.section.clone();
            endpoints.push(ServiceUrl::default());
        }
        let Some(last) = endpoints.last_mut() else { return Ok(()) };
        match line.key.as_str() {
            "Service" => last.service = line.value.clone(),
            "URL" => last.url = line.value.clone(),
            "Region" | "SigningRegion" | "SigningMethod" | "SigningName" => {}
            _ => return Err(ini::unknown(line)),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configurations_have_upstreams_keys() {
        let text = "[Global]\nZone=eu-central-1a\nVPC=vpc-1\nKubernetesClusterID=prod\nDisableSecurityGroupIngress=true\n\
                    [ServiceOverride \"1\"]\nService=ec2\nURL=http://127.0.0.1:1\n";
        let settings = Settings::parse(text).unwrap();
        assert_eq!((settings.preferences.region.as_str(), settings.vpc.as_str()), ("eu-central-1", "vpc-1"));
        assert_eq!((settings.cluster.as_str(), settings.leaves_security_groups), ("prod", true));
        assert_eq!(settings.preferences.endpoints[0].url, "http://127.0.0.1:1");
        let error = Settings::parse("[Global]\nVcp=x\n").unwrap_err();
        assert_eq!(error, "the cloud configuration has the unknown key \"Vcp\" in section \"Global\"");
    }
}
