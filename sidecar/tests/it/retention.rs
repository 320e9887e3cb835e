//! Garbage collection on a directory and on a real S3 server.

mod bucket;
mod s3;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use jiff::{SignedDuration, Timestamp};
use mainstay_archive::retention::{Keep, Policy, Reason, Rules};
use mainstay_sidecar::retention::{
    Action, Pinned, Pins, PinsError, Retention, RetentionConfig, RetentionError, StaticPins,
};
use mainstay_store::SnapStore;
use tokio_util::sync::CancellationToken;

use self::bucket::{Bucket, NOW};

fn now() -> Timestamp {
    Timestamp::from_second(NOW).unwrap()
}

fn later(span: SignedDuration) -> Timestamp {
    now() + span
}

/// Keeps one full snapshot and its deltas.
fn strict() -> RetentionConfig {
    RetentionConfig {
        period: Some(Duration::from_millis(20)),
        rules: Rules {
            policy: Policy::LimitBased { most: 1 },
            delta_retention: SignedDuration::ZERO,
        },
        action: Action::Delete,
    }
}

fn retention(store: &SnapStore, config: RetentionConfig) -> Retention {
    let pins = Arc::new(StaticPins::default());
    Retention::new(store.clone(), config, pins, Arc::new(()))
}

/// Two chains: `F10 D11-20`, then `F20 D21-30`.
async fn two_chains(bucket: &Bucket) -> [String; 4] {
    [
        bucket.full(10, 0).await,
        bucket.delta(11, 20, 1).await,
        bucket.full(20, 2).await,
        bucket.delta(21, 30, 3).await,
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn an_old_chain_goes_once_the_newest_is_read() {
    let bucket = Bucket::local();
    let keys = two_chains(&bucket).await;
    let retention = retention(&bucket.store, strict());
    let summary = retention.run_once(now()).await.unwrap();
    assert_eq!(summary.proven.as_ref(), Some(&keys[2]));
    assert_eq!((summary.deleted, summary.failed), (2, 0));
    assert_eq!(bucket.keys().await, keys[2..]);
    let again = retention.run_once(now()).await.unwrap();
    assert!(again.plan.deletions.is_empty() && again.proven.is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_newest_full_keeps_the_chain_before_it_whole() {
    let bucket = Bucket::local();
    let older = bucket.full(5, 0).await;
    let base = bucket.full(10, 1).await;
    let delta = bucket.delta(11, 20, 2).await;
    let damaged = bucket.damaged_full(20, 3).await;
    let retention = retention(&bucket.store, strict());
    let summary = retention.run_once(now()).await.unwrap();
    assert_eq!(summary.proven.as_ref(), Some(&base));
    assert_eq!(summary.damaged, std::slice::from_ref(&damaged));
    assert_eq!(
        bucket.keys().await,
        [base, damaged, delta],
        "{older} is not needed"
    );

    let sound = bucket.full(25, 4).await;
    let summary = retention.run_once(now()).await.unwrap();
    assert_eq!(summary.proven.as_ref(), Some(&sound));
    assert_eq!(bucket.keys().await, [sound]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_delta_ends_the_chain_before_it() {
    let bucket = Bucket::local();
    let old = bucket.full(5, 0).await;
    let base = bucket.full(10, 1).await;
    let sound = bucket.delta(11, 20, 2).await;
    let damaged = bucket.delta_with_hole(21, 30, 3).await;
    let behind = bucket.delta(31, 40, 4).await;
    let summary = retention(&bucket.store, strict()).run_once(now()).await;
    let summary = summary.unwrap();
    assert_eq!(summary.proven.as_ref(), Some(&base));
    assert_eq!(summary.damaged, std::slice::from_ref(&damaged));
    let keys = bucket.keys().await;
    assert_eq!(keys, [base, sound, damaged, behind], "{old} goes");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_single_whole_chain_nothing_goes() {
    let bucket = Bucket::local();
    bucket.damaged_full(10, 0).await;
    bucket.delta(11, 20, 1).await;
    bucket.damaged_full(20, 2).await;
    let summary = retention(&bucket.store, strict()).run_once(now()).await;
    let summary = summary.unwrap();
    assert_eq!((summary.proven, summary.damaged.len()), (None, 2));
    assert!(
        summary
            .plan
            .kept
            .iter()
            .all(|kept| kept.reason == Keep::NothingProven)
    );
    assert_eq!(bucket.keys().await.len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_is_read_once_and_again_when_it_was_replaced() {
    let bucket = Bucket::local();
    two_chains(&bucket).await;
    let retention = retention(&bucket.store, strict());
    retention.run_once(now()).await.unwrap();

    // Damaged in a way that nobody sees without reading it.
    let newest = "Full-00000000-00000020";
    bucket.damage_in_place(newest);
    bucket.full(5, 0).await;
    let summary = retention.run_once(now()).await.unwrap();
    assert_eq!((summary.deleted, summary.damaged.len()), (1, 0));

    bucket.touch(newest, now());
    bucket.full(5, 0).await;
    let summary = retention.run_once(now()).await.unwrap();
    assert_eq!((summary.deleted, summary.damaged.len()), (0, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_names_what_would_go_and_deletes_nothing() {
    let bucket = Bucket::local();
    let keys = two_chains(&bucket).await;
    let config = RetentionConfig {
        action: Action::DryRun,
        ..strict()
    };
    let summary = retention(&bucket.store, config).run_once(now()).await;
    let planned: Vec<_> = summary
        .unwrap()
        .plan
        .deletions
        .into_iter()
        .map(|d| (d.object.key, d.reason))
        .collect();
    let expected = [
        (keys[1].clone(), Reason::PastRetention),
        (keys[0].clone(), Reason::OverLimit),
    ];
    assert_eq!(planned, expected);
    assert_eq!(bucket.keys().await.len(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn parts_nobody_wrote_for_a_day_go() {
    let bucket = Bucket::local();
    bucket.full(10, 0).await;
    let part = bucket.part(20, 1).await;
    let retention = retention(&bucket.store, strict());
    bucket.touch("0000000001", now() - SignedDuration::from_hours(24));
    assert_eq!(retention.run_once(now()).await.unwrap().deleted, 0);
    let summary = retention
        .run_once(later(SignedDuration::from_secs(1)))
        .await;
    assert_eq!(summary.unwrap().deleted, 1, "{part}");
    assert_eq!(bucket.keys().await.len(), 1);
}

/// An API server that does not answer.
struct Unreachable;

#[async_trait]
impl Pins for Unreachable {
    async fn pinned(&self) -> Result<Pinned, PinsError> {
        Err(PinsError {
            place: "a ConfigMap".to_owned(),
            source: "connection refused".into(),
        })
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pins_that_cannot_be_read_hold_everything() {
    let bucket = Bucket::local();
    two_chains(&bucket).await;
    let pins = Arc::new(Unreachable);
    let retention = Retention::new(bucket.store.clone(), strict(), pins, Arc::new(()));
    let error = retention.run_once(now()).await.unwrap_err();
    assert!(matches!(error, RetentionError::Pins(_)), "{error:?}");
    assert_eq!(bucket.keys().await.len(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pinned_object_stays_with_what_leads_to_it() {
    let bucket = Bucket::local();
    let keys = two_chains(&bucket).await;
    let oldest = bucket.full(5, 0).await;
    let pinned = Pinned([keys[1].clone()].into());
    let pins = Arc::new(StaticPins(pinned));
    let retention = Retention::new(bucket.store.clone(), strict(), pins, Arc::new(()));
    let summary = retention.run_once(now()).await.unwrap();
    assert_eq!(summary.deleted, 1, "only {oldest} goes");
    assert_eq!(bucket.keys().await.len(), 4);
}

/// Somebody who begins to read an object after the first look, and may not be asked after the second.
struct Begins {
    asked: AtomicUsize,
    reads: String,
    answers: usize,
}

#[async_trait]
impl Pins for Begins {
    async fn pinned(&self) -> Result<Pinned, PinsError> {
        match self.asked.fetch_add(1, Ordering::Relaxed) {
            0 => Ok(Pinned::default()),
            look if look < self.answers => Ok(Pinned([self.reads.clone()].into())),
            _ => Unreachable.pinned().await,
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_somebody_begins_to_read_in_the_middle_of_a_long_round_stays() {
    for (answers, deleted) in [(9, 28), (1, 20)] {
        let bucket = Bucket::local();
        let mut keys = Vec::new();
        for number in 1..=30 {
            keys.push(bucket.full(number * 10, number).await);
        }
        let pins = Arc::new(Begins {
            asked: AtomicUsize::new(0),
            reads: keys[28].clone(),
            answers,
        });
        let retention = Retention::new(bucket.store.clone(), strict(), pins, Arc::new(()));
        let summary = retention.run_once(now()).await.unwrap();
        assert_eq!(summary.deleted, deleted);
        assert!(bucket.keys().await.contains(&keys[28]));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rounds_go_on_until_cancelled() {
    let bucket = Bucket::local();
    bucket.full(10, 0).await;
    let cancel = CancellationToken::new();
    let task = tokio::spawn(retention(&bucket.store, strict()).run(cancel.clone()));
    for round in 2..5 {
        bucket.full(round * 10, round).await;
        let mut looks = 0;
        while bucket.keys().await.len() > 1 {
            looks += 1;
            assert!(looks < 4000, "round {round} deletes nothing");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    cancel.cancel();
    tokio::time::timeout(Duration::from_mins(1), task)
        .await
        .expect("the loop ends")
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn switched_off_it_does_nothing_but_wait() {
    let bucket = Bucket::local();
    two_chains(&bucket).await;
    let config = RetentionConfig {
        period: None,
        ..strict()
    };
    let cancel = CancellationToken::new();
    let task = tokio::spawn(retention(&bucket.store, config).run(cancel.clone()));
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(!task.is_finished());
    assert_eq!(bucket.keys().await.len(), 4);
    cancel.cancel();
    task.await.unwrap();
}
