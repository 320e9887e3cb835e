//! The last words of `mainstay-restorer`, which the kubelet keeps as the termination message of a container.
//!
//! ```text
//! mainstay-restorer ── JSON, at most 4 KiB ──► /dev/termination-log ──► pod status ──► controller
//!   init:     {"verdict": "restore-required", "reason": "…", "init": {"version": 1, "decision": …}}
//!   restore:  {"verdict": "restored", "revision": …, "startRevision": …, "clusterId": …}
//!             {"verdict": "in-use", "reason": "…", "overtakenBy": <epoch>}
//! ```
//!
//! **Comes in**: what a program found and decided. **Goes out**: the same, typed, on the other side.
//!
//! **Holds**: a message of a newer version is an error that says so, never a wrong reading; fields a reader does not
//! know are ignored; a message always fits into what the kubelet keeps.

#![forbid(unsafe_code)]

mod init;
mod message;

pub use init::{
    BackupSummary, ClusterSummary, DataDirSummary, DataState, InitDecision, InitReport, MemberRegistration, RefuseCause, RestoreCause,
    VerificationDepth, WaitCause,
};
pub use message::{CommandDetails, TerminationMessage, TerminationMessageError};
