//! Rebuilds of synthetic chains, each with one anomaly.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Cursor, Read};
use std::num::NonZeroUsize;

use jiff::Timestamp;
use mainstay_archive::catalogue::{Catalogue, ListedObject, SnapshotObject};
use mainstay_archive::chain::{ChainRequest, ChainTarget};
use mainstay_archive::compression::Compression;
use mainstay_archive::delta::{DeltaWriter, Event, EventKind};
use mainstay_archive::name::SnapshotName;
use mainstay_bbolt::{Database, Update};
use mainstay_ids::{LeaseId, Revision};
use mainstay_mvcc::{DatabaseStatus, KeyValue, RevisionKey, schema};
use mainstay_restorer::fallback::{ChainSelection, rebuild_with_fallback};
use mainstay_restorer::rebuild::{
    DatabaseFile, Durability, HashCheck, Meter, ObjectSource, ProofError, RebuildError,
    RebuildOptions, RebuildSummary, StopPoint, rebuild,
};
use sha2::{Digest, Sha256};

/// Objects in memory.
#[derive(Default)]
struct MemoryBucket(HashMap<String, Vec<u8>>);

impl ObjectSource for MemoryBucket {
    fn open(&self, object: &SnapshotObject) -> io::Result<Box<dyn Read + Send>> {
        let bytes = self.0.get(&object.key).ok_or(io::ErrorKind::NotFound)?;
        Ok(Box::new(Cursor::new(bytes.clone())))
    }
}

/// A full snapshot with one put per revision from 2 to `holds`.
struct BaseSpec {
    named_revision: i64,
    held_revision: i64,
    compact_revision: Option<i64>,
    created: i64,
}

impl MemoryBucket {
    fn with_base(mut self, base: &BaseSpec) -> Self {
        let name = SnapshotName::full(
            Revision(base.named_revision),
            base.created,
            Compression::None,
        );
        let mut bytes = build_database(base);
        let hash = Sha256::digest(&bytes);
        bytes.extend_from_slice(&hash);
        self.0.insert(object_key(&name), bytes);
        self
    }

    /// Adds a delta with one put per revision; the time of revision `n` is second `n` of the epoch.
    fn with_delta(self, start: i64, last: i64) -> Self {
        self.with_delta_holding(start, last, start..=last)
    }

    fn with_delta_holding(
        mut self,
        start: i64,
        last: i64,
        holds: impl Iterator<Item = i64>,
    ) -> Self {
        let none = Compression::None;
        let name = SnapshotName::delta(Revision(start), Revision(last), last, none);
        let mut writer = DeltaWriter::new(Vec::new());
        for revision in holds {
            let time = Timestamp::from_second(revision).unwrap().to_string();
            let user_key = format!("key-{revision}");
            writer
                .write_event(&put_event(revision, user_key.as_bytes(), &time))
                .unwrap();
        }
        self.0.insert(object_key(&name), writer.finish().unwrap());
        self
    }

    fn with_damage(mut self, name: &str) -> Self {
        let found = self
            .0
            .keys()
            .find(|key| key.contains(name))
            .unwrap()
            .clone();
        let bytes = self.0.get_mut(&found).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        self
    }

    fn catalogue(&self) -> Catalogue {
        let listed = self.0.iter().map(|(key, bytes)| ListedObject {
            key: key.clone(),
            size: bytes.len() as u64,
            modified: Timestamp::UNIX_EPOCH,
        });
        Catalogue::from_listing("p", listed.collect())
    }

    fn restore(&self, target: ChainTarget) -> Result<RestoredFile, ProofError> {
        self.restore_with(target, HashCheck::Required)
    }

    fn restore_with(
        &self,
        target: ChainTarget,
        hash_check: HashCheck,
    ) -> Result<RestoredFile, ProofError> {
        let catalogue = self.catalogue();
        let route = ChainSelection::find(&catalogue, ChainRequest::new(target)).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("db");
        let file = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(path)
            .unwrap();
        let options = RebuildOptions {
            stop: match target {
                ChainTarget::Latest => StopPoint::End,
                ChainTarget::Revision(revision) => StopPoint::Revision(revision),
                ChainTarget::Time(time) => StopPoint::Time(time),
            },
            hash_check,
            default_lease_seconds: 60,
            threads: NonZeroUsize::new(3).unwrap(),
        };
        let target = DatabaseFile {
            file: &file,
            durability: Durability::Durable,
        };
        let meter = Meter::default();
        let (rebuilt, route) = rebuild_with_fallback(route, &catalogue, &file, |chain| {
            rebuild(chain, self, target, directory.path(), (&options, &meter))
        })
        .map_err(|error| match error {
            RebuildError::Proof(error) => error,
            other => panic!("{other}"),
        })?;
        Ok(RestoredFile {
            rebuilt,
            avoided: route.avoided().to_vec(),
            file,
        })
    }
}

