//! `hostPath`: a path of the node, checked or created according to its type.

use std::fs;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use corten_api::k8s_openapi::api::core::v1::HostPathVolumeSource;

use super::Mounted;
use crate::error::{Error, Result};

pub fn set_up(source: &HostPathVolumeSource) -> Result<Mounted> {
    let path = PathBuf::from(&source.path);
    check(&path, source.type_.as_deref().unwrap_or_default())?;
    Ok(Mounted::writable(path))
}

fn check(path: &Path, type_: &str) -> Result<()> {
    let kind = fs::metadata(path).ok().map(|metadata| metadata.file_type());
    let good = match type_ {
        "DirectoryOrCreate" if kind.is_none() => {
            let mut builder = fs::DirBuilder::new();
            return builder.recursive(true).mode(0o755).create(path).map_err(Error::file("create", path));
        }
        "FileOrCreate" if kind.is_none() => {
            let mut options = fs::OpenOptions::new();
            let made = options.create_new(true).write(true).mode(0o644).open(path);
            return made.map(drop).map_err(Error::file("create", path));
        }
        "" => true,
        "Directory" | "DirectoryOrCreate" => kind.is_some_and(|kind| kind.is_dir()),
        "File" | "FileOrCreate" => kind.is_some_and(|kind| kind.is_file()),
        "Socket" => kind.is_some_and(|kind| kind.is_socket()),
        "CharDevice" => kind.is_some_and(|kind| kind.is_char_device()),
        "BlockDevice" => kind.is_some_and(|kind| kind.is_block_device()),
        _ => return Err(Error::pod(format!("{type_} is an invalid volume type"))),
    };
    let what = match type_ {
        "Directory" | "DirectoryOrCreate" => "a directory",
        "File" | "FileOrCreate" => "a file",
        "Socket" => "a socket file",
        "CharDevice" => "a character device",
        _ => "a block device",
    };
    if good { Ok(()) } else { Err(Error::pod(format!("hostPath type check failed: {} is not {what}", path.display()))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_checked_and_made() {
        let root = tempfile::tempdir().unwrap();
        let path = |name: &str| root.path().join(name);
        assert!(check(&path("none"), "").is_ok());
        assert_eq!(
            check(&path("none"), "Directory").unwrap_err().to_string(),
            format!("hostPath type check failed: {} is not a directory", path("none").display())
        );
        check(&path("a/b"), "DirectoryOrCreate").unwrap();
        assert!(path("a/b").is_dir());
        check(&path("f"), "FileOrCreate").unwrap();
        check(&path("f"), "File").unwrap();
        assert!(check(&path("f"), "Socket").is_err());
        assert!(check(Path::new("/dev/null"), "CharDevice").is_ok());
    }
}
