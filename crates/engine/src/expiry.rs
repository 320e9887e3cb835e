//! Expiry of leases.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;

use crate::engine::Engine;

/// etcd looks for expired leases at this interval.
const INTERVAL: Duration = Duration::from_millis(500);

/// Revokes expired leases until it is dropped.
#[derive(Debug)]
pub struct LeaseExpiry {
    task: JoinHandle<()>,
}

impl LeaseExpiry {
    /// Starts it, on the current runtime.
    pub fn start(engine: Arc<dyn Engine>) -> Self {
        let task = tokio::spawn(async move {
            let mut ticks = tokio::time::interval(INTERVAL);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                ticks.tick().await;
                if let Err(error) = engine.revoke_expired().await {
                    tracing::warn!(error = %error, "failed to revoke expired leases");
                }
            }
        });
        Self { task }
    }
}

impl Drop for LeaseExpiry {
    fn drop(&mut self) {
        self.task.abort();
    }
}
