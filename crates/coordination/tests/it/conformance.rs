//! Tests that every backing must pass.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use mainstay_coordination::backing::Edits;
use mainstay_coordination::{
    AcquireOutcome, Backing, CoordinationError, Coordinator, Epoch, HeldLock, LockRequest,
    MemberState, PinRequest, Purpose, RestorePhase,
};
use tokio::time::{Instant, sleep};

pub(crate) fn lock_request(holder: &str, ttl: Duration) -> LockRequest {
    LockRequest {
        holder: holder.to_owned(),
        purpose: Purpose::Compact,
        ttl,
    }
}

pub(crate) async fn acquire_lock(
    coordinator: &Arc<Coordinator>,
    holder: &str,
    ttl: Duration,
) -> HeldLock {
    coordinator
        .acquire(&lock_request(holder, ttl), Duration::from_mins(1))
        .await
        .unwrap()
}

fn pin_request(name: &str, ttl: Duration) -> PinRequest {
    PinRequest {
        name: name.to_owned(),
        holder: format!("job-{name}"),
        purpose: Purpose::Copy,
        keys: BTreeSet::from([format!("v2/{name}")]),
        revisions: None,
        ttl,
    }
}

/// Writes an entry without any check.
pub(crate) async fn overwrite_entry(backing: &dyn Backing, entry: &str, text: Option<&str>) {
    let page = backing.read().await.unwrap();
    let edits = Edits::from([(entry.to_owned(), text.map(str::to_owned))]);
    backing.write(&page, &edits).await.unwrap();
}

/// Retries while other writers cause conflicts.
async fn retry_contended<T, F>(operation: impl Fn() -> F) -> T
where
    F: Future<Output = Result<T, CoordinationError>>,
{
    loop {
        match operation().await {
            Err(CoordinationError::Contended { .. }) => {}
            result => return result.unwrap(),
        }
    }
}

/// Whether the operation succeeded; `false` if other writers caused conflicts.
fn succeeded_or_contended(outcome: Result<(), CoordinationError>) -> bool {
    match outcome {
        Ok(()) => true,
        Err(CoordinationError::Contended { .. }) => false,
        Err(error) => panic!("{error:?}"),
    }
}

/// Eight tasks create, renew and remove pins concurrently; no write loses another task's pin.
pub(crate) async fn pins_are_never_lost(backings: impl Fn() -> Arc<dyn Backing>) {
    overwrite_entry(&*backings(), "from-the-future", Some("{\"kept\":true}")).await;
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..8 {
        let coordinator = Coordinator::new(backings());
        tasks.spawn(async move {
            for round in 0..4 {
                let name = format!("pin-{number}-{round}");
                let key = format!("v2/{name}");
                let request = pin_request(&name, Duration::from_mins(1));
                let mut pin = retry_contended(|| coordinator.create_pin(&request)).await;
                for _ in 0..3 {
                    assert!(
                        coordinator.list_active_pins().await.unwrap().covers(&key),
                        "{name} is lost"
                    );
                    // The lock changes its holder in the same document meanwhile.
                    let holder = lock_request(&name, Duration::from_secs(30));
                    let attempt = retry_contended(|| coordinator.try_acquire(&holder)).await;
                    if let AcquireOutcome::Acquired(held) = attempt {
                        succeeded_or_contended(held.release().await);
                    }
                    retry_contended(|| pin.renew()).await;
                }
                while !succeeded_or_contended(pin.remove().await) {
                    pin = retry_contended(|| coordinator.create_pin(&request)).await;
                }
                assert!(
                    !coordinator.list_active_pins().await.unwrap().covers(&key),
                    "{name} was not removed"
                );
            }
        });
    }
    while let Some(task) = tasks.join_next().await {
        task.unwrap();
    }
    let page = backings().read().await.unwrap();
    assert_eq!(page.entries["from-the-future"], "{\"kept\":true}");
    assert_eq!(
        page.entries.len(),
        2,
        "expected the lock and the unknown entry: {page:?}"
    );
}

