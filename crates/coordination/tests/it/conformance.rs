//! What holds for every backing.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use mainstay_coordination::backing::Edits;
use mainstay_coordination::{
    AcquireOutcome, Backing, CoordinationError, Coordinator, Epoch, HeldLock, MemberState, RestorePhase, PinRequest,
    Purpose, LockRequest,
};
use tokio::time::{Instant, sleep};

pub(crate) fn lock_request(holder: &str, ttl: Duration) -> LockRequest {
    LockRequest {
        holder: holder.to_owned(),
        purpose: Purpose::Compact,
        ttl,
    }
}

pub(crate) async fn acquire_lock(coordinator: &Arc<Coordinator>, holder: &str, ttl: Duration) -> HeldLock {
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

/// Writes an entry past all rules.
pub(crate) async fn overwrite_entry(backing: &dyn Backing, entry: &str, text: Option<&str>) {
    let page = backing.read().await.unwrap();
    let edits = Edits::from([(entry.to_owned(), text.map(str::to_owned))]);
    backing.write(&page, &edits).await.unwrap();
}

/// Asks again when the others wrote every time.
async fn retry_contended<T, F>(ask: impl Fn() -> F) -> T
where
    F: Future<Output = Result<T, CoordinationError>>,
{
    loop {
        match ask().await {
            Err(CoordinationError::Contended { .. }) => {}
            answer => return answer.unwrap(),
        }
    }
}

/// Whether something was done; if not, because the others wrote every time.
fn succeeded_or_contended(outcome: Result<(), CoordinationError>) -> bool {
    match outcome {
        Ok(()) => true,
        Err(CoordinationError::Contended { .. }) => false,
        Err(error) => panic!("{error:?}"),
    }
}

/// Pins of eight parties come, are renewed and go while others write; none disappears by another's write.
pub(crate) async fn pins_are_never_lost(backings: impl Fn() -> Arc<dyn Backing>) {
    overwrite_entry(&*backings(), "from-the-future", Some("{\"kept\":true}")).await;
    let mut parties = tokio::task::JoinSet::new();
    for number in 0..8 {
        let coordinator = Coordinator::new(backings());
        parties.spawn(async move {
            for round in 0..4 {
                let name = format!("pin-{number}-{round}");
                let key = format!("v2/{name}");
                let wanted = pin_request(&name, Duration::from_mins(1));
                let mut pin = retry_contended(|| coordinator.create_pin(&wanted)).await;
                for _ in 0..3 {
                    assert!(
                        coordinator.list_active_pins().await.unwrap().covers(&key),
                        "{name} is lost"
                    );
                    // Locks change hands in the same document meanwhile.
                    let holder = lock_request(&name, Duration::from_secs(30));
                    let attempt = retry_contended(|| coordinator.try_acquire(&holder)).await;
                    if let AcquireOutcome::Acquired(held) = attempt {
                        succeeded_or_contended(held.release().await);
                    }
                    retry_contended(|| pin.renew()).await;
                }
                while !succeeded_or_contended(pin.remove().await) {
                    pin = retry_contended(|| coordinator.create_pin(&wanted)).await;
                }
                assert!(
                    !coordinator.list_active_pins().await.unwrap().covers(&key),
                    "{name} is still there"
                );
            }
        });
    }
    while let Some(party) = parties.join_next().await {
        party.unwrap();
    }
    let page = backings().read().await.unwrap();
    assert_eq!(page.entries["from-the-future"], "{\"kept\":true}");
    assert_eq!(
        page.entries.len(),
        2,
        "the lock and the stranger's entry: {page:?}"
    );
}

/// A reader that died stops protecting what it read, after its time and not before.
pub(crate) async fn pin_of_crashed_reader_expires(backings: impl Fn() -> Arc<dyn Backing>) {
    let ttl = Duration::from_secs(10);
    let retention = Coordinator::new(backings());
    let reader = Coordinator::new(backings());
    let alive = reader.create_pin(&pin_request("alive", ttl)).await.unwrap();
    drop(reader.create_pin(&pin_request("dead", ttl)).await.unwrap());
    let began = Instant::now();
    assert!(retention.list_active_pins().await.unwrap().covers("v2/dead"));
    let watch = async {
        while retention.list_active_pins().await.unwrap().covers("v2/dead") {
            assert!(began.elapsed() < Duration::from_mins(3), "the pin is stuck");
            sleep(Duration::from_millis(50)).await;
        }
    };
    alive.run_while_pinned(watch).await.unwrap();
    assert!(began.elapsed() >= ttl);
    assert_eq!(retention.remove_expired_pins().await.unwrap(), ["dead"]);
    let left = Coordinator::new(backings()).list_active_pins().await.unwrap();
    assert_eq!(left.pins.keys().collect::<Vec<_>>(), ["alive"]);
}

/// Somebody else's name for a pin is refused; a renewal after the pin was swept says that it is too late.
pub(crate) async fn pin_belongs_to_its_holder(backings: impl Fn() -> Arc<dyn Backing>) {
    let (ttl, coordinator) = (Duration::from_mins(1), Coordinator::new(backings()));
    let pin = coordinator.create_pin(&pin_request("mine", ttl)).await.unwrap();
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
    let unnameable = coordinator.create_pin(&pin_request("a/b", ttl)).await;
    assert!(
        matches!(unnameable, Err(CoordinationError::InvalidName(_))),
        "{unnameable:?}"
    );
}

/// What cannot be read stops whoever needs it, and stays as it is; the rest goes on.
pub(crate) async fn unreadable_entry_is_not_overwritten(
    backings: impl Fn() -> Arc<dyn Backing>,
) {
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
            .contains("correct it, or remove the entry"),
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

/// A holder that restarts goes on with its epoch; a holder that gave the lock back cannot.
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
    let state = MemberState::new(RestorePhase::Restored, Timestamp::now()).with_message("4711 keys");
    fence.write_member_state("etcd-0", &state).await.unwrap();
    assert_eq!(restarted.read_member("etcd-0").await.unwrap(), Some(state));
    fence.remove_member_state("etcd-0").await.unwrap();
    assert_eq!(restarted.read_member("etcd-0").await.unwrap(), None);
    resumed.release().await.unwrap();
    assert!(fence.check().await.is_err(), "a released fence passed");
    let gone = restarted.resume_lock(&claim).await;
    assert!(
        matches!(gone, Err(CoordinationError::LockLost { .. })),
        "{gone:?}"
    );
}

/// Only the holder goes above an epoch found elsewhere; what it could do with the epoch before, it cannot any more.
pub(crate) async fn holder_raises_its_epoch(backings: impl Fn() -> Arc<dyn Backing>) {
    let ttl = Duration::from_mins(1);
    let coordinator = Coordinator::new(backings());
    let held = acquire_lock(&coordinator, "controller", ttl).await;
    let (before, stale) = (held.token().clone(), held.fence());
    let found = Epoch(before.epoch.0 + 1000);
    let raised = held.raise_epoch(found).await.unwrap();
    assert_eq!(raised.token().epoch, Epoch(found.0 + 1));
    raised.fence().check().await.unwrap();
    assert!(stale.check().await.is_err(), "an old fence passed");
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

/// Work under a lock is renewed for while it lasts, and dropped when somebody takes the lock away.
pub(crate) async fn work_stops_when_lock_is_lost(backings: impl Fn() -> Arc<dyn Backing>) {
    let ttl = Duration::from_secs(8);
    let coordinator = Coordinator::new(backings());
    let held = acquire_lock(&coordinator, "worker", ttl).await;
    let done = held.run_while_held(async { sleep(ttl + ttl / 2).await }).await;
    assert!(done.is_ok(), "{done:?}");
    held.fence().check().await.unwrap();

    let robbed = held.run_while_held(async {
        overwrite_entry(&*backings(), "lock", None).await;
        sleep(Duration::from_mins(1)).await;
    });
    let lost = robbed.await;
    assert!(
        matches!(lost, Err(CoordinationError::LockLost { .. })),
        "{lost:?}"
    );
}