struct RestoredFile {
    rebuilt: RebuildSummary,
    avoided: Vec<String>,
    file: File,
}

impl RestoredFile {
    /// Returns the revisions of the rows in the database.
    fn row_revisions(&self) -> Vec<i64> {
        let database = Database::open(&self.file).unwrap();
        let root = database.bucket(schema::KEY).unwrap().unwrap();
        let mut cursor = database.scan(&root).unwrap();
        let mut rows = Vec::new();
        while let Some(item) = cursor.next().unwrap() {
            rows.push(RevisionKey::decode(item.key).unwrap().main.0);
        }
        rows
    }
}

fn object_key(name: &SnapshotName) -> String {
    format!("p/v2/{name}")
}

fn put_event<'a>(revision: i64, key: &'a [u8], time: &'a str) -> Event<'a> {
    Event {
        kind: EventKind::Put,
        key,
        value: b"value",
        create_revision: Revision(revision),
        mod_revision: Revision(revision),
        version: 1,
        lease: LeaseId(if revision % 10 == 0 { 7 } else { 0 }),
        lease_ttl: (revision % 20 == 0).then_some(33),
        time,
    }
}

fn build_database(base: &BaseSpec) -> Vec<u8> {
    let file = tempfile::tempfile().unwrap();
    let mut update = Update::create(&file, 4096).unwrap();
    let mut rows = update.rewrite_bucket(schema::KEY);
    for revision in base.compact_revision.map_or(2, |compact| compact + 1)..=base.held_revision {
        let user_key = format!("key-{revision}");
        let event = put_event(revision, user_key.as_bytes(), "");
        let mut value = Vec::new();
        KeyValue {
            key: event.key,
            create_revision: event.create_revision,
            mod_revision: event.mod_revision,
            version: 1,
            value: event.value,
            lease: event.lease,
        }
        .encode(&mut value);
        rows.add(&RevisionKey::first_of(Revision(revision)).encode(), &value)
            .unwrap();
    }
    rows.finish().unwrap();
    let mut meta = update.rewrite_bucket(schema::META);
    if let Some(compact) = base.compact_revision {
        let position = RevisionKey::first_of(Revision(compact)).encode();
        meta.add(schema::FINISHED_COMPACT, &position).unwrap();
        meta.add(schema::SCHEDULED_COMPACT, &position).unwrap();
    }
    meta.finish().unwrap();
    update.commit().unwrap();
    let mut bytes = Vec::new();
    io::Seek::rewind(&mut &file).unwrap();
    (&file).read_to_end(&mut bytes).unwrap();
    bytes
}

/// A base with the same revision in its name and its content, created at that second.
fn base_at(revision: i64) -> BaseSpec {
    BaseSpec {
        named_revision: revision,
        held_revision: revision,
        compact_revision: None,
        created: revision,
    }
}

fn time_target(second: i64) -> ChainTarget {
    ChainTarget::Time(Timestamp::from_second(second).unwrap())
}

fn revisions_up_to(last: i64) -> Vec<i64> {
    (2..=last).collect()
}

#[test]
fn base_newer_than_its_name_supersedes_deltas_fully_or_in_part() {
    for held_revision in [50, 55, 60, 61, 69, 70, 71, 90] {
        let bucket = MemoryBucket::default()
            .with_base(&BaseSpec {
                held_revision,
                ..base_at(50)
            })
            .with_delta(51, 60)
            .with_delta(61, 70)
            .with_delta(71, 80);
        let restored = bucket.restore(ChainTarget::Latest).unwrap();
        assert_eq!(
            restored.row_revisions(),
            revisions_up_to(held_revision.max(80)),
            "base at revision {held_revision}"
        );
        assert_eq!(restored.rebuilt.base_revision, Revision(held_revision));
    }
}

