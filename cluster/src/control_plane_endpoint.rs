//! The stable address of all API servers: a DNS name or an address that outlives any of them, such as a load balancer's.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use anyhow::{Context, Result, ensure};

/// The address in the form of a URL's authority, always with a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint(String);

impl Endpoint {
    /// Parses `HOST[:PORT]`.
    pub fn parse(text: &str, usual_port: u16) -> Result<Endpoint> {
        if let Ok(ip) = text.parse::<IpAddr>() {
            return Ok(Endpoint(SocketAddr::new(ip, usual_port).to_string()));
        }
        let invalid =
            || format!("--control-plane-endpoint {text:?}: a DNS name or an address, and a port if it has another");
        let authority: http::uri::Authority = text.parse().ok().with_context(invalid)?;
        let endpoint = Endpoint(format!("{}:{}", authority.host(), authority.port_u16().unwrap_or(usual_port)));
        let name = endpoint.name();
        let is_host = name.parse::<IpAddr>().is_ok() || corten_meta::names::dns1123_subdomain(&name).is_empty();
        let is_whole = authority.port_u16().is_some() || authority.host() == text;
        ensure!(is_host && is_whole, invalid());
        Ok(endpoint)
    }

    /// Returns the DNS name or address, as certificates carry it.
    pub fn name(&self) -> String {
        let host = self.0.rsplit_once(':').map_or(self.0.as_str(), |(host, _)| host);
        host.trim_matches(['[', ']']).to_owned()
    }

    /// Returns the URL of the API.
    pub fn url(&self) -> String {
        format!("https://{}", self.0)
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_have_a_name_and_a_port() {
        for (text, whole, name) in [
            ("api.example", "api.example:6443", "api.example"),
            ("api.example:443", "api.example:443", "api.example"),
            ("10.0.0.1", "10.0.0.1:6443", "10.0.0.1"),
            ("fd00::1", "[fd00::1]:6443", "fd00::1"),
            ("[fd00::1]:443", "[fd00::1]:443", "fd00::1"),
        ] {
            let endpoint = Endpoint::parse(text, 6443).unwrap();
            assert_eq!(endpoint.to_string(), whole);
            assert_eq!(endpoint.name(), name);
            assert_eq!(
                Endpoint::parse(&endpoint.to_string(), 1).unwrap(),
                endpoint,
                "servers that join parse it again"
            );
        }
        for bad in
            ["", ":443", "api.example:", "api.example:x", "user@api.example", "https://api.example", "A_b", "a:70000"]
        {
            assert!(Endpoint::parse(bad, 6443).is_err(), "{bad}");
        }
    }
}
