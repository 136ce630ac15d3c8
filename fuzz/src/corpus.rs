//! The inputs that mutations begin with: the seeds of a target, inputs that failed once, and inputs that a run kept.

use std::io;
use std::path::{Path, PathBuf};

use crate::Target;

/// Returns the inputs that failed once and must not again, by target.
pub fn regressions(target: &Target) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("regressions").join(target.name);
    read(&folder).unwrap_or_default()
}

/// Returns the inputs of a folder, in the order of their names; none if there is no folder.
pub fn read(folder: &Path) -> io::Result<Vec<Vec<u8>>> {
    let entries = match std::fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<PathBuf>>>()?;
    paths.sort_unstable();
    paths.iter().map(std::fs::read).collect()
}

/// Writes an input under the digest of its bytes, and returns its path.
pub fn write(folder: &Path, input: &[u8]) -> io::Result<PathBuf> {
    use sha2::Digest;
    std::fs::create_dir_all(folder)?;
    let digest = sha2::Sha256::digest(input);
    let name: String = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    let path = folder.join(name);
    std::fs::write(&path, input)?;
    Ok(path)
}
