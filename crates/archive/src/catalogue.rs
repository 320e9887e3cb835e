//! Sorts the listing of a prefix into full snapshots, deltas, upload chunks and foreign objects.
//!
//! Merges both layouts. The order is (last revision, creation time, key), so equal names in the two layouts have
//! a fixed order too.

use jiff::Timestamp;

use crate::layout::{ForeignReason, KeyKind, LayoutVersion, classify_key};
use crate::name::{SnapshotKind, SnapshotName};

/// One entry of a store's listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedObject {
    /// Full object key, prefix included.
    pub key: String,
    /// Size in bytes as stored, that is, compressed.
    pub size: u64,
    /// Modification time reported by the store.
    pub modified: Timestamp,
}

/// A snapshot in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotObject {
    /// Full object key, prefix included.
    pub key: String,
    /// Parsed object name.
    pub name: SnapshotName,
    /// Folder layout of the key.
    pub layout: LayoutVersion,
    /// Size in bytes as stored, that is, compressed.
    pub size: u64,
    /// Modification time reported by the store.
    pub modified: Timestamp,
}

/// A part of a snapshot that was uploaded in parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// The part as an object; its name is the name of the snapshot it belongs to.
    pub object: SnapshotObject,
    /// Part number, starting at 1.
    pub part: u64,
}

/// An object that is not a snapshot, with the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForeignObject {
    /// Full object key, prefix included.
    pub key: String,
    /// Size in bytes as stored, that is, compressed.
    pub size: u64,
    /// Why the key is not a snapshot key.
    pub reason: ForeignReason,
}

/// All objects under a prefix, sorted by (last revision, creation time, key).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Catalogue {
    /// Full snapshots, oldest first.
    pub fulls: Vec<SnapshotObject>,
    /// Delta snapshots, oldest first.
    pub deltas: Vec<SnapshotObject>,
    /// Upload parts: leftovers, except in a store that keeps the data in them (Swift).
    pub chunks: Vec<Chunk>,
    /// Objects that are not snapshots, sorted by key.
    pub foreign: Vec<ForeignObject>,
}

impl Catalogue {
    /// Classifies and sorts a listing. Duplicate keys count once.
    pub fn from_listing(prefix: &str, listed: Vec<ListedObject>) -> Self {
        let mut catalogue = Self::default();
        for entry in listed {
            catalogue.insert(prefix, entry);
        }
        for objects in [&mut catalogue.fulls, &mut catalogue.deltas] {
            objects.sort_by(|a, b| sort_key(a).cmp(&sort_key(b)));
            objects.dedup_by(|a, b| a.key == b.key);
        }
        catalogue
            .chunks
            .sort_by(|a, b| sort_key(&a.object).cmp(&sort_key(&b.object)));
        catalogue
            .chunks
            .dedup_by(|a, b| a.object.key == b.object.key);
        catalogue.foreign.sort_by(|a, b| a.key.cmp(&b.key));
        catalogue.foreign.dedup_by(|a, b| a.key == b.key);
        catalogue
    }

    /// Returns true when the prefix holds neither a full snapshot nor a delta.
    pub fn is_empty(&self) -> bool {
        self.fulls.is_empty() && self.deltas.is_empty()
    }

    /// Returns the object with this name, preferring the current layout over the old one.
    pub fn find(&self, name: &SnapshotName) -> Option<&SnapshotObject> {
        let objects = match name.kind {
            SnapshotKind::Full => &self.fulls,
            SnapshotKind::Delta => &self.deltas,
        };
        objects
            .iter()
            .filter(|o| o.name == *name)
            .max_by_key(|o| o.layout)
    }

    fn insert(&mut self, prefix: &str, entry: ListedObject) {
        let ListedObject {
            key,
            size,
            modified,
        } = entry;
        match classify_key(prefix, &key) {
            KeyKind::Snapshot { name, layout } => {
                let objects = match name.kind {
                    SnapshotKind::Full => &mut self.fulls,
                    SnapshotKind::Delta => &mut self.deltas,
                };
                objects.push(SnapshotObject {
                    key,
                    name,
                    layout,
                    size,
                    modified,
                });
            }
            KeyKind::Chunk { name, part, layout } => {
                let object = SnapshotObject {
                    key,
                    name,
                    layout,
                    size,
                    modified,
                };
                self.chunks.push(Chunk { object, part });
            }
            KeyKind::Foreign(reason) => self.foreign.push(ForeignObject { key, size, reason }),
        }
    }
}

fn sort_key(object: &SnapshotObject) -> (mainstay_ids::Revision, i64, &str) {
    let (last, created) = object.name.sort_key();
    (last, created, &object.key)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn build_listing(keys: &[&str]) -> Vec<ListedObject> {
        let entry = |key: &&str| ListedObject {
            key: (*key).to_owned(),
            size: 7,
            modified: Timestamp::UNIX_EPOCH,
        };
        keys.iter().map(entry).collect()
    }

    fn keys(objects: &[SnapshotObject]) -> Vec<&str> {
        objects.iter().map(|o| o.key.as_str()).collect()
    }

    #[test]
    fn listing_is_sorted_into_fulls_deltas_chunks_and_foreign_objects() {
        let found = Catalogue::from_listing(
            "p",
            build_listing(&[
                "p/v2/Incr-00000021-00000030-9.gz",
                "p/v2/Full-00000000-00000030-8.gz",
                "p/v1/Backup-5/Full-00000000-00000010-5.gz",
                "p/v1/Backup-5/Incr-00000011-00000020-6.gz",
                "p/v2/Incr-00000021-00000030-7.gz",
                "p/v2/Full-00000000-00000030-8.gz/0000000001",
                "p/v2/notes.txt",
                "p/v2/Incr-00000021-00000030-7.gz",
                "q/v2/Full-00000000-00000099-9.gz",
            ]),
        );
        assert_eq!(
            keys(&found.fulls),
            [
                "p/v1/Backup-5/Full-00000000-00000010-5.gz",
                "p/v2/Full-00000000-00000030-8.gz"
            ]
        );
        assert_eq!(
            keys(&found.deltas),
            [
                "p/v1/Backup-5/Incr-00000011-00000020-6.gz",
                "p/v2/Incr-00000021-00000030-7.gz",
                "p/v2/Incr-00000021-00000030-9.gz",
            ]
        );
        assert_eq!((found.chunks.len(), found.chunks[0].part), (1, 1));
        let foreign: Vec<&str> = found.foreign.iter().map(|f| f.key.as_str()).collect();
        assert_eq!(
            foreign,
            ["p/v2/notes.txt", "q/v2/Full-00000000-00000099-9.gz"]
        );
    }

    #[test]
    fn snapshot_in_both_layouts_is_found_in_v2() {
        let name = "Full-00000000-00000010-5.gz";
        let found = Catalogue::from_listing(
            "",
            build_listing(&[&format!("v2/{name}"), &format!("v1/Backup-5/{name}")]),
        );
        assert_eq!(found.fulls.len(), 2);
        assert_eq!(
            found.find(&name.parse().unwrap()).unwrap().layout,
            LayoutVersion::V2
        );
        assert!(found.find(&"Incr-1-10-5.gz".parse().unwrap()).is_none());
        assert!(!found.is_empty() && Catalogue::default().is_empty());
    }
}
