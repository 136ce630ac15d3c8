//! Reads the requests of CSI: names, sizes, capabilities, sources and pages. Pure.

use std::collections::HashMap;

use corten_plugins::csi;
use csi::volume_capability::AccessType;
use csi::volume_capability::access_mode::Mode;
use csi::volume_content_source::Type as ContentSource;

use crate::error::{Error, Result};
use crate::file_system::FileSystem;
use crate::limits::Limits;
use crate::publishing::Access;
use crate::record::{Source, is_id};
use crate::volumes::{Size, Wanted};

/// The most bytes of a name.
const MOST_NAME: usize = 256;
/// The most entries of a page if the caller asks for any number.
const MOST_ENTRIES: usize = 1000;
/// The parameter and the attribute with the size of an ephemeral volume.
const EPHEMERAL_SIZE: &str = "size";
const EPHEMERAL_FILE_SYSTEM: &str = "fsType";
const SIDECAR_PREFIX: &str = "csi.storage.k8s.io/";

/// Returns a field that must not be empty.
pub fn required<'a>(field: &str, value: &'a str) -> Result<&'a str> {
    match value.is_empty() {
        true => Err(Error::Invalid(format!("{field} is missing"))),
        false => Ok(value),
    }
}

/// Returns a name that must not be empty.
pub fn name(value: &str) -> Result<String> {
    required("name", value)?;
    match value.len() > MOST_NAME || value.chars().any(char::is_control) {
        true => Err(Error::Invalid(format!("a name has at most {MOST_NAME} bytes and no control characters"))),
        false => Ok(value.to_owned()),
    }
}

/// Returns the size of a capacity range.
pub fn size(range: Option<&csi::CapacityRange>) -> Result<Size> {
    let range = range.copied().unwrap_or_default();
    let bytes = |value: i64| {
        u64::try_from(value).map_err(|_| Error::Invalid("the capacity range has a negative number".to_owned()))
    };
    let size = Size { least: bytes(range.required_bytes)?, most: bytes(range.limit_bytes)? };
    match size.most > 0 && size.least > size.most {
        true => Err(Error::Invalid("the required capacity is above its limit".to_owned())),
        false => Ok(size),
    }
}

/// Returns the way in which a pod uses a volume.
pub fn access(capability: Option<&csi::VolumeCapability>, read_only: bool) -> Result<Access> {
    let capability = capability.ok_or_else(|| Error::Invalid("volume_capability is missing".to_owned()))?;
    let mode = capability.access_mode.as_ref().map_or(Mode::Unknown, |mode| mode.mode());
    let single = mode == Mode::SingleNodeSingleWriter;
    let reads = matches!(mode, Mode::SingleNodeReaderOnly | Mode::MultiNodeReaderOnly);
    let read_only = read_only || reads;
    if matches!(mode, Mode::Unknown | Mode::MultiNodeSingleWriter | Mode::MultiNodeMultiWriter) {
        return Err(Error::Invalid("a volume is on one node: its access mode cannot have writers on several".into()));
    }
    match capability.access_type.as_ref() {
        None => Err(Error::Invalid("the access type is missing".to_owned())),
        Some(AccessType::Block(_)) => {
            Ok(Access { block: true, file_system: None, options: Vec::new(), single, read_only })
        }
        Some(AccessType::Mount(mount)) => {
            let named = Some(mount.fs_type.as_str()).filter(|name| !name.is_empty());
            let file_system = named.map(FileSystem::parse).transpose()?;
            Ok(Access { block: false, file_system, options: mount.mount_flags.clone(), single, read_only })
        }
    }
}

