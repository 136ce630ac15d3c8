//! Reads the requests of CSI: names, paths, sizes and pages. Pure.

use std::path::{Component, Path, PathBuf};

use corten_plugins::csi;

use crate::error::{Error, Result};

/// The most bytes of a name.
const MOST_NAME: usize = 256;
/// The most entries of a page if the caller asks for any number.
const MOST_ENTRIES: usize = 1000;

/// Returns a field that must not be empty.
pub fn required<'a>(field: &str, value: &'a str) -> Result<&'a str> {
    match value.is_empty() {
        true => Err(Error::Invalid(format!("{field} is missing"))),
        false => Ok(value),
    }
}

/// Returns a name that must not be empty.
pub fn name(value: &str) -> Result<String> {
    required("name", value)?;
    match value.len() > MOST_NAME || value.chars().any(char::is_control) {
        true => Err(Error::Invalid(format!("a name has at most {MOST_NAME} bytes and no control characters"))),
        false => Ok(value.to_owned()),
    }
}

/// A wanted size; 0 is no bound.
#[derive(Clone, Copy, Debug, Default)]
pub struct Size {
    pub least: u64,
    pub most: u64,
}

/// The sizes that the volumes of a driver have.
pub struct Sizes {
    /// The unit: every size is a multiple of it.
    pub unit: u64,
    /// The size of a volume whose creator names none.
    pub default: u64,
}

impl Size {
    /// Returns the size of a volume that cannot be smaller than `floor`.
    pub fn resolve(self, sizes: &Sizes, floor: u64) -> Result<u64> {
        let unit = sizes.unit;
        let least = if self.least == 0 && floor <= unit { sizes.default } else { self.least.max(floor) };
        let rounded = least.checked_next_multiple_of(unit).filter(|bytes| i64::try_from(*bytes).is_ok());
        let rounded = rounded.ok_or_else(|| Error::OutOfRange(format!("{least} bytes are too many")))?;
        match self.most {
            0 => Ok(rounded),
            most if rounded <= most => Ok(rounded),
            most if self.least == 0 && floor <= most && most >= unit => Ok(most - most % unit),
            most => Err(Error::OutOfRange(format!(
                "a volume has at least {rounded} bytes here, and at most {most} are allowed"
            ))),
        }
    }

    /// Reports whether a volume of this size satisfies the request.
    pub fn contains(self, bytes: u64) -> bool {
        bytes >= self.least && (self.most == 0 || bytes <= self.most)
    }
}

/// Returns the size of a capacity range.
pub fn size(range: Option<&csi::CapacityRange>) -> Result<Size> {
    let range = range.copied().unwrap_or_default();
    let bytes = |value: i64| {
        u64::try_from(value).map_err(|_| Error::Invalid("the capacity range has a negative number".to_owned()))
    };
    let size = Size { least: bytes(range.required_bytes)?, most: bytes(range.limit_bytes)? };
    match size.most > 0 && size.least > size.most {
        true => Err(Error::Invalid("the required capacity is above its limit".to_owned())),
        false => Ok(size),
    }
}

/// Returns a path of a request, which is absolute.
pub fn path(field: &str, value: &str) -> Result<PathBuf> {
    let path = Path::new(required(field, value)?);
    match path.is_absolute() && !path.components().any(|part| part == Component::ParentDir) {
        true => Ok(path.to_owned()),
        false => Err(Error::Invalid(format!("{field} is not an absolute path"))),
    }
}

/// A page of a list that is sorted by id.
#[derive(Debug, PartialEq, Eq)]
pub struct Page<T> {
    pub entries: Vec<T>,
    /// The id of the last entry if there are more.
    pub next: String,
}

/// Returns the page after an id. Entries that are made or deleted between pages disturb no other.
///
/// `is_id` reports whether a token may be an id.
pub fn page<T>(
    all: impl Iterator<Item = T>,
    id: impl Fn(&T) -> &str,
    most: i32,
    token: &str,
    is_id: impl Fn(&str) -> bool,
) -> Result<Page<T>> {
    let most = usize::try_from(most).map_err(|_| Error::Invalid("max_entries is negative".to_owned()))?;
    let most = if most == 0 { MOST_ENTRIES } else { most.min(MOST_ENTRIES) };
    if !token.is_empty() && !is_id(token) {
        return Err(Error::Aborted("starting_token is not valid".to_owned()));
    }
    let mut left = all.filter(|entry| id(entry) > token);
    let entries: Vec<T> = left.by_ref().take(most).collect();
    let more = left.next().is_some();
    let next = entries.last().filter(|_| more).map(|entry| id(entry).to_owned()).unwrap_or_default();
    Ok(Page { entries, next })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_go_on_after_the_last_id() {
        let ids: Vec<String> = ["a", "b", "c"].iter().map(|one| one.repeat(32)).collect();
        let page = |most: i32, token: &str| page(ids.iter(), |id| id.as_str(), most, token, |token| token.len() == 32);
        let first = page(2, "").unwrap();
        assert_eq!(first, Page { entries: vec![&ids[0], &ids[1]], next: ids[1].clone() });
        assert_eq!(page(2, &first.next).unwrap(), Page { entries: vec![&ids[2]], next: String::new() });
        assert_eq!(page(0, "").unwrap().entries.len(), 3);
        assert!(matches!(page(0, "next"), Err(Error::Aborted(_))));
        assert!(page(-1, "").is_err());
    }

    #[test]
    fn ranges_have_an_order() {
        let range = |required_bytes, limit_bytes| size(Some(&csi::CapacityRange { required_bytes, limit_bytes }));
        assert!(range(2, 1).is_err() && range(-1, 0).is_err());
        assert!(range(2, 2).is_ok() && size(None).is_ok());
    }
}
