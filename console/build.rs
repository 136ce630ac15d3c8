//! Compresses the files of the console, so that the binary holds and sends them compressed.

use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=web");
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    let root = PathBuf::from(std::env::var("CARGO_MANIFEST_DIR")?).join("web");
    let mut files = Vec::new();
    collect(&root, &mut files)?;
    files.sort();
    let mut table = String::from("static FILES: &[File] = &[\n");
    for (number, file) in files.iter().enumerate() {
        let name = file.strip_prefix(&root)?.to_str().ok_or("a file name is not UTF-8")?;
        let compressed = format!("{number}.gz");
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(&fs::read(file)?)?;
        fs::write(out.join(&compressed), encoder.finish()?)?;
        let path = out.join(&compressed);
        writeln!(table, "    File {{ path: {name:?}, compressed: include_bytes!({path:?}) }},")?;
    }
    table.push_str("];\n");
    fs::write(out.join("files.rs"), table)?;
    Ok(())
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        match path.is_dir() {
            true => collect(&path, files)?,
            false => files.push(path),
        }
    }
    Ok(())
}
