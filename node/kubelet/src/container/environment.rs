//! A container's environment variables: from ConfigMaps and Secrets, from the pod's own fields, and from the Services
//! of its namespace. The functions are pure; `Objects` holds the objects that they may refer to.

use std::collections::BTreeMap;
use std::path::PathBuf;

use corten_api::k8s_openapi::api::core::v1::{ConfigMap, Container, EnvVar, EnvVarSource, Pod, Secret, Service};

use super::env_file;
use super::expansion::expand;
use crate::error::{Error, Result};
use crate::pod::downward_api::{self, Downward};
use crate::pod::spec;

pub type Environment = BTreeMap<String, String>;

/// The ConfigMaps and Secrets that a container's environment refers to; `None` if an object does not exist.
#[derive(Clone, Debug, Default)]
pub struct Objects {
    pub config_maps: BTreeMap<String, Option<ConfigMap>>,
    pub secrets: BTreeMap<String, Option<Secret>>,
    /// The paths of the volumes with files of variables.
    pub volumes: BTreeMap<String, PathBuf>,
}

/// Returns the names of the ConfigMaps and Secrets that the container's environment refers to.
pub fn references(container: &Container) -> (Vec<&str>, Vec<&str>) {
    let from = container.env_from.iter().flatten();
    let sources = container.env.iter().flatten().filter_map(|variable| variable.value_from.as_ref());
    let mut config_maps: Vec<&str> =
        from.clone().filter_map(|from| Some(from.config_map_ref.as_ref()?.name.as_str())).collect();
    let mut secrets: Vec<&str> = from.filter_map(|from| Some(from.secret_ref.as_ref()?.name.as_str())).collect();
    config_maps.extend(sources.clone().filter_map(|source| Some(source.config_map_key_ref.as_ref()?.name.as_str())));
    secrets.extend(sources.filter_map(|source| Some(source.secret_key_ref.as_ref()?.name.as_str())));
    (config_maps, secrets)
}

/// Returns the environment of the container.
pub fn environment(
    pod: &Pod,
    container: &Container,
    objects: &Objects,
    services: &Environment,
    downward: &Downward,
) -> Result<Environment> {
    let mut result = from_whole_objects(container, objects)?;
    for variable in container.env.iter().flatten() {
        if let Some(value) = resolve(pod, container, objects, services, downward, &result, variable)? {
            result.insert(variable.name.clone(), value);
        }
    }
    for (name, value) in services {
        result.entry(name.clone()).or_insert_with(|| value.clone());
    }
    Ok(result)
}

fn from_whole_objects(container: &Container, objects: &Objects) -> Result<Environment> {
    let mut result = Environment::new();
    for from in container.env_from.iter().flatten() {
        let prefix = from.prefix.as_deref().unwrap_or_default();
        if let Some(reference) = &from.config_map_ref {
            let Some(object) = config_map(objects, &reference.name, reference.optional)? else { continue };
            result.extend(object.data.iter().flatten().map(|(key, value)| (format!("{prefix}{key}"), value.clone())));
        } else if let Some(reference) = &from.secret_ref {
            let Some(object) = secret(objects, &reference.name, reference.optional)? else { continue };
            result.extend(
                object
                    .data
                    .iter()
                    .flatten()
                    .map(|(key, value)| (format!("{prefix}{key}"), String::from_utf8_lossy(&value.0).into_owned())),
            );
        }
    }
    Ok(result)
}

/// Returns the variable's value; `None` if an optional source is absent.
fn resolve(
    pod: &Pod,
    container: &Container,
    objects: &Objects,
    services: &Environment,
    downward: &Downward,
    known: &Environment,
    variable: &EnvVar,
) -> Result<Option<String>> {
    let literal = variable.value.as_deref().unwrap_or_default();
    if !literal.is_empty() {
        return Ok(Some(expand(literal, |name| known.get(name).or_else(|| services.get(name)).cloned())));
    }
    match &variable.value_from {
        Some(source) => from_source(pod, container, objects, downward, source),
        None => Ok(Some(String::new())),
    }
}

