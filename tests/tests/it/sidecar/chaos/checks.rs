//! Compares what the bucket restores with what etcd had.

use mainstay_ids::Revision;
use mainstay_testkit::{EtcdServer, SidecarProcess};
use tempfile::TempDir;

use super::super::{AckedWrites, SidecarHarness};
use super::samples::{HashSample, HashSamples};
use crate::support::start_etcd_on;

/// Checks all claims, with a number of the samples.
pub(super) async fn check_everything(
    stage: &SidecarHarness,
    acks: &AckedWrites,
    (samples, restores): (&HashSamples, usize),
    context: &str,
) {
    let stored = stage.wait_until_stored().await;
    let reached = stage.assert_restores(context).await;
    assert!(
        reached >= stored,
        "{context}: revision {stored} was stored, but only {reached} is restorable"
    );
    assert!(
        reached >= acks.newest_revision(),
        "{context}: acknowledged writes are not stored"
    );
    assert_acks_restored(stage, acks, reached, context).await;

    let ranges = stage.backup().restorable_ranges();
    eprintln!("{context}: restorable {ranges:?}");
    assert_gaps_logged(stage, &ranges, context);
    let mut compared = 0;
    let tried = samples.select_within(&ranges, restores);
    for sample in &tried {
        compared += usize::from(matches_sample(stage, sample, context).await);
    }
    assert!(
        compared * 2 >= tried.len().max(2),
        "{context}: {compared} of {tried:?} compared"
    );
}

async fn restore_and_start(
    stage: &SidecarHarness,
    revision: Revision,
    directory: &TempDir,
) -> EtcdServer {
    let data_dir = directory.path().join("data");
    stage.backup().restore_at(&data_dir, revision);
    start_etcd_on(stage.cluster.members[0].version(), &data_dir).await
}

async fn assert_acks_restored(
    stage: &SidecarHarness,
    acks: &AckedWrites,
    reached: Revision,
    context: &str,
) {
    let directory = TempDir::new().unwrap();
    let etcd = restore_and_start(stage, reached, &directory).await;
    acks.assert_present(&etcd.all_keys().await, reached, context);
}

/// Compares hashes. Returns `false` if the restored history starts after the compaction of the sample: then the hashes are
/// not comparable.
async fn matches_sample(stage: &SidecarHarness, sample: &HashSample, context: &str) -> bool {
    let directory = TempDir::new().unwrap();
    let etcd = restore_and_start(stage, sample.revision, &directory).await;
    let mut found = etcd.hash_kv(sample.revision).await;
    if found.compact_revision > sample.hash.compact_revision {
        return false;
    }
    if let Some(at) = sample.hash.compact_revision
        && found.compact_revision != Some(at)
    {
        etcd.compact(at).await;
        found = etcd.hash_kv(sample.revision).await;
    }
    assert_eq!(
        found, sample.hash,
        "{context}: at revision {}",
        sample.revision
    );
    true
}

/// Every missing revision between two ranges is logged by a sidecar.
fn assert_gaps_logged(stage: &SidecarHarness, ranges: &[(Revision, Revision)], context: &str) {
    let logs = stage.sidecars.iter().map(SidecarProcess::read_log);
    let logged: Vec<(Revision, Revision)> = logs.flat_map(|log| parse_gaps(&log)).collect();
    for pair in ranges.windows(2) {
        let hole = (pair[0].1.next(), pair[1].0.previous());
        let unlogged = first_unlogged(hole, &logged);
        assert_eq!(
            unlogged, None,
            "{context}: gap {hole:?} is not fully logged, only {logged:?}"
        );
    }
}

/// The first revision of a hole that is in no logged gap.
fn first_unlogged(hole: (Revision, Revision), gaps: &[(Revision, Revision)]) -> Option<Revision> {
    let mut revision = hole.0;
    while revision <= hole.1 {
        let around = gaps.iter().find(|gap| (gap.0..=gap.1).contains(&revision));
        let Some((_, end)) = around else {
            return Some(revision);
        };
        revision = end.next();
    }
    None
}

/// The gaps in a log, from lines such as `revisions 5 to 9 are missing: …`.
fn parse_gaps(log: &str) -> Vec<(Revision, Revision)> {
    let lines = log.lines().filter(|line| line.contains(" are missing: "));
    let gap = |line: &str| {
        let (_, rest) = line.split_once("revisions ")?;
        let (from, rest) = rest.split_once(" to ")?;
        let (to, _) = rest.split_once(" are missing")?;
        Some((Revision(from.parse().ok()?), Revision(to.parse().ok()?)))
    };
    lines.filter_map(gap).collect()
}

#[test]
fn gaps_are_parsed_from_a_log() {
    let log = "INFO backups started revision=4\n\
               ERROR revisions 5 to 9 are missing: the watch skipped them; full snapshot required revision=5\n";
    assert_eq!(parse_gaps(log), [(Revision(5), Revision(9))]);
}

#[test]
fn gap_is_logged_only_when_all_its_revisions_are() {
    let gap = |from, to| (Revision(from), Revision(to));
    let hole = gap(5, 20);
    assert_eq!(first_unlogged(hole, &[gap(3, 9), gap(10, 25)]), None);
    assert_eq!(first_unlogged(hole, &[gap(5, 9)]), Some(Revision(10)));
    assert_eq!(first_unlogged(hole, &[gap(9, 25)]), Some(Revision(5)));
    assert_eq!(first_unlogged(hole, &[]), Some(Revision(5)));
}
