//! Who takes the backups: the sidecar whose own member leads etcd, and can prove it.
//!
//! ```text
//! every poll:  sight ─► claims to lead? ─► confirm (a quorum answers) ─► judge ─► change ─► session starts or stops
//! ```
//!
//! No object is used for the election. **Holds**: a member cut off from its quorum never leads, because its
//! linearizable read fails; at most one session runs in a process; a session is over before the next one starts.
//! Two sidecars may lead for a moment around a change: objects are only created, and overlapping events are
//! skipped by every reader, so that is harmless.

mod fence;
mod judge;
mod poll;

pub use fence::{LeaderFence, LeaderFenceError};
pub use judge::{LeadershipChange, PollOutcome, decide_role, detect_leadership_change};
pub use poll::{ElectionTiming, BackupElection, OnStop, OnStopCell, LeaderSession};