fn from_source(
    pod: &Pod,
    container: &Container,
    objects: &Objects,
    downward: &Downward,
    source: &EnvVarSource,
) -> Result<Option<String>> {
    let namespace = spec::namespace(pod);
    if let Some(selector) = &source.field_ref {
        return downward_api::field(pod, downward, selector).map(Some);
    }
    if let Some(selector) = &source.resource_field_ref {
        return downward_api::resource(pod, Some(container), downward, selector).map(Some);
    }
    if let Some(selector) = &source.config_map_key_ref {
        let Some(object) = config_map(objects, &selector.name, selector.optional)? else { return Ok(None) };
        let value = object.data.as_ref().and_then(|data| data.get(&selector.key)).cloned();
        return value_or_absent(value, selector.optional, || {
            format!("couldn't find key {} in ConfigMap {namespace}/{}", selector.key, selector.name)
        });
    }
    if let Some(selector) = &source.secret_key_ref {
        let Some(object) = secret(objects, &selector.name, selector.optional)? else { return Ok(None) };
        let value = object.data.as_ref().and_then(|data| data.get(&selector.key));
        let value = value.map(|bytes| String::from_utf8_lossy(&bytes.0).into_owned());
        return value_or_absent(value, selector.optional, || {
            format!("couldn't find key {} in Secret {namespace}/{}", selector.key, selector.name)
        });
    }
    if let Some(selector) = &source.file_key_ref {
        let volume = &selector.volume_name;
        let path = &selector.path;
        let key = &selector.key;
        let missing = || Error::pod(format!("cannot find the volume {volume:?} referenced by FileKeyRef"));
        let root = objects.volumes.get(volume).ok_or_else(missing)?;
        return value_or_absent(env_file::value(root, path, key)?, selector.optional, || {
            format!("environment variable key {key:?} not found in file {path:?}")
        });
    }
    Err(Error::pod("environment variable with an unknown source"))
}

fn value_or_absent(
    value: Option<String>,
    optional: Option<bool>,
    message: impl FnOnce() -> String,
) -> Result<Option<String>> {
    if value.is_none() && optional != Some(true) {
        return Err(Error::pod(message()));
    }
    Ok(value)
}

fn config_map<'a>(objects: &'a Objects, name: &str, optional: Option<bool>) -> Result<Option<&'a ConfigMap>> {
    let found = objects.config_maps.get(name).and_then(Option::as_ref);
    match (found, optional) {
        (None, None | Some(false)) => Err(absent("configmap", name)),
        _ => Ok(found),
    }
}

fn secret<'a>(objects: &'a Objects, name: &str, optional: Option<bool>) -> Result<Option<&'a Secret>> {
    let found = objects.secrets.get(name).and_then(Option::as_ref);
    match (found, optional) {
        (None, None | Some(false)) => Err(absent("secret", name)),
        _ => Ok(found),
    }
}

fn absent(kind: &str, name: &str) -> Error {
    Error::pod(format!("{kind} {name:?} not found"))
}

/// Returns the variables of the Services of the pod's namespace, and always of the API server.
pub fn service_variables(pod: &Pod, services: &[Service]) -> Environment {
    let links = spec::spec(pod).enable_service_links.unwrap_or(true);
    let mut result = Environment::new();
    for service in services {
        let namespace = service.metadata.namespace.as_deref();
        let name = service.metadata.name.as_deref();
        let api = namespace == Some("default") && name == Some("kubernetes");
        if api || (links && namespace == Some(spec::namespace(pod))) {
            add_service(service, name.unwrap_or_default(), &mut result);
        }
    }
    result
}

fn add_service(service: &Service, name: &str, result: &mut Environment) {
    let Some(spec) = &service.spec else { return };
    let address = spec.cluster_ip.as_deref().unwrap_or_default();
    let ports = spec.ports.as_deref().unwrap_or_default();
    if address.is_empty() || address == "None" || ports.is_empty() {
        return;
    }
    let prefix = name.to_uppercase().replace('-', "_");
    let host = if address.contains(':') { format!("[{address}]") } else { address.to_owned() };
    result.insert(format!("{prefix}_SERVICE_HOST"), address.to_owned());
    result.insert(format!("{prefix}_SERVICE_PORT"), ports[0].port.to_string());
    for (at, port) in ports.iter().enumerate() {
        if let Some(port_name) = port.name.as_deref().filter(|name| !name.is_empty()) {
            let port_name = port_name.to_uppercase().replace('-', "_");
            result.insert(format!("{prefix}_SERVICE_PORT_{port_name}"), port.port.to_string());
        }
        let protocol = port.protocol.as_deref().unwrap_or("TCP");
        let url = format!("{}://{host}:{}", protocol.to_lowercase(), port.port);
        if at == 0 {
            result.insert(format!("{prefix}_PORT"), url.clone());
        }
        let stem = format!("{prefix}_PORT_{}_{}", port.port, protocol.to_uppercase());
        result.insert(format!("{stem}_PROTO"), protocol.to_lowercase());
        result.insert(format!("{stem}_PORT"), port.port.to_string());
        result.insert(format!("{stem}_ADDR"), address.to_owned());
        result.insert(stem, url);
    }
}

