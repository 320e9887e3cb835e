//! The lock and its transitions, as pure functions of the document.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Name of the entry.
pub const ENTRY: &str = "lock";

/// Maximum TTL that is honoured, whatever the document contains.
pub const MAX_TTL: Duration = Duration::from_hours(1);

/// The largest integer that every JSON reader represents exactly.
const MAX_EPOCH: u64 = (1 << 53) - 1;

/// Upper limit for epochs found outside the document; no clock in milliseconds comes near it.
const EPOCH_LIMIT: u64 = 1 << 52;

/// Number of an acquisition of the lock: the fencing token. Grows with every acquisition.
///
/// It is the larger of the previous epoch plus one and the acquirer's clock in milliseconds since 1970. It
/// grows within one document regardless of the clock, and across recreated documents as long as no clock
/// was set back. [`raise_epoch`] handles a clock that was.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, Default,
)]
#[serde(try_from = "u64")]
pub struct Epoch(pub u64);

impl Epoch {
    /// An epoch recorded outside the document; `None` if the number is out of range.
    pub fn from_external(number: u64) -> Option<Self> {
        (number < EPOCH_LIMIT).then_some(Self(number))
    }

    /// The next epoch. Never overflows, because parsing rejects epochs above [`MAX_EPOCH`].
    fn next(self) -> Self {
        Self(self.0 + 1)
    }

    /// The epoch of an acquisition at `now`, after this one.
    fn next_at(self, now: Timestamp) -> Self {
        let clock = u64::try_from(now.as_millisecond()).unwrap_or_default(); // negative before 1970
        self.next().max(Self(clock))
    }
}

impl TryFrom<u64> for Epoch {
    type Error = String;

    fn try_from(number: u64) -> Result<Self, String> {
        if number < MAX_EPOCH {
            Ok(Self(number))
        } else {
            Err(format!(
                "invalid epoch {number}: must be less than {MAX_EPOCH}"
            ))
        }
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Purpose of a lock or pin.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum Purpose {
    /// Restoring data from a backup.
    Restore,
    /// Recovering from quorum loss.
    RecoverQuorum,
    /// Compacting delta snapshots into a full snapshot.
    Compact,
    /// Copying a backup to another store.
    Copy,
    /// Restore drill: restoring a backup into a temporary directory.
    Drill,
    /// Restarting, adding or removing members.
    Roll,
    /// A purpose of a later version.
    #[serde(untagged)]
    Other(String),
}

/// The lock entry. It stays in the document after a release, because the next holder needs the epoch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Lock {
    /// Current or last holder. Unique to one run of one process.
    pub holder: String,
    /// Purpose of the holder.
    pub purpose: Purpose,
    /// Fencing token of this acquisition.
    pub epoch: Epoch,
    /// Time of acquisition, by the holder's clock.
    pub acquired: Timestamp,
    /// Time of the last renewal, by the holder's clock. Observers only check whether it changes.
    pub renewed: Timestamp,
    /// Time without observed change after which others may acquire it.
    #[serde(with = "crate::span")]
    pub ttl: Duration,
    /// Time of the release; `None` while the lock is held.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub released: Option<Timestamp>,
    /// Fields added by later versions, preserved on write.
    #[serde(flatten)]
    pub other: BTreeMap<String, Value>,
}

impl Lock {
    /// The TTL, limited to [`MAX_TTL`].
    pub fn effective_ttl(&self) -> Duration {
        self.ttl.min(MAX_TTL)
    }
}

/// A request for the lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockRequest {
    /// Holder, unique to one run of one process; for example a Job's name and UID.
    pub holder: String,
    /// Purpose of the holder.
    pub purpose: Purpose,
    /// Validity without renewal; limited to [`MAX_TTL`].
    pub ttl: Duration,
}

/// Identifies one acquisition by one holder. A holder may pass it to a Job, which fences its writes with it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LockToken {
    /// The holder's name.
    pub holder: String,
    /// The epoch of the acquisition.
    pub epoch: Epoch,
}

/// Whether the lock may be acquired.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AcquireDecision<'a> {
    /// It is available; contains the new entry.
    Take(Lock),
    /// Another process holds it.
    Wait {
        /// The current entry.
        lock: &'a Lock,
        /// Time until it expires, unless it is renewed.
        expires_in: Duration,
    },
}

