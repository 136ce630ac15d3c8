//! The configuration of image registries: a YAML file with a list of hosts, their mirrors, TLS and credentials. An
//! unknown field is an error, because a misread setting would send a password to the wrong host.

use std::path::Path;

use anyhow::{Context, Result, anyhow};
use corten_meta::Value;
use corten_runtime::RegistryConfig;

/// Reads the file; its paths are relative to its directory.
pub fn read(path: &Path) -> Result<Vec<RegistryConfig>> {
    let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let folder = path.parent().unwrap_or(Path::new("/"));
    parse(&bytes, folder).with_context(|| format!("{} cannot be used", path.display()))
}

/// Parses the content of the file. The files that it names are in the directory.
pub fn parse(content: &[u8], folder: &Path) -> Result<Vec<RegistryConfig>> {
    let document = corten_meta::codec::decode_yaml(content).map_err(|error| anyhow!("not YAML: {error}"))?;
    let list = document["registries"].as_array().context("there are no `registries`")?;
    list.iter().map(|entry| registry(entry, folder)).collect()
}

/// An entry while it is being read.
#[derive(Default)]
pub struct Entry {
    config: RegistryConfig,
    username: Option<String>,
    password: Option<String>,
}

/// One field of an entry, with the directory of the files that it names.
pub struct Field {
    pub name: &'static str,
    pub help: &'static str,
    set: fn(&mut Entry, &Value, &Path) -> Option<Result<()>>,
}

/// Every field of an entry; a setter returns `None` for a value of another type.
pub const FIELDS: &[Field] = &[
    Field {
        name: "host",
        help: "The host of the registry as image references name it, with its port if it has one. Required.",
        set: |entry, value, _| set(text(value), &mut entry.config.host),
    },
    Field {
        name: "mirrors",
        help: "Hosts that are tried before the registry itself, in this order; each may have an entry of its own.",
        set: |entry, value, _| {
            let hosts = value.as_array()?.iter().map(text).collect::<Option<_>>();
            set(hosts, &mut entry.config.mirrors)
        },
    },
    Field {
        name: "plainHTTP",
        help: "Whether the registry is used without TLS.",
        set: |entry, value, _| set(value.as_bool(), &mut entry.config.plain_http),
    },
    Field {
        name: "insecureSkipVerify",
        help: "Whether the registry's certificate is not verified.",
        set: |entry, value, _| set(value.as_bool(), &mut entry.config.insecure_skip_verify),
    },
    Field {
        name: "caFile",
        help: "A PEM file with the CAs of the registry's certificate, relative to this file.",
        set: |entry, value, folder| {
            let file = folder.join(value.as_str()?);
            let read = std::fs::read(&file).with_context(|| format!("cannot read {}", file.display()));
            Some(read.map(|pem| entry.config.ca_pem = Some(pem)))
        },
    },
    Field {
        name: "stallTimeoutSeconds",
        help: "The seconds without a byte after which a pull fails.",
        set: |entry, value, _| {
            let seconds = value.as_u64().filter(|seconds| *seconds > 0)?;
            entry.config.stall_timeout = Some(std::time::Duration::from_secs(seconds));
            Some(Ok(()))
        },
    },
    Field {
        name: "username",
        help: "The user, for registries that need authentication.",
        set: |entry, value, _| set(text(value).map(Some), &mut entry.username),
    },
    Field {
        name: "password",
        help: "The user's password or token.",
        set: |entry, value, _| set(text(value).map(Some), &mut entry.password),
    },
];

fn text(value: &Value) -> Option<String> {
    value.as_str().map(str::to_owned)
}

fn set<T>(value: Option<T>, target: &mut T) -> Option<Result<()>> {
    *target = value?;
    Some(Ok(()))
}

fn registry(entry: &Value, folder: &Path) -> Result<RegistryConfig> {
    let fields = entry.as_object().context("a registry is not an object")?;
    let mut read = Entry::default();
    for (name, value) in fields {
        let field = FIELDS.iter().find(|field| field.name == name);
        let field = field.with_context(|| format!("unknown field {name:?}"))?;
        (field.set)(&mut read, value, folder).with_context(|| format!("{name}: {value} cannot be used"))??;
    }
    if read.config.host.is_empty() {
        return Err(anyhow!("a registry has no host"));
    }
    read.config.basic_auth = read.username.zip(read.password);
    Ok(read.config)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registries_are_read_strictly() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("registries.yaml");
        let good = "registries:\n- host: docker.io\n  mirrors: [mirror.local:5000]\n- {host: 'mirror.local:5000', plainHTTP: true, username: u, password: p}\n";
        std::fs::write(&path, good).unwrap();
        let registries = read(&path).unwrap();
        assert_eq!(registries[0].mirrors, ["mirror.local:5000"]);
        assert_eq!(registries[1].basic_auth, Some(("u".to_owned(), "p".to_owned())));
        for bad in [
            "registries: [{mirrors: []}]",
            "registries: [{host: a, mirror: b}]",
            "registries: [{host: a, plainHTTP: yes please}]",
            "registries: [{host: a, stallTimeoutSeconds: 0}]",
            "{}",
        ] {
            std::fs::write(&path, bad).unwrap();
            assert!(read(&path).is_err(), "{bad}");
        }
    }
}
