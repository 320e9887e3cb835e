//! The termination message of `mainstay-restorer`, which the kubelet keeps in the status of the container.
//!
//! ```text
//! mainstay-restorer ── JSON, at most 4 KiB ──► /dev/termination-log ──► pod status ──► controller
//!   init:     {"verdict": "restore-required", "reason": "…", "init": {"version": 1, "decision": …}}
//!   restore:  {"verdict": "restored", "revision": …, "startRevision": …, "clusterId": …}
//!             {"verdict": "in-use", "reason": "…", "overtakenBy": <epoch>}
//! ```
//!
//! [`Verdict`] is also the exit code of the process. The restorer writes the message and the controller parses it with the types of this crate.
//!
//! Invariants:
//! * A report of a newer version is an error, never a guess.
//! * Unknown fields are ignored, and unknown verdicts kept by name, so that a newer restorer can add some.
//! * The message fits into the 4096 bytes that the kubelet keeps.

#![forbid(unsafe_code)]

mod init;
mod message;
mod verdict;

pub use init::{
    BackupRelation, BackupSummary, ClusterSummary, DataDirSummary, DataState, InitDecision,
    InitReport, MemberRegistration, RefuseCause, RestoreCause, VerificationDepth, WaitCause,
};
pub use message::{CommandDetails, TerminationMessage, TerminationMessageError};
pub use verdict::{ReportedVerdict, Verdict};
