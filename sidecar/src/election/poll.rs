//! The loop around the election: ask, judge, start and stop the session.

use std::time::Duration;

use mainstay_telemetry::Chain;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info, warn};

use super::judge::{Change, Evidence, judge, standing_after};
use crate::etcd::Etcd;
use crate::metrics::Metrics;
use crate::state::{Board, Standing};

/// How often the election looks, and how long it waits for an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cadence {
    /// Between two polls.
    pub poll: Duration,
    /// For one answer of etcd.
    pub patience: Duration,
}

impl Cadence {
    /// Looks several times per re-election period, so that a hand-over fits into one; etcd's own election
    /// needs a second or two, and a poll costs it microseconds.
    pub fn from_period(period: Duration, question_timeout: Duration) -> Self {
        Self {
            poll: (period / 5).clamp(Duration::from_millis(100), Duration::from_secs(1)),
            patience: question_timeout.min(period),
        }
    }
}

/// How a session is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Farewell {
    /// Store what was captured, then end.
    Store,
    /// End now: what is not stored yet is the next leader's.
    Drop,
}

/// What a leader does. It ends soon after the token says so, in the way [`Farewell`] says.
pub trait Session: Send + Sync + 'static {
    /// Starts leading.
    fn start(&self, stop: CancellationToken, farewell: FarewellNote) -> JoinHandle<()>;
}

/// Where a session that is told to stop finds out how.
pub type FarewellNote = std::sync::Arc<std::sync::OnceLock<Farewell>>;

struct Running {
    task: JoinHandle<()>,
    stop: CancellationToken,
    farewell: FarewellNote,
}

/// The election of one sidecar.
pub struct Election<S> {
    /// The etcd beside it.
    pub etcd: Etcd,
    /// How often to look.
    pub cadence: Cadence,
    /// Where the outcome is written.
    pub board: Board,
    /// What a leader does.
    pub session: S,
    /// What is measured.
    pub metrics: Metrics,
}

impl<S: Session> Election<S> {
    /// Polls until cancelled; then ends the session in an orderly way.
    pub async fn run(self, cancel: CancellationToken) {
        let mut running: Option<Running> = None;
        let mut ticks = tokio::time::interval(self.cadence.poll);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = cancel.cancelled() => break,
                _ = ticks.tick() => {}
            }
            let evidence = self.look().await;
            let before = self.board.borrow().standing;
            let now = judge(&evidence);
            self.publish(&evidence, now);
            match standing_after(before, now) {
                Change::None => self.revive(&mut running),
                Change::Took => running = Some(self.begin()),
                Change::HandedOver => end(running.take(), Farewell::Store).await,
                Change::Lost => end(running.take(), Farewell::Drop).await,
            }
            if before != now {
                info!(from = before.word(), to = now.word(), "standing changed");
                self.metrics.election_changed(now);
            }
        }
        end(running, Farewell::Store).await;
    }

    /// Asks the own member, and the quorum when the member claims to lead.
    async fn look(&self) -> Evidence {
        let sighting = match self.etcd.sight(self.cadence.patience).await {
            Ok(sighting) => sighting,
            Err(error) => {
                debug!(error = %Chain(&error), "etcd does not answer");
                return Evidence::Silence;
            }
        };
        if sighting.leader != Some(sighting.member) || sighting.is_learner {
            return Evidence::Seen(sighting);
        }
        match self.etcd.confirm(self.cadence.patience).await {
            Ok(revision) => Evidence::Confirmed(sighting, revision),
            Err(error) => {
                warn!(error = %Chain(&error), "the own member says it leads, and that cannot be confirmed");
                Evidence::Unconfirmed(sighting)
            }
        }
    }

    fn publish(&self, evidence: &Evidence, standing: Standing) {
        self.metrics.standing(standing);
        self.board.send_modify(|state| {
            state.standing = standing;
            state.etcd_answers = !matches!(evidence, Evidence::Silence);
            let sighting = match evidence {
                Evidence::Silence => return,
                Evidence::Seen(sighting) | Evidence::Unconfirmed(sighting) => sighting.clone(),
                Evidence::Confirmed(sighting, revision) => {
                    let mut sighting = sighting.clone();
                    sighting.revision = sighting.revision.max(*revision);
                    sighting
                }
            };
            self.metrics.learner(sighting.is_learner);
            state.sighting = Some(sighting);
        });
    }

    /// A session never ends by itself; one that did took a defect with it, and backups go on.
    fn revive(&self, running: &mut Option<Running>) {
        if running
            .as_ref()
            .is_some_and(|session| session.task.is_finished())
        {
            error!("the session ended unasked, a new one begins");
            *running = Some(self.begin());
        }
    }

    fn begin(&self) -> Running {
        let stop = CancellationToken::new();
        let farewell = FarewellNote::default();
        let task = self.session.start(stop.clone(), farewell.clone());
        Running {
            task,
            stop,
            farewell,
        }
    }
}

/// Ends a session and waits for its end: the next one must not meet it.
async fn end(running: Option<Running>, farewell: Farewell) {
    let Some(Running {
        task,
        stop,
        farewell: note,
    }) = running
    else {
        return;
    };
    let _ = note.set(farewell); // nobody else sets it
    stop.cancel();
    if let Err(error) = task.await {
        warn!(error = %error, "the session did not end in an orderly way");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_of_leadership_is_looked_for_several_times_in_each_period() {
        for seconds in [1, 2, 5, 60] {
            let period = Duration::from_secs(seconds);
            let cadence = Cadence::from_period(period, Duration::from_secs(5));
            assert!(cadence.poll * 5 <= period, "{cadence:?} in {period:?}");
            assert!(cadence.patience <= period, "{cadence:?} in {period:?}");
        }
    }
}
