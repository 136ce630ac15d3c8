//! A network configuration: a list of plugins, or one plugin, which is a list of one.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::VERSIONS;
use crate::error::CniError;

/// A list of plugins that make one network.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct List {
    pub name: String,
    pub version: String,
    pub disable_check: bool,
    pub disable_gc: bool,
    pub plugins: Vec<Value>,
}

impl List {
    /// Returns the first configuration of a directory, by the names of its files, as every runtime chooses.
    pub fn first_of(directory: &Path) -> Result<List, CniError> {
        let mut files: Vec<PathBuf> = std::fs::read_dir(directory)
            .into_iter()
            .flatten()
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| {
                path.extension().is_some_and(|kind| ["conflist", "conf", "json"].iter().any(|known| kind == *known))
            })
            .collect();
        files.sort_unstable();
        match files.first() {
            Some(path) => List::read(path),
            None => Err(CniError::NoConfiguration(directory.to_owned())),
        }
    }

    fn read(path: &Path) -> Result<List, CniError> {
        let wrong = |reason: String| CniError::Configuration { path: path.to_owned(), reason };
        let bytes = std::fs::read(path).map_err(|error| wrong(error.to_string()))?;
        let value: Value = serde_json::from_slice(&bytes).map_err(|error| wrong(error.to_string()))?;
        List::of(&value).map_err(wrong)
    }

    /// Parses a configuration, or returns the reason why it is invalid.
    pub fn of(value: &Value) -> Result<List, String> {
        let string = |field: &str| value[field].as_str().unwrap_or_default().to_owned();
        let flag = |field: &str| value[field].as_bool().unwrap_or(false) || value[field] == "true";
        let plugins = match value["plugins"].as_array() {
            Some(plugins) => plugins.clone(),
            None if value["type"].is_string() => vec![value.clone()],
            None => return Err("it has no plugins".to_owned()),
        };
        if string("name").is_empty() {
            return Err("it has no name".to_owned());
        }
        if plugins.is_empty() || plugins.iter().any(|plugin| !plugin["type"].is_string()) {
            return Err("every plugin needs a type".to_owned());
        }
        Ok(List {
            name: string("name"),
            version: version(value)?,
            disable_check: flag("disableCheck"),
            disable_gc: flag("disableGC"),
            plugins,
        })
    }

    /// Returns the input of a plugin: its part of the list, the previous result, and its capability arguments.
    pub fn of_plugin(&self, plugin: &Value, previous: Option<&Value>, capabilities: &Value) -> Value {
        let mut config = plugin.clone();
        config["name"] = json!(self.name);
        config["cniVersion"] = json!(self.version);
        let declared = config.as_object_mut().and_then(|config| config.remove("capabilities")).unwrap_or_default();
        let wanted = capabilities.as_object().into_iter().flatten();
        let runtime: serde_json::Map<String, Value> = wanted
            .filter(|(name, value)| declared[name.as_str()] == true && !value.is_null())
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect();
        if !runtime.is_empty() {
            config["runtimeConfig"] = Value::Object(runtime);
        }
        if let Some(previous) = previous {
            config["prevResult"] = previous.clone();
        }
        config
    }
}

/// Returns the newest version that both the list and we support.
fn version(value: &Value) -> Result<String, String> {
    let offered = value["cniVersions"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let offered: Vec<&str> = offered.chain(value["cniVersion"].as_str()).collect();
    if offered.is_empty() {
        return Ok(VERSIONS[0].to_owned());
    }
    let known = VERSIONS.iter().rev().find(|known| offered.contains(known));
    known.map(|version| (*version).to_owned()).ok_or_else(|| format!("no version of {offered:?} is known"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_single_plugins_are_read() {
        let list = List::of(&json!({"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "a"}, {"type": "b"}]}));
        let list = list.unwrap();
        assert_eq!((list.name.as_str(), list.version.as_str(), list.plugins.len()), ("net", "1.0.0", 2));
        let one = List::of(&json!({"cniVersion": "0.3.1", "name": "net", "type": "a"})).unwrap();
        assert_eq!((one.version.as_str(), one.plugins.len()), ("0.3.1", 1));
        let newest = json!({"cniVersions": ["1.0.0", "1.1.0"], "cniVersion": "0.4.0", "name": "n", "type": "a"});
        assert_eq!(List::of(&newest).unwrap().version, "1.1.0");
        for bad in [
            json!({"name": "n"}),
            json!({"type": "a"}),
            json!({"name": "n", "plugins": [{}]}),
            json!({"name": "n", "type": "a", "cniVersion": "7.0.0"}),
        ] {
            assert!(List::of(&bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_plugin_gets_the_capabilities_that_it_declares() {
        let plugin = json!({"type": "portmap", "capabilities": {"portMappings": true, "mac": false}, "snat": true});
        let list = List::of(&json!({"cniVersion": "1.0.0", "name": "net", "plugins": [plugin]})).unwrap();
        let capabilities = json!({"portMappings": [{"hostPort": 80}], "mac": "x", "bandwidth": null});
        let input = list.of_plugin(&list.plugins[0], Some(&json!({"ips": []})), &capabilities);
        assert_eq!(
            input,
            json!({"type": "portmap", "snat": true, "name": "net", "cniVersion": "1.0.0",
                   "runtimeConfig": {"portMappings": [{"hostPort": 80}]}, "prevResult": {"ips": []}})
        );
    }
}