/// Returns the volume that a call to create one wants.
pub fn wanted(request: &csi::CreateVolumeRequest) -> Result<Wanted> {
    let name = name(&request.name)?;
    if request.volume_capabilities.is_empty() {
        return Err(Error::Invalid("volume_capabilities are missing".to_owned()));
    }
    let accesses: Vec<Access> =
        request.volume_capabilities.iter().map(|one| access(Some(one), false)).collect::<Result<_>>()?;
    let block = accesses.iter().any(|access| access.block);
    if block && accesses.iter().any(|access| !access.block) {
        return Err(Error::Invalid("a volume is either a block device or a file system".to_owned()));
    }
    if let Some(unknown) = request.parameters.keys().find(|key| !key.starts_with(SIDECAR_PREFIX)) {
        return Err(Error::Invalid(format!("the parameter {unknown} is not known")));
    }
    let limits = Limits::parse(&request.mutable_parameters)?;
    let file_system = accesses.iter().find_map(|access| access.file_system).unwrap_or(FileSystem::Ext4);
    let source = request.volume_content_source.as_ref().map(source).transpose()?;
    let size = size(request.capacity_range.as_ref())?;
    Ok(Wanted { name, size, block, file_system, source, ephemeral: false, limits })
}

fn source(source: &csi::VolumeContentSource) -> Result<Source> {
    match source.r#type.as_ref() {
        Some(ContentSource::Snapshot(snapshot)) => Ok(Source::Snapshot(snapshot.snapshot_id.clone())),
        Some(ContentSource::Volume(volume)) => Ok(Source::Volume(volume.volume_id.clone())),
        None => Err(Error::Invalid("the type of the volume's source is not known".to_owned())),
    }
}

