//! Leases and the keys attached to them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

use bytes::Bytes;
use mainstay_ids::LeaseId;

use crate::answer::LeaseStatus;
use crate::error::EngineError;

/// etcd's limit.
const MAX_TTL: i64 = 9_000_000_000;
/// etcd rounds up to this with its default election timeout of one second.
const MIN_TTL: i64 = 2;

#[derive(Debug)]
struct Lease {
    ttl: i64,
    expires: Instant,
    keys: BTreeSet<Bytes>,
}

#[derive(Debug, Default)]
pub(super) struct Leases {
    by_id: BTreeMap<LeaseId, Lease>,
    of_key: HashMap<Bytes, LeaseId>,
}

impl Leases {
    /// Grants a lease, or restores one with its full TTL: how long the server was away is not its holder's fault.
    pub(super) fn grant(&mut self, id: LeaseId, ttl: i64) -> Result<LeaseStatus, EngineError> {
        if ttl > MAX_TTL {
            return Err(EngineError::LeaseTtlTooLarge);
        }
        let id = match id {
            LeaseId::NONE => self.free_id(),
            id if self.by_id.contains_key(&id) => return Err(EngineError::LeaseExists),
            id => id,
        };
        let ttl = ttl.max(MIN_TTL);
        let lease = Lease {
            ttl,
            expires: deadline(ttl),
            keys: BTreeSet::new(),
        };
        self.by_id.insert(id, lease);
        self.status(id)
    }

    fn free_id(&self) -> LeaseId {
        loop {
            let id = LeaseId(rand::random::<u64>() >> 1); // etcd's IDs are positive as signed numbers
            if id != LeaseId::NONE && !self.by_id.contains_key(&id) {
                return id;
            }
        }
    }

    pub(super) fn contains(&self, id: LeaseId) -> bool {
        self.by_id.contains_key(&id)
    }

    pub(super) fn of_key(&self, key: &Bytes) -> LeaseId {
        self.of_key.get(key).copied().unwrap_or(LeaseId::NONE)
    }

    /// Moves a key to a lease. A lease that is not there any more is ignored: backups can contain such keys.
    pub(super) fn attach(&mut self, key: &Bytes, id: LeaseId) {
        if let Some(lease) = self
            .of_key
            .remove(key)
            .and_then(|old| self.by_id.get_mut(&old))
        {
            lease.keys.remove(key);
        }
        if let Some(lease) = self.by_id.get_mut(&id) {
            let key = Bytes::copy_from_slice(key);
            lease.keys.insert(key.clone());
            self.of_key.insert(key, id);
        }
    }

    pub(super) fn remove(&mut self, id: LeaseId) -> Result<Vec<Bytes>, EngineError> {
        let lease = self.by_id.remove(&id).ok_or(EngineError::LeaseNotFound)?;
        for key in &lease.keys {
            self.of_key.remove(key);
        }
        Ok(lease.keys.into_iter().collect())
    }

    pub(super) fn renew(&mut self, id: LeaseId) -> Result<LeaseStatus, EngineError> {
        let lease = self.by_id.get_mut(&id).ok_or(EngineError::LeaseNotFound)?;
        lease.expires = deadline(lease.ttl);
        self.status(id)
    }

    pub(super) fn status(&self, id: LeaseId) -> Result<LeaseStatus, EngineError> {
        let lease = self.by_id.get(&id).ok_or(EngineError::LeaseNotFound)?;
        let remaining = lease.expires.saturating_duration_since(Instant::now());
        Ok(LeaseStatus {
            id,
            granted_ttl: lease.ttl,
            remaining_ttl: i64::try_from(remaining.as_secs()).unwrap_or(i64::MAX),
            keys: lease.keys.iter().cloned().collect(),
        })
    }

    pub(super) fn ids(&self) -> Vec<LeaseId> {
        self.by_id.keys().copied().collect()
    }

    pub(super) fn expired(&self) -> Vec<LeaseId> {
        let now = Instant::now();
        let due = self.by_id.iter().filter(|(_, lease)| lease.expires <= now);
        due.map(|(id, _)| *id).collect()
    }
}

fn deadline(ttl: i64) -> Instant {
    let now = Instant::now();
    let ttl = Duration::from_secs(ttl.unsigned_abs());
    // The largest TTL is 285 years; a clock that cannot hold it expires the lease later than any process runs.
    now.checked_add(ttl)
        .unwrap_or(now + Duration::from_secs(u32::MAX.into()))
}
