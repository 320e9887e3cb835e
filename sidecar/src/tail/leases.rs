//! How long leases were granted for, so that a restore can grant them anew.

use std::collections::HashMap;
use std::time::Duration;

use etcd_client::{Client, LeaseTimeToLiveOptions};
use futures::StreamExt;
use steward_ids::LeaseId;
use tracing::debug;

/// Leases asked about at the same time.
const AT_ONCE: usize = 16;
/// An answer that takes longer is done without: the event counts more than the life of its lease.
const PATIENCE: Duration = Duration::from_secs(1);
/// Leases remembered: some ten megabytes. Beyond, the memory starts anew.
const MOST: usize = 200_000;

/// Granted lives of leases seen so far.
#[derive(Debug, Default)]
pub struct LeaseTtls {
    granted: HashMap<LeaseId, Option<i64>>,
}

impl LeaseTtls {
    /// Seconds a lease was granted for, if known.
    pub fn granted(&self, lease: LeaseId) -> Option<i64> {
        self.granted.get(&lease).copied().flatten()
    }

    /// Remembers what is known of a lease.
    pub fn remember(&mut self, lease: LeaseId, seconds: Option<i64>) {
        if self.granted.len() >= MOST {
            self.granted.clear();
        }
        self.granted.insert(lease, seconds);
    }

    /// Asks etcd about the leases of these events that are not known yet. A lease that is gone by now has no
    /// life to tell; neither has one etcd does not answer about in time. What was learnt stays when the future is dropped.
    pub async fn learn(&mut self, client: &Client, events: &[etcd_client::Event]) {
        let mut unknown: Vec<LeaseId> = events
            .iter()
            .filter_map(|event| event.kv())
            .map(|kv| LeaseId::from_signed(kv.lease()))
            .filter(|lease| *lease != LeaseId::NONE && !self.granted.contains_key(lease))
            .collect();
        if unknown.is_empty() {
            return;
        }
        unknown.sort_unstable();
        unknown.dedup();
        let mut answers = futures::stream::iter(unknown)
            .map(|lease| async move { (lease, ask(client.clone(), lease).await) })
            .buffer_unordered(AT_ONCE);
        while let Some((lease, answer)) = answers.next().await {
            if let Some(seconds) = answer {
                self.remember(lease, seconds);
            }
        }
    }
}

/// `None` without an answer, `Some(None)` for a lease that is gone.
async fn ask(client: Client, lease: LeaseId) -> Option<Option<i64>> {
    let mut client = client.lease_client();
    let options = LeaseTimeToLiveOptions::new();
    let answer = client.time_to_live(lease.to_signed(), Some(options));
    match tokio::time::timeout(PATIENCE, answer).await {
        Ok(Ok(answer)) => Some(Some(answer.granted_ttl()).filter(|seconds| *seconds > 0)),
        Ok(Err(error)) => {
            debug!(lease = %lease, error = %error, "the life of a lease is not known");
            None
        }
        Err(_) => None,
    }
}
