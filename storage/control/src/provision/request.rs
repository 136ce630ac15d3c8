//! The request for a volume: size, capabilities and parameters of a claim and its class.

use corten_api::Typed;
use corten_api::k8s_openapi::api::core::v1::PersistentVolumeClaim;
use corten_api::k8s_openapi::api::storage::v1::StorageClass;
use corten_meta::Quantity;
use corten_plugins::csi;
use corten_plugins::csi::volume_capability::access_mode::Mode;
use corten_plugins::csi::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};

use crate::secrets;

/// A claim to provision.
pub struct Wanted<'a> {
    pub claim: &'a PersistentVolumeClaim,
    pub class: &'a StorageClass,
    /// The file system of classes that name none.
    pub default_fs_type: &'a str,
    /// Whether the driver distinguishes one pod of a node from several.
    pub knows_single_writers: bool,
    /// Whether the driver learns the names of the claim and the volume.
    pub extra_create_metadata: bool,
}

/// Returns the name of the volume; the uid makes it unique for all time.
pub fn volume_name(claim: &PersistentVolumeClaim) -> String {
    format!("pvc-{}", claim.metadata.uid.as_deref().unwrap_or_default())
}

/// Returns the parameters with the names of a claim and its volume.
fn metadata(claim: &PersistentVolumeClaim) -> [(String, String); 3] {
    let parameter = |key: &str, value: String| (format!("csi.storage.k8s.io/{key}"), value);
    [
        parameter("pvc/name", claim.name().to_owned()),
        parameter("pvc/namespace", claim.namespace().to_owned()),
        parameter("pv/name", volume_name(claim)),
    ]
}

/// Returns the requested size in bytes.
pub fn requested_bytes(claim: &PersistentVolumeClaim) -> i64 {
    let requests = claim.spec.as_ref().and_then(|spec| spec.resources.as_ref()?.requests.as_ref());
    let storage = requests.and_then(|requests| requests.get("storage"));
    storage.and_then(|quantity| Quantity::parse(&quantity.0).ok()).map_or(0, |quantity| quantity.value())
}

pub fn is_block(claim: &PersistentVolumeClaim) -> bool {
    claim.spec.as_ref().and_then(|spec| spec.volume_mode.as_deref()) == Some("Block")
}

impl Wanted<'_> {
    /// Returns the request, without its secrets, source and topology. Fails on a claim or class that cannot be served.
    pub fn request(&self) -> Result<csi::CreateVolumeRequest, String> {
        let spec = self.claim.spec.clone().unwrap_or_default();
        if spec.selector.is_some() {
            return Err("claim Selector is not supported".to_owned());
        }
        let parameters = self.class.parameters.clone().unwrap_or_default();
        let mut for_driver = secrets::for_driver(&parameters)?;
        for_driver.retain(|key, _| !key.eq_ignore_ascii_case("fstype"));
        if self.extra_create_metadata {
            for_driver.extend(metadata(self.claim));
        }
        Ok(csi::CreateVolumeRequest {
            name: volume_name(self.claim),
            capacity_range: Some(csi::CapacityRange { required_bytes: requested_bytes(self.claim), limit_bytes: 0 }),
            volume_capabilities: self.capabilities()?,
            parameters: for_driver,
            ..csi::CreateVolumeRequest::default()
        })
    }

    /// Returns the file system that the class names.
    pub fn fs_type(&self) -> Result<String, String> {
        let parameters = self.class.parameters.iter().flatten();
        let is_fs_type = |key: &str| key.eq_ignore_ascii_case("fstype") || key == "csi.storage.k8s.io/fstype";
        let named: Vec<&String> = parameters.filter(|(key, _)| is_fs_type(key)).map(|(_, value)| value).collect();
        match named.as_slice() {
            [] => Ok(self.default_fs_type.to_owned()),
            [one] => Ok((*one).clone()),
            _ => {
                Err("fstype specified in parameters with both \"fstype\" and \"csi.storage.k8s.io/fstype\" keys"
                    .to_owned())
            }
        }
    }

    fn capabilities(&self) -> Result<Vec<csi::VolumeCapability>, String> {
        let fs_type = self.fs_type()?;
        let modes = self.claim.spec.as_ref().and_then(|spec| spec.access_modes.clone()).unwrap_or_default();
        let capability = |mode: &String| {
            let access_type = match is_block(self.claim) {
                true => AccessType::Block(BlockVolume {}),
                false => AccessType::Mount(MountVolume {
                    fs_type: fs_type.clone(),
                    mount_flags: self.class.mount_options.clone().unwrap_or_default(),
                    ..MountVolume::default()
                }),
            };
            let mode = access_mode(mode, self.knows_single_writers)?;
            Ok(csi::VolumeCapability {
                access_type: Some(access_type),
                access_mode: Some(AccessMode { mode: mode as i32 }),
            })
        };
        modes.iter().map(capability).collect()
    }
}

