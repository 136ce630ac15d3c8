//! Writes the pages that are derived from the code: the manual's reference pages, man pages and shell completions.
//!
//! It is a package of its own, so that neither the binary nor `xtask` is built with dependencies that only these need.
//! A test refuses reference pages that differ from the code.

mod configuration;
mod files;
mod flags;
mod metrics;
mod ports;

use std::path::Path;

use anyhow::{Context, Result, bail};
use clap_complete::Shell;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["reference", tree] => write_reference(Path::new(tree)),
        ["pages", directory] => write_pages(Path::new(directory)),
        _ => bail!("usage: manual reference TREE | pages DIRECTORY"),
    }
}

/// Returns the reference pages: the path of each in the tree, and its content.
fn reference() -> Result<Vec<(&'static str, String)>> {
    Ok(vec![
        ("docs/reference/flags.md", flags::page(corten::reference::command())),
        ("docs/reference/config.md", configuration::page(corten::reference::command())),
        ("docs/reference/files.md", files::page()?),
        ("docs/reference/metrics.md", metrics::page()),
        ("docs/reference/ports.md", ports::page()),
    ])
}

fn write_reference(root: &Path) -> Result<()> {
    for (name, text) in reference()? {
        let path = root.join(name);
        std::fs::create_dir_all(path.parent().context("a page lies in a folder")?)?;
        std::fs::write(&path, text).with_context(|| format!("cannot write {name}"))?;
        println!("{name}");
    }
    Ok(())
}

/// Writes man pages and completions, in `man1/` and `completions/` of the directory.
fn write_pages(directory: &Path) -> Result<()> {
    let manual = directory.join("man1");
    std::fs::create_dir_all(&manual)?;
    clap_mangen::generate_to(corten::reference::command(), &manual).context("man pages")?;
    let completions = directory.join("completions");
    std::fs::create_dir_all(&completions)?;
    for (shell, name) in [(Shell::Bash, "corten.bash"), (Shell::Zsh, "_corten"), (Shell::Fish, "corten.fish")] {
        let mut file = std::fs::File::create(completions.join(name))?;
        clap_complete::generate(shell, &mut corten::reference::command(), "corten", &mut file);
    }
    Ok(())
}

/// Returns the line that opens a generated page.
fn heading(title: &str) -> String {
    format!("<!-- Written by `cargo xtask reference` from the code; edit that instead. -->\n# {title}\n\n")
}

/// Formats a text as a cell of a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_pages_match_the_code() {
        let package = Path::new(env!("CARGO_MANIFEST_DIR"));
        let root = package.ancestors().nth(2).expect("the package lies in the tree");
        if std::env::var_os("WRITE_REFERENCE").is_some() {
            write_reference(root).expect("the tree is writable");
        }
        for (name, text) in reference().expect("the pages can be made") {
            let kept = std::fs::read_to_string(root.join(name)).unwrap_or_default();
            assert!(kept == text, "{name} is stale: `cargo xtask reference` writes it");
        }
    }

    #[test]
    fn every_command_has_a_man_page_and_is_completed() {
        let directory = std::env::temp_dir().join(format!("corten-pages-{}", std::process::id()));
        write_pages(&directory).expect("the pages can be written");
        let bash = std::fs::read_to_string(directory.join("completions/corten.bash")).expect("bash");
        for command in corten::reference::command().get_subcommands().filter(|command| !command.is_hide_set()) {
            let page = directory.join(format!("man1/corten-{}.1", command.get_name()));
            assert!(page.exists(), "{} is missing", page.display());
            assert!(bash.contains(&format!("corten,{}", command.get_name())), "{}", command.get_name());
        }
        std::fs::remove_dir_all(directory).expect("the pages can be removed");
    }
}
