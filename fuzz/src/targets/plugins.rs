//! Messages of container runtimes and of the node's plugins: storage drivers, device plugins, resource drivers.

use corten_cri::v1 as cri;
use corten_plugins::{csi, device_plugin, dynamic_resources, pod_resources, registration};
use prost::Message;

use crate::Target;

pub const TARGETS: &[Target] = &[
    Target { name: "runtime-message", seeds: runtime_seeds, run: runtime_message },
    Target { name: "plugin-message", seeds: plugin_seeds, run: plugin_message },
];

/// Decodes a message, encodes it and decodes it again. The bytes are compared: a NaN is not equal to itself.
fn round_trip<M: Message + Default>(bytes: &[u8]) {
    let Ok(message) = M::decode(bytes) else { return };
    let written = message.encode_to_vec();
    let again = M::decode(written.as_slice()).expect("what was written is read");
    assert_eq!(again.encoded_len(), written.len(), "a message is as long again");
}

const RUNTIME: &[fn(&[u8])] = &[
    round_trip::<cri::RunPodSandboxRequest>,
    round_trip::<cri::CreateContainerRequest>,
    round_trip::<cri::UpdateContainerResourcesRequest>,
    round_trip::<cri::PullImageRequest>,
    round_trip::<cri::ExecRequest>,
    round_trip::<cri::PortForwardRequest>,
    round_trip::<cri::ListContainersRequest>,
    round_trip::<cri::PodSandboxStatusResponse>,
    round_trip::<cri::ContainerStatusResponse>,
    round_trip::<cri::ListPodSandboxStatsResponse>,
    round_trip::<cri::ListImagesResponse>,
    round_trip::<cri::StatusResponse>,
];

const PLUGINS: &[fn(&[u8])] = &[
    round_trip::<registration::PluginInfo>,
    round_trip::<csi::NodeGetInfoResponse>,
    round_trip::<csi::NodeGetCapabilitiesResponse>,
    round_trip::<csi::NodeGetVolumeStatsResponse>,
    round_trip::<csi::NodePublishVolumeRequest>,
    round_trip::<device_plugin::RegisterRequest>,
    round_trip::<device_plugin::ListAndWatchResponse>,
    round_trip::<device_plugin::AllocateResponse>,
    round_trip::<device_plugin::PreferredAllocationResponse>,
    round_trip::<dynamic_resources::NodePrepareResourcesResponse>,
    round_trip::<dynamic_resources::NodeUnprepareResourcesResponse>,
    round_trip::<pod_resources::ListPodResourcesResponse>,
];

/// Decodes a message; the first byte selects its type.
fn dispatch(messages: &[fn(&[u8])], input: &[u8]) {
    let Some((number, bytes)) = input.split_first() else { return };
    messages[usize::from(*number) % messages.len()](bytes);
}

fn runtime_seeds() -> Vec<Vec<u8>> {
    let metadata = cri::PodSandboxMetadata { name: "a".into(), uid: "u".into(), namespace: "n".into(), attempt: 1 };
    let mut config = cri::PodSandboxConfig { metadata: Some(metadata), hostname: "h".into(), ..Default::default() };
    config.labels.insert("a".into(), "b".into());
    config.port_mappings.push(cri::PortMapping { container_port: 80, host_port: 8080, ..Default::default() });
    let mut container = cri::ContainerConfig { command: vec!["sh".into()], ..Default::default() };
    container.mounts.push(cri::Mount { container_path: "/a".into(), host_path: "/b".into(), ..Default::default() });
    container.linux.get_or_insert_default().resources.get_or_insert_default().cpu_quota = -1;
    let create = cri::CreateContainerRequest {
        config: Some(container),
        sandbox_config: Some(config.clone()),
        ..Default::default()
    };
    let run = cri::RunPodSandboxRequest { config: Some(config), ..Default::default() };
    vec![[&[0][..], &run.encode_to_vec()].concat(), [&[1][..], &create.encode_to_vec()].concat()]
}

fn runtime_message(input: &[u8]) {
    dispatch(RUNTIME, input);
}

fn plugin_seeds() -> Vec<Vec<u8>> {
    let info = registration::PluginInfo {
        r#type: "CSIPlugin".into(),
        name: "d".into(),
        endpoint: "/s".into(),
        supported_versions: vec!["1.0.0".into()],
    };
    let device = device_plugin::Device { id: "d".into(), health: "Healthy".into(), ..Default::default() };
    let devices = device_plugin::ListAndWatchResponse { devices: vec![device] };
    vec![[&[0][..], &info.encode_to_vec()].concat(), [&[6][..], &devices.encode_to_vec()].concat()]
}

fn plugin_message(input: &[u8]) {
    dispatch(PLUGINS, input);
}
