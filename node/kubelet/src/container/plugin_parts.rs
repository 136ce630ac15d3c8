//! The parts that plugins of the node add to a container beyond its spec: device plugins and DRA drivers.

use std::collections::BTreeMap;

use corten_cri::v1 as cri;
use corten_plugins::device_plugin::ContainerAllocateResponse;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct PluginParts {
    pub envs: BTreeMap<String, String>,
    pub mounts: Vec<cri::Mount>,
    pub devices: Vec<cri::Device>,
    pub annotations: BTreeMap<String, String>,
    /// Fully qualified names of CDI devices, which the runtime resolves.
    pub cdi: Vec<String>,
}

impl PluginParts {
    /// Adds the response of a device plugin. Of two with the same name or path, the first wins.
    pub fn add(&mut self, answer: &ContainerAllocateResponse) {
        for (name, value) in &answer.envs {
            self.envs.entry(name.clone()).or_insert_with(|| value.clone());
        }
        for (name, value) in &answer.annotations {
            self.annotations.entry(name.clone()).or_insert_with(|| value.clone());
        }
        for mount in &answer.mounts {
            if !self.mounts.iter().any(|known| known.container_path == mount.container_path) {
                self.mounts.push(cri::Mount {
                    container_path: mount.container_path.clone(),
                    host_path: mount.host_path.clone(),
                    readonly: mount.read_only,
                    ..cri::Mount::default()
                });
            }
        }
        for device in &answer.devices {
            if !self.devices.iter().any(|known| known.container_path == device.container_path) {
                self.devices.push(cri::Device {
                    container_path: device.container_path.clone(),
                    host_path: device.host_path.clone(),
                    permissions: device.permissions.clone(),
                });
            }
        }
        self.add_cdi(answer.cdi_devices.iter().map(|device| device.name.clone()));
    }

    pub fn add_cdi(&mut self, names: impl IntoIterator<Item = String>) {
        for name in names {
            if !self.cdi.contains(&name) {
                self.cdi.push(name);
            }
        }
    }

    /// Adds everything to the container's configuration; the pod's own values win.
    pub fn apply(self, config: &mut cri::ContainerConfig) {
        for (key, value) in self.envs {
            if !config.envs.iter().any(|known| known.key == key) {
                config.envs.push(cri::KeyValue { key, value: value.into() });
            }
        }
        for (name, value) in self.annotations {
            config.annotations.entry(name).or_insert(value);
        }
        let free = |mount: &cri::Mount| !config.mounts.iter().any(|known| known.container_path == mount.container_path);
        let mounts: Vec<_> = self.mounts.into_iter().filter(free).collect();
        config.mounts.extend(mounts);
        config.devices.extend(self.devices);
        config.cdi_devices.extend(self.cdi.into_iter().map(|name| cri::CdiDevice { name }));
    }
}

#[cfg(test)]
mod tests {
    use corten_plugins::device_plugin::{CdiDevice, DeviceSpec, Mount};

    use super::*;

    #[test]
    fn the_pod_wins_over_plugins_and_the_first_plugin_over_the_second() {
        let answer = |value: &str| ContainerAllocateResponse {
            envs: [("A".to_owned(), value.to_owned()), ("B".to_owned(), value.to_owned())].into(),
            mounts: vec![Mount { container_path: "/m".into(), host_path: format!("/{value}"), read_only: true }],
            devices: vec![DeviceSpec {
                container_path: "/dev/x".into(),
                host_path: "/dev/null".into(),
                permissions: "r".into(),
            }],
            cdi_devices: vec![CdiDevice { name: "v/c=d".into() }],
            ..ContainerAllocateResponse::default()
        };
        let mut plugin_parts = PluginParts::default();
        plugin_parts.add(&answer("first"));
        plugin_parts.add(&answer("second"));
        let own = cri::KeyValue { key: "B".into(), value: "pod".into() };
        let mut config = cri::ContainerConfig { envs: vec![own], ..cri::ContainerConfig::default() };
        plugin_parts.apply(&mut config);
        let envs: Vec<_> = config.envs.iter().map(|env| (env.key.as_str(), env.value.as_ref())).collect();
        assert_eq!(envs, [("B", b"pod".as_ref()), ("A", b"first".as_ref())]);
        assert_eq!((config.mounts.len(), config.mounts[0].host_path.as_str()), (1, "/first"));
        assert_eq!((config.devices.len(), config.cdi_devices.len()), (1, 1));
    }
}