#[test]
fn base_past_the_requested_revision_is_cut_back() {
    let bucket = MemoryBucket::default()
        .with_base(&BaseSpec {
            held_revision: 75,
            ..base_at(50)
        })
        .with_delta(51, 80);
    for wanted in [50, 51, 60, 74, 75, 76, 80] {
        let restored = bucket
            .restore(ChainTarget::Revision(Revision(wanted)))
            .unwrap();
        assert_eq!(
            restored.row_revisions(),
            revisions_up_to(wanted),
            "wanted {wanted}"
        );
        let facts = DatabaseStatus::read(&Database::open(&restored.file).unwrap()).unwrap();
        assert_eq!(facts.revision, Revision(wanted));
    }
}

#[test]
fn base_compacted_past_the_requested_revision_is_an_error() {
    let bucket = MemoryBucket::default()
        .with_base(&BaseSpec {
            held_revision: 75,
            compact_revision: Some(70),
            ..base_at(50)
        })
        .with_delta(51, 80);
    let error = bucket
        .restore(ChainTarget::Revision(Revision(60)))
        .err()
        .unwrap();
    assert!(
        matches!(
            &error,
            ProofError::Compacted {
                compact: Revision(70),
                ..
            }
        ),
        "{error}"
    );
    assert_eq!(
        bucket
            .restore(ChainTarget::Revision(Revision(72)))
            .unwrap()
            .rebuilt
            .revision
            .0,
        72
    );
}

#[test]
fn gap_inside_a_delta_names_object_and_newest_restorable_revision() {
    let bucket = MemoryBucket::default()
        .with_base(&base_at(50))
        .with_delta_holding(51, 60, (51..=60).filter(|revision| *revision != 55));
    let error = bucket.restore(ChainTarget::Latest).err().unwrap();
    let ProofError::Gap {
        from,
        to,
        newest_restorable,
        before,
        ..
    } = &error
    else {
        panic!("{error}");
    };
    assert_eq!((from.0, to.0, newest_restorable.0), (55, 55, 54));
    assert!(before.starts_with("Incr-00000051-00000060"), "{before}");
    assert_eq!(
        bucket
            .restore(ChainTarget::Revision(Revision(54)))
            .unwrap()
            .row_revisions(),
        revisions_up_to(54)
    );
}

#[test]
fn gap_after_the_base_is_an_error_unless_the_base_fills_it() {
    let holed = |held_revision| {
        MemoryBucket::default()
            .with_base(&BaseSpec {
                held_revision,
                ..base_at(50)
            })
            .with_delta(61, 70)
    };
    let error = holed(55).restore(ChainTarget::Latest).err().unwrap();
    assert!(
        matches!(
            &error,
            ProofError::Gap {
                from: Revision(56),
                ..
            }
        ),
        "{error}"
    );
    assert_eq!(
        holed(60)
            .restore(ChainTarget::Latest)
            .unwrap()
            .row_revisions(),
        revisions_up_to(70)
    );
}

#[test]
fn time_target_inside_a_gap_does_not_restore_an_older_state() {
    let bucket = MemoryBucket::default()
        .with_base(&base_at(50))
        .with_delta(61, 70);
    let error = bucket.restore(time_target(60)).err().unwrap();
    assert!(matches!(&error, ProofError::Gap { .. }), "{error}");
}

#[test]
fn time_target_is_the_last_revision_not_later_than_it() {
    let bucket = MemoryBucket::default()
        .with_base(&base_at(50))
        .with_delta(51, 60)
        .with_delta(61, 70);
    for second in [51, 55, 60, 65] {
        let restored = bucket.restore(time_target(second)).unwrap();
        assert_eq!(
            restored.row_revisions(),
            revisions_up_to(second),
            "second {second}"
        );
    }
}

