//! The parameters of CSI calls for a volume, from its API objects. Pure.

use std::collections::HashMap;

use corten_api::k8s_openapi::api::core::v1::{PersistentVolume, Pod, Volume};
use corten_api::k8s_openapi::api::storage::v1::CSIDriver;
use corten_plugins::csi;
use csi::node_service_capability::rpc::Type as Rpc;
use csi::volume_capability::access_mode::Mode;

use super::record;
use crate::error::{Error, Result};
use crate::pod::spec;

/// A Secret, by namespace and name.
pub type SecretReference = (String, String);

/// A volume that a CSI driver provides, as the pod or the persistent volume describes it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Source {
    pub driver: String,
    pub handle: String,
    /// The persistent volume's name, or the pod's own name for an inline volume.
    pub name: String,
    pub persistent: bool,
    pub block: bool,
    pub read_only: bool,
    pub fs_type: String,
    pub attributes: HashMap<String, String>,
    pub mount_options: Vec<String>,
    pub access_modes: Vec<String>,
    pub stage_secret: Option<SecretReference>,
    pub publish_secret: Option<SecretReference>,
    pub expand_secret: Option<SecretReference>,
}

impl Source {
    /// Returns the volume of an inline `csi` source, which exists as long as its pod.
    pub fn inline(pod: &Pod, volume: &Volume) -> Option<Source> {
        let source = volume.csi.as_ref()?;
        let secret = source.node_publish_secret_ref.as_ref();
        Some(Source {
            driver: source.driver.clone(),
            handle: record::inline_handle(spec::uid(pod), &volume.name),
            name: volume.name.clone(),
            read_only: source.read_only == Some(true),
            fs_type: source.fs_type.clone().unwrap_or_default(),
            attributes: source.volume_attributes.clone().unwrap_or_default().into_iter().collect(),
            publish_secret: secret.map(|secret| (spec::namespace(pod).to_owned(), secret.name.clone())),
            ..Source::default()
        })
    }

    /// Returns the volume that a claim is bound to.
    pub fn persistent(volume: &PersistentVolume, read_only: bool) -> Option<Source> {
        let declared = volume.spec.as_ref()?;
        let source = declared.csi.as_ref()?;
        let secret = |reference: &Option<corten_api::k8s_openapi::api::core::v1::SecretReference>| {
            let reference = reference.as_ref()?;
            Some((reference.namespace.clone().unwrap_or_default(), reference.name.clone().unwrap_or_default()))
        };
        Some(Source {
            driver: source.driver.clone(),
            handle: source.volume_handle.clone(),
            name: volume.metadata.name.clone().unwrap_or_default(),
            persistent: true,
            block: declared.volume_mode.as_deref() == Some("Block"),
            read_only: read_only || source.read_only == Some(true),
            fs_type: source.fs_type.clone().unwrap_or_default(),
            attributes: source.volume_attributes.clone().unwrap_or_default().into_iter().collect(),
            mount_options: declared.mount_options.clone().unwrap_or_default(),
            access_modes: declared.access_modes.clone().unwrap_or_default(),
            stage_secret: secret(&source.node_stage_secret_ref),
            publish_secret: secret(&source.node_publish_secret_ref),
            expand_secret: secret(&source.node_expand_secret_ref),
        })
    }

    /// Reports whether only one pod may use the volume at a time. The scheduler ensures it, but not for pods that it
    /// did not bind.
    pub fn is_for_one_pod(&self) -> bool {
        self.access_modes.iter().any(|mode| mode == "ReadWriteOncePod")
    }

    /// Reports whether the driver is asked for a volume that has readers only.
    fn is_for_readers(&self) -> bool {
        self.access_modes.first().is_some_and(|mode| mode == "ReadOnlyMany")
    }

    pub fn record(&self, node: &str) -> record::Record {
        record::Record {
            driver: self.driver.clone(),
            handle: self.handle.clone(),
            spec_name: self.name.clone(),
            block: self.block,
            persistent: self.persistent,
            attachment: record::attachment_name(&self.handle, &self.driver, node),
        }
    }