/// The pin of a dead reader expires after its TTL and not before.
pub(crate) async fn pin_of_crashed_reader_expires(backings: impl Fn() -> Arc<dyn Backing>) {
    let ttl = Duration::from_secs(10);
    let retention = Coordinator::new(backings());
    let reader = Coordinator::new(backings());
    let alive = reader.create_pin(&pin_request("alive", ttl)).await.unwrap();
    drop(reader.create_pin(&pin_request("dead", ttl)).await.unwrap());
    let started = Instant::now();
    assert!(
        retention
            .list_active_pins()
            .await
            .unwrap()
            .covers("v2/dead")
    );
    let watch = async {
        while retention
            .list_active_pins()
            .await
            .unwrap()
            .covers("v2/dead")
        {
            assert!(
                started.elapsed() < Duration::from_mins(3),
                "the pin did not expire"
            );
            sleep(Duration::from_millis(50)).await;
        }
    };
    alive.run_while_pinned(watch).await.unwrap();
    assert!(started.elapsed() >= ttl);
    assert_eq!(retention.remove_expired_pins().await.unwrap(), ["dead"]);
    let left = Coordinator::new(backings())
        .list_active_pins()
        .await
        .unwrap();
    assert_eq!(left.pins.keys().collect::<Vec<_>>(), ["alive"]);
}

/// The name of another holder's pin is refused; renewing a removed pin returns `PinLost`.
pub(crate) async fn pin_belongs_to_its_holder(backings: impl Fn() -> Arc<dyn Backing>) {
    let (ttl, coordinator) = (Duration::from_mins(1), Coordinator::new(backings()));
    let pin = coordinator
        .create_pin(&pin_request("mine", ttl))
        .await
        .unwrap();
    let other = PinRequest {
        holder: "another".to_owned(),
        ..pin_request("mine", ttl)
    };
    let refused = coordinator.create_pin(&other).await;
    assert!(
        matches!(refused, Err(CoordinationError::PinTaken { .. })),
        "{refused:?}"
    );
    overwrite_entry(&*backings(), "pin.mine", None).await;
    let late = pin.renew().await;
    assert!(
        matches!(late, Err(CoordinationError::PinLost { .. })),
        "{late:?}"
    );
    let invalid_name = coordinator.create_pin(&pin_request("a/b", ttl)).await;
    assert!(
        matches!(invalid_name, Err(CoordinationError::InvalidName(_))),
        "{invalid_name:?}"
    );
}

/// An unreadable entry is an error for its readers and is not changed; other entries work.
pub(crate) async fn unreadable_entry_is_not_overwritten(backings: impl Fn() -> Arc<dyn Backing>) {
    let coordinator = Coordinator::new(backings());
    overwrite_entry(&*backings(), "lock", Some("\"not a lock\"")).await;
    let refused = coordinator
        .try_acquire(&lock_request("a", Duration::from_secs(1)))
        .await;
    let Err(error @ CoordinationError::Unreadable { .. }) = refused else {
        panic!("{refused:?}")
    };
    assert!(
        error
            .to_string()
            .contains("correct the entry, or remove it"),
        "{error}"
    );

    let pin = coordinator
        .create_pin(&pin_request("reader", Duration::from_mins(1)))
        .await
        .unwrap();
    overwrite_entry(&*backings(), "pin.broken", Some("[1]")).await;
    let unknown = coordinator.list_active_pins().await;
    assert!(
        matches!(unknown, Err(CoordinationError::Unreadable { .. })),
        "{unknown:?}"
    );
    assert!(coordinator.remove_expired_pins().await.is_err());
    pin.renew().await.unwrap();

    let page = backings().read().await.unwrap();
    assert_eq!(page.entries["lock"], "\"not a lock\"");
    assert_eq!(page.entries["pin.broken"], "[1]");
}

