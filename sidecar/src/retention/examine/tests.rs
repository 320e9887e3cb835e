use std::fs;
use std::io::Cursor;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use mainstay_archive::catalogue::{Catalogue, Listed};
use mainstay_archive::delta::{DeltaWriter, Event, EventKind};
use mainstay_ids::LeaseId;

use super::*;

fn object(name: &str) -> Object {
    let listed = Listed {
        key: format!("v2/{name}"),
        size: 1,
        modified: Timestamp::UNIX_EPOCH,
    };
    let catalogue = Catalogue::from_listing("", vec![listed]);
    let mut objects = catalogue.fulls.into_iter().chain(catalogue.deltas);
    objects.next().unwrap()
}

fn read_bytes(name: &str, bytes: Vec<u8>) -> Result<(), Damage> {
    read(&object(name), Cursor::new(bytes))
}

/// An uncompressed delta with one event of each revision.
fn delta_of(revisions: &[i64]) -> Vec<u8> {
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

/// A full snapshot as far as its hash goes.
fn full_of(sectors: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..sectors * 512)
        .map(|at| u8::try_from(at % 251).unwrap())
        .collect();
    let hash = Sha256::digest(&bytes);
    bytes.extend_from_slice(hash.as_slice());
    bytes
}

fn files(below: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(below).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(&path, found);
        } else {
            found.push(path);
        }
    }
}

#[test]
fn every_object_the_peer_wrote_is_whole() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures");
    let mut found = Vec::new();
    files(&fixtures, &mut found);
    found.retain(|path| path.parent().is_some_and(|folder| folder.ends_with("v2")));
    assert!(found.len() > 30, "{found:?}");
    for path in found {
        let name = path.file_name().unwrap().to_str().unwrap();
        let outcome = read_bytes(name, fs::read(&path).unwrap());
        assert!(outcome.is_ok(), "{}: {outcome:?}", path.display());
    }
}

#[test]
fn a_full_is_proven_by_its_hash_whatever_its_size() {
    // Around the size of a piece, where the hash is split between two reads.
    for sectors in [1, 511, 512, 513, 1025] {
        read_bytes("Full-0-9-5", full_of(sectors)).unwrap();
    }
    let mut altered = full_of(600);
    altered[70_000] ^= 1;
    let outcome = read_bytes("Full-0-9-5", altered);
    assert!(
        matches!(outcome, Err(Damage::Hash { bytes: 307_200 })),
        "{outcome:?}"
    );
}

#[test]
fn a_full_without_hash_or_cut_short_is_damaged() {
    let whole = full_of(4);
    for length in [0, 32, 2048, 2079] {
        let outcome = read_bytes("Full-0-9-5", whole[..length].to_vec());
        assert!(
            matches!(outcome, Err(Damage::Length { .. })),
            "{length}: {outcome:?}"
        );
    }
    let outcome = read_bytes("Full-0-9-5.gz", whole);
    assert!(
        matches!(outcome, Err(Damage::Read { .. } | Damage::Compression(_))),
        "{outcome:?}"
    );
}

#[test]
fn a_delta_holds_every_revision_of_its_name() {
    read_bytes("Incr-5-8-5", delta_of(&[5, 6, 6, 7, 8])).unwrap();
    read_bytes("Incr-5-7-5", delta_of(&[4, 5, 6, 7, 8])).unwrap();
    let outcome = read_bytes("Incr-5-8-5", delta_of(&[5, 6, 8]));
    let gap = (Revision(6), Revision(8));
    assert!(
        matches!(outcome, Err(Damage::Gap { previous, found }) if (previous, found) == gap),
        "{outcome:?}"
    );
    for short in [&[6, 7, 8][..], &[5, 6, 7], &[]] {
        let outcome = read_bytes("Incr-5-8-5", delta_of(short));
        assert!(
            matches!(outcome, Err(Damage::Range { .. })),
            "{short:?}: {outcome:?}"
        );
    }
}

#[test]
fn an_altered_delta_is_damaged() {
    let mut bytes = delta_of(&[5, 6, 7]);
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    let outcome = read_bytes("Incr-5-7-5", bytes);
    assert!(matches!(outcome, Err(Damage::Delta(_))), "{outcome:?}");
    let outcome = read_bytes("Incr-5-7-5.lz9", delta_of(&[5, 6, 7]));
    assert!(
        matches!(outcome, Err(Damage::Compression(_))),
        "{outcome:?}"
    );
}

/// A source that breaks off as a store does.
struct Broken;

impl Read for Broken {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        let store = SnapStore::open(
            &mainstay_store::StoreConfig::new(mainstay_store::Provider::Local, "b"),
            &mainstay_store::Environment::from_iter([("HOME", "/nonexistent")]),
        );
        let error = store
            .unwrap()
            .upload("", mainstay_store::UploadOptions::default());
        Err(error.unwrap_err().into_io())
    }
}

#[test]
fn a_store_that_breaks_off_says_nothing_about_the_object() {
    for name in [
        "Full-0-9-5",
        "Full-0-9-5.gz",
        "Incr-5-8-5.gz",
        "Incr-5-8-5.zst",
        "Incr-5-8-5",
    ] {
        let damage = read(&object(name), Broken).unwrap_err();
        assert!(is_of_the_store(&damage), "{name}: {damage:?}");
    }
    let cut = read_bytes("Full-0-9-5.gz", vec![0x1f, 0x8b]).unwrap_err();
    assert!(!is_of_the_store(&cut), "{cut:?}");
}