    /// Returns the capability for the pod's use of the volume. `group` is set if the driver changes the group of the
    /// files.
    pub fn capability(&self, abilities: &Abilities, group: Option<u32>) -> csi::VolumeCapability {
        use csi::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
        let access_type = match self.block {
            true => AccessType::Block(BlockVolume {}),
            false => AccessType::Mount(MountVolume {
                fs_type: self.fs_type.clone(),
                mount_flags: self.mount_options.clone(),
                volume_mount_group: group.map(|group| group.to_string()).unwrap_or_default(),
            }),
        };
        let mode = access_mode(self.access_modes.first().map_or("ReadWriteOnce", String::as_str), abilities);
        csi::VolumeCapability { access_mode: Some(AccessMode { mode: mode as i32 }), access_type: Some(access_type) }
    }
}

fn access_mode(mode: &str, abilities: &Abilities) -> Mode {
    match (mode, abilities.can(Rpc::SingleNodeMultiWriter)) {
        ("ReadWriteOnce", true) => Mode::SingleNodeMultiWriter,
        ("ReadWriteOncePod", true) => Mode::SingleNodeSingleWriter,
        ("ReadWriteOnce" | "ReadWriteOncePod", false) => Mode::SingleNodeWriter,
        ("ReadOnlyMany", _) => Mode::MultiNodeReaderOnly,
        ("ReadWriteMany", _) => Mode::MultiNodeMultiWriter,
        _ => Mode::Unknown,
    }
}

/// The capabilities of a driver's node service.
#[derive(Clone, Debug, Default)]
pub struct Abilities(Vec<i32>);

