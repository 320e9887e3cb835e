//! Data that was put aside when other data took its place, and is not needed any more.
//!
//! A restore keeps what it found. Once the member has served with its new data for long enough, the old one only takes room. A
//! member that was away for long, or has just come back, has not: then nothing goes for a while, however old it is.

use std::path::PathBuf;
use std::time::Duration;

use jiff::Timestamp;
use mainstay_datadir::{PreviousDataDir, list_previous_data_dirs};
use tokio::time::Instant;
use tracing::{info, warn};

/// How often the directory is looked at.
const CHECK_INTERVAL: Duration = Duration::from_hours(1);

/// Removes what was put aside long ago.
#[derive(Clone, Debug)]
pub struct PreviousDataCleaner {
    /// The member's data directory.
    data_dir: PathBuf,
    /// How long what was put aside is kept; for ever when absent.
    retention: Option<Duration>,
    /// The last look, or when the member was first seen to serve.
    last_check: Option<Instant>,
}

impl PreviousDataCleaner {
    /// Keeps what was put aside from `data_dir` for so long; for ever when that is nothing.
    pub fn new(data_dir: PathBuf, keep: Duration) -> Self {
        Self {
            data_dir,
            retention: Some(keep).filter(|keep| !keep.is_zero()),
            last_check: None,
        }
    }

    /// Looks now and then. To be called only while the member serves.
    pub async fn clean_up(&mut self) {
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
            warn!(%error, "what was put aside could not be looked at");
        }
    }
}

/// Removes what is older, and tells so.
fn remove_expired(data_dir: &std::path::Path, keep: Duration, now: Timestamp) {
    let found = list_previous_data_dirs(data_dir).unwrap_or_else(|error| {
        warn!(%error, "what was put aside could not be listed");
        Vec::new()
    });
    for PreviousDataDir { path, replaced_at: since } in select_expired(found, keep, now) {
        match std::fs::remove_dir_all(&path) {
            Ok(()) => info!(path = %path.display(), %since, "data that was put aside is removed"),
            Err(error) => warn!(path = %path.display(), %error, "data that was put aside stays"),
        }
    }
}

/// What was put aside for longer. A time to come proves nothing.
fn select_expired(found: Vec<PreviousDataDir>, keep: Duration, now: Timestamp) -> Vec<PreviousDataDir> {
    let is_over = |one: &PreviousDataDir| {
        let age = Duration::try_from(now.duration_since(one.replaced_at));
        age.is_ok_and(|age| age >= keep)
    };
    found.into_iter().filter(is_over).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_old_enough_goes_and_nothing_else() {
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
    async fn nothing_goes_without_a_limit_or_before_the_member_has_served_for_a_while() {
        let root = tempfile::tempdir().unwrap();
        let old = root.path().join("new.etcd.before-20200101T000000Z");
        std::fs::create_dir(&old).unwrap();
        let data = root.path().join("new.etcd");
        let mut for_ever = PreviousDataCleaner::new(data.clone(), Duration::ZERO);
        let mut for_a_second = PreviousDataCleaner::new(data, Duration::from_secs(1));
        for_ever.clean_up().await;
        for_a_second.clean_up().await;
        assert!(old.exists(), "it may have come back this very moment");
        tokio::time::advance(CHECK_INTERVAL).await;
        for_ever.clean_up().await;
        assert!(old.exists());
        for_a_second.clean_up().await;
        assert!(!old.exists());
    }
}