#[test]
fn object_with_less_than_its_named_revisions_is_an_error() {
    let short_delta = MemoryBucket::default()
        .with_base(&base_at(50))
        .with_delta_holding(51, 60, 51..=58);
    let error = short_delta.restore(ChainTarget::Latest).err().unwrap();
    assert!(
        matches!(
            error,
            ProofError::ChainTooShort {
                reached: Revision(58),
                target: Revision(60)
            }
        ),
        "{error}"
    );
    let short_base = MemoryBucket::default().with_base(&BaseSpec {
        held_revision: 45,
        ..base_at(50)
    });
    let error = short_base.restore(ChainTarget::Latest).err().unwrap();
    assert!(
        matches!(
            error,
            ProofError::ChainTooShort {
                reached: Revision(45),
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn damaged_object_is_named_and_avoided_where_another_covers_it() {
    let bucket = MemoryBucket::default()
        .with_base(&base_at(50))
        .with_delta(51, 60)
        .with_damage("Incr-00000051");
    let error = bucket.restore(ChainTarget::Latest).err().unwrap();
    assert!(
        error.to_string().contains("Incr-00000051-00000060"),
        "{error}"
    );

    let covered = MemoryBucket::default()
        .with_base(&base_at(40))
        .with_delta(41, 50)
        .with_base(&base_at(50))
        .with_delta(51, 60)
        .with_damage("Full-00000000-00000050");
    let restored = covered.restore(ChainTarget::Latest).unwrap();
    assert_eq!(restored.row_revisions(), revisions_up_to(60));
    assert_eq!(restored.avoided.len(), 1);
    assert!(restored.avoided[0].starts_with("Full-00000000-00000050"));
}

#[test]
fn events_before_the_named_first_revision_are_refused() {
    let bucket = MemoryBucket::default()
        .with_base(&base_at(50))
        .with_delta(51, 60)
        .with_delta_holding(61, 70, 60..=70);
    let error = bucket.restore(ChainTarget::Latest).err().unwrap();
    assert!(
        matches!(
            &error,
            ProofError::RevisionBeforeName {
                found: Revision(60),
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn base_without_a_hash_needs_skipped_hash_check_and_may_be_padded() {
    let name = SnapshotName::full(Revision(50), 50, Compression::None);
    let mut bucket = MemoryBucket::default().with_delta(51, 300);
    let mut bytes = build_database(&base_at(50));
    bytes.resize(bytes.len() + (1 << 20), 0xEE); // as a live directory pads its file
    bucket.0.insert(object_key(&name), bytes.clone());
    let refused = bucket.restore(ChainTarget::Latest).err().unwrap();
    assert!(
        matches!(refused, ProofError::BaseUnhashed { .. }),
        "{refused}"
    );
    let restored = bucket
        .restore_with(ChainTarget::Latest, HashCheck::Skipped)
        .unwrap();
    assert_eq!(restored.row_revisions(), revisions_up_to(300));

    bytes.truncate(2 * 4096 + 512);
    bucket.0.insert(object_key(&name), bytes);
    let cut = bucket
        .restore_with(ChainTarget::Latest, HashCheck::Skipped)
        .err()
        .unwrap();
    assert!(matches!(cut, ProofError::BaseLength { .. }), "{cut}");
}

#[test]
fn truncated_or_altered_base_is_never_restored() {
    let name = SnapshotName::full(Revision(50), 50, Compression::None);
    let whole = MemoryBucket::default()
        .with_base(&base_at(50))
        .0
        .remove(&object_key(&name))
        .unwrap();
    for len in [
        0,
        31,
        32,
        100,
        512,
        4096,
        8192,
        whole.len() - 512,
        whole.len() - 1,
    ] {
        let mut bucket = MemoryBucket::default().with_delta(51, 60);
        bucket.0.insert(object_key(&name), whole[..len].to_vec());
        assert!(bucket.restore(ChainTarget::Latest).is_err(), "{len} bytes");
    }
    for at in (0..whole.len()).step_by(997) {
        let mut bucket = MemoryBucket::default().with_delta(51, 60);
        let mut bytes = whole.clone();
        bytes[at] ^= 0x10;
        bucket.0.insert(object_key(&name), bytes);
        assert!(bucket.restore(ChainTarget::Latest).is_err(), "byte {at}");
    }
}

#[test]
fn leases_of_deltas_are_recreated_with_the_recorded_ttl() {
    let bucket = MemoryBucket::default()
        .with_base(&base_at(8))
        .with_delta(9, 15);
    let unknown = bucket
        .restore(ChainTarget::Latest)
        .unwrap()
        .rebuilt
        .new_leases;
    assert_eq!(
        (
            unknown.len(),
            unknown[0].ttl_seconds,
            unknown[0].is_ttl_known
        ),
        (1, 60, false)
    );
    let bucket = MemoryBucket::default()
        .with_base(&base_at(8))
        .with_delta(9, 25);
    let known = bucket
        .restore(ChainTarget::Latest)
        .unwrap()
        .rebuilt
        .new_leases;
    assert_eq!(
        (known.len(), known[0].ttl_seconds, known[0].is_ttl_known),
        (1, 33, true)
    );
}