#[cfg(test)]
mod tests {
    use corten_api::Typed;
    use serde_json::json;

    use super::*;
    use crate::fixtures;

    fn objects() -> Objects {
        let config = ConfigMap::from_value(json!({"data": {"key": "from-config", "OTHER": "o"}})).unwrap();
        let secret = Secret::from_value(json!({"data": {"password": "c2VjcmV0"}})).unwrap();
        Objects {
            config_maps: [("config".to_owned(), Some(config)), ("gone".to_owned(), None)].into(),
            secrets: [("secret".to_owned(), Some(secret))].into(),
            ..Objects::default()
        }
    }

    fn build(container: &str) -> Result<Environment> {
        let pod = fixtures::pod(&format!(r#"{{"containers":[{container}]}}"#));
        let services = Environment::from([("SVC_SERVICE_HOST".to_owned(), "10.96.0.7".to_owned())]);
        let container = &spec::spec(&pod).containers[0];
        environment(&pod, container, &objects(), &services, &Downward::default())
    }

    #[test]
    fn later_variables_see_earlier_ones_and_services() {
        let result = build(
            r#"{"name":"c","envFrom":[{"prefix":"P_","configMapRef":{"name":"config"}}],"env":[
                {"name":"A","value":"a"},
                {"name":"B","value":"$(A)-$(P_OTHER)-$(SVC_SERVICE_HOST)-$(LATER)"},
                {"name":"LATER","valueFrom":{"secretKeyRef":{"name":"secret","key":"password"}}},
                {"name":"P_key","valueFrom":{"configMapKeyRef":{"name":"config","key":"key"}}},
                {"name":"SKIPPED","valueFrom":{"configMapKeyRef":{"name":"gone","key":"key","optional":true}}},
                {"name":"NAME","valueFrom":{"fieldRef":{"fieldPath":"metadata.name"}}},
                {"name":"EMPTY"}]}"#,
        )
        .unwrap();
        let expected = [
            ("A", "a"),
            ("B", "a-o-10.96.0.7-$(LATER)"),
            ("EMPTY", ""),
            ("LATER", "secret"),
            ("NAME", "p"),
            ("P_OTHER", "o"),
            ("P_key", "from-config"),
            ("SVC_SERVICE_HOST", "10.96.0.7"),
        ];
        assert_eq!(result, expected.map(|(name, value)| (name.to_owned(), value.to_owned())).into());
    }

    #[test]
    fn absent_sources_are_errors_unless_optional() {
        for (container, message) in [
            (r#"{"name":"c","envFrom":[{"configMapRef":{"name":"gone"}}]}"#, "configmap \"gone\" not found"),
            (
                r#"{"name":"c","env":[{"name":"A","valueFrom":{"secretKeyRef":{"name":"secret","key":"none"}}}]}"#,
                "couldn't find key none in Secret ns/secret",
            ),
        ] {
            assert_eq!(build(container).unwrap_err().to_string(), message);
        }
        assert!(build(r#"{"name":"c","envFrom":[{"configMapRef":{"name":"gone","optional":true}}]}"#).is_ok());
    }

    #[test]
    fn services_have_upstreams_variables() {
        let service = Service::from_value(json!({
            "metadata": {"name": "my-db", "namespace": "ns"},
            "spec": {"clusterIP": "10.96.1.2", "ports": [{"name": "sql", "port": 5432, "protocol": "TCP"}]},
        }))
        .unwrap();
        let pod = fixtures::pod(r#"{"containers":[]}"#);
        let expected = [
            ("MY_DB_PORT", "tcp://10.96.1.2:5432"),
            ("MY_DB_PORT_5432_TCP", "tcp://10.96.1.2:5432"),
            ("MY_DB_PORT_5432_TCP_ADDR", "10.96.1.2"),
            ("MY_DB_PORT_5432_TCP_PORT", "5432"),
            ("MY_DB_PORT_5432_TCP_PROTO", "tcp"),
            ("MY_DB_SERVICE_HOST", "10.96.1.2"),
            ("MY_DB_SERVICE_PORT", "5432"),
            ("MY_DB_SERVICE_PORT_SQL", "5432"),
        ];
        let variables = service_variables(&pod, std::slice::from_ref(&service));
        assert_eq!(variables, expected.map(|(name, value)| (name.to_owned(), value.to_owned())).into());
        let unlinked = fixtures::pod(r#"{"enableServiceLinks":false,"containers":[]}"#);
        assert!(service_variables(&unlinked, &[service]).is_empty());
    }
}