/// How the lock was lost.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LockLoss {
    /// The document no longer contains the lock.
    #[error("lock entry was removed from the document")]
    Removed,
    /// It was released.
    #[error("lock with epoch {epoch} was released")]
    Released {
        /// The epoch that ended.
        epoch: Epoch,
    },
    /// It expired and another process acquired it.
    #[error("lock was acquired by {holder} with epoch {epoch}")]
    Taken {
        /// The current holder.
        holder: String,
        /// The current epoch.
        epoch: Epoch,
    },
    /// It was not renewed in time, so another process may have acquired it.
    #[error("lock was not renewed in time")]
    Expired,
}

/// Decides whether `lock_request` may acquire the lock, which was observed unchanged for `unchanged`.
pub fn decide_acquire<'a>(
    found: Option<&'a Lock>,
    unchanged: Duration,
    lock_request: &LockRequest,
    now: Timestamp,
) -> AcquireDecision<'a> {
    let Some(lock) = found else {
        let first = Epoch::default().next_at(now);
        return AcquireDecision::Take(build_lock(first, lock_request, now, BTreeMap::new()));
    };
    // A restarted holder also waits: its previous run may still be writing.
    let expires_in = lock.effective_ttl().saturating_sub(unchanged);
    if lock.released.is_none() && !expires_in.is_zero() {
        return AcquireDecision::Wait { lock, expires_in };
    }
    let next = lock.epoch.next_at(now);
    AcquireDecision::Take(build_lock(next, lock_request, now, lock.other.clone()))
}

fn build_lock(
    epoch: Epoch,
    lock_request: &LockRequest,
    now: Timestamp,
    other: BTreeMap<String, Value>,
) -> Lock {
    Lock {
        holder: lock_request.holder.clone(),
        purpose: lock_request.purpose.clone(),
        epoch,
        acquired: now,
        renewed: now,
        ttl: lock_request.ttl.min(MAX_TTL),
        released: None,
        other,
    }
}

/// Returns the lock if `claim` still holds it.
pub fn confirm_holder<'a>(
    found: Option<&'a Lock>,
    claim: &LockToken,
) -> Result<&'a Lock, LockLoss> {
    let lock = found.ok_or(LockLoss::Removed)?;
    // After the document was recreated, another holder may have the same epoch.
    if lock.epoch != claim.epoch || lock.holder != claim.holder {
        return Err(LockLoss::Taken {
            holder: lock.holder.clone(),
            epoch: lock.epoch,
        });
    }
    if lock.released.is_some() {
        return Err(LockLoss::Released { epoch: lock.epoch });
    }
    Ok(lock)
}

/// The lock after a renewal.
pub fn renew(found: Option<&Lock>, claim: &LockToken, now: Timestamp) -> Result<Lock, LockLoss> {
    let lock = confirm_holder(found, claim)?;
    Ok(Lock {
        renewed: next_timestamp(lock.renewed, now),
        ..lock.clone()
    })
}

/// The lock after its epoch is raised above `above`, which also renews it. Unchanged if the epoch is
/// already higher or `above` is not a valid epoch.
pub fn raise_epoch(
    found: Option<&Lock>,
    claim: &LockToken,
    above: Epoch,
    now: Timestamp,
) -> Result<Lock, LockLoss> {
    let lock = confirm_holder(found, claim)?;
    match Epoch::from_external(above.0) {
        // Out-of-range epochs are ignored: following them would exhaust the range of epochs.
        Some(above) if above >= lock.epoch => Ok(Lock {
            epoch: above.next(),
            renewed: next_timestamp(lock.renewed, now),
            ..lock.clone()
        }),
        _ => Ok(lock.clone()),
    }
}

/// The lock after its release.
pub fn release(found: Option<&Lock>, claim: &LockToken, now: Timestamp) -> Result<Lock, LockLoss> {
    let lock = confirm_holder(found, claim)?;
    Ok(Lock {
        released: Some(now),
        ..lock.clone()
    })
}

/// `now`, or one nanosecond off if it equals `before`: observers detect a renewal only by a changed time.
pub(crate) fn next_timestamp(before: Timestamp, now: Timestamp) -> Timestamp {
    if now != before {
        return now;
    }
    let tick = SignedDuration::from_nanos(1);
    before
        .checked_add(tick)
        .or_else(|_| before.checked_sub(tick))
        .unwrap_or(before)
}

#[cfg(test)]
mod tests;
