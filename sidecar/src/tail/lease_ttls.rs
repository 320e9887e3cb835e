//! Caches the granted TTLs of leases, which are stored with the events so that a restore can grant the leases again.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use etcd_client::{Client, LeaseTimeToLiveOptions};
use futures::StreamExt;
use mainstay_ids::LeaseId;
use tokio::time::Instant;
use tracing::debug;

/// Concurrent TTL requests.
const MAX_CONCURRENT_REQUESTS: usize = 16;
/// Timeout of a TTL request. Events are not delayed further: they matter more than the TTL of their lease.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(1);
/// Limit of cached leases, and of keys attached to them: some ten megabytes. A full cache is cleared.
const MAX_ENTRIES: usize = 100_000;
/// Age after which a TTL is read again: a lease ID may be revoked and granted again with another TTL. Deleting a key of
/// the lease expires its entry at once, because revoking a lease deletes its keys.
const REFRESH_AFTER: Duration = Duration::from_mins(1);

/// Cached TTL of a lease.
#[derive(Clone, Copy, Debug)]
struct CachedTtl {
    /// Granted TTL; `None` if the lease no longer existed.
    seconds: Option<i64>,
    /// When etcd reported it; `None` once it may have changed.
    fetched_at: Option<Instant>,
}

/// Granted TTLs of the leases of captured events.
#[derive(Debug, Default)]
pub struct LeaseTtls {
    granted: HashMap<LeaseId, CachedTtl>,
    /// Lease of each key, by the hash of the key.
    leases_by_key: HashMap<u64, LeaseId>,
    hasher: RandomState,
}

impl LeaseTtls {
    /// Granted TTL in seconds, if known.
    pub(crate) fn granted_ttl(&self, lease: LeaseId) -> Option<i64> {
        self.granted.get(&lease).and_then(|known| known.seconds)
    }

    /// Caches a TTL; `None` for a lease that no longer exists.
    pub(crate) fn insert(&mut self, lease: LeaseId, seconds: Option<i64>) {
        if self.granted.len() >= MAX_ENTRIES {
            self.granted.clear();
        }
        let fetched_at = Some(Instant::now());
        self.granted.insert(
            lease,
            CachedTtl {
                seconds,
                fetched_at,
            },
        );
    }

    /// Reads the TTLs of unknown and expired leases of these events from etcd. A lease that no longer exists has no
    /// TTL, and one whose request times out stays unknown. Answers received so far are kept if the future is dropped.
    pub(crate) async fn refresh(&mut self, client: &Client, events: &[etcd_client::Event]) {
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

    /// Number of events whose lease has no cache entry.
    pub(crate) fn count_unknown(&self, events: &[etcd_client::Event]) -> usize {
        let leases = events.iter().filter_map(event_lease);
        leases
            .filter(|lease| !self.granted.contains_key(lease))
            .count()
    }

    /// Leases of these events whose TTL must be read.
    fn find_unknown(&mut self, events: &[etcd_client::Event]) -> Vec<LeaseId> {
        self.invalidate_deleted(events);
        let is_fresh = |known: &CachedTtl| {
            known
                .fetched_at
                .is_some_and(|since| since.elapsed() < REFRESH_AFTER)
        };
        let mut unknown: Vec<LeaseId> = events
            .iter()
            .filter_map(event_lease)
            .filter(|lease| !self.granted.get(lease).is_some_and(is_fresh))
            .collect();
        unknown.sort_unstable();
        unknown.dedup();
        unknown
    }

    /// Expires leases whose keys are deleted, and records which key is on which lease.
    fn invalidate_deleted(&mut self, events: &[etcd_client::Event]) {
        for event in events {
            let Some(kv) = event.kv() else { continue };
            let is_put = event.0.r#type == 0; // `etcd_client::Event::event_type` panics on an unknown type
            // No key is on a lease: there is nothing to expire, and the key need not be hashed.
            if is_put && kv.lease() == 0 && self.leases_by_key.is_empty() {
                continue;
            }
            let key_hash = self.hasher.hash_one(kv.key());
            if let Some(lease) = event_lease(event).filter(|_| is_put) {
                if self.leases_by_key.len() >= MAX_ENTRIES {
                    self.leases_by_key.clear();
                }
                self.leases_by_key.insert(key_hash, lease);
                continue;
            }
            let held = self.leases_by_key.remove(&key_hash);
            let revoked = held.filter(|_| !is_put);
            let known = revoked.and_then(|lease| self.granted.get_mut(&lease));
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

/// `None` without an answer, `Some(None)` for a lease that no longer exists.
async fn request_ttl(client: Client, lease: LeaseId) -> Option<Option<i64>> {
    let mut client = client.lease_client();
    let options = LeaseTimeToLiveOptions::new();
    let answer = client.time_to_live(lease.to_signed(), Some(options));
    match tokio::time::timeout(REQUEST_TIMEOUT, answer).await {
        Ok(Ok(answer)) => Some(Some(answer.granted_ttl()).filter(|seconds| *seconds > 0)),
        Ok(Err(error)) => {
            debug!(lease = %lease, error = %error, "failed to read the TTL of a lease");
            None
        }
        Err(_) => None,
    }
}

#[cfg(test)]
mod tests;
