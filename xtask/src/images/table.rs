//! The table `conformance/images.toml`: the content of each image of the suite.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

use crate::toml::{self, Section};

pub const FILE: &str = "conformance/images.toml";

/// All layers and images.
#[derive(Debug, Default)]
pub struct Table {
    pub layers: Vec<Layer>,
    pub images: Vec<Image>,
}

/// A layer: packages of Debian, and further files over them.
#[derive(Debug, Default)]
pub struct Layer {
    pub name: String,
    /// Debian's packages, with their dependencies.
    pub packages: Vec<String>,
    /// A layer below, whose packages need not be here again.
    pub on: Option<String>,
    /// The sources that the user provides.
    pub programs: Vec<Program>,
    pub files: Vec<File>,
    pub directories: Vec<Directory>,
    /// The paths of links and their targets.
    pub links: Vec<(String, String)>,
    /// A busybox that gets a link for each applet that the layer has no program for.
    pub applets: Option<String>,
    /// An archive of the user, to be unpacked at the root.
    pub unpack: Option<String>,
    /// An image of one layer that a server in the image serves.
    pub registry: Option<Served>,
}

/// An image that a registry serves under another name.
#[derive(Debug)]
pub struct Served {
    pub name: String,
    pub tag: String,
    pub image: String,
}

/// A program or file of upstream, and its path.
#[derive(Debug)]
pub struct Program {
    pub name: String,
    pub path: String,
    pub mode: u32,
}

#[derive(Debug)]
pub struct File {
    pub path: String,
    pub mode: u32,
    pub text: String,
}

#[derive(Debug)]
pub struct Directory {
    pub path: String,
    pub mode: u32,
}

#[derive(Debug)]
pub struct Image {
    pub names: Vec<String>,
    pub layers: Vec<String>,
    pub entrypoint: Vec<String>,
    pub command: Vec<String>,
    pub env: Vec<String>,
    pub user: String,
}

impl Layer {
    /// Returns the sources that the user must provide for it.
    pub fn brought(&self) -> impl Iterator<Item = &str> {
        self.programs.iter().map(|program| program.name.as_str()).chain(self.unpack.as_deref())
    }
}

impl Table {
    pub fn read(root: &Path) -> Result<Table> {
        let text = std::fs::read_to_string(root.join(FILE)).with_context(|| format!("cannot read {FILE}"))?;
        Table::parse(&text).with_context(|| FILE.to_owned())
    }

    pub fn parse(text: &str) -> Result<Table> {
        let mut table = Table::default();
        let mut sources = BTreeSet::new();
        for section in toml::parse(text)? {
            match section.kind.as_str() {
                "source" => {
                    section.expect(&["name", "from"])?;
                    section.text("from")?;
                    sources.insert(section.text("name")?.to_owned());
                }
                "layer" => table.layers.push(layer(&section)?),
                "file" => {
                    let name = section.text("layer")?;
                    let layer = table.layers.iter_mut().find(|layer| layer.name == name);
                    layer
                        .with_context(|| format!("there is no layer {name} before its file"))?
                        .files
                        .push(file(&section)?);
                }
                "image" => table.images.push(image(&section)?),
                other => bail!("line {}: [[{other}]] is unknown", section.line),
            }
        }
        table.check(&sources)?;
        Ok(table)
    }

    pub fn layer(&self, name: &str) -> Result<&Layer> {
        self.layers.iter().find(|layer| layer.name == name).with_context(|| format!("there is no layer {name}"))
    }

    pub fn image(&self, name: &str) -> Result<&Image> {
        let image = self.images.iter().find(|image| image.names.iter().any(|it| it == name));
        image.with_context(|| format!("there is no image {name}"))
    }

