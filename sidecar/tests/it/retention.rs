//! Garbage collection on a directory and on a real S3 server.

mod s3;
mod test_store;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use jiff::{SignedDuration, Timestamp};
use mainstay_archive::retention::{
    DeletionReason, KeepReason, OwnedHistory, RetentionPolicy, RetentionRules,
};
use mainstay_sidecar::retention::{
    PinSource, PinnedKeys, PinsError, Retention, RetentionAction, RetentionConfig, RetentionError,
    StaticPins,
};
use mainstay_store::SnapStore;
use tokio_util::sync::CancellationToken;

use self::test_store::{NOW, TestStore};

fn test_time() -> Timestamp {
    Timestamp::from_second(NOW).unwrap()
}

fn time_after(span: SignedDuration) -> Timestamp {
    test_time() + span
}

/// Keeps one full snapshot and its deltas.
fn keep_one_config() -> RetentionConfig {
    RetentionConfig {
        period: Some(Duration::from_millis(20)),
        rules: RetentionRules {
            policy: RetentionPolicy::LimitBased { limit: 1 },
            delta_retention: SignedDuration::ZERO,
        },
        action: RetentionAction::Delete,
    }
}

/// The whole backup belongs to this etcd.
fn with_pins(store: &SnapStore, pins: Arc<dyn PinSource>) -> Retention {
    let scope = Arc::new(OwnedHistory::All);
    Retention::new(store.clone(), keep_one_config(), scope, pins, Arc::new(()))
}

fn build_retention(store: &SnapStore, config: RetentionConfig) -> Retention {
    let pins = Arc::new(StaticPins::default());
    let scope = Arc::new(OwnedHistory::All);
    Retention::new(store.clone(), config, scope, pins, Arc::new(()))
}

