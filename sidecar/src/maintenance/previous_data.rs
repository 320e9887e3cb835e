//! Deletes previous data directories that are not needed any more.
//!
//! A restore keeps the data directory it replaces. Once the member has served with its new data for long enough, the old
//! directory only takes space. After a start of the sidecar nothing is deleted for an hour, however old it is: the member
//! may have been down for long.

use std::path::PathBuf;
use std::time::Duration;

use jiff::Timestamp;
use mainstay_datadir::{PreviousDataDir, list_previous_data_dirs};
use tokio::time::Instant;
use tracing::{info, warn};

/// Interval between two checks.
const CHECK_INTERVAL: Duration = Duration::from_hours(1);

/// Deletes expired previous data directories.
#[derive(Clone, Debug)]
pub(crate) struct PreviousDataCleaner {
    data_dir: PathBuf,
    /// Retention of previous data directories; `None` keeps them for ever.
    retention: Option<Duration>,
    /// Last check, or when the member was first observed serving.
    last_check: Option<Instant>,
}

impl PreviousDataCleaner {
    /// Keeps previous directories of `data_dir` for this long; for ever if zero.
    pub(crate) fn new(data_dir: PathBuf, keep: Duration) -> Self {
        Self {
            data_dir,
            retention: Some(keep).filter(|keep| !keep.is_zero()),
            last_check: None,
        }
    }

    /// Deletes expired directories if a check is due. Call only while the member serves.
    pub(crate) async fn clean_up(&mut self) {
        let since = *self.last_check.get_or_insert_with(Instant::now);
        let is_due = since.elapsed() >= CHECK_INTERVAL;
        let Some(keep) = self.retention.filter(|_| is_due) else {
            return;
        };
        self.last_check = Some(Instant::now());
        let data_dir = self.data_dir.clone();
        let removed =
            tokio::task::spawn_blocking(move || remove_expired(&data_dir, keep, Timestamp::now()));
        if let Err(error) = removed.await {
            warn!(%error, "task deleting previous data directories failed");
        }
    }
}

fn remove_expired(data_dir: &std::path::Path, keep: Duration, now: Timestamp) {
    let found = list_previous_data_dirs(data_dir).unwrap_or_else(|error| {
        warn!(%error, "failed to list previous data directories");
        Vec::new()
    });
    for PreviousDataDir { path, replaced_at } in select_expired(found, keep, now) {
        match std::fs::remove_dir_all(&path) {
            Ok(()) => {
                info!(path = %path.display(), %replaced_at, "previous data directory deleted");
            }
            Err(error) => {
                warn!(path = %path.display(), %error, "failed to delete previous data directory");
            }
        }
    }
}

/// Returns the directories older than `keep`. One with a time in the future is kept: the clock was wrong.
fn select_expired(
    found: Vec<PreviousDataDir>,
    keep: Duration,
    now: Timestamp,
) -> Vec<PreviousDataDir> {
    let is_expired = |one: &PreviousDataDir| {
        let age = Duration::try_from(now.duration_since(one.replaced_at));
        age.is_ok_and(|age| age >= keep)
    };
    found.into_iter().filter(is_expired).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_expired_previous_data_directories_are_deleted() {
        let root = tempfile::tempdir().unwrap();
        let data = root.path().join("new.etcd");
        let names = [
            "new.etcd",
            "new.etcd.before-20260101T000000Z",
            "new.etcd.before-20260109T000000Z",
            "new.etcd.before-20300101T000000Z",
            "kept-by-a-person",
        ];
        for name in names {
            std::fs::create_dir_all(root.path().join(name).join("member/snap")).unwrap();
        }
        let now = "2026-01-10T00:00:00Z".parse().unwrap();
        remove_expired(&data, Duration::from_hours(7 * 24), now);
        let left = std::fs::read_dir(root.path()).unwrap();
        let mut left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(
            left,
            [
                "kept-by-a-person",
                "new.etcd",
                "new.etcd.before-20260109T000000Z",
                "new.etcd.before-20300101T000000Z",
            ]
        );
    }

    #[tokio::test(start_paused = true)]
    async fn cleanup_requires_a_retention_limit_and_a_member_that_serves() {
        let root = tempfile::tempdir().unwrap();
        let old = root.path().join("new.etcd.before-20200101T000000Z");
        std::fs::create_dir(&old).unwrap();
        let data = root.path().join("new.etcd");
        let mut unlimited = PreviousDataCleaner::new(data.clone(), Duration::ZERO);
        let mut one_second = PreviousDataCleaner::new(data, Duration::from_secs(1));
        unlimited.clean_up().await;
        one_second.clean_up().await;
        assert!(old.exists(), "the member may have just started to serve");
        tokio::time::advance(CHECK_INTERVAL).await;
        unlimited.clean_up().await;
        assert!(old.exists());
        one_second.clean_up().await;
        assert!(!old.exists());
    }
}