    /// Checks that names refer to entries, and that image names are unique.
    fn check(&self, sources: &BTreeSet<String>) -> Result<()> {
        let mut names = BTreeSet::new();
        for image in &self.images {
            for name in &image.names {
                ensure!(names.insert(name), "two images are called {name}");
            }
            for layer in &image.layers {
                self.layer(layer)?;
            }
        }
        for layer in &self.layers {
            layer.on.as_deref().map(|on| self.layer(on)).transpose()?;
            layer.registry.as_ref().map(|served| self.image(&served.image)).transpose()?;
            let stray = layer.brought().find(|name| !sources.contains(*name));
            ensure!(stray.is_none(), "layer {} needs {stray:?}, which no [[source]] provides", layer.name);
        }
        Ok(())
    }
}

fn layer(section: &Section) -> Result<Layer> {
    section.expect(&["name", "packages", "on", "programs", "directories", "links", "applets", "unpack", "registry"])?;
    let optional = |name: &str| section.list(name).first().cloned();
    Ok(Layer {
        name: section.text("name")?.to_owned(),
        packages: section.list("packages").to_vec(),
        on: optional("on"),
        programs: section.list("programs").iter().map(|text| program(text)).collect::<Result<_>>()?,
        files: Vec::new(),
        directories: section.list("directories").iter().map(|text| directory(text)).collect::<Result<_>>()?,
        links: section.list("links").iter().map(|text| link(text)).collect::<Result<_>>()?,
        applets: optional("applets"),
        unpack: optional("unpack"),
        registry: optional("registry").map(|text| served(&text)).transpose()?,
    })
}

/// Reads `NAME PATH MODE`.
fn program(text: &str) -> Result<Program> {
    let [name, path, mode] = words(text)?;
    Ok(Program { name: name.into(), path: path.into(), mode: octal(mode)? })
}

/// Reads `PATH MODE`.
fn directory(text: &str) -> Result<Directory> {
    let [path, mode] = words(text)?;
    Ok(Directory { path: path.into(), mode: octal(mode)? })
}

/// Reads `PATH TARGET`.
fn link(text: &str) -> Result<(String, String)> {
    let [path, target] = words(text)?;
    Ok((path.into(), target.into()))
}

/// Reads `NAME TAG IMAGE`.
fn served(text: &str) -> Result<Served> {
    let [name, tag, image] = words(text)?;
    Ok(Served { name: name.into(), tag: tag.into(), image: image.into() })
}

fn words<const N: usize>(text: &str) -> Result<[&str; N]> {
    let words: Vec<&str> = text.split(' ').collect();
    words.try_into().ok().with_context(|| format!("{text:?} must have {N} words"))
}

fn octal(text: &str) -> Result<u32> {
    u32::from_str_radix(text, 8).with_context(|| format!("{text:?} is not a mode"))
}

fn file(section: &Section) -> Result<File> {
    section.expect(&["layer", "path", "mode", "text"])?;
    let mode = section.list("mode").first().map(|mode| octal(mode)).transpose()?.unwrap_or(0o644);
    Ok(File { path: section.text("path")?.into(), mode, text: section.text("text")?.into() })
}

fn image(section: &Section) -> Result<Image> {
    section.expect(&["names", "layers", "entrypoint", "command", "env", "user"])?;
    ensure!(!section.list("names").is_empty(), "the image at line {} has no name", section.line);
    Ok(Image {
        names: section.list("names").to_vec(),
        layers: section.list("layers").to_vec(),
        entrypoint: section.list("entrypoint").to_vec(),
        command: section.list("command").to_vec(),
        env: section.list("env").to_vec(),
        user: section.list("user").first().cloned().unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_this_tree_is_complete() {
        let table = Table::read(&crate::root()).unwrap();
        for name in ["agnhost:2.63.0", "busybox:1.37.0-1", "pause:3.10.2"] {
            assert!(table.images.iter().any(|image| image.names.iter().any(|it| it.ends_with(name))), "{name}");
        }
    }

    #[test]
    fn a_program_without_a_source_is_refused() {
        let layer = "[[layer]]\nname = 'a'\nprograms = ['p /p 0755']\n";
        assert!(Table::parse(layer).is_err());
        assert!(Table::parse(&format!("[[source]]\nname = 'p'\nfrom = 'x'\n{layer}")).is_ok());
        assert!(Table::parse("[[image]]\nnames = ['i']\nlayers = ['b']\n").is_err());
    }
}
