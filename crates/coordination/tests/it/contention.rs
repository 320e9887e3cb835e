//! Eight parties want one lock; some crash, some go on believing, all have wrong clocks.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use mainstay_coordination::{
    Backing, CoordinationError, Coordinator, Epoch, HeldLock, MemberState, RestorePhase, Purpose, LockRequest,
};
use rand::Rng;
use tokio::time::{Instant, sleep, sleep_until};

const CONTENDERS: usize = 8;

/// When each tenure began for its holder, and when the holder stopped believing in it.
#[derive(Default)]
struct TenureLog(Mutex<BTreeMap<Epoch, (Instant, Instant)>>);

impl TenureLog {
    fn record(&self, epoch: Epoch, began: Instant, ended: Instant) {
        let before = self.0.lock().unwrap().insert(epoch, (began, ended));
        assert!(before.is_none(), "epoch {epoch} was given twice");
    }

    fn count_tenures(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    /// One tenure begins when all before it are over.
    fn assert_no_overlap(&self, at_least: usize) {
        let tenures = self.0.lock().unwrap();
        assert!(
            tenures.len() >= at_least,
            "only {} tenures: the lock got stuck",
            tenures.len()
        );
        for ((epoch, (_, ended)), (next, (began, _))) in tenures.iter().zip(tenures.iter().skip(1))
        {
            assert!(
                ended <= began,
                "epochs {epoch} and {next} were valid at once"
            );
        }
    }
}

/// How long a contest goes on.
#[derive(Clone, Copy)]
pub(crate) struct ContestConfig {
    pub(crate) ttl: Duration,
    /// For so long,
    pub(crate) min_duration: Duration,
    /// and until there were so many tenures,
    pub(crate) min_tenures: usize,
    /// but after this time the lock is stuck.
    pub(crate) timeout: Duration,
}

/// Runs the contest over one document, which each party reaches through a backing of its own.
pub(crate) async fn run_contest(backings: impl Fn() -> Arc<dyn Backing>, rules: ContestConfig) {
    let (ledger, began) = (Arc::new(TenureLog::default()), Instant::now());
    let mut parties = tokio::task::JoinSet::new();
    for number in 0..CONTENDERS {
        // From four years slow to three years fast.
        let skew = SignedDuration::from_hours((i64::try_from(number).unwrap() - 4) * 24 * 365);
        let coordinator = Coordinator::with_wall_clock(backings(), move || Timestamp::now() + skew);
        let ledger = Arc::clone(&ledger);
        parties.spawn(run_contender(coordinator, number, rules, began, ledger));
    }
    while let Some(party) = parties.join_next().await {
        party.unwrap();
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
            holder: format!("party-{number}"),
            purpose: Purpose::Roll,
            ttl,
        };
        let patience = rules.timeout.saturating_sub(start.elapsed());
        let held = match coordinator.acquire(&lock_request, patience).await {
            Ok(held) => held,
            Err(CoordinationError::Contended { .. }) if !patience.is_zero() => continue,
            Err(CoordinationError::Contended { .. } | CoordinationError::LockHeld { .. }) => return,
            Err(error) => panic!("acquire: {error:?}"),
        };
        let (began, epoch) = (Instant::now(), held.token().epoch);
        for _ in 0..random_below(3) {
            sleep(ttl / 10).await;
            use_lock(&held, number).await;
        }
        match random_below(10) {
            0..6 => {
                let ended = Instant::now().min(held.valid_until());
                // Refused when it was lost meanwhile, which is as good; not done when the others wrote every time.
                match held.release().await {
                    Ok(())
                    | Err(CoordinationError::LockLost { .. } | CoordinationError::Contended { .. }) => {
                    }
                    Err(error) => panic!("release: {error:?}"),
                }
                ledger.record(epoch, began, ended);
            }
            6..8 => ledger.record(epoch, began, held.valid_until()), // dies
            _ => {
                ledger.record(epoch, began, held.valid_until());
                act_after_expiry(&held, &coordinator, ttl).await;
            }
        }
    }
}

fn random_below(below: u32) -> u32 {
    rand::rng().random_range(0..below)
}

/// What a holder does: renews, checks its fence, writes with it. All may fail, but only because the lock is lost or the
/// others wrote every time.
async fn use_lock(held: &HeldLock, number: usize) {
    let fence = held.fence();
    let state = MemberState::new(RestorePhase::Restoring, Timestamp::now());
    let outcome = async {
        held.renew().await?;
        fence.check().await?;
        fence.write_member_state(&format!("member-{number}"), &state).await
    };
    match outcome.await {
        Ok(()) | Err(CoordinationError::LockLost { .. } | CoordinationError::Contended { .. }) => {}
        Err(error) => panic!("work: {error:?}"),
    }
}

/// Goes on as if nothing had happened after the lock expired: nothing lets it pass, before or after the lock changes hands.
async fn act_after_expiry(held: &HeldLock, coordinator: &Arc<Coordinator>, ttl: Duration) {
    sleep_until(held.valid_until()).await;
    let fence = held.fence();
    assert!(fence.check().await.is_err(), "an expired fence passed");
    let deadline = Instant::now() + ttl * 4;
    while coordinator.read_lock().await.unwrap().unwrap().epoch == held.token().epoch {
        if Instant::now() > deadline {
            return; // the contest is over and nobody wants the lock
        }
        sleep(Duration::from_millis(20)).await;
    }
    // The fence of a Job knows no time, only the document.
    let of_a_job = coordinator.fence_for(held.token().clone());
    let state = MemberState::new(RestorePhase::Failed, Timestamp::now());
    for refused in [
        of_a_job.check().await,
        of_a_job.write_member_state("stale", &state).await,
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
