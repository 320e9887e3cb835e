//! Waits for the final snapshot, the last one before a control plane is migrated.

use std::time::{Duration, Instant};

use jiff::SignedDuration;
use mainstay_archive::catalogue::Catalogue;
use mainstay_backup::list_snapshots;
use mainstay_store::{SnapStore, StoreError};

/// Number of the newest full snapshots that are checked: others may have been taken after the final one.
const NEWEST_FULLS_CHECKED: usize = 4;

/// Result of waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WaitOutcome {
    Found,
    TimedOut,
}

/// Lists the store until it has a final snapshot, or `limit` has passed; a `limit` of zero waits forever.
pub(super) async fn wait_for_final_snapshot(
    store: &SnapStore,
    interval: Duration,
    limit: Duration,
) -> Result<WaitOutcome, StoreError> {
    let started = Instant::now();
    loop {
        if has_final_snapshot(&list_snapshots(store).await?) {
            return Ok(WaitOutcome::Found);
        }
        let left = limit.saturating_sub(started.elapsed());
        if !limit.is_zero() && left.is_zero() {
            tracing::warn!("no final snapshot before the timeout, copying existing snapshots");
            return Ok(WaitOutcome::TimedOut);
        }
        tracing::info!("waiting for a final snapshot");
        tokio::time::sleep(if limit.is_zero() {
            interval
        } else {
            interval.min(left)
        })
        .await;
    }
}

fn has_final_snapshot(catalogue: &Catalogue) -> bool {
    catalogue
        .fulls
        .iter()
        .rev()
        .take(NEWEST_FULLS_CHECKED)
        .any(|full| full.name.is_final)
}

/// Parses `30m`, `1h30m` or `0`.
pub(super) fn parse_duration(text: &str) -> Result<Duration, String> {
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let span: SignedDuration = text
        .parse()
        .map_err(|error: jiff::Error| error.to_string())?;
    Duration::try_from(span).map_err(|_| "must not be negative".to_owned())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use jiff::Timestamp;
    use mainstay_archive::catalogue::ListedObject;
    use mainstay_store::{Environment, StorageProvider, StoreConfig};

    use super::*;

    fn catalogue_of_fulls(names: &[&str]) -> Catalogue {
        let listed = names.iter().map(|name| ListedObject {
            key: format!("v2/{name}"),
            size: 1,
            modified: Timestamp::UNIX_EPOCH,
        });
        Catalogue::from_listing("", listed.collect())
    }

    #[test]
    fn final_snapshot_counts_only_among_the_four_newest() {
        let mut names = vec!["Full-00000000-00000001-1.gz.final"];
        assert!(has_final_snapshot(&catalogue_of_fulls(&names)));
        names.extend(["Full-0-2-2.gz", "Full-0-3-3.gz", "Full-0-4-4.gz"]);
        assert!(has_final_snapshot(&catalogue_of_fulls(&names)));
        names.push("Full-0-5-5.gz");
        assert!(!has_final_snapshot(&catalogue_of_fulls(&names)));
        assert!(!has_final_snapshot(&Catalogue::default()));
    }

    #[test]
    fn durations_are_parsed_as_in_etcd_backup_restore() {
        assert_eq!(parse_duration("0"), Ok(Duration::ZERO));
        assert_eq!(parse_duration("0s"), Ok(Duration::ZERO));
        assert_eq!(parse_duration("1h30m"), Ok(Duration::from_mins(90)));
        assert!(parse_duration("-1s").is_err() && parse_duration("soon").is_err());
    }

    fn open_local_store(home: &Path) -> SnapStore {
        let env = Environment::from_iter([("HOME", home.to_str().unwrap())]);
        SnapStore::open(&StoreConfig::new(StorageProvider::Local, "bucket"), &env).unwrap()
    }

    #[tokio::test]
    async fn wait_ends_when_the_final_snapshot_appears() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join("bucket/v2");
        std::fs::create_dir_all(&folder).unwrap();
        let store = open_local_store(home.path());
        let interval = Duration::from_millis(5);
        let wait =
            tokio::spawn(
                async move { wait_for_final_snapshot(&store, interval, Duration::ZERO).await },
            );
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(!wait.is_finished());
        std::fs::write(folder.join("Full-00000000-00000001-1.final"), b"").unwrap();
        assert_eq!(wait.await.unwrap().unwrap(), WaitOutcome::Found);
    }

    #[tokio::test]
    async fn wait_ends_at_the_timeout_even_between_two_polls() {
        let home = tempfile::tempdir().unwrap();
        let interval = Duration::from_hours(1);
        let limit = Duration::from_millis(30);
        let waited = wait_for_final_snapshot(&open_local_store(home.path()), interval, limit).await;
        assert_eq!(waited.unwrap(), WaitOutcome::TimedOut);
    }
}
