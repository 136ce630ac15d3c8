//! The account of this process: its region, its identity, and the endpoints of the services.
//!
//! Preferences of a configuration win over the environment, whose variables have the names that AWS's own tools read.

use std::path::PathBuf;
use std::sync::Arc;

use corten_outbound::https::Endpoint;
use corten_outbound::sign::Credentials;

use crate::call::Api;
use crate::credentials::{Identity, Metadata, Source};

/// The address of the metadata service on every instance.
const METADATA: &str = "http://169.254.169.254";

/// The environment of the process.
#[derive(Clone, Copy)]
pub struct Environment<'a> {
    /// Returns a variable that is not empty.
    pub variable: &'a (dyn Fn(&str) -> Option<String> + Send + Sync),
    /// The CAs that endpoints are verified by, in PEM.
    pub roots: &'a str,
}

impl Environment<'_> {
    /// Returns the metadata service of the instance.
    pub fn metadata(&self) -> Result<Metadata, String> {
        let url = (self.variable)("AWS_EC2_METADATA_SERVICE_ENDPOINT").unwrap_or_else(|| METADATA.to_owned());
        Endpoint::new(&url, self.roots).map(Metadata)
    }
}

/// The values of a configuration that win over the environment; an empty one does not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Preferences {
    pub region: String,
    /// The ARN of the role to assume with the web identity.
    pub role: String,
    pub endpoints: Vec<ServiceUrl>,
}

/// Another endpoint for a service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceUrl {
    pub service: String,
    pub url: String,
}

impl Preferences {
    /// Returns the endpoint of a service: of the configuration, of the environment, or AWS's own in the region.
    fn endpoint(&self, service: Service, environment: Environment<'_>, region: &str) -> Result<Endpoint, String> {
        let variable = environment.variable;
        let preferred = self.endpoints.iter().find(|one| one.service == service.name).map(|one| one.url.clone());
        let url = preferred.or_else(|| variable(service.variable)).or_else(|| variable("AWS_ENDPOINT_URL"));
        let url = match url {
            Some(url) => url,
            None => default_url(service.name, region)?,
        };
        Endpoint::new(&url, environment.roots)
    }

    async fn region(&self, environment: Environment<'_>) -> Result<String, String> {
        let preferred = Some(self.region.clone()).filter(|region| !region.is_empty());
        let variable = environment.variable;
        let known = preferred.or_else(|| variable("AWS_REGION")).or_else(|| variable("AWS_DEFAULT_REGION"));
        match known {
            Some(region) => Ok(region),
            None => {
                environment.metadata()?.region().await.map_err(|error| {
                    format!("no region: set AWS_REGION, or Region in the cloud configuration ({error})")
                })
            }
        }
    }

    /// Returns the source of credentials, in the order of AWS's tools: environment, web identity, file, instance.
    fn source(&self, environment: Environment<'_>, region: &str) -> Result<Source, String> {
        let variable = environment.variable;
        if let (Some(access_key), Some(secret_key)) = (variable("AWS_ACCESS_KEY_ID"), variable("AWS_SECRET_ACCESS_KEY"))
        {
            let session_token = variable("AWS_SESSION_TOKEN");
            return Ok(Source::Fixed(Credentials { access_key, secret_key, session_token }));
        }
        let role = Some(self.role.clone()).filter(|role| !role.is_empty()).or_else(|| variable("AWS_ROLE_ARN"));
        if let (Some(token_file), Some(role)) = (variable("AWS_WEB_IDENTITY_TOKEN_FILE"), role) {
            let session = variable("AWS_ROLE_SESSION_NAME").unwrap_or_else(|| "cloud-controller-manager".to_owned());
            let sts = self.endpoint(STS, environment, region)?;
            return Ok(Source::WebIdentity { token_file: token_file.into(), role, session, sts });
        }
        let usual = || variable("HOME").map(|home| PathBuf::from(home).join(".aws/credentials"));
        let named = variable("AWS_SHARED_CREDENTIALS_FILE").map(PathBuf::from);
        if let Some(path) = named.or_else(|| usual().filter(|path| path.exists())) {
            let profile = variable("AWS_PROFILE").unwrap_or_else(|| "default".to_owned());
            return Ok(Source::File { path, profile });
        }
        environment.metadata().map(Source::Instance)
    }
}

/// A service of AWS.
#[derive(Clone, Copy)]
pub struct Service {
    /// The name in signatures and in the host name.
    name: &'static str,
    /// The variable of another endpoint.
    variable: &'static str,
    /// The version of the API.
    version: &'static str,
}

/// EC2, with the volumes of EBS.
pub const EC2: Service = Service { name: "ec2", variable: "AWS_ENDPOINT_URL_EC2", version: "2016-11-15" };
/// The load balancers of the second version.
pub const ELB: Service = Service {
    name: "elasticloadbalancing",
    variable: "AWS_ENDPOINT_URL_ELASTIC_LOAD_BALANCING_V2",
    version: "2015-12-01",
};
const STS: Service = Service { name: "sts", variable: "AWS_ENDPOINT_URL_STS", version: "2011-06-15" };

fn default_url(service: &str, region: &str) -> Result<String, String> {
    let is_region = region.split('-').count() >= 3
        && region.chars().all(|one| one.is_ascii_lowercase() || one.is_ascii_digit() || one == '-');
    if !is_region {
        return Err(format!("{region:?} is no region of AWS, such as eu-central-1"));
    }
    let domain = if region.starts_with("cn-") { "amazonaws.com.cn" } else { "amazonaws.com" };
    Ok(format!("https://{service}.{region}.{domain}"))
}

/// A region, and the identity of this process in it.
pub struct Account<'a> {
    pub region: String,
    identity: Arc<Identity>,
    preferences: &'a Preferences,
    environment: Environment<'a>,
}

impl<'a> Account<'a> {
    /// Finds the region and the credentials; the error is a sentence for the operator.
    pub async fn open(preferences: &'a Preferences, environment: Environment<'a>) -> Result<Account<'a>, String> {
        let region = preferences.region(environment).await?;
        let identity = Arc::new(Identity::new(preferences.source(environment, &region)?));
        Ok(Account { region, identity, preferences, environment })
    }

    /// Returns the API of a service in the region.
    pub fn api(&self, service: Service) -> Result<Api, String> {
        Ok(Api {
            endpoint: self.preferences.endpoint(service, self.environment, &self.region)?,
            service: service.name,
            version: service.version,
            region: self.region.clone(),
            identity: Arc::clone(&self.identity),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_name_their_endpoints() {
        assert_eq!(default_url("ec2", "eu-central-1").unwrap(), "https://ec2.eu-central-1.amazonaws.com");
        assert_eq!(default_url("sts", "cn-north-1").unwrap(), "https://sts.cn-north-1.amazonaws.com.cn");
        assert_eq!(default_url("ec2", "moon").unwrap_err(), "\"moon\" is no region of AWS, such as eu-central-1");
    }
}
