//! What a prefix holds: a listing sorted into full snapshots, deltas, upload leftovers and foreign objects.
//!
//! Both layouts are merged. Order is (last revision, creation time, key), so equal names from two
//! layouts have a fixed order too.

use jiff::Timestamp;

use crate::layout::{Classified, ForeignReason, Layout, classify};
use crate::name::{Kind, SnapshotName};

/// One entry of a store's listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Whole object key.
    pub key: String,
    /// Size of the object as stored.
    pub size: u64,
    /// When the store says it was written.
    pub modified: Timestamp,
}

/// A snapshot in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    /// Whole object key.
    pub key: String,
    /// What its name says.
    pub name: SnapshotName,
    /// Which layout it was found in.
    pub layout: Layout,
    /// Size as stored.
    pub size: u64,
    /// When the store says it was written.
    pub modified: Timestamp,
}

/// A part of a snapshot that was uploaded in pieces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// The part as an object; its name is that of the snapshot it belongs to.
    pub object: Object,
    /// Part number, from 1.
    pub part: u64,
}

/// An object that is not ours, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Foreign {
    /// Whole object key.
    pub key: String,
    /// Size as stored.
    pub size: u64,
    /// Why it is no snapshot.
    pub reason: ForeignReason,
}

/// Everything found under a prefix, sorted by (last revision, creation time).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Catalogue {
    /// Full snapshots.
    pub fulls: Vec<Object>,
    /// Delta snapshots.
    pub deltas: Vec<Object>,
    /// Parts of uploads in pieces; leftovers, except where a store keeps the data in them.
    pub chunks: Vec<Chunk>,
    /// Objects that are no snapshots.
    pub foreign: Vec<Foreign>,
}

impl Catalogue {
    /// Sorts a listing. Keys listed twice count once.
    pub fn from_listing(prefix: &str, listed: Vec<Listed>) -> Self {
        let mut catalogue = Self::default();
        for entry in listed {
            catalogue.take(prefix, entry);
        }
        for objects in [&mut catalogue.fulls, &mut catalogue.deltas] {
            objects.sort_by(|a, b| order(a).cmp(&order(b)));
            objects.dedup_by(|a, b| a.key == b.key);
        }
        catalogue
            .chunks
            .sort_by(|a, b| order(&a.object).cmp(&order(&b.object)));
        catalogue
            .chunks
            .dedup_by(|a, b| a.object.key == b.object.key);
        catalogue.foreign.sort_by(|a, b| a.key.cmp(&b.key));
        catalogue.foreign.dedup_by(|a, b| a.key == b.key);
        catalogue
    }

    /// Whether there is no snapshot at all.
    pub fn is_empty(&self) -> bool {
        self.fulls.is_empty() && self.deltas.is_empty()
    }

    /// The object with this name; the current layout is preferred over the old one.
    pub fn find(&self, name: &SnapshotName) -> Option<&Object> {
        let objects = match name.kind {
            Kind::Full => &self.fulls,
            Kind::Delta => &self.deltas,
        };
        objects
            .iter()
            .filter(|o| o.name == *name)
            .max_by_key(|o| o.layout)
    }

    fn take(&mut self, prefix: &str, entry: Listed) {
        let Listed {
            key,
            size,
            modified,
        } = entry;
        match classify(prefix, &key) {
            Classified::Snapshot { name, layout } => {
                let objects = match name.kind {
                    Kind::Full => &mut self.fulls,
                    Kind::Delta => &mut self.deltas,
                };
                objects.push(Object {
                    key,
                    name,
                    layout,
                    size,
                    modified,
                });
            }
            Classified::Chunk { name, part, layout } => {
                let object = Object {
                    key,
                    name,
                    layout,
                    size,
                    modified,
                };
                self.chunks.push(Chunk { object, part });
            }
            Classified::Foreign(reason) => self.foreign.push(Foreign { key, size, reason }),
        }
    }
}

fn order(object: &Object) -> (mainstay_ids::Revision, i64, &str) {
    let (last, created) = object.name.order();
    (last, created, &object.key)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(keys: &[&str]) -> Vec<Listed> {
        let entry = |key: &&str| Listed {
            key: (*key).to_owned(),
            size: 7,
            modified: Timestamp::UNIX_EPOCH,
        };
        keys.iter().map(entry).collect()
    }

    fn keys(objects: &[Object]) -> Vec<&str> {
        objects.iter().map(|o| o.key.as_str()).collect()
    }

    #[test]
    fn a_mixed_listing_is_sorted_into_its_kinds() {
        let found = Catalogue::from_listing(
            "p",
            listed(&[
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
    fn a_name_in_both_layouts_is_found_in_the_current_one() {
        let name = "Full-00000000-00000010-5.gz";
        let found = Catalogue::from_listing(
            "",
            listed(&[&format!("v2/{name}"), &format!("v1/Backup-5/{name}")]),
        );
        assert_eq!(found.fulls.len(), 2);
        assert_eq!(
            found.find(&name.parse().unwrap()).unwrap().layout,
            Layout::V2
        );
        assert!(found.find(&"Incr-1-10-5.gz".parse().unwrap()).is_none());
        assert!(!found.is_empty() && Catalogue::default().is_empty());
    }
}