/// Returns a volume's source as CSI writes it.
pub fn content_source(source: &Source) -> csi::VolumeContentSource {
    use csi::volume_content_source::{SnapshotSource, VolumeSource};
    let source = match source.clone() {
        Source::Snapshot(snapshot_id) => ContentSource::Snapshot(SnapshotSource { snapshot_id }),
        Source::Volume(volume_id) => ContentSource::Volume(VolumeSource { volume_id }),
    };
    csi::VolumeContentSource { r#type: Some(source) }
}

/// Reports whether a call to publish is for a volume that exists as long as its pod.
pub fn is_ephemeral(context: &HashMap<String, String>) -> bool {
    context.get("csi.storage.k8s.io/ephemeral").is_some_and(|value| value == "true")
}

/// Returns the volume of an inline source, which the pod describes by attributes.
pub fn wanted_inline(id: &str, context: &HashMap<String, String>, access: &Access) -> Result<Wanted> {
    if access.block {
        return Err(Error::Invalid("an inline volume is a file system".to_owned()));
    }
    let least = match context.get(EPHEMERAL_SIZE) {
        Some(text) => quantity(text)?,
        None => 0,
    };
    let named = context.get(EPHEMERAL_FILE_SYSTEM).map(|name| FileSystem::parse(name)).transpose()?;
    Ok(Wanted {
        name: name(id)?,
        size: Size { least, most: 0 },
        block: false,
        file_system: access.file_system.or(named).unwrap_or(FileSystem::Ext4),
        source: None,
        ephemeral: true,
        limits: Limits::default(),
    })
}

fn quantity(text: &str) -> Result<u64> {
    let refused = || Error::Invalid(format!("the size {text} of an inline volume is not a quantity of bytes"));
    let parsed = corten_meta::Quantity::parse(text).map_err(|_| refused())?;
    u64::try_from(parsed.value()).ok().filter(|bytes| *bytes > 0).ok_or_else(refused)
}

/// A page of a list that is sorted by id.
#[derive(Debug, PartialEq, Eq)]
pub struct Page<T> {
    pub entries: Vec<T>,
    /// The id of the last entry if there are more.
    pub next: String,
}

/// Returns the page after an id. Entries that are made or deleted between pages disturb no other.
pub fn page<T>(all: impl Iterator<Item = T>, id: impl Fn(&T) -> &str, most: i32, token: &str) -> Result<Page<T>> {
    let most = usize::try_from(most).map_err(|_| Error::Invalid("max_entries is negative".to_owned()))?;
    let most = if most == 0 { MOST_ENTRIES } else { most.min(MOST_ENTRIES) };
    if !token.is_empty() && !is_id(token) {
        return Err(Error::Aborted("starting_token is not valid".to_owned()));
    }
    let mut left = all.filter(|entry| id(entry) > token);
    let entries: Vec<T> = left.by_ref().take(most).collect();
    let more = left.next().is_some();
    let next = entries.last().filter(|_| more).map(|entry| id(entry).to_owned()).unwrap_or_default();
    Ok(Page { entries, next })
}

#[cfg(test)]
mod tests {
    use csi::volume_capability::{AccessMode, BlockVolume, MountVolume};

    use super::*;

    fn capability(mode: Mode, fs_type: Option<&str>) -> csi::VolumeCapability {
        let access_type = match fs_type {
            Some(name) => AccessType::Mount(MountVolume { fs_type: name.into(), ..MountVolume::default() }),
            None => AccessType::Block(BlockVolume {}),
        };
        csi::VolumeCapability { access_mode: Some(AccessMode { mode: mode as i32 }), access_type: Some(access_type) }
    }

    #[test]
    fn capabilities_of_several_writing_nodes_are_refused() {
        for mode in [Mode::Unknown, Mode::MultiNodeSingleWriter, Mode::MultiNodeMultiWriter] {
            assert!(access(Some(&capability(mode, Some("ext4"))), false).is_err(), "{mode:?}");
        }
        let reader = access(Some(&capability(Mode::MultiNodeReaderOnly, Some("xfs"))), false).unwrap();
        assert!(reader.read_only && reader.file_system == Some(FileSystem::Xfs));
        assert!(access(Some(&capability(Mode::SingleNodeSingleWriter, None)), false).unwrap().single);
        assert!(access(None, false).is_err());
        assert!(access(Some(&capability(Mode::SingleNodeWriter, Some("ntfs"))), false).is_err());
    }

    #[test]
    fn a_volume_cannot_be_both_device_and_file_system() {
        let one = capability(Mode::SingleNodeWriter, None);
        let other = capability(Mode::SingleNodeWriter, Some(""));
        let mut request = csi::CreateVolumeRequest {
            name: "a".into(),
            volume_capabilities: vec![one.clone(), other],
            ..csi::CreateVolumeRequest::default()
        };
        assert!(wanted(&request).is_err());
        request.volume_capabilities = vec![one];
        assert!(wanted(&request).unwrap().block);
        request.parameters.insert("csi.storage.k8s.io/pvc/name".into(), "c".into());
        assert!(wanted(&request).is_ok());
        request.parameters.insert("colour".into(), "red".into());
        assert_eq!(wanted(&request).unwrap_err().to_string(), "the parameter colour is not known");
    }

    #[test]
    fn sizes_of_inline_volumes_are_quantities() {
        assert_eq!(quantity("64Mi").unwrap(), 64 << 20);
        for bad in ["", "0", "-1", "much"] {
            assert!(quantity(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn pages_go_on_after_the_last_id() {
        let ids: Vec<String> = ["a", "b", "c"].iter().map(|one| one.repeat(32)).collect();
        let page = |most: i32, token: &str| page(ids.iter(), |id| id.as_str(), most, token);
        let first = page(2, "").unwrap();
        assert_eq!(first, Page { entries: vec![&ids[0], &ids[1]], next: ids[1].clone() });
        assert_eq!(page(2, &first.next).unwrap(), Page { entries: vec![&ids[2]], next: String::new() });
        assert_eq!(page(0, "").unwrap().entries.len(), 3);
        assert!(matches!(page(0, "next"), Err(Error::Aborted(_))));
        assert!(page(-1, "").is_err());
    }

    #[test]
    fn ranges_have_an_order() {
        let range = |required_bytes, limit_bytes| size(Some(&csi::CapacityRange { required_bytes, limit_bytes }));
        assert!(range(2, 1).is_err() && range(-1, 0).is_err());
        assert!(range(2, 2).is_ok() && size(None).is_ok());
    }
}
