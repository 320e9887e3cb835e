//! What a leader does, from taking over to handing over.
//!
//! ```text
//! store ─list─► begin (pure) ─► kinship ─► tail: deltas ───────┐
//!                                  │                           ├─► store
//!                                  └─► full: now, by schedule, ┘
//!                                      on demand, after a gap
//! ```
//!
//! **Holds**: one full snapshot at a time; deltas are captured all the while; after a gap nothing is stored before a
//! full snapshot bridges it; a store that holds another history is not written into; being told to stop waits for
//! nothing but the farewell. **After a crash**: the next leader lists the store and begins behind its end.

mod begin;
mod fulls;
mod handle;
mod kinship;
mod lead;
mod plan;
mod refusal;
mod round;
mod stock;
mod witness;

pub use begin::{FullSnapshotReason, StartPlan, StartInputs, plan_start};
pub use handle::{SnapshotHandle, SnapshotQueue};
pub use lead::{LeaderTask, BackupLeader, SessionConfig};
