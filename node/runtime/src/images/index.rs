//! The index of the images: one small JSON file, replaced as a whole.
//!
//! The decisions (which image gets a tag, which layers are unused) are pure functions on the index; `ImageStore` locks,
//! loads and saves.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::digest::Digest;
use super::reference::Reference;

/// Every image of the node.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
pub(crate) struct Index {
    pub images: Vec<ImageRecord>,
}

/// An image: a configuration and its layers, under any number of names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageRecord {
    /// The digest of the configuration, which is the image's id.
    pub id: Digest,
    /// Names with tags, normalised.
    pub tags: Vec<String>,
    /// Names with digests, normalised.
    pub digests: Vec<String>,
    /// The bytes on disk of all layers.
    pub size: u64,
    /// Digests of the uncompressed layers, lowest first.
    pub layers: Vec<Digest>,
    /// Whether the image was imported by hand: no registry could bring it back, so it is never garbage collected.
    pub pinned: bool,
}

impl Index {
    /// Finds an image by id (whole, or an unambiguous prefix), by tag or by digest, as container tools do.
    pub fn find(&self, image: &str) -> Option<&ImageRecord> {
        let id = image.strip_prefix("sha256:").unwrap_or(image);
        let hexadecimal = !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_hexdigit());
        if hexadecimal && id.len() >= 12 {
            let mut found = self.images.iter().filter(|record| record.id.hex().starts_with(id));
            if let (Some(record), None) = (found.next(), found.next()) {
                return Some(record);
            }
        }
        let reference = Reference::parse(image).ok()?;
        if let Some(digest) = &reference.digest {
            let named = format!("{}@{digest}", reference.name());
            return self.images.iter().find(|record| record.digests.contains(&named));
        }
        let tagged = reference.tagged()?;
        self.images.iter().find(|record| record.tags.contains(&tagged))
    }

    /// Adds an image, or adds names to it. A tag names one image: it is removed from the image that had it.
    pub fn add(&mut self, added: ImageRecord) {
        for record in &mut self.images {
            if record.id != added.id {
                record.tags.retain(|tag| !added.tags.contains(tag));
            }
        }
        match self.images.iter_mut().find(|record| record.id == added.id) {
            Some(record) => {
                record.pinned |= added.pinned;
                merge(&mut record.tags, added.tags);
                merge(&mut record.digests, added.digests);
            }
            None => self.images.push(added),
        }
    }

    /// Removes the image of a name or id, with all its names.
    pub fn remove(&mut self, image: &str) -> Option<ImageRecord> {
        let id = self.find(image)?.id;
        let position = self.images.iter().position(|record| record.id == id)?;
        Some(self.images.remove(position))
    }

    /// Returns every layer that an image needs.
    pub fn layers(&self) -> BTreeSet<Digest> {
        self.images.iter().flat_map(|record| record.layers.iter().copied()).collect()
    }
}

fn merge(names: &mut Vec<String>, added: Vec<String>) {
    for name in added {
        if !names.contains(&name) {
            names.push(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(id: char, tags: &[&str]) -> ImageRecord {
        let digest = format!("sha256:{}", id.to_string().repeat(64));
        ImageRecord {
            id: digest.parse().expect("a digest"),
            tags: tags.iter().map(|tag| (*tag).to_string()).collect(),
            digests: vec![format!("docker.io/library/app@{digest}")],
            size: 0,
            layers: vec![layer(id)],
            pinned: false,
        }
    }

    fn layer(id: char) -> Digest {
        Digest::of(format!("layer-{id}").as_bytes())
    }

    #[test]
    fn an_image_is_found_by_every_name_it_has() {
        let mut index = Index::default();
        index.add(record('a', &["docker.io/library/app:latest"]));
        index.add(record('b', &["docker.io/library/other:1"]));
        let digest = format!("app@sha256:{}", "a".repeat(64));
        for name in ["app", "docker.io/library/app:latest", &digest, &"a".repeat(64), &"a".repeat(12)] {
            assert_eq!(index.find(name).map(|found| found.layers[0]), Some(layer('a')), "{name}");
        }
        for name in ["app:2", "aaaa", "nothing"] {
            assert!(index.find(name).is_none(), "{name}");
        }
    }

    #[test]
    fn a_tag_moves_to_the_newest_image_and_the_old_image_stays() {
        let mut index = Index::default();
        index.add(record('a', &["docker.io/library/app:latest"]));
        index.add(record('b', &["docker.io/library/app:latest"]));
        assert_eq!(index.find("app").map(|found| found.layers[0]), Some(layer('b')));
        assert_eq!(index.images.len(), 2);
        assert!(index.remove("app").is_some());
        assert_eq!(index.layers().into_iter().collect::<Vec<_>>(), [layer('a')]);
    }
}
