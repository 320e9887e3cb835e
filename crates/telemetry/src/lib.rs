//! Logging, progress, error formatting and allocator settings of the three programs.
//!
//! ```text
//! LogArgs → subscriber (stderr, text or JSON)      job → Progress → bar on a terminal
//! error   → Chain (one line, no repetition)                       → a periodic log line → Sample
//! ```
//!
//! Everything here writes to standard error; standard output is reserved for results.
//!
//! Field names of log lines are a closed list with one meaning each: `cluster`, `namespace`, `member`
//! (hex), `revision`, `term`, `raft_index`, `segment`, `offset`, `page`, `backup`, `object_key`,
//! `lease`, `attempt`, `bytes`, `elapsed_ms`, `error`. A line about progress has `job`, `percent`,
//! `bytes`, `total_bytes` and `note`.

mod bytes;
mod error_chain;
mod logs;
mod malloc;
mod progress;

pub use bytes::format_bytes;
pub use error_chain::ErrorChain;
pub use logs::{LogArgs, LogFormat};
pub use malloc::reexec_with_one_arena;
pub use progress::{ProgressReporter, ProgressSample, RESTORE_JOB};
