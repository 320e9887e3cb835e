//! Flipped bits and truncations at every structure of a file: no panic, and no valid verdict with wrong facts.
//!
//! Two changes cannot be detected, because bbolt pages have no checksum: another value of a key, and another
//! plausible number in a small bucket (a consistent index within the WAL, the text of a version, the count of
//! a bucket with one alarm). WAL bits that no checksum covers and no reader uses have no effect.

use std::fs;
use std::path::Path;

use mainstay_datadir::{Depth, DirFacts, DirReport, DirVerdict, WarningKind, verify};
use proptest::prelude::*;

use crate::support::{DataDir, file_length, flip_byte, set_length};

/// The facts that must be correct in a valid directory.
fn core_facts(facts: &DirFacts) -> impl PartialEq + std::fmt::Debug + use<> {
    (
        (facts.revision, facts.compact_revision, facts.rows),
        (facts.live_keys, facts.member_id),
        (facts.cluster_id, facts.last_wal_index),
    )
}

/// Asserts that the report is corrupt or has unchanged facts.
fn assert_corrupt_or_unchanged(what: &str, report: &DirReport, sound: &DirFacts) {
    match report.verdict {
        DirVerdict::Corrupt => assert!(!report.faults.is_empty()),
        DirVerdict::Valid => {
            let facts = report.facts.as_ref().unwrap();
            assert_eq!(core_facts(facts), core_facts(sound), "{what}: {report:#?}");
            let is_cut = report
                .warnings
                .iter()
                .any(|warning| warning.what == WarningKind::TornTail);
            assert!(
                facts.commit == sound.commit || is_cut,
                "{what}: {report:#?}"
            );
        }
        _ => panic!("{what}: {report:#?}"),
    }
}

/// Flips one bit after the other; returns how many flips were detected as damage.
fn count_detected_flips(
    dir: &DataDir,
    file: &Path,
    bits: impl Iterator<Item = (u64, u8)>,
) -> usize {
    let sound = dir.verify(Depth::Full).facts.unwrap();
    let mut corrupt = 0;
    for (offset, bit) in bits {
        flip_byte(file, offset, 1 << bit);
        let report = dir.verify(Depth::Full);
        assert_corrupt_or_unchanged(&format!("bit {bit} of byte {offset}"), &report, &sound);
        corrupt += usize::from(report.verdict == DirVerdict::Corrupt);
        let quick = dir.verify(Depth::Sanity);
        let is_quick_worse = quick.verdict == DirVerdict::Corrupt && report.is_valid();
        assert!(!is_quick_worse, "bit {bit} of byte {offset}: {quick:#?}");
        flip_byte(file, offset, 1 << bit);
    }
    corrupt
}

/// The bits of some bytes, one of each.
fn pick_bits(bytes: impl Iterator<Item = u64>) -> impl Iterator<Item = (u64, u8)> {
    bytes.map(|offset| (offset, u8::try_from(offset % 8).unwrap()))
}

#[test]
fn flipped_bit_in_the_database_never_changes_reported_facts() {
    let dir = DataDir::valid();
    let pages = file_length(&dir.db_path()) / 4096;
    let metas = (0..2).flat_map(|page| page * 4096..page * 4096 + 80);
    let heads = (2..pages).flat_map(|page| page * 4096..page * 4096 + 176);
    let rest = (2 * 4096..pages * 4096).step_by(3);
    let corrupt = count_detected_flips(
        &dir,
        &dir.db_path(),
        pick_bits(metas.chain(heads).chain(rest)),
    );
    assert!(corrupt > 100, "{corrupt}");
}

#[test]
fn flipped_bit_in_the_wal_never_changes_reported_facts() {
    let dir = DataDir::valid();
    for (name, bytes) in DataDir::segments() {
        let file = dir.wal_path(&name.to_string());
        let written = bytes.iter().rposition(|byte| *byte != 0).unwrap() as u64 + 1;
        let corrupt = count_detected_flips(&dir, &file, pick_bits(0..written));
        assert!(corrupt as u64 > written / 2, "{corrupt} of {written}");
    }
}

#[test]
fn flipped_bit_in_a_wal_record_length_is_detected() {
    let dir = DataDir::valid();
    for (name, bytes) in DataDir::segments() {
        let mut offset = 0;
        let mut fields = Vec::new();
        while let Some(field) = bytes.get(offset..offset + 8) {
            let record = u64::from_le_bytes(field.try_into().unwrap()) & 0xff_ffff;
            if record == 0 {
                break;
            }
            fields.extend(
                (offset as u64..offset as u64 + 8).flat_map(|at| (0..8).map(move |bit| (at, bit))),
            );
            offset += 8 + usize::try_from(record).unwrap().next_multiple_of(8);
        }
        count_detected_flips(&dir, &dir.wal_path(&name.to_string()), fields.into_iter());
    }
}

/// Without the snapshot etcd starts from the WAL, which here reaches back to the first entry.
#[test]
fn flipped_bit_in_a_snapshot_never_changes_reported_facts() {
    let dir = DataDir::valid();
    let file = dir.snap_path("0000000000000002-0000000000000005.snap");
    let sound = dir.verify(Depth::Full).facts.unwrap();
    for offset in (0..64).chain((64..file_length(&file)).step_by(29)) {
        let bit = u8::try_from(offset % 8).unwrap();
        flip_byte(&file, offset, 1 << bit);
        let report = dir.verify(Depth::Full);
        assert_corrupt_or_unchanged(&format!("byte {offset}"), &report, &sound);
        let is_used = report.facts.unwrap().snapshot_index == sound.snapshot_index;
        assert!(is_used || report.warnings[0].what == WarningKind::SnapshotUnusable);
        flip_byte(&file, offset, 1 << bit);
    }
}

#[test]
fn every_truncation_is_detected() {
    for name in [
        "snap/db",
        "snap/0000000000000002-0000000000000005.snap",
        "wal/0000000000000000-0000000000000000.wal",
        "wal/0000000000000001-0000000000000008.wal",
    ] {
        let dir = DataDir::valid();
        let sound = dir.verify(Depth::Full).facts.unwrap();
        let file = dir.path().join("member").join(name);
        let bytes = fs::read(&file).unwrap();
        let step = (bytes.len() / 400).max(1);
        // From the shortest prefix to one missing byte.
        for length in (0..bytes.len() as u64 - 1)
            .step_by(step)
            .chain([bytes.len() as u64 - 1])
        {
            fs::write(&file, &bytes).unwrap();
            set_length(&file, length);
            let report = dir.verify(Depth::Full);
            // bbolt initializes an empty database file; that is valid only without a snapshot.
            assert_corrupt_or_unchanged(&format!("{name} cut at {length}"), &report, &sound);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn garbage_in_any_file_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..9000), which in 0usize..4) {
        let dir = DataDir::valid();
        let name = [
            "snap/db",
            "snap/0000000000000002-0000000000000005.snap",
            "wal/0000000000000000-0000000000000000.wal",
            "wal/0000000000000001-0000000000000008.wal",
        ][which];
        fs::write(dir.path().join("member").join(name), bytes).unwrap();
        for depth in [Depth::Sanity, Depth::Full] {
            verify(&dir.path(), depth).unwrap();
        }
    }
}
