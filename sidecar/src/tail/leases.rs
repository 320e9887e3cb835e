//! How long leases were granted for, so that a restore can grant them anew.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use etcd_client::{Client, LeaseTimeToLiveOptions};
use futures::StreamExt;
use mainstay_ids::LeaseId;
use tokio::time::Instant;
use tracing::debug;

/// Leases asked about at the same time.
const MAX_CONCURRENT_REQUESTS: usize = 16;
/// An answer that takes longer is done without: the event counts more than the life of its lease.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(1);
/// Leases, and keys on them, remembered: some ten megabytes. Beyond, the memory starts anew.
const MAX_ENTRIES: usize = 100_000;
/// A lease may be revoked, and granted again with another life: it is asked about again after this long, and at once when
/// a key on it was deleted, as every key is when its lease is revoked.
const REFRESH_AFTER: Duration = Duration::from_mins(1);

/// What is known of a lease.
#[derive(Clone, Copy, Debug)]
struct CachedTtl {
    /// `None` for one that was gone.
    seconds: Option<i64>,
    /// When etcd said so; `None` once that may have changed.
    fetched_at: Option<Instant>,
}

/// Granted lives of leases seen so far.
#[derive(Debug, Default)]
pub struct LeaseTtls {
    granted: HashMap<LeaseId, CachedTtl>,
    /// The lease a key was put on, by the hash of the key.
    leases_by_key: HashMap<u64, LeaseId>,
    hasher: RandomState,
}

impl LeaseTtls {
    /// Seconds a lease was granted for, if known.
    pub fn granted_ttl(&self, lease: LeaseId) -> Option<i64> {
        self.granted.get(&lease).and_then(|known| known.seconds)
    }

    /// Remembers what is known of a lease.
    pub fn insert(&mut self, lease: LeaseId, seconds: Option<i64>) {
        if self.granted.len() >= MAX_ENTRIES {
            self.granted.clear();
        }
        let since = Some(Instant::now());
        self.granted.insert(lease, CachedTtl { seconds, fetched_at: since });
    }

    /// Asks etcd about the leases of these events that are not known, or not any more. A lease that is gone by now has no
    /// life to tell; neither has one etcd does not answer about in time. What was learnt stays when the future is dropped.
    pub async fn refresh(&mut self, client: &Client, events: &[etcd_client::Event]) {
        let unknown = self.find_unknown(events);
        let mut answers = futures::stream::iter(unknown)
            .map(|lease| async move { (lease, request_ttl(client.clone(), lease).await) })
            .buffer_unordered(MAX_CONCURRENT_REQUESTS);
        while let Some((lease, answer)) = answers.next().await {
            if let Some(seconds) = answer {
                self.insert(lease, seconds);
            }
        }
    }

    /// How many of these events are on a lease etcd has said nothing about.
    pub fn count_unknown(&self, events: &[etcd_client::Event]) -> usize {
        let leases = events.iter().filter_map(event_lease);
        leases
            .filter(|lease| !self.granted.contains_key(lease))
            .count()
    }

    /// The leases of these events to ask about.
    fn find_unknown(&mut self, events: &[etcd_client::Event]) -> Vec<LeaseId> {
        self.invalidate_deleted(events);
        let is_fresh = |known: &CachedTtl| known.fetched_at.is_some_and(|since| since.elapsed() < REFRESH_AFTER);
        let mut unknown: Vec<LeaseId> = events
            .iter()
            .filter_map(event_lease)
            .filter(|lease| !self.granted.get(lease).is_some_and(is_fresh))
            .collect();
        unknown.sort_unstable();
        unknown.dedup();
        unknown
    }

    /// Doubts the leases whose keys are deleted, and remembers which keys are put on which.
    fn invalidate_deleted(&mut self, events: &[etcd_client::Event]) {
        for event in events {
            let Some(kv) = event.kv() else { continue };
            let is_put = event.0.r#type == 0; // the client's own accessor panics on a type it does not know
            if is_put && kv.lease() == 0 && self.leases_by_key.is_empty() {
                continue;
            }
            let holder = self.hasher.hash_one(kv.key());
            if let Some(lease) = event_lease(event).filter(|_| is_put) {
                if self.leases_by_key.len() >= MAX_ENTRIES {
                    self.leases_by_key.clear();
                }
                self.leases_by_key.insert(holder, lease);
                continue;
            }
            let held = self.leases_by_key.remove(&holder);
            let doubted = held.filter(|_| !is_put);
            let known = doubted.and_then(|lease| self.granted.get_mut(&lease));
            if let Some(known) = known {
                known.fetched_at = None;
            }
        }
    }
}

fn event_lease(event: &etcd_client::Event) -> Option<LeaseId> {
    let lease = LeaseId::from_signed(event.kv()?.lease());
    (lease != LeaseId::NONE).then_some(lease)
}

/// `None` without an answer, `Some(None)` for a lease that is gone.
async fn request_ttl(client: Client, lease: LeaseId) -> Option<Option<i64>> {
    let mut client = client.lease_client();
    let options = LeaseTimeToLiveOptions::new();
    let answer = client.time_to_live(lease.to_signed(), Some(options));
    match tokio::time::timeout(REQUEST_TIMEOUT, answer).await {
        Ok(Ok(answer)) => Some(Some(answer.granted_ttl()).filter(|seconds| *seconds > 0)),
        Ok(Err(error)) => {
            debug!(lease = %lease, error = %error, "the life of a lease is not known");
            None
        }
        Err(_) => None,
    }
}

#[cfg(test)]
mod tests;
