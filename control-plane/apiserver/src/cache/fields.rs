//! The selectable fields of one object, in one allocation: a map of strings would take more memory than the pod itself.

use std::collections::HashMap;

/// Pairs of names and values, each preceded by its length.
pub struct Fields(Box<[u8]>);

/// The bytes of a length.
const LENGTH: usize = size_of::<u32>();

impl Fields {
    pub fn new<'a>(pairs: impl Iterator<Item = (&'a str, String)>) -> Fields {
        let mut bytes = Vec::new();
        for (name, value) in pairs {
            for part in [name, &value] {
                // A value is a part of an object, and shorter than four gigabytes.
                bytes.extend_from_slice(&u32::try_from(part.len()).unwrap_or(0).to_le_bytes());
                bytes.extend_from_slice(part.as_bytes());
            }
        }
        Fields(bytes.into())
    }

    /// Returns the value of a field.
    pub fn get(&self, name: &str) -> Option<&str> {
        let mut rest = &*self.0;
        while !rest.is_empty() {
            let found = take(&mut rest)?;
            let value = take(&mut rest)?;
            if found == name.as_bytes() {
                return std::str::from_utf8(value).ok();
            }
        }
        None
    }
}

/// Takes the next string.
fn take<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (length, after) = rest.split_first_chunk::<LENGTH>()?;
    let (string, after) = after.split_at_checked(u32::from_le_bytes(*length) as usize)?;
    *rest = after;
    Some(string)
}

/// The objects of each node, for the agents of the nodes: a list of one node's pods reads no other pod.
pub struct ByNode<T>(HashMap<String, Vec<T>>);

impl<T> Default for ByNode<T> {
    fn default() -> ByNode<T> {
        ByNode(HashMap::new())
    }
}

impl<T> ByNode<T> {
    /// Adds an object of a node.
    pub fn insert(&mut self, node: String, object: T) {
        self.0.entry(node).or_default().push(object);
    }

    /// Removes the objects of a node that `is_it` recognizes.
    pub fn remove(&mut self, node: &str, is_it: impl Fn(&T) -> bool) {
        if let Some(objects) = self.0.get_mut(node) {
            objects.retain(|object| !is_it(object));
            if objects.is_empty() {
                self.0.remove(node);
            }
        }
    }

    pub fn get(&self, node: &str) -> &[T] {
        self.0.get(node).map_or(&[], Vec::as_slice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_by_their_names() {
        let pairs = [("spec.nodeName", "n1"), ("status.phase", "Run\0ning\n"), ("spec.empty", "")];
        let fields = Fields::new(pairs.iter().map(|(name, value)| (*name, (*value).to_owned())));
        for (name, value) in pairs {
            assert_eq!(fields.get(name), Some(value));
        }
        assert_eq!(fields.get("n1"), None);
        assert_eq!(fields.get(""), None);
        assert_eq!(Fields::new(std::iter::empty()).get("spec.nodeName"), None);
    }

    #[test]
    fn objects_are_kept_by_node() {
        let mut by_node = ByNode::default();
        by_node.insert("n1".to_owned(), 1);
        by_node.insert("n1".to_owned(), 2);
        by_node.insert("n2".to_owned(), 3);
        by_node.remove("n1", |object| *object == 1);
        assert_eq!(by_node.get("n1"), [2]);
        by_node.remove("n1", |object| *object == 2);
        assert!(by_node.get("n1").is_empty());
        assert_eq!(by_node.get("n2"), [3]);
    }
}
