//! Removes directories of the cluster's own provisioner, by name, below one directory of this node. Mounting the volume
//! for a pod creates them.
//!
//! Removing twice is harmless. A name is one plain component: no path outside of that directory can be reached.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use http::{Response, StatusCode};

use super::{Body, State, text};

/// Removes a directory with its content.
pub async fn delete(state: &Arc<State>, name: &str) -> Response<Body> {
    let Some(path) = path_of(&state.services.config.local_volumes(), name) else {
        return text(StatusCode::BAD_REQUEST, "not a name of a volume\n");
    };
    // The content may be large.
    match tokio::task::spawn_blocking(move || remove(&path)).await {
        Ok(Ok(())) => text(StatusCode::OK, "ok"),
        Ok(Err(error)) => text(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
    }
}

fn path_of(place: &Path, name: &str) -> Option<PathBuf> {
    let plain = |character: char| character.is_ascii_alphanumeric() || "-_.".contains(character);
    let good = !name.starts_with('.') && !name.is_empty() && name.len() <= 255 && name.chars().all(plain);
    good.then(|| place.join(name))
}

fn remove(path: &Path) -> std::io::Result<()> {
    match corten_files::remove_tree(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_are_removed_twice_and_only_below_their_root() {
        let place = tempfile::tempdir().unwrap();
        for bad in ["", ".", "..", "../x", "a/b", ".hidden", "a\0b"] {
            assert_eq!(path_of(place.path(), bad), None, "{bad:?}");
        }
        let path = path_of(place.path(), "pvc-1_default_data.x").unwrap();
        std::fs::create_dir_all(path.join("inside")).unwrap();
        remove(&path).unwrap();
        remove(&path).unwrap();
        assert!(!path.exists() && place.path().exists());
    }
}
