//! Says whether etcd can start on a data directory and will have everything it acknowledged.
//!
//! ```text
//! folders → flock → database: metas, facts, small buckets ─► walk over all pages, history of every key ┐
//!                └─ raft: segment names, records, tail ─► snapshot to start from, entries behind ──────┤
//!                                                             how they fit together → Report ◄─────────┘
//! ```
//!
//! [`Depth::Sanity`] stops in front of the walk and reads the log only as far back as the database has applied it.
//! [`Depth::Full`] reads everything once, database and log at the same time.
//!
//! Holds: nothing is written; the database is held with a shared lock, so that no etcd starts on it meanwhile; damage
//! is never an error but a [`Fault`] with file and place. What a killed server leaves behind is no damage: a torn
//! tail, a database that trails its log, a snapshot received from the leader and not yet adopted.
//!
//! Cannot see: a bit that flipped inside a key or a value. Pages of the database have no checksum; only the `HashKV` of
//! another member at the same revision tells.

mod conclusion;
mod damage;
mod database;
mod entries;
mod error;
mod facts;
mod findings;
mod job;
mod layout;
mod parts;
mod raft;
mod read_ahead;
mod relation;
mod report;
mod snapshot;

pub use self::error::VerifyError;
pub use self::facts::{AlarmFacts, DirFacts, MemberFacts};
pub use self::parts::verify;
pub use self::report::{DirVerdict, DirFault, FaultKind, DirFinding, DirReport, DirWarning, WarningKind};

/// How much of a directory is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// A handful of pages and the end of the log: enough after a clean stop.
    Sanity,
    /// Every page, every row, every record: after anything else.
    Full,
}
