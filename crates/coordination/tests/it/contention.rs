//! Eight tasks contend for one lock; some crash, some continue after expiry, all have wrong clocks.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use mainstay_coordination::{
    Backing, CoordinationError, Coordinator, Epoch, HeldLock, LockRequest, MemberState, Purpose,
    RestorePhase,
};
use rand::Rng;
use tokio::time::{Instant, sleep, sleep_until};

const CONTENDERS: usize = 8;

/// Start and end of validity of each acquisition, as its holder sees it.
#[derive(Default)]
struct TenureLog(Mutex<BTreeMap<Epoch, (Instant, Instant)>>);

impl TenureLog {
    fn record(&self, epoch: Epoch, started: Instant, ended: Instant) {
        let before = self.0.lock().unwrap().insert(epoch, (started, ended));
        assert!(before.is_none(), "epoch {epoch} was assigned twice");
    }

    fn count_tenures(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    /// Asserts that no two acquisitions were valid at the same time.
    fn assert_no_overlap(&self, at_least: usize) {
        let tenures = self.0.lock().unwrap();
        assert!(
            tenures.len() >= at_least,
            "only {} acquisitions: the lock is stuck",
            tenures.len()
        );
        for ((epoch, (_, ended)), (next, (started, _))) in
            tenures.iter().zip(tenures.iter().skip(1))
        {
            assert!(ended <= started, "epochs {epoch} and {next} overlap");
        }
    }
}

/// Duration of a contest.
#[derive(Clone, Copy)]
pub(crate) struct ContestConfig {
    pub(crate) ttl: Duration,
    /// Minimum duration.
    pub(crate) min_duration: Duration,
    /// Minimum number of acquisitions.
    pub(crate) min_tenures: usize,
    /// Time after which the lock counts as stuck.
    pub(crate) timeout: Duration,
}

/// Runs the contest on one document; each task has its own backing.
pub(crate) async fn run_contest(backings: impl Fn() -> Arc<dyn Backing>, rules: ContestConfig) {
    let (ledger, started) = (Arc::new(TenureLog::default()), Instant::now());
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..CONTENDERS {
        // From four years slow to three years fast.
        let skew = SignedDuration::from_hours((i64::try_from(number).unwrap() - 4) * 24 * 365);
        let coordinator = Coordinator::with_wall_clock(backings(), move || Timestamp::now() + skew);
        let ledger = Arc::clone(&ledger);
        tasks.spawn(run_contender(coordinator, number, rules, started, ledger));
    }
    while let Some(task) = tasks.join_next().await {
        task.unwrap();
    }
    ledger.assert_no_overlap(rules.min_tenures);
}

async fn run_contender(
    coordinator: Arc<Coordinator>,
    number: usize,
    rules: ContestConfig,
    start: Instant,
    ledger: Arc<TenureLog>,
) {
    let ttl = rules.ttl;
    while start.elapsed() < rules.min_duration || ledger.count_tenures() < rules.min_tenures {
        let lock_request = LockRequest {
            holder: format!("task-{number}"),
            purpose: Purpose::Roll,
            ttl,
        };
        let remaining = rules.timeout.saturating_sub(start.elapsed());
        let held = match coordinator.acquire(&lock_request, remaining).await {
            Ok(held) => held,
            Err(CoordinationError::Contended { .. }) if !remaining.is_zero() => continue,
            Err(CoordinationError::Contended { .. } | CoordinationError::LockHeld { .. }) => return,
            Err(error) => panic!("acquire: {error:?}"),
        };
        let (started, epoch) = (Instant::now(), held.token().epoch);
        for _ in 0..random_below(3) {
            sleep(ttl / 10).await;
            use_lock(&held, number).await;
        }
        match random_below(10) {
            0..6 => {
                let ended = Instant::now().min(held.valid_until());
                // Fails if the lock was lost meanwhile or other writers caused conflicts; both are fine here.
                match held.release().await {
                    Ok(())
                    | Err(
                        CoordinationError::LockLost { .. } | CoordinationError::Contended { .. },
                    ) => {}
                    Err(error) => panic!("release: {error:?}"),
                }
                ledger.record(epoch, started, ended);
            }
            6..8 => ledger.record(epoch, started, held.valid_until()), // crashes
            _ => {
                ledger.record(epoch, started, held.valid_until());
                act_after_expiry(&held, &coordinator, ttl).await;
            }
        }
    }
}

fn random_below(below: u32) -> u32 {
    rand::rng().random_range(0..below)
}

/// Renews the lock, checks its fence and writes with it. May fail only because the lock is lost or other
/// writers cause conflicts.
async fn use_lock(held: &HeldLock, number: usize) {
    let fence = held.fence();
    let state = MemberState::new(RestorePhase::Restoring, Timestamp::now());
    let outcome = async {
        held.renew().await?;
        fence.check().await?;
        fence
            .write_member_state(&format!("member-{number}"), &state)
            .await
    };
    match outcome.await {
        Ok(()) | Err(CoordinationError::LockLost { .. } | CoordinationError::Contended { .. }) => {}
        Err(error) => panic!("work: {error:?}"),
    }
}

/// Continues after the lock expired: every check fails, before and after another task acquires the lock.
async fn act_after_expiry(held: &HeldLock, coordinator: &Arc<Coordinator>, ttl: Duration) {
    sleep_until(held.valid_until()).await;
    let fence = held.fence();
    assert!(
        fence.check().await.is_err(),
        "fence of an expired lock passed"
    );
    let deadline = Instant::now() + ttl * 4;
    while coordinator.read_lock().await.unwrap().unwrap().epoch == held.token().epoch {
        if Instant::now() > deadline {
            return; // the contest is over; no task acquires the lock any more
        }
        sleep(Duration::from_millis(20)).await;
    }
    // The fence of a Job has no validity time; it only checks the document.
    let job_fence = coordinator.fence_for(held.token().clone());
    let state = MemberState::new(RestorePhase::Failed, Timestamp::now());
    for refused in [
        job_fence.check().await,
        job_fence.write_member_state("stale", &state).await,
        held.renew().await,
        fence.check().await,
    ] {
        assert!(
            matches!(refused, Err(CoordinationError::LockLost { .. })),
            "{refused:?}"
        );
    }
    assert_eq!(coordinator.read_member("stale").await.unwrap(), None);
}