/// A restarted holder resumes its epoch; after a release it cannot.
pub(crate) async fn restarted_holder_resumes_its_lock(backings: impl Fn() -> Arc<dyn Backing>) {
    let ttl = Duration::from_mins(1);
    let held = acquire_lock(&Coordinator::new(backings()), "controller", ttl).await;
    let claim = held.token().clone();
    let text = serde_json::to_string(&claim).unwrap();
    drop(held);
    let restarted = Coordinator::new(backings());
    let resumed = restarted
        .resume_lock(&serde_json::from_str(&text).unwrap())
        .await
        .unwrap();
    let fence = resumed.fence();
    fence.check().await.unwrap();
    let state =
        MemberState::new(RestorePhase::Restored, Timestamp::now()).with_message("4711 keys");
    fence.write_member_state("etcd-0", &state).await.unwrap();
    assert_eq!(restarted.read_member("etcd-0").await.unwrap(), Some(state));
    fence.remove_member_state("etcd-0").await.unwrap();
    assert_eq!(restarted.read_member("etcd-0").await.unwrap(), None);
    resumed.release().await.unwrap();
    assert!(
        fence.check().await.is_err(),
        "fence of a released lock passed"
    );
    let gone = restarted.resume_lock(&claim).await;
    assert!(
        matches!(gone, Err(CoordinationError::LockLost { .. })),
        "{gone:?}"
    );
}

/// Only the holder raises the epoch; its earlier token and fences become invalid.
pub(crate) async fn holder_raises_its_epoch(backings: impl Fn() -> Arc<dyn Backing>) {
    let ttl = Duration::from_mins(1);
    let coordinator = Coordinator::new(backings());
    let held = acquire_lock(&coordinator, "controller", ttl).await;
    let (before, stale) = (held.token().clone(), held.fence());
    let found = Epoch(before.epoch.0 + 1000);
    let raised = held.raise_epoch(found).await.unwrap();
    assert_eq!(raised.token().epoch, Epoch(found.0 + 1));
    raised.fence().check().await.unwrap();
    assert!(stale.check().await.is_err(), "stale fence passed");
    let written = backings().read().await.unwrap();
    for found in [found, Epoch(u64::MAX)] {
        let again = coordinator.resume_lock(raised.token()).await.unwrap();
        let again = again.raise_epoch(found).await.unwrap();
        assert_eq!(again.token(), raised.token());
    }
    let lock = coordinator.read_lock().await.unwrap().unwrap();
    assert_eq!(lock.epoch, raised.token().epoch);
    assert!(written.entries["lock"].contains(&lock.epoch.to_string()));
    assert!(coordinator.resume_lock(&before).await.is_err());

    let lost = coordinator.resume_lock(raised.token()).await.unwrap();
    raised.release().await.unwrap();
    let next = acquire_lock(&Coordinator::new(backings()), "another", ttl).await;
    let late = lost.raise_epoch(Epoch(lock.epoch.0 + 1000)).await;
    assert!(
        matches!(late, Err(CoordinationError::LockLost { .. })),
        "{late:?}"
    );
    next.fence().check().await.unwrap();
}

/// The lock is renewed while the work runs; the work is cancelled when the lock is removed.
pub(crate) async fn work_stops_when_lock_is_lost(backings: impl Fn() -> Arc<dyn Backing>) {
    let ttl = Duration::from_secs(8);
    let coordinator = Coordinator::new(backings());
    let held = acquire_lock(&coordinator, "worker", ttl).await;
    let done = held
        .run_while_held(async { sleep(ttl + ttl / 2).await })
        .await;
    assert!(done.is_ok(), "{done:?}");
    held.fence().check().await.unwrap();

    let interrupted = held.run_while_held(async {
        overwrite_entry(&*backings(), "lock", None).await;
        sleep(Duration::from_mins(1)).await;
    });
    let lost = interrupted.await;
    assert!(
        matches!(lost, Err(CoordinationError::LockLost { .. })),
        "{lost:?}"
    );
}
