use std::fs;
use std::io::{self, Cursor, Write};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use mainstay_archive::catalogue::{Catalogue, ListedObject};
use mainstay_archive::delta::{DeltaWriter, Event, EventKind};
use mainstay_archive::full::FullWriter;
use mainstay_ids::LeaseId;

use super::*;

fn object_named(name: &str) -> SnapshotObject {
    let listed = ListedObject {
        key: format!("v2/{name}"),
        size: 1,
        modified: Timestamp::UNIX_EPOCH,
    };
    let catalogue = Catalogue::from_listing("", vec![listed]);
    let mut objects = catalogue.fulls.into_iter().chain(catalogue.deltas);
    objects.next().unwrap()
}

fn verify_bytes(name: &str, bytes: Vec<u8>) -> Result<(), ProofError> {
    prove_intact(&object_named(name), Box::new(Cursor::new(bytes)))
}

/// An uncompressed delta with one event of each revision.
fn encode_delta(revisions: &[i64]) -> Vec<u8> {
    let mut writer = DeltaWriter::new(Vec::new());
    for revision in revisions {
        let event = Event {
            kind: EventKind::Put,
            key: b"k",
            value: b"v",
            create_revision: Revision(*revision),
            mod_revision: Revision(*revision),
            version: 1,
            lease: LeaseId::NONE,
            lease_ttl: None,
            time: "2026-11-16T02:14:06Z",
        };
        writer.write_event(&event).unwrap();
    }
    writer.finish().unwrap()
}

/// Arbitrary content of a valid length with a valid hash.
fn encode_full(sectors: usize) -> Vec<u8> {
    let database: Vec<u8> = (0..sectors * 512)
        .map(|at| u8::try_from(at % 251).unwrap())
        .collect();
    let mut writer = FullWriter::new(Vec::new());
    writer.write_all(&database).unwrap();
    writer.finish().unwrap()
}

fn collect_files(below: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(below).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect_files(&path, found);
        } else {
            found.push(path);
        }
    }
}

#[test]
fn every_object_of_etcd_backup_restore_is_valid() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures");
    let mut found = Vec::new();
    collect_files(&fixtures, &mut found);
    found.retain(|path| path.parent().is_some_and(|folder| folder.ends_with("v2")));
    assert!(found.len() > 30, "{found:?}");
    for path in found {
        let name = path.file_name().unwrap().to_str().unwrap();
        let outcome = verify_bytes(name, fs::read(&path).unwrap());
        assert!(outcome.is_ok(), "{}: {outcome:?}", path.display());
    }
}

#[test]
fn full_snapshot_of_any_size_is_verified_by_its_hash() {
    // Around the size of the read buffer, where the hash is split between two reads.
    for sectors in [1, 511, 512, 513, 1025] {
        verify_bytes("Full-0-9-5", encode_full(sectors)).unwrap();
    }
    let mut altered = encode_full(600);
    altered[70_000] ^= 1;
    let outcome = verify_bytes("Full-0-9-5", altered);
    assert!(
        matches!(outcome, Err(ProofError::BaseHash { .. })),
        "{outcome:?}"
    );
}

#[test]
fn full_snapshot_that_is_truncated_or_lacks_its_hash_is_damaged() {
    let complete = encode_full(4);
    for length in [0, 32, 2048, 2079] {
        let outcome = verify_bytes("Full-0-9-5", complete[..length].to_vec());
        assert!(
            matches!(
                outcome,
                Err(ProofError::BaseLength { .. } | ProofError::BaseUnhashed { .. })
            ),
            "{length}: {outcome:?}"
        );
    }
    let outcome = verify_bytes("Full-0-9-5.gz", complete);
    assert!(
        matches!(
            outcome,
            Err(ProofError::ReadBase { .. } | ProofError::Compression { .. })
        ),
        "{outcome:?}"
    );
}

#[test]
fn delta_must_contain_every_revision_in_its_name() {
    verify_bytes("Incr-5-8-5", encode_delta(&[5, 6, 6, 7, 8])).unwrap();
    verify_bytes("Incr-5-7-5", encode_delta(&[4, 5, 6, 7, 8])).unwrap();
    let outcome = verify_bytes("Incr-5-8-5", encode_delta(&[5, 6, 8]));
    let gap = (Revision(6), Revision(8));
    assert!(
        matches!(outcome, Err(ProofError::GapInside { previous, found, .. }) if (previous, found) == gap),
        "{outcome:?}"
    );
    for short in [&[6, 7, 8][..], &[5, 6, 7], &[]] {
        let outcome = verify_bytes("Incr-5-8-5", encode_delta(short));
        assert!(
            matches!(outcome, Err(ProofError::NameNotCovered { .. })),
            "{short:?}: {outcome:?}"
        );
    }
}

#[test]
fn altered_delta_is_damaged() {
    let mut bytes = encode_delta(&[5, 6, 7]);
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    let outcome = verify_bytes("Incr-5-7-5", bytes);
    assert!(
        matches!(outcome, Err(ProofError::Delta { .. })),
        "{outcome:?}"
    );
    let outcome = verify_bytes("Incr-5-7-5.lz9", encode_delta(&[5, 6, 7]));
    assert!(
        matches!(outcome, Err(ProofError::Compression { .. })),
        "{outcome:?}"
    );
}

/// A download that fails with a store error.
struct FailingStoreReader;

impl Read for FailingStoreReader {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        let store = SnapStore::open(
            &mainstay_store::StoreConfig::new(mainstay_store::StorageProvider::Local, "b"),
            &mainstay_store::Environment::from_iter([("HOME", "/nonexistent")]),
        );
        let error = store
            .unwrap()
            .upload("", mainstay_store::UploadOptions::default());
        Err(error.unwrap_err().into_io_error())
    }
}

#[test]
fn interrupted_download_is_a_store_error_and_not_damage() {
    for name in [
        "Full-0-9-5",
        "Full-0-9-5.gz",
        "Incr-5-8-5.gz",
        "Incr-5-8-5.zst",
        "Incr-5-8-5",
    ] {
        let damage = prove_intact(&object_named(name), Box::new(FailingStoreReader)).unwrap_err();
        assert!(damage.is_store_failure(), "{name}: {damage:?}");
    }
    let cut = verify_bytes("Full-0-9-5.gz", vec![0x1f, 0x8b]).unwrap_err();
    assert!(!cut.is_store_failure(), "{cut:?}");
}
