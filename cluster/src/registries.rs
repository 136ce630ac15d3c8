//! How to reach image registries: a YAML file with a list of hosts, their mirrors and what they ask for. A field that is
//! unknown is an error, because a setting that is misread would show a password to the wrong host.

use std::path::Path;

use anyhow::{Context, Result, anyhow};
use corten_meta::Value;
use corten_runtime::RegistryConfig;

/// Reads the file; its paths are relative to where it lies.
pub fn read(path: &Path) -> Result<Vec<RegistryConfig>> {
    let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let folder = path.parent().unwrap_or(Path::new("/"));
    parse(&bytes, folder).with_context(|| format!("{} cannot be used", path.display()))
}

/// Reads the content of the file. Files that it names are in the folder.
pub fn parse(content: &[u8], folder: &Path) -> Result<Vec<RegistryConfig>> {
    let document = corten_meta::codec::decode_yaml(content).map_err(|error| anyhow!("not YAML: {error}"))?;
    let list = document["registries"].as_array().context("there are no `registries`")?;
    list.iter().map(|entry| registry(entry, folder)).collect()
}

fn registry(entry: &Value, folder: &Path) -> Result<RegistryConfig> {
    let fields = entry.as_object().context("a registry is not an object")?;
    let mut config = RegistryConfig::default();
    let mut user = None;
    let mut password = None;
    for (name, value) in fields {
        let wrong = || format!("{name}: {value} cannot be used");
        let text = || value.as_str().map(str::to_owned).with_context(wrong);
        match name.as_str() {
            "host" => config.host = text()?,
            "mirrors" => {
                let hosts = value.as_array().with_context(wrong)?.iter();
                config.mirrors =
                    hosts.map(|host| host.as_str().map(str::to_owned)).collect::<Option<_>>().with_context(wrong)?;
            }
            "plainHTTP" => config.plain_http = value.as_bool().with_context(wrong)?,
            "insecureSkipVerify" => config.insecure_skip_verify = value.as_bool().with_context(wrong)?,
            "caFile" => {
                let file = folder.join(text()?);
                config.ca_pem = Some(std::fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?);
            }
            "stallTimeoutSeconds" => {
                let seconds = value.as_u64().filter(|seconds| *seconds > 0).with_context(wrong)?;
                config.stall_timeout = Some(std::time::Duration::from_secs(seconds));
            }
            "username" => user = Some(text()?),
            "password" => password = Some(text()?),
            _ => return Err(anyhow!("unknown field {name:?}")),
        }
    }
    if config.host.is_empty() {
        return Err(anyhow!("a registry has no host"));
    }
    config.basic_auth = user.zip(password);
    Ok(config)
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
