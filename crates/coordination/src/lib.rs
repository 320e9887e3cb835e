//! Who may change one etcd now, and which backups are being read: a small shared document that every party
//! reads, and changes only by compare-and-swap.
//!
//! ```text
//! <etcd>-coordination        entries
//!   lock            {holder, purpose, epoch, acquired, renewed, ttl}   at most one party disrupts
//!   pin.<name>      {holder, purpose, keys, revisions, renewed, ttl}   retention leaves these alone
//!   member.<name>   {phase, message, time}                            how far a restoration is
//!   incident        {id, cause, stage, base, …}                        the recovery of lost data that goes on
//!
//! Coordinator ── read ─► pure transition (lock, pin, member) ── write if unchanged ─► Backing
//!                                                                                ├ ConfigMap: resourceVersion
//!                                                                                └ file: flock, atomic replace
//! ```
//!
//! **Comes in**: a [`Backing`] and wishes. **Goes out**: [`Held`] locks with their [`Fence`]s, [`HeldPin`]s, [`Pinned`]
//! for retention.
//!
//! **Holds**: there is one holder; its epoch is larger than every earlier one and is the fencing token. An epoch is never
//! behind the clock of who takes the lock, so that it grows also over a document that was lost; where a clock was set back,
//! too, the holder can go above what is found elsewhere ([`Held::raise`]). Whose lock it is does not hang on that: nobody
//! compares a clock with another's. A holder counts from before it asked for its last renewal, an observer from when it first saw
//! that renewal, both on clocks that only measure spans; so wrong clocks do no harm. A crashed holder's lock and pins
//! expire when they have been *seen* unchanged for their time to live. An entry this version does not know, and a
//! field it does not know in one it does, survive every write. An entry that cannot be read is an error of whoever needs
//! it, and is never overwritten.
//!
//! **Does not do**: stop a write that is already on its way when the lock is lost. Whoever holds a lock asks
//! [`Fence::check`] before each write that another holder's would contradict, and makes such writes conditional.
//!
//! **After a crash**: nothing needs cleaning up. The next party waits for the expiry and goes on.

pub mod annotation;
pub mod backing;
mod coordinator;
mod error;
mod held;
pub mod incident;
pub mod lock;
pub mod member;
pub mod pin;
mod pins;
mod seen;
mod span;

pub use backing::{Backing, BackingError, ConfigMapBacking, FileBacking};
pub use coordinator::{AcquireOutcome, Coordinator};
pub use error::{CoordinationError, EntryNameError};
pub use held::{LockFence, HeldLock};
pub use incident::Incident;
pub use lock::{LockToken, Epoch, Lock, Purpose, LockRequest};
pub use member::{MemberState, RestorePhase};
pub use pin::{Pin, PinRequest, RevisionRange};
pub use pins::{HeldPin, ActivePins};
