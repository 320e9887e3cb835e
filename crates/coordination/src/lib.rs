//! Coordination between the processes that work on one etcd cluster: a small shared document, changed only
//! by compare-and-swap. It records who may disrupt the cluster and which backups are in use.
//!
//! ```text
//! <etcd>-coordination        entries
//!   lock            {holder, purpose, epoch, acquired, renewed, ttl}   at most one disruptive process
//!   pin.<name>      {holder, purpose, keys, revisions, renewed, ttl}   excluded from retention
//!   member.<name>   {phase, message, time}                             progress of a restore
//!   incident        {id, cause, stage, base, …}                        the recovery of lost data
//!
//! Coordinator ── read ─► pure transition (lock, pin, member) ── write if unchanged ─► Backing
//!                                                                                ├ ConfigMap: resourceVersion
//!                                                                                └ file: flock, atomic replace
//! ```
//!
//! **Input**: a [`Backing`] and requests. **Output**: [`HeldLock`] locks with their [`LockFence`]s, [`HeldPin`]s, and
//! [`ActivePins`] for retention.
//!
//! **Invariants**:
//! * There is one holder. Its epoch is larger than every earlier one and is the fencing token.
//! * An epoch is at least the wall clock of the process that acquires the lock, so it also grows after the
//!   document was lost. If the clock was set back as well, the holder can raise it ([`HeldLock::raise_epoch`]).
//! * Expiry compares no wall clocks. A holder counts from before it requested its last renewal, an observer
//!   from when it first observed that renewal, both on monotonic clocks.
//! * Lock and pins of a crashed holder expire after they were *observed* unchanged for their TTL.
//! * Unknown entries and unknown fields survive every write. An unreadable entry is an error for its reader
//!   and is never overwritten.
//!
//! **Limits**: a write that is already in flight when the lock is lost is not stopped. A holder calls
//! [`LockFence::check`] before each write that conflicts with another holder's, and makes such writes conditional.
//!
//! **After a crash**: no cleanup is needed. The next process waits for the expiry and continues.

pub mod annotations;
pub mod backing;
mod change_tracker;
mod coordinator;
mod error;
mod held_lock;
mod held_pins;
pub mod incident;
pub mod lock;
pub mod member;
pub mod pin;
mod span;

pub use backing::{Backing, BackingError, ConfigMapBacking, FileBacking};
pub use coordinator::{AcquireOutcome, Coordinator};
pub use error::{CoordinationError, EntryNameError};
pub use held_lock::{HeldLock, LockFence};
pub use held_pins::{ActivePins, HeldPin};
pub use incident::Incident;
pub use lock::{Epoch, Lock, LockRequest, LockToken, Purpose};
pub use member::{MemberState, RestorePhase};
pub use pin::{Pin, PinRequest, RevisionRange};
