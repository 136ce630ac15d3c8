//! Image references, normalised the way every container tool does: `busybox` means
//! `docker.io/library/busybox:latest`.
//!
//! Pure: no request is sent and nothing is read here.

use std::fmt;

use super::digest::{Digest, shortened};
use crate::Error;

const DEFAULT_REGISTRY: &str = "docker.io";
/// The longest name without tag and digest; upstream's parsers have the same limit.
const MAX_NAME: usize = 255;

/// A normalised reference.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Reference {
    /// Registry host, with its port if any.
    pub registry: String,
    /// Repository below the registry.
    pub repository: String,
    /// The tag; `latest` when neither tag nor digest was given.
    pub tag: Option<String>,
    pub digest: Option<Digest>,
}

impl Reference {
    /// Parses and normalises a reference.
    pub fn parse(reference: &str) -> Result<Self, Error> {
        let shown = shortened(reference);
        let invalid = || Error::Invalid(format!("couldn't parse image name {shown:?}: invalid reference format"));
        let (rest, digest) = match reference.split_once('@') {
            Some((rest, digest)) => (rest, Some(digest.parse().map_err(|_| invalid())?)),
            None => (reference, None),
        };
        let (name, tag) = match rest.rsplit_once(':') {
            Some((name, tag)) if !tag.contains('/') => (name, Some(tag.to_string())),
            _ => (rest, None),
        };
        if tag.as_deref().is_some_and(|tag| !is_tag(tag)) {
            return Err(invalid());
        }
        let (registry, repository) = split_registry(name);
        // The normalised name is what is stored and shown, and it is read again.
        if registry.len() + 1 + repository.len() > MAX_NAME {
            return Err(invalid());
        }
        if !is_registry(&registry) || repository.is_empty() || !repository.split('/').all(is_path_component) {
            return Err(invalid());
        }
        let tag = if tag.is_none() && digest.is_none() { Some("latest".to_string()) } else { tag };
        Ok(Self { registry, repository, tag, digest })
    }

    /// Returns `registry/repository`, without tag and digest.
    pub fn name(&self) -> String {
        format!("{}/{}", self.registry, self.repository)
    }

    /// Returns the name with its tag, if there is one.
    pub fn tagged(&self) -> Option<String> {
        self.tag.as_ref().map(|tag| format!("{}:{tag}", self.name()))
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())?;
        if let Some(tag) = &self.tag {
            write!(f, ":{tag}")?;
        }
        if let Some(digest) = &self.digest {
            write!(f, "@{digest}")?;
        }
        Ok(())
    }
}

/// Splits the registry from the repository. The first component is a registry only if it looks like a host; otherwise
/// Docker Hub is meant.
fn split_registry(name: &str) -> (String, String) {
    let (registry, repository) = match name.split_once('/') {
        Some((first, rest)) if first.contains(['.', ':']) || first == "localhost" => (first, rest),
        _ => (DEFAULT_REGISTRY, name),
    };
    let registry = if registry == "index.docker.io" { DEFAULT_REGISTRY } else { registry };
    if registry == DEFAULT_REGISTRY && !repository.contains('/') && !repository.is_empty() {
        return (registry.to_string(), format!("library/{repository}"));
    }
    (registry.to_string(), repository.to_string())
}

/// Reports whether the string is a host, with or without a port: nothing in it may lead a URL elsewhere.
fn is_registry(registry: &str) -> bool {
    let (host, port) = match registry.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, port),
        _ => (registry, "0"),
    };
    let part = |part: &str| {
        let inner = part.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        inner && !part.is_empty() && !part.starts_with('-') && !part.ends_with('-')
    };
    let address = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let host_fits = match address {
        Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
        None => host.split('.').all(part),
    };
    host_fits && port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok()
}

fn is_tag(tag: &str) -> bool {
    (1..=128).contains(&tag.len())
        && !tag.starts_with(['.', '-'])
        && tag.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-'))
}

fn is_path_component(component: &str) -> bool {
    let alphanumeric = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let ends = component.bytes().next().is_some_and(alphanumeric) && component.bytes().last().is_some_and(alphanumeric);
    ends && component.bytes().all(|byte| alphanumeric(byte) || matches!(byte, b'_' | b'.' | b'-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_normalised() {
        let digest = format!("sha256:{}", "0a".repeat(32));
        let pinned = format!("docker.io/library/busybox@{digest}");
        for (reference, normalised) in [
            ("busybox", "docker.io/library/busybox:latest"),
            ("busybox:1.36", "docker.io/library/busybox:1.36"),
            ("user/app", "docker.io/user/app:latest"),
            ("index.docker.io/busybox", "docker.io/library/busybox:latest"),
            ("registry.k8s.io/pause:3.10", "registry.k8s.io/pause:3.10"),
            ("localhost:5000/app", "localhost:5000/app:latest"),
            ("localhost/a/b:c", "localhost/a/b:c"),
            ("[::1]:5000/app:1", "[::1]:5000/app:1"),
            ("127.0.0.1:5000/app", "127.0.0.1:5000/app:latest"),
            (&format!("busybox@{digest}"), &pinned),
            (&format!("busybox:1@{digest}"), &format!("docker.io/library/busybox:1@{digest}")),
        ] {
            assert_eq!(Reference::parse(reference).expect(reference).to_string(), normalised);
        }
    }

    #[test]
    fn malformed_references_are_refused() {
        for bad in ["", "Busybox", "busybox:", "busybox@sha256:12", "a//b", "-a", "busybox:a b", "host.io/"] {
            assert!(Reference::parse(bad).is_err(), "{bad}");
        }
        for registry in [
            "host.io?x=",
            "host.io#x",
            "user:word.io",
            "a..b",
            "host.io:",
            "host.io:x",
            "host.io:99999",
            "[::1",
            "[x]:1",
            "host.io:1:2",
            "-a.io",
            "a_b.io",
            "hóst.io",
            "host.io\\x",
            "host.io%2f",
        ] {
            assert!(Reference::parse(&format!("{registry}/app:1")).is_err(), "{registry}");
        }
        assert!(Reference::parse(&format!("host.io/{}", "a".repeat(256))).is_err());
        // The limit holds for the normalised name: `docker.io/library/` comes before this one.
        assert!(Reference::parse(&"a".repeat(237)).is_ok());
        assert!(Reference::parse(&"a".repeat(238)).is_err());
    }
}