/// Two chains: `F10 D11-20`, then `F20 D21-30`.
async fn write_two_chains(bucket: &TestStore) -> [String; 4] {
    [
        bucket.put_full(10, 0).await,
        bucket.put_delta(11, 20, 1).await,
        bucket.put_full(20, 2).await,
        bucket.put_delta(21, 30, 3).await,
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn old_chain_is_deleted_after_the_newest_is_verified() {
    let bucket = TestStore::open_local();
    let keys = write_two_chains(&bucket).await;
    let retention = build_retention(&bucket.store, keep_one_config());
    let summary = retention.run_once(test_time()).await.unwrap();
    assert_eq!(summary.verified_base.as_ref(), Some(&keys[2]));
    assert_eq!((summary.deleted, summary.failed), (2, 0));
    assert_eq!(bucket.list_keys().await, keys[2..]);
    let again = retention.run_once(test_time()).await.unwrap();
    assert!(again.plan.deletions.is_empty() && again.verified_base.is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn damaged_newest_full_snapshot_keeps_the_previous_chain() {
    let bucket = TestStore::open_local();
    let older = bucket.put_full(5, 0).await;
    let base = bucket.put_full(10, 1).await;
    let delta = bucket.put_delta(11, 20, 2).await;
    let damaged = bucket.put_damaged_full(20, 3).await;
    let retention = build_retention(&bucket.store, keep_one_config());
    let summary = retention.run_once(test_time()).await.unwrap();
    assert_eq!(summary.verified_base.as_ref(), Some(&base));
    assert_eq!(summary.damaged, std::slice::from_ref(&damaged));
    assert_eq!(
        bucket.list_keys().await,
        [base, damaged, delta],
        "{older} is deleted"
    );

    let sound = bucket.put_full(25, 4).await;
    let summary = retention.run_once(test_time()).await.unwrap();
    assert_eq!(summary.verified_base.as_ref(), Some(&sound));
    assert_eq!(bucket.list_keys().await, [sound]);
}

#[tokio::test(flavor = "multi_thread")]
async fn damaged_delta_ends_the_verified_chain() {
    let bucket = TestStore::open_local();
    let old = bucket.put_full(5, 0).await;
    let base = bucket.put_full(10, 1).await;
    let sound = bucket.put_delta(11, 20, 2).await;
    let damaged = bucket.put_delta_with_gap(21, 30, 3).await;
    let after = bucket.put_delta(31, 40, 4).await;
    let summary = build_retention(&bucket.store, keep_one_config())
        .run_once(test_time())
        .await;
    let summary = summary.unwrap();
    assert_eq!(summary.verified_base.as_ref(), Some(&base));
    assert_eq!(summary.damaged, std::slice::from_ref(&damaged));
    let keys = bucket.list_keys().await;
    assert_eq!(keys, [base, sound, damaged, after], "{old} is deleted");
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_deleted_without_a_valid_chain() {
    let bucket = TestStore::open_local();
    bucket.put_damaged_full(10, 0).await;
    bucket.put_delta(11, 20, 1).await;
    bucket.put_damaged_full(20, 2).await;
    let summary = build_retention(&bucket.store, keep_one_config())
        .run_once(test_time())
        .await;
    let summary = summary.unwrap();
    assert_eq!((summary.verified_base, summary.damaged.len()), (None, 2));
    assert!(
        summary
            .plan
            .kept
            .iter()
            .all(|kept| kept.reason == KeepReason::NoProvenChain)
    );
    assert_eq!(bucket.list_keys().await.len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn object_is_verified_once_and_again_when_replaced() {
    let bucket = TestStore::open_local();
    write_two_chains(&bucket).await;
    let retention = build_retention(&bucket.store, keep_one_config());
    retention.run_once(test_time()).await.unwrap();

    // Size and time stay, so that only reading the object shows the damage.
    let newest = "Full-00000000-00000020";
    bucket.damage_in_place(newest);
    bucket.put_full(5, 0).await;
    let summary = retention.run_once(test_time()).await.unwrap();
    assert_eq!((summary.deleted, summary.damaged.len()), (1, 0));

    bucket.set_modified(newest, test_time());
    bucket.put_full(5, 0).await;
    let summary = retention.run_once(test_time()).await.unwrap();
    assert_eq!((summary.deleted, summary.damaged.len()), (0, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn dry_run_plans_deletions_and_deletes_nothing() {
    let bucket = TestStore::open_local();
    let keys = write_two_chains(&bucket).await;
    let config = RetentionConfig {
        action: RetentionAction::DryRun,
        ..keep_one_config()
    };
    let summary = build_retention(&bucket.store, config)
        .run_once(test_time())
        .await;
    let planned: Vec<_> = summary
        .unwrap()
        .plan
        .deletions
        .into_iter()
        .map(|d| (d.object.key, d.reason))
        .collect();
    let expected = [
        (keys[1].clone(), DeletionReason::PastRetention),
        (keys[0].clone(), DeletionReason::OverLimit),
    ];
    assert_eq!(planned, expected);
    assert_eq!(bucket.list_keys().await.len(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn upload_parts_older_than_a_day_are_deleted() {
    let bucket = TestStore::open_local();
    bucket.put_full(10, 0).await;
    let part = bucket.put_part(20, 1).await;
    let retention = build_retention(&bucket.store, keep_one_config());
    bucket.set_modified("0000000001", test_time() - SignedDuration::from_hours(24));
    // The store's clock decides: its newest object is the present, whatever the node's clock says.
    bucket.set_modified("Full-", test_time());
    let node_ahead = time_after(SignedDuration::from_hours(48));
    assert_eq!(retention.run_once(node_ahead).await.unwrap().deleted, 0);
    bucket.set_modified("Full-", time_after(SignedDuration::from_secs(1)));
    let summary = retention.run_once(node_ahead).await;
    assert_eq!(summary.unwrap().deleted, 1, "{part}");
    assert_eq!(bucket.list_keys().await.len(), 1);
}

/// An API server that does not respond.
struct UnreachablePins;

#[async_trait]
impl PinSource for UnreachablePins {
    async fn read_pins(&self) -> Result<PinnedKeys, PinsError> {
        Err(PinsError {
            location: "a ConfigMap".to_owned(),
            source: "connection refused".into(),
        })
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_deleted_when_pins_cannot_be_read() {
    let bucket = TestStore::open_local();
    write_two_chains(&bucket).await;
    let pins = Arc::new(UnreachablePins);
    let retention = with_pins(&bucket.store, pins);
    let error = retention.run_once(test_time()).await.unwrap_err();
    assert!(matches!(error, RetentionError::Pins(_)), "{error:?}");
    assert_eq!(bucket.list_keys().await.len(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn pinned_delta_is_kept_with_its_base() {
    let bucket = TestStore::open_local();
    let keys = write_two_chains(&bucket).await;
    let oldest = bucket.put_full(5, 0).await;
    let pinned = PinnedKeys([keys[1].clone()].into());
    let pins = Arc::new(StaticPins(pinned));
    let retention = with_pins(&bucket.store, pins);
    let summary = retention.run_once(test_time()).await.unwrap();
    assert_eq!(summary.deleted, 1, "only {oldest} is deleted");
    assert_eq!(bucket.list_keys().await.len(), 4);
}

/// A reader that pins an object after the first check; after `answers` checks the pins cannot be read.
struct LatePins {
    calls: AtomicUsize,
    pinned_key: String,
    max_answers: usize,
}

#[async_trait]
impl PinSource for LatePins {
    async fn read_pins(&self) -> Result<PinnedKeys, PinsError> {
        match self.calls.fetch_add(1, Ordering::Relaxed) {
            0 => Ok(PinnedKeys::default()),
            check if check < self.max_answers => Ok(PinnedKeys([self.pinned_key.clone()].into())),
            _ => UnreachablePins.read_pins().await,
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn object_pinned_during_a_long_round_is_kept() {
    for (max_answers, deleted) in [(9, 28), (1, 20)] {
        let bucket = TestStore::open_local();
        let mut keys = Vec::new();
        for number in 1..=30 {
            keys.push(bucket.put_full(number * 10, number).await);
        }
        let pins = Arc::new(LatePins {
            calls: AtomicUsize::new(0),
            pinned_key: keys[28].clone(),
            max_answers,
        });
        let retention = with_pins(&bucket.store, pins);
        let summary = retention.run_once(test_time()).await.unwrap();
        assert_eq!(summary.deleted, deleted);
        assert!(bucket.list_keys().await.contains(&keys[28]));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rounds_continue_until_cancelled() {
    let bucket = TestStore::open_local();
    bucket.put_full(10, 0).await;
    let cancel = CancellationToken::new();
    let task = tokio::spawn(build_retention(&bucket.store, keep_one_config()).run(cancel.clone()));
    for round in 2..5 {
        bucket.put_full(round * 10, round).await;
        let mut checks = 0;
        while bucket.list_keys().await.len() > 1 {
            checks += 1;
            assert!(checks < 4000, "round {round} deleted nothing");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    cancel.cancel();
    tokio::time::timeout(Duration::from_mins(1), task)
        .await
        .expect("the loop did not end")
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn disabled_retention_deletes_nothing_and_waits_for_cancellation() {
    let bucket = TestStore::open_local();
    write_two_chains(&bucket).await;
    let config = RetentionConfig {
        period: None,
        ..keep_one_config()
    };
    let cancel = CancellationToken::new();
    let task = tokio::spawn(build_retention(&bucket.store, config).run(cancel.clone()));
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(!task.is_finished());
    assert_eq!(bucket.list_keys().await.len(), 4);
    cancel.cancel();
    task.await.unwrap();
}