/// Returns the mode of CSI for an access mode of Kubernetes.
pub fn access_mode(mode: &str, knows_single_writers: bool) -> Result<Mode, String> {
    match (mode, knows_single_writers) {
        ("ReadWriteOnce", true) => Ok(Mode::SingleNodeMultiWriter),
        ("ReadWriteOnce", false) => Ok(Mode::SingleNodeWriter),
        ("ReadWriteOncePod", true) => Ok(Mode::SingleNodeSingleWriter),
        ("ReadWriteOncePod", false) => {
            Err("the driver does not support ReadWriteOncePod: it has no capability SINGLE_NODE_MULTI_WRITER"
                .to_owned())
        }
        ("ReadOnlyMany", _) => Ok(Mode::MultiNodeReaderOnly),
        ("ReadWriteMany", _) => Ok(Mode::MultiNodeMultiWriter),
        _ => Err(format!("unknown access mode {mode}")),
    }
}

/// Returns why a volume is not what was asked for.
pub fn mismatch(request: &csi::CreateVolumeRequest, volume: &csi::Volume) -> Option<String> {
    let required = request.capacity_range.map_or(0, |range| range.required_bytes);
    let capacity = volume.capacity_bytes;
    // Zero stands for an unknown capacity.
    if capacity != 0 && capacity < required {
        return Some(format!("created volume capacity {capacity} less than requested capacity {required}"));
    }
    let has_source = request.volume_content_source.is_some();
    (has_source && volume.content_source.is_none()).then(|| "volume content source missing".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(claim: &str, class: &str, knows_single_writers: bool) -> Result<csi::CreateVolumeRequest, String> {
        let claim = testkit_fixture::typed(claim);
        let class = testkit_fixture::typed(class);
        let wanted = Wanted {
            claim: &claim,
            class: &class,
            default_fs_type: "ext4",
            knows_single_writers,
            extra_create_metadata: false,
        };
        wanted.request()
    }

    #[test]
    fn a_request_has_the_size_modes_and_parameters_of_its_claim() {
        let request = wanted(
            "pvc data uid=1 size=1Gi accessModes=ReadWriteOnce,ReadOnlyMany",
            "sc s provisioner=d parameters={type: ssd, csi.storage.k8s.io/fstype: xfs} mountOptions=noatime",
            false,
        )
        .unwrap();
        assert_eq!(request.name, "pvc-1");
        assert_eq!(request.capacity_range.unwrap().required_bytes, 1 << 30);
        assert_eq!(request.parameters, [("type".to_owned(), "ssd".to_owned())].into());
        let modes: Vec<i32> = request.volume_capabilities.iter().map(|one| one.access_mode.unwrap().mode).collect();
        assert_eq!(modes, [Mode::SingleNodeWriter as i32, Mode::MultiNodeReaderOnly as i32]);
        let Some(AccessType::Mount(mount)) = &request.volume_capabilities[0].access_type else { panic!("a mount") };
        assert_eq!((mount.fs_type.as_str(), mount.mount_flags.as_slice()), ("xfs", &["noatime".to_owned()][..]));
    }

    #[test]
    fn a_claim_of_one_pod_needs_a_driver_that_knows_the_mode() {
        let claim = "pvc data uid=1 size=1Gi accessModes=ReadWriteOncePod volumeMode=Block";
        let request = wanted(claim, "sc s provisioner=d", true).unwrap();
        let capability = &request.volume_capabilities[0];
        assert_eq!(capability.access_mode.unwrap().mode, Mode::SingleNodeSingleWriter as i32);
        assert_eq!(capability.access_type, Some(AccessType::Block(BlockVolume {})));
        assert!(wanted(claim, "sc s provisioner=d", false).unwrap_err().contains("ReadWriteOncePod"));
    }

    #[test]
    fn the_driver_learns_names_if_it_wants_to() {
        let claim: PersistentVolumeClaim = testkit_fixture::typed("pvc shop/data uid=1 size=1Gi");
        let shown = metadata(&claim).map(|(key, value)| format!("{key}={value}"));
        let expected = ["pvc/name=data", "pvc/namespace=shop", "pv/name=pvc-1"];
        assert_eq!(shown, expected.map(|one| format!("csi.storage.k8s.io/{one}")));
    }

    #[test]
    fn unknown_parameters_of_kubernetes_are_refused() {
        let class = "sc s provisioner=d parameters={csi.storage.k8s.io/fstyp: xfs}";
        let error = wanted("pvc data uid=1 size=1Gi", class, true).unwrap_err();
        assert!(error.contains("unknown parameter key \"csi.storage.k8s.io/fstyp\""), "{error}");
        let both = "sc s provisioner=d parameters={csi.storage.k8s.io/fstype: xfs, fsType: ext4}";
        assert!(wanted("pvc data uid=1 size=1Gi", both, true).unwrap_err().contains("both"));
    }

    #[test]
    fn a_volume_that_is_too_small_or_empty_is_not_taken() {
        let mut request = csi::CreateVolumeRequest {
            capacity_range: Some(csi::CapacityRange { required_bytes: 10, limit_bytes: 0 }),
            ..csi::CreateVolumeRequest::default()
        };
        let mut volume = csi::Volume { capacity_bytes: 9, ..csi::Volume::default() };
        assert!(mismatch(&request, &volume).unwrap().contains("less than requested"));
        volume.capacity_bytes = 0;
        assert_eq!(mismatch(&request, &volume), None);
        request.volume_content_source = Some(csi::VolumeContentSource::default());
        assert_eq!(mismatch(&request, &volume).as_deref(), Some("volume content source missing"));
    }
}
