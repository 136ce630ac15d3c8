//! The paths at which volumes are published: created before a mount, and removed after it.

use std::fs::File;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use crate::error::{During, Result};

/// Creates the path to bind to: a directory, or a file for a device.
pub fn create_target(target: &Path, block: bool) -> Result<()> {
    let action = || format!("create {}", target.display());
    if !block {
        return std::fs::create_dir_all(target).during(action);
    }
    if let Some(parent) = target.parent() {
        std::fs::create_dir_all(parent).during(action)?;
    }
    File::options().create(true).append(true).open(target).map(drop).during(action)
}

/// Removes an unmounted path; an absent one is the wanted state.
pub fn remove_target(target: &Path) -> Result<()> {
    match std::fs::symlink_metadata(target) {
        Ok(found) if found.is_dir() => std::fs::remove_dir(target).during(|| format!("remove {}", target.display())),
        _ => remove_file(target),
    }
}

/// Removes a file; an absent one is the wanted state.
pub fn remove_file(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
    .during(|| format!("remove {}", path.display()))
}

/// Lets every user write to an empty file system, as to the directories of the former class. A pod's `fsGroup` and the
/// owner of files change it as they like.
pub fn open_to_all(root: &Path) -> Result<()> {
    let failed = || format!("read {}", root.display());
    let metadata = std::fs::metadata(root).during(failed)?;
    let mut entries = std::fs::read_dir(root).during(failed)?.flatten();
    let is_empty = entries.all(|entry| entry.file_name() == "lost+found");
    if is_empty && metadata.uid() == 0 && metadata.mode() & 0o7777 == 0o755 {
        let open = std::fs::Permissions::from_mode(0o777);
        std::fs::set_permissions(root, open).during(|| format!("change the mode of {}", root.display()))?;
    }
    Ok(())
}
