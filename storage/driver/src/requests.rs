//! Reads the requests for volumes: size, access, parameters and source. Pure.

use std::collections::HashMap;

use corten_plugins::csi;
use corten_storage_plugin::access::{Access, access};
use corten_storage_plugin::error::{Error, Result};
use corten_storage_plugin::file_system::FileSystem;
use corten_storage_plugin::requests::{Size, name, size};
use csi::volume_content_source::Type as ContentSource;

use crate::limits::Limits;
use crate::record::Source;
use crate::roles::INTERVALS;
use crate::volumes::Wanted;

/// The parameter and the attribute with the size of an ephemeral volume.
const EPHEMERAL_SIZE: &str = "size";
const EPHEMERAL_FILE_SYSTEM: &str = "fsType";
/// The parameters of a class whose volumes have a copy on another node.
pub const REPLICAS: &str = "replicas";
const REPLICA_INTERVAL: &str = "replicaInterval";
/// The attribute of a volume with the seconds between two increments of its copy.
pub const REPLICA_INTERVAL_ATTRIBUTE: &str = "replicaIntervalSeconds";
const DEFAULT_INTERVAL: u64 = 60;
const SIDECAR_PREFIX: &str = "csi.storage.k8s.io/";

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
    let is_known = |key: &str| key.starts_with(SIDECAR_PREFIX) || key == REPLICAS || key == REPLICA_INTERVAL;
    if let Some(unknown) = request.parameters.keys().find(|key| !is_known(key)) {
        return Err(Error::Invalid(format!("the parameter {unknown} is not known")));
    }
    let limits = Limits::parse(&request.mutable_parameters)?;
    let file_system = accesses.iter().find_map(|access| access.file_system).unwrap_or(FileSystem::Ext4);
    let source = request.volume_content_source.as_ref().map(source).transpose()?;
    let size = size(request.capacity_range.as_ref())?;
    let replica_interval = replica_interval(&request.parameters)?;
    Ok(Wanted { name, size, block, file_system, source, ephemeral: false, limits, replica_interval })
}

/// Returns the seconds between two increments of a volume's copy; none for a volume without a copy.
fn replica_interval(parameters: &HashMap<String, String>) -> Result<Option<u64>> {
    let interval = parameters.get(REPLICA_INTERVAL).map(|text| seconds(text)).transpose()?;
    match parameters.get(REPLICAS).map(String::as_str) {
        Some("2") => Ok(Some(interval.unwrap_or(DEFAULT_INTERVAL))),
        None | Some("1") if interval.is_some() => {
            Err(Error::Invalid(format!("{REPLICA_INTERVAL} needs {REPLICAS}: \"2\"")))
        }
        None | Some("1") => Ok(None),
        Some(other) => Err(Error::Invalid(format!("{REPLICAS} is \"1\" or \"2\", and not \"{}\"", shortened(other)))),
    }
}

/// Reads a duration: a number of seconds, minutes or hours, such as `90s`, `5m` or `1h`.
fn seconds(text: &str) -> Result<u64> {
    let refused = || {
        let given = shortened(text);
        Error::Invalid(format!("{REPLICA_INTERVAL} is between 5s and 24h, such as 60s or 5m, and not \"{given}\""))
    };
    let digits = text.trim_end_matches(|one: char| one.is_ascii_lowercase());
    let unit = match text.strip_prefix(digits) {
        Some("" | "s") => 1,
        Some("m") => 60,
        Some("h") => 3600,
        _ => return Err(refused()),
    };
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let number: u64 = if is_number { digits.parse().map_err(|_| refused())? } else { return Err(refused()) };
    number.checked_mul(unit).filter(|all| INTERVALS.contains(all)).ok_or_else(refused)
}

/// Shortens a text of a user for a message.
fn shortened(text: &str) -> String {
    text.chars().filter(|one| !one.is_control()).take(32).collect()
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
        replica_interval: None,
    })
}

fn quantity(text: &str) -> Result<u64> {
    let refused = || Error::Invalid(format!("the size {text} of an inline volume is not a quantity of bytes"));
    let parsed = corten_meta::Quantity::parse(text).map_err(|_| refused())?;
    u64::try_from(parsed.value()).ok().filter(|bytes| *bytes > 0).ok_or_else(refused)
}

#[cfg(test)]
mod tests {
    use csi::volume_capability::access_mode::Mode;
    use csi::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};

    use super::*;

    fn capability(mode: Mode, fs_type: Option<&str>) -> csi::VolumeCapability {
        let access_type = match fs_type {
            Some(name) => AccessType::Mount(MountVolume { fs_type: name.into(), ..MountVolume::default() }),
            None => AccessType::Block(BlockVolume {}),
        };
        csi::VolumeCapability { access_mode: Some(AccessMode { mode: mode as i32 }), access_type: Some(access_type) }
    }

    #[test]
    fn a_class_asks_for_a_copy_by_two_parameters() {
        let interval = |replicas: Option<&str>, interval: Option<&str>| {
            let given = [(REPLICAS, replicas), (REPLICA_INTERVAL, interval)];
            let given = given.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?.to_owned())));
            replica_interval(&given.collect()).map_err(|error| error.to_string())
        };
        for (replicas, given, expected) in [
            (None, None, None),
            (Some("1"), None, None),
            (Some("2"), None, Some(60)),
            (Some("2"), Some("5s"), Some(5)),
            (Some("2"), Some("90"), Some(90)),
            (Some("2"), Some("5m"), Some(300)),
            (Some("2"), Some("24h"), Some(86400)),
        ] {
            assert_eq!(interval(replicas, given), Ok(expected), "{replicas:?} {given:?}");
        }
        for replicas in ["0", "3", "", "two", "2.0", "-1", " 2"] {
            let expected = format!("replicas is \"1\" or \"2\", and not \"{replicas}\"");
            assert_eq!(interval(Some(replicas), None), Err(expected));
        }
        for given in ["", "s", "4s", "25h", "-5s", "+60", "5d", "1h30m", "60 s", "99999999999999999999h", "6\u{660}s"] {
            assert!(interval(Some("2"), Some(given)).unwrap_err().contains("is between 5s and 24h"), "{given}");
        }
        assert!(interval(None, Some("60s")).unwrap_err().contains("needs replicas"));
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
}