impl Abilities {
    pub fn new(response: &csi::NodeGetCapabilitiesResponse) -> Abilities {
        let kinds = response.capabilities.iter().filter_map(|capability| capability.r#type.as_ref());
        Abilities(kinds.map(|csi::node_service_capability::Type::Rpc(rpc)| rpc.r#type).collect())
    }

    pub fn can(&self, rpc: Rpc) -> bool {
        self.0.contains(&(rpc as i32))
    }
}

/// Reports whether volumes of the driver must be attached to the node before use.
pub fn needs_attach(driver: Option<&CSIDriver>) -> bool {
    driver.is_none_or(|driver| driver.spec.attach_required != Some(false))
}

/// Checks that the driver supports volumes of this lifecycle mode.
pub fn check_mode(source: &Source, driver: Option<&CSIDriver>) -> Result<()> {
    let mode = if source.persistent { "Persistent" } else { "Ephemeral" };
    let Some(driver) = driver else {
        return match source.persistent {
            true => Ok(()),
            false => Err(Error::pod(format!(
                "volume mode {mode:?} not supported by driver {} (no CSIDriver object)",
                source.driver
            ))),
        };
    };
    let modes = driver.spec.volume_lifecycle_modes.clone().unwrap_or_default();
    let supported = if modes.is_empty() { vec!["Persistent".to_owned()] } else { modes };
    if supported.iter().any(|supported| supported == mode) {
        return Ok(());
    }
    Err(Error::pod(format!(
        "volume mode {mode:?} not supported by driver {} (only supports {supported:?})",
        source.driver
    )))
}

/// Reports whether the kubelet changes the group of the volume's files to the pod's fsGroup.
pub fn gives_to_group(source: &Source, driver: Option<&CSIDriver>) -> bool {
    let policy = driver.and_then(|driver| driver.spec.fs_group_policy.as_deref());
    match policy.unwrap_or("ReadWriteOnceWithFSType") {
        _ if source.read_only || source.block || source.is_for_readers() => false,
        "None" => false,
        "File" => true,
        _ if source.fs_type.is_empty() => false,
        _ if !source.persistent => true,
        _ => source.access_modes.iter().any(|mode| matches!(mode.as_str(), "ReadWriteOnce" | "ReadWriteOncePod")),
    }
}

/// Adds the pod's information if the driver has `podInfoOnMount`.
pub fn add_pod_info(attributes: &mut HashMap<String, String>, pod: &Pod, source: &Source, driver: Option<&CSIDriver>) {
    if driver.is_none_or(|driver| driver.spec.pod_info_on_mount != Some(true)) {
        return;
    }
    let account = spec::spec(pod).service_account_name.clone().unwrap_or_default();
    for (name, value) in [
        ("csi.storage.k8s.io/pod.name", spec::name(pod).to_owned()),
        ("csi.storage.k8s.io/pod.namespace", spec::namespace(pod).to_owned()),
        ("csi.storage.k8s.io/pod.uid", spec::uid(pod).to_owned()),
        ("csi.storage.k8s.io/serviceAccount.name", account),
        ("csi.storage.k8s.io/ephemeral", (!source.persistent).to_string()),
    ] {
        attributes.insert(name.to_owned(), value);
    }
}

#[cfg(test)]
mod tests {
    use corten_api::Typed;
    use serde_json::{Value, json};

    use super::*;
    use crate::fixtures;

    fn driver(spec: Value) -> CSIDriver {
        CSIDriver::from_value(json!({"metadata": {"name": "d"}, "spec": spec})).unwrap()
    }

    fn abilities(rpcs: &[Rpc]) -> Abilities {
        Abilities(rpcs.iter().map(|rpc| *rpc as i32).collect())
    }

    #[test]
    fn access_modes_depend_on_the_capabilities_of_the_driver() {
        let old = abilities(&[]);
        let new = abilities(&[Rpc::SingleNodeMultiWriter]);
        for (mode, plain, exact) in [
            ("ReadWriteOnce", Mode::SingleNodeWriter, Mode::SingleNodeMultiWriter),
            ("ReadWriteOncePod", Mode::SingleNodeWriter, Mode::SingleNodeSingleWriter),
            ("ReadOnlyMany", Mode::MultiNodeReaderOnly, Mode::MultiNodeReaderOnly),
            ("ReadWriteMany", Mode::MultiNodeMultiWriter, Mode::MultiNodeMultiWriter),
        ] {
            assert_eq!((access_mode(mode, &old), access_mode(mode, &new)), (plain, exact), "{mode}");
        }
    }

    #[test]
    fn group_policies_decide_the_owner_of_the_files() {
        let once = Source {
            persistent: true,
            fs_type: "ext4".into(),
            access_modes: vec!["ReadWriteOnce".into()],
            ..Source::default()
        };
        let many = Source { access_modes: vec!["ReadWriteMany".into()], ..once.clone() };
        let readers = Source { access_modes: vec!["ReadOnlyMany".into()], ..once.clone() };
        let bare = Source { fs_type: String::new(), ..once.clone() };
        let read_only = Source { read_only: true, ..once.clone() };
        for (policy, source, expected) in [
            (None, &once, true),
            (None, &many, false),
            (None, &bare, false),
            (None, &read_only, false),
            (Some("File"), &many, true),
            (Some("File"), &read_only, false),
            (Some("File"), &readers, false),
            (Some("None"), &once, false),
        ] {
            let driver = policy.map(|policy| driver(json!({"fsGroupPolicy": policy})));
            assert_eq!(gives_to_group(source, driver.as_ref()), expected, "{policy:?} {source:?}");
        }
    }

    #[test]
    fn inline_volumes_need_a_driver_that_supports_them() {
        let pod = fixtures::pod(r#"{"volumes":[{"name":"v","csi":{"driver":"d","readOnly":true}}]}"#);
        let source = Source::inline(&pod, &spec::spec(&pod).volumes.as_ref().unwrap()[0]).unwrap();
        assert!(source.read_only && !source.persistent);
        assert_eq!(
            check_mode(&source, None).unwrap_err().to_string(),
            "volume mode \"Ephemeral\" not supported by driver d (no CSIDriver object)"
        );
        let persistent_only = driver(json!({}));
        assert_eq!(
            check_mode(&source, Some(&persistent_only)).unwrap_err().to_string(),
            "volume mode \"Ephemeral\" not supported by driver d (only supports [\"Persistent\"])"
        );
        let both = driver(json!({"volumeLifecycleModes": ["Persistent", "Ephemeral"], "podInfoOnMount": true}));
        check_mode(&source, Some(&both)).unwrap();
        let mut attributes = HashMap::new();
        add_pod_info(&mut attributes, &pod, &source, Some(&both));
        assert_eq!(attributes["csi.storage.k8s.io/ephemeral"], "true");
        assert_eq!(attributes["csi.storage.k8s.io/pod.name"], "p");
    }

    #[test]
    fn without_a_driver_object_volumes_are_attached() {
        assert!(needs_attach(None));
        assert!(needs_attach(Some(&driver(json!({"attachRequired": true})))));
        assert!(!needs_attach(Some(&driver(json!({"attachRequired": false})))));
    }
}
