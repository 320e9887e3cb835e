use mainstay_archive::catalogue::ListedObject;
use mainstay_archive::compression::Compression;
use mainstay_archive::name::SnapshotName;
use mainstay_ids::Revision;

use super::*;
use crate::state::BackupFailure;

fn time(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn own_full() -> SnapshotName {
    SnapshotName::full(Revision(10), 1_794_825_000, Compression::Gzip)
}

fn state(history: BackupHistory) -> SidecarState {
    SidecarState {
        history,
        ..SidecarState::default()
    }
}

#[test]
fn unverified_backup_freezes_retention() {
    let fresh = SidecarState::default();
    assert_eq!(owned_history(&fresh), Err(FreezeReason::UnverifiedHistory));
}

#[test]
fn scope_follows_the_matched_history() {
    let matched = state(BackupHistory::Matched);
    assert_eq!(owned_history(&matched), Ok(OwnedHistory::All));
    let since = state(BackupHistory::OwnSince(own_full()));
    assert_eq!(owned_history(&since), Ok(OwnedHistory::Since(own_full())));
}

#[test]
fn failing_backup_freezes_retention() {
    let mut failing = state(BackupHistory::Matched);
    failing.failure = Some(BackupFailure {
        class: "store",
        message: "timeout".to_owned(),
        since: time("2026-11-16T10:00:00Z"),
    });
    assert_eq!(owned_history(&failing), Err(FreezeReason::BackupFailing));
}

#[test]
fn overdue_full_snapshot_freezes_retention() {
    let schedule: Schedule = "0 * * * *".parse().unwrap();
    let stored = |modified: &str| {
        let object = ListedObject {
            key: format!("p/v2/{}", own_full()),
            size: 1,
            modified: time(modified),
        };
        Catalogue::from_listing("p", vec![object])
    };
    let now = time("2026-11-16T10:30:00Z");
    assert!(!is_full_overdue(
        &schedule,
        &stored("2026-11-16T10:01:00Z"),
        now
    ));
    // The one of ten o'clock may still be uploading.
    assert!(!is_full_overdue(
        &schedule,
        &stored("2026-11-16T09:01:00Z"),
        now
    ));
    assert!(is_full_overdue(
        &schedule,
        &stored("2026-11-16T08:59:00Z"),
        now
    ));
    let never: Schedule = "0 0 30 2 *".parse().unwrap();
    assert!(!is_full_overdue(
        &never,
        &stored("2020-01-01T00:00:00Z"),
        now
    ));
}
