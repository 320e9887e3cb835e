//! Elects the sidecar that takes the backups: the one whose own member leads etcd, confirmed by a quorum.
//!
//! ```text
//! every poll:  status ─► claims to lead? ─► confirm (quorum read) ─► judge ─► change ─► session starts or stops
//! ```
//!
//! No Kubernetes object is used for the election. **Invariants**: a member cut off from its quorum never leads, because
//! its linearizable read fails; at most one session runs in a process; a session ends before the next one starts.
//! Two sidecars may lead for a moment around a change. That is harmless: objects are created and never overwritten, and
//! every reader skips overlapping events.

mod fence;
mod poll;
mod role;

pub(crate) use fence::{LeaderFence, LeaderFenceError};
pub(crate) use poll::{BackupElection, ElectionTiming, LeaderSession, OnStop, OnStopCell};
