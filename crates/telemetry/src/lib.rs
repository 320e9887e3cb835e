//! Logs, progress and error reports of the programs.
//!
//! ```text
//! LogArgs → subscriber (stderr, text or JSON)      job → Progress → bar on a terminal
//! error   → Chain (one line, no repetition)                       → a log line now and then → Sample
//! ```
//!
//! Standard output belongs to results; everything here goes to standard error.
//!
//! Field names of log lines are a closed list, one meaning each: `cluster`, `namespace`, `member`
//! (hex), `revision`, `term`, `raft_index`, `segment`, `offset`, `page`, `backup`, `object_key`,
//! `lease`, `attempt`, `bytes`, `elapsed_ms`, `error`. A line about progress has `job`, `percent`,
//! `bytes`, `total_bytes` and `note`.

mod bytes;
mod chain;
mod logs;
mod progress;

pub use bytes::format_bytes;
pub use chain::ErrorChain;
pub use logs::{LogArgs, LogFormat};
pub use progress::{ProgressReporter, RESTORE_JOB, ProgressSample};
