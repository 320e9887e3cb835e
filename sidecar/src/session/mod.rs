//! The backup session of the leading sidecar, from acquiring leadership to losing it.
//!
//! ```text
//! store ─list─► begin (pure) ─► history check ─► tail: deltas ───────┐
//!                                  │                                 ├─► store
//!                                  └─► full: now, by schedule,       ┘
//!                                      on demand, after a gap
//! ```
//!
//! **Invariants**: at most one full snapshot runs at a time; delta capture continues meanwhile; after a gap, no delta
//! is stored until a full snapshot covers the gap; a store with a different history is never written to; stopping
//! waits only for the final delta upload. **After a crash**: the next leader lists the store and continues after its end.

mod conflict;
mod full_queue;
mod handle;
mod inventory;
mod last_event;
mod leader;
mod live_history;
mod plan;
mod round;
mod start_plan;

pub(crate) use handle::{SnapshotHandle, SnapshotQueue};
pub(crate) use leader::{BackupLeader, LeaderTask, SessionConfig};
