//! Eight parties want one lock; some crash, some go on believing, all have wrong clocks.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use mainstay_coordination::{
    Backing, CoordinationError, Coordinator, Epoch, Held, MemberState, Phase, Purpose, Wish,
};
use rand::Rng;
use tokio::time::{Instant, sleep, sleep_until};

const CONTENDERS: usize = 8;

/// When each tenure began for its holder, and when the holder stopped believing in it.
#[derive(Default)]
struct Ledger(Mutex<BTreeMap<Epoch, (Instant, Instant)>>);

impl Ledger {
    fn note(&self, epoch: Epoch, began: Instant, ended: Instant) {
        let before = self.0.lock().unwrap().insert(epoch, (began, ended));
        assert!(before.is_none(), "epoch {epoch} was given twice");
    }

    fn tenures(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    /// One tenure begins when all before it are over.
    fn check(&self, at_least: usize) {
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
pub(crate) struct Rules {
    pub(crate) ttl: Duration,
    /// For so long,
    pub(crate) lasts: Duration,
    /// and until there were so many tenures,
    pub(crate) at_least: usize,
    /// but after this time the lock is stuck.
    pub(crate) patience: Duration,
}

/// Runs the contest over one document, which each party reaches through a backing of its own.
pub(crate) async fn contest(backings: impl Fn() -> Arc<dyn Backing>, rules: Rules) {
    let (ledger, began) = (Arc::new(Ledger::default()), Instant::now());
    let mut parties = tokio::task::JoinSet::new();
    for number in 0..CONTENDERS {
        // From four years slow to three years fast.
        let skew = SignedDuration::from_hours((i64::try_from(number).unwrap() - 4) * 24 * 365);
        let coordinator = Coordinator::with_wall_clock(backings(), move || Timestamp::now() + skew);
        let ledger = Arc::clone(&ledger);
        parties.spawn(contend(coordinator, number, rules, began, ledger));
    }
    while let Some(party) = parties.join_next().await {
        party.unwrap();
    }
    ledger.check(rules.at_least);
}

async fn contend(
    coordinator: Arc<Coordinator>,
    number: usize,
    rules: Rules,
    start: Instant,
    ledger: Arc<Ledger>,
) {
    let ttl = rules.ttl;
    while start.elapsed() < rules.lasts || ledger.tenures() < rules.at_least {
        let wish = Wish {
            holder: format!("party-{number}"),
            purpose: Purpose::Roll,
            ttl,
        };
        let patience = rules.patience.saturating_sub(start.elapsed());
        let held = match coordinator.acquire(&wish, patience).await {
            Ok(held) => held,
            Err(CoordinationError::Contended { .. }) if !patience.is_zero() => continue,
            Err(CoordinationError::Contended { .. } | CoordinationError::Held { .. }) => return,
            Err(error) => panic!("acquire: {error:?}"),
        };
        let (began, epoch) = (Instant::now(), held.claim().epoch);
        for _ in 0..draw(3) {
            sleep(ttl / 10).await;
            work(&held, number).await;
        }
        match draw(10) {
            0..6 => {
                let ended = Instant::now().min(held.valid_until());
                // Refused when it was lost meanwhile, which is as good; not done when the others wrote every time.
                match held.release().await {
                    Ok(())
                    | Err(CoordinationError::Lost { .. } | CoordinationError::Contended { .. }) => {
                    }
                    Err(error) => panic!("release: {error:?}"),
                }
                ledger.note(epoch, began, ended);
            }
            6..8 => ledger.note(epoch, began, held.valid_until()), // dies
            _ => {
                ledger.note(epoch, began, held.valid_until());
                linger(&held, &coordinator, ttl).await;
            }
        }
    }
}

fn draw(below: u32) -> u32 {
    rand::rng().random_range(0..below)
}

/// What a holder does: renews, checks its fence, writes with it. All may fail, but only because the lock is lost or the
/// others wrote every time.
async fn work(held: &Held, number: usize) {
    let fence = held.fence();
    let state = MemberState::new(Phase::Restoring, Timestamp::now());
    let outcome = async {
        held.renew().await?;
        fence.check().await?;
        fence.report(&format!("member-{number}"), &state).await
    };
    match outcome.await {
        Ok(()) | Err(CoordinationError::Lost { .. } | CoordinationError::Contended { .. }) => {}
        Err(error) => panic!("work: {error:?}"),
    }
}

/// Goes on as if nothing had happened after the lock expired: nothing lets it pass, before or after the lock changes hands.
async fn linger(held: &Held, coordinator: &Arc<Coordinator>, ttl: Duration) {
    sleep_until(held.valid_until()).await;
    let fence = held.fence();
    assert!(fence.check().await.is_err(), "an expired fence passed");
    let deadline = Instant::now() + ttl * 4;
    while coordinator.lock().await.unwrap().unwrap().epoch == held.claim().epoch {
        if Instant::now() > deadline {
            return; // the contest is over and nobody wants the lock
        }
        sleep(Duration::from_millis(20)).await;
    }
    // The fence of a Job knows no time, only the document.
    let of_a_job = coordinator.fence(held.claim().clone());
    let state = MemberState::new(Phase::Failed, Timestamp::now());
    for refused in [
        of_a_job.check().await,
        of_a_job.report("stale", &state).await,
        held.renew().await,
        fence.check().await,
    ] {
        assert!(
            matches!(refused, Err(CoordinationError::Lost { .. })),
            "{refused:?}"
        );
    }
    assert_eq!(coordinator.member("stale").await.unwrap(), None);
}
