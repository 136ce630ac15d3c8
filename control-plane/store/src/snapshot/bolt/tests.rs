//! Tests of the bbolt reader and writer against each other, and of damaged files.

#![allow(clippy::unwrap_used, reason = "a test stops at what it does not expect")]

use std::collections::BTreeMap;
use std::io::Cursor;

use proptest::prelude::*;

use super::*;

type Elements = BTreeMap<Vec<u8>, Vec<u8>>;

fn write(buckets: &BTreeMap<Vec<u8>, Elements>) -> Vec<u8> {
    let mut writer = Writer::new(Cursor::new(Vec::new())).unwrap();
    for (name, elements) in buckets {
        writer.bucket(name, elements.clone()).unwrap();
    }
    let (file, length) = writer.finish().unwrap();
    let bytes = file.into_inner();
    assert_eq!(bytes.len() as u64, length);
    bytes
}

fn read(bytes: &[u8], name: &[u8]) -> Result<Option<Elements>, String> {
    let database = Database::open(bytes, bytes.len() as u64)?;
    let Some(bucket) = database.bucket(name)? else { return Ok(None) };
    let mut elements = Elements::new();
    database.for_each(&bucket, |key, value| {
        elements.insert(key.to_vec(), value.to_vec());
        Ok(())
    })?;
    Ok(Some(elements))
}

fn elements() -> impl Strategy<Value = Elements> {
    let key = prop::collection::vec(any::<u8>(), 1..40);
    let value = prop_oneof![
        9 => prop::collection::vec(any::<u8>(), 0..200),
        1 => prop::collection::vec(any::<u8>(), 4000..13_000),
    ];
    prop::collection::btree_map(key, value, 0..60)
}

fn files() -> impl Strategy<Value = BTreeMap<Vec<u8>, Elements>> {
    prop::collection::btree_map(prop::collection::vec(any::<u8>(), 1..12), elements(), 0..6)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_written_file_is_read_as_it_was(buckets in files()) {
        let bytes = write(&buckets);
        prop_assert_eq!(bytes.len() % PAGE_BYTES, 0);
        for (name, elements) in &buckets {
            let found = read(&bytes, name).unwrap();
            prop_assert_eq!(found.as_ref(), Some(elements));
        }
        prop_assert_eq!(read(&bytes, b"no bucket has a name as long as this").unwrap(), None);
    }

    #[test]
    fn a_damaged_file_is_refused_or_read_and_never_panics(
        buckets in files(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..20),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut bytes = write(&buckets);
        for (place, byte) in damage {
            let place = place.index(bytes.len());
            bytes[place] = byte;
        }
        for name in buckets.keys() {
            let _ = read(&bytes, name);
            let _ = read(&bytes[..cut.index(bytes.len())], name);
        }
    }
}

/// Returns elements that need several levels of branches.
fn many() -> Elements {
    (0_u32..60_000).map(|number| (number.to_be_bytes().to_vec(), vec![b'v'; 100])).collect()
}

#[test]
fn a_big_bucket_has_several_levels() {
    let buckets = BTreeMap::from([(b"key".to_vec(), many())]);
    let bytes = write(&buckets);
    assert_eq!(read(&bytes, b"key").unwrap(), Some(many()));
}

#[test]
fn a_file_with_one_damaged_meta_is_read() {
    let elements = Elements::from([(b"a".to_vec(), b"1".to_vec())]);
    let good = write(&BTreeMap::from([(b"key".to_vec(), elements.clone())]));
    for damaged in [0, PAGE_BYTES] {
        let mut bytes = good.clone();
        bytes[damaged + PAGE_HEADER + 16] ^= 1;
        assert_eq!(read(&bytes, b"key").unwrap().as_ref(), Some(&elements), "meta at {damaged}");
    }
    let mut bytes = good;
    bytes[PAGE_HEADER] ^= 1;
    bytes[PAGE_BYTES + PAGE_HEADER] ^= 1;
    assert!(read(&bytes, b"key").unwrap_err().contains("both of its metas"));
}

#[test]
fn a_circle_of_pages_ends() {
    let mut bytes = write(&BTreeMap::from([(b"key".to_vec(), many())]));
    // Every branch gets itself as its first child.
    for page in bytes.chunks_exact_mut(PAGE_BYTES) {
        if u16_at(page, 8) == Some(BRANCH) {
            let id: [u8; 8] = page[..8].try_into().unwrap();
            page[PAGE_HEADER + 8..PAGE_HEADER + 16].copy_from_slice(&id);
        }
    }
    assert!(read(&bytes, b"key").unwrap_err().contains("circle"));
}

#[test]
fn a_bucket_inside_its_parents_value_is_read() {
    // The leaf of a bucket with one element, as bbolt puts it into the value of a small bucket.
    let mut inline = vec![0; BUCKET_HEADER + PAGE_HEADER + ELEMENT];
    inline[BUCKET_HEADER + 8..BUCKET_HEADER + 10].copy_from_slice(&LEAF.to_le_bytes());
    inline[BUCKET_HEADER + 10..BUCKET_HEADER + 12].copy_from_slice(&1_u16.to_le_bytes());
    let head = BUCKET_HEADER + PAGE_HEADER;
    inline[head + 4..head + 8].copy_from_slice(&(ELEMENT as u32).to_le_bytes());
    inline[head + 8..head + 12].copy_from_slice(&1_u32.to_le_bytes());
    inline[head + 12..head + 16].copy_from_slice(&2_u32.to_le_bytes());
    inline.extend_from_slice(b"kvv");
    let root = Elements::from([(b"meta".to_vec(), inline)]);
    // A bucket named "root" becomes the root bucket, and its element a bucket.
    let mut bytes = write(&BTreeMap::from([(b"root".to_vec(), root)]));
    let leaf = 3 * PAGE_BYTES;
    bytes[leaf + PAGE_HEADER..leaf + PAGE_HEADER + 4].copy_from_slice(&IS_BUCKET.to_le_bytes());
    for number in 0..2 {
        let at = number * PAGE_BYTES + PAGE_HEADER;
        let mut meta = Meta::parse(&bytes[at..]).unwrap();
        meta.root = 3;
        bytes[at..at + META].copy_from_slice(&meta.encode());
    }
    let expected = Elements::from([(b"k".to_vec(), b"vv".to_vec())]);
    assert_eq!(read(&bytes, b"meta").unwrap(), Some(expected));
}

#[test]
fn elements_out_of_order_are_refused() {
    let mut writer = Writer::new(Cursor::new(Vec::new())).unwrap();
    let element = |key: &str| (key.as_bytes().to_vec(), Vec::new());
    assert!(writer.bucket(b"b", [element("2"), element("1")]).is_err());
    assert!(writer.bucket(b"b", [element("1"), element("1")]).is_err());
    assert!(writer.bucket(b"b", [element("")]).is_err());
    writer.bucket(b"b", [element("1")]).unwrap();
    assert!(writer.bucket(b"a", []).is_err());
}
