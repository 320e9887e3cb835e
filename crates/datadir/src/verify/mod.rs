//! Verifies that etcd can start on a data directory with everything it acknowledged.
//!
//! ```text
//! layout → flock → database: metas, facts, small buckets ─► walk over all pages, history of every key ┐
//!               └─ raft: segment names, records, tail ─► snapshot to start from, unapplied entries ───┤
//!                                                                    consistency → Report ◄──────────┘
//! ```
//!
//! [`Depth::Sanity`] skips the walk and reads the WAL only from the applied index on. [`Depth::Full`] reads
//! everything once, database and WAL concurrently.
//!
//! **Invariants**: a verification writes nothing; it holds a shared lock on the database, so that etcd cannot
//! start meanwhile; damage is not an error but a [`DirFault`] with file and position. The traces of a killed
//! server are not damage: a torn tail, a database that lags behind its WAL, a snapshot received from the leader
//! and not yet applied.
//!
//! **Limits**: a flipped bit inside a key or value is not detected, because bbolt pages have no checksum.
//! Comparing `HashKV` with another member at the same revision detects it.

mod classification;
mod consistency;
mod database;
mod dir_check;
mod error;
mod facts;
mod findings;
mod layout;
mod parts;
mod raft;
mod read_ahead;
mod report;
mod report_builder;
mod small_buckets;
mod snapshot;

pub use self::error::VerifyError;
pub use self::facts::{AlarmFacts, DirFacts, MemberFacts};
pub use self::parts::verify;
pub use self::report::{
    DirFault, DirFinding, DirReport, DirVerdict, DirWarning, FaultKind, WarningKind,
};

/// Depth of a verification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// A few pages and the end of the WAL; sufficient after a clean stop.
    Sanity,
    /// Every page, row and record; required in all other cases.
    Full,
}
