//! Whether this process may write: the end of its leadership, which every write checks first.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// Whether this process may write. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Leadership(Arc<LeadershipState>);

#[derive(Debug)]
struct LeadershipState {
    leader_until: watch::Sender<Option<Instant>>,
    is_always_leader: AtomicBool,
}

/// Another process may be the leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this process is not the leader")]
#[non_exhaustive]
pub(crate) struct LeadershipLost;

impl Leadership {
    /// Without leader election, this process is the only one.
    pub(crate) fn always_leader() -> Self {
        let this = Self::not_leading();
        this.0.is_always_leader.store(true, Ordering::Release);
        this
    }

    pub(crate) fn not_leading() -> Self {
        Self(Arc::new(LeadershipState {
            leader_until: watch::Sender::new(None),
            is_always_leader: AtomicBool::new(false),
        }))
    }

    /// Moves the deadline up to which this process may write; `None` ends its leadership at once.
    pub(crate) fn set_deadline(&self, until: Option<Instant>) {
        self.0.leader_until.send_replace(until);
    }

    /// Whether this process may write now.
    pub(crate) fn check(&self) -> Result<(), LeadershipLost> {
        let is_leader = self
            .0
            .leader_until
            .borrow()
            .is_some_and(|until| Instant::now() < until);
        if is_leader || self.0.is_always_leader.load(Ordering::Acquire) {
            Ok(())
        } else {
            Err(LeadershipLost)
        }
    }

    /// Returns when this process is not the leader any more.
    pub(crate) async fn wait_until_lost(&self) {
        if self.0.is_always_leader.load(Ordering::Acquire) {
            return std::future::pending().await;
        }
        // A renewal moves the deadline, so wait for whichever comes first.
        let mut until = self.0.leader_until.subscribe();
        loop {
            let Some(deadline) = *until.borrow_and_update() else {
                return;
            };
            tokio::select! {
                () = sleep_until(deadline) => {
                    if self.check().is_err() {
                        return;
                    }
                }
                changed = until.changed() => {
                    if changed.is_err() {
                        return;
                    }
                }
            }
        }
    }
}
