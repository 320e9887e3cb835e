//! What a leader does, from taking over to handing over.
//!
//! ```text
//! store ─list─► begin (pure) ─► tail: deltas ───────┐
//!                    │                              ├─► store
//!                    └─► full: now, by schedule, ───┘
//!                         on demand, after a gap
//! ```
//!
//! **Holds**: one full snapshot at a time; deltas are captured all the while; after a gap nothing is stored before a
//! full snapshot bridges it; a store that holds another history is not written into. **After a crash**: the next leader
//! lists the store and begins behind its end.

mod begin;
mod handle;
mod lead;
mod round;
mod stock;

pub use begin::{Because, Begin, begin};
pub use handle::{Handle, Line};
pub use lead::{Duty, Leader, SessionConfig};
