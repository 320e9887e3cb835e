//! The lock, and what may become of it: pure functions of what was found.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The entry that holds the lock.
pub const ENTRY: &str = "lock";

/// No lock is honoured longer without a sign of life, whatever it says of itself.
pub const MAX_TTL: Duration = Duration::from_hours(1);

/// The largest number every reader of JSON keeps exactly.
const MAX_EPOCH: u64 = (1 << 53) - 1;

/// Neither a clock nor a number of tenures comes near this: what is found elsewhere and is not below it is no epoch.
const EPOCH_LIMIT: u64 = 1 << 52;

/// Which tenure of the lock this is. Grows with every acquisition: the fencing token.
///
/// It counts tenures and is never behind the clock of whoever takes the lock, in milliseconds since 1970. So it grows within
/// one document whatever the clock says, and a document that is made anew goes on above the one before it, as long as
/// no clock was set back in between. Where one was, [`raised`] goes above what is found.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, Default,
)]
#[serde(try_from = "u64")]
pub struct Epoch(pub u64);

impl Epoch {
    /// An epoch that somebody wrote down outside the document; `None` for a number that cannot be one.
    pub fn from_external(number: u64) -> Option<Self> {
        (number < EPOCH_LIMIT).then_some(Self(number))
    }

    /// The one after this. Never wraps: a document with an epoch near the end of the numbers is unreadable.
    fn next(self) -> Self {
        Self(self.0 + 1)
    }

    /// The one of a tenure that begins now, after this one.
    fn next_at(self, now: Timestamp) -> Self {
        let clock = u64::try_from(now.as_millisecond()).unwrap_or_default(); // before 1970 there is no clock
        self.next().max(Self(clock))
    }
}

impl TryFrom<u64> for Epoch {
    type Error = String;

    fn try_from(number: u64) -> Result<Self, String> {
        if number < MAX_EPOCH {
            Ok(Self(number))
        } else {
            Err(format!("{number} is no epoch"))
        }
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What a lock is held, or a backup read, for.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum Purpose {
    /// Data is brought back from a backup.
    Restore,
    /// A lost quorum is recovered.
    RecoverQuorum,
    /// Deltas are folded into a full snapshot.
    Compact,
    /// A backup is copied elsewhere.
    Copy,
    /// A backup is proved by restoring it into scratch.
    Drill,
    /// Members are restarted one by one, added or removed.
    Roll,
    /// Something a later version knows.
    #[serde(untagged)]
    Other(String),
}

/// The lock as it stands in the document. It stays there when it is released, because the next holder
/// needs the epoch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Lock {
    /// Who has it, or had it last. Unique to one run of one party.
    pub holder: String,
    /// What for.
    pub purpose: Purpose,
    /// Which tenure this is.
    pub epoch: Epoch,
    /// When it was taken, by the holder's clock.
    pub acquired: Timestamp,
    /// The holder's last sign of life, by the holder's clock. Only *that* it changes means anything.
    pub renewed: Timestamp,
    /// How long it may be seen unchanged before others may take it.
    #[serde(with = "crate::span")]
    pub ttl: Duration,
    /// When it was given back; it is free then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub released: Option<Timestamp>,
    /// What later versions add.
    #[serde(flatten)]
    pub other: BTreeMap<String, Value>,
}

impl Lock {
    /// How long it may be seen unchanged: what it says, within reason.
    pub fn effective_ttl(&self) -> Duration {
        self.ttl.min(MAX_TTL)
    }
}

/// What somebody wants the lock for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockRequest {
    /// Who: unique to one run of one party, as a Job's name with its uid.
    pub holder: String,
    /// What for.
    pub purpose: Purpose,
    /// How long the lock lasts without a renewal; pinned to [`MAX_TTL`].
    pub ttl: Duration,
}

/// One tenure of one holder. Can be handed to a Job, which fences its writes with it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LockToken {
    /// Who.
    pub holder: String,
    /// Which tenure.
    pub epoch: Epoch,
}

/// Whether a lock may be taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AcquireDecision<'a> {
    /// It may, and this is what it becomes.
    Take(Lock),
    /// Somebody has it.
    Wait {
        /// As it stands.
        lock: &'a Lock,
        /// It expires after this time, unless its holder shows a sign of life.
        expires_in: Duration,
    },
}

/// How a lock was lost.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LockLoss {
    /// There is no lock in the document any more.
    #[error("the lock was removed from the document")]
    Removed,
    /// It was given back.
    #[error("the lock of epoch {epoch} was released")]
    Released {
        /// The tenure that ended.
        epoch: Epoch,
    },
    /// It expired and somebody else took it.
    #[error("the lock was taken by {holder} with epoch {epoch}")]
    Taken {
        /// Who has it now.
        holder: String,
        /// Its present tenure.
        epoch: Epoch,
    },
    /// It was not renewed in time, so others may have taken it.
    #[error("the lock was not renewed in time")]
    Expired,
}

/// Whether `wish` may have the lock, which was seen without a change for `unchanged`.
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
    let expires_in = lock.effective_ttl().saturating_sub(unchanged);
    if lock.released.is_none() && !expires_in.is_zero() {
        return AcquireDecision::Wait { lock, expires_in };
    }
    let next = lock.epoch.next_at(now);
    AcquireDecision::Take(build_lock(next, lock_request, now, lock.other.clone()))
}

fn build_lock(epoch: Epoch, lock_request: &LockRequest, now: Timestamp, other: BTreeMap<String, Value>) -> Lock {
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

/// The lock, if the claim still has it.
pub fn confirm_holder<'a>(found: Option<&'a Lock>, claim: &LockToken) -> Result<&'a Lock, LockLoss> {
    let lock = found.ok_or(LockLoss::Removed)?;
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

/// The lock after a sign of life of its holder.
pub fn renew(found: Option<&Lock>, claim: &LockToken, now: Timestamp) -> Result<Lock, LockLoss> {
    let lock = confirm_holder(found, claim)?;
    Ok(Lock {
        renewed: next_timestamp(lock.renewed, now),
        ..lock.clone()
    })
}

/// The lock after its holder went above an epoch that was found elsewhere, which is a sign of life, too. Unchanged where it
/// is above already, and where what was found cannot be an epoch.
pub fn raise_epoch(
    found: Option<&Lock>,
    claim: &LockToken,
    above: Epoch,
    now: Timestamp,
) -> Result<Lock, LockLoss> {
    let lock = confirm_holder(found, claim)?;
    match Epoch::from_external(above.0) {
        Some(above) if above >= lock.epoch => Ok(Lock {
            epoch: above.next(),
            renewed: next_timestamp(lock.renewed, now),
            ..lock.clone()
        }),
        _ => Ok(lock.clone()),
    }
}

/// The lock after its holder gave it back.
pub fn release(found: Option<&Lock>, claim: &LockToken, now: Timestamp) -> Result<Lock, LockLoss> {
    let lock = confirm_holder(found, claim)?;
    Ok(Lock {
        released: Some(now),
        ..lock.clone()
    })
}

/// `now`, moved if need be: a sign of life that looks like the one before it is none.
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
