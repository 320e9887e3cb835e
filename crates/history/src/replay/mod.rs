//! Applies the entries of a log that the database does not contain yet, exactly as etcd does at its next start.
//!
//! ```text
//! log ─ entries after the consistent index ─► touched keys ─► one scan of the rows ─► live keys
//!                      └───────────────────── apply in order ─────────────────────────────┴─► new rows, leases
//! ```
//!
//! etcd commits its database every 100 ms or 10 000 operations: acknowledged writes of a killed etcd are in the log only.
//!
//! **Holds**: a request that cannot be applied exactly ends the replay with [`ReplayError::Unsupported`]; no effect is
//! guessed. Only touched keys are kept in memory, and values stay in the database or in the log. **Does not do**: write;
//! the caller receives the rows in order.

mod apply;
mod error;
mod touched;
mod touched_state;

use mainstay_bbolt::{BboltError, Database, ReadAt};
use mainstay_ids::{RaftIndex, Revision};
use mainstay_mvcc::schema::{self, Lease};
use mainstay_mvcc::{DatabaseStatus, KeyValue, RevisionKey, read_small_bucket};
use mainstay_wal::rpc::RaftRequest;
use mainstay_wal::{Entries, Entry, Log, LogSummary};

use self::apply::Applier;
pub use self::error::ReplayError;
use self::touched::TouchedKeys;
use self::touched_state::TouchedState;

/// Which entries count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplayScope {
    /// Entries that the log records as committed: what `--force-new-cluster` of etcd keeps.
    Committed,
    /// All entries: those of an only voter are committed as soon as they are in its log.
    OnlyVoter,
}

/// A row that the replay creates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplayedRow<'a> {
    /// Key of the row.
    pub at: RevisionKey,
    /// Value of the row; a tombstone has only the key.
    pub row: KeyValue<'a>,
}

/// The state after the replay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplaySummary {
    /// Number of entries after the consistent index.
    pub entries: u64,
    /// Number of new rows.
    pub rows: u64,
    /// Revision of the database alone.
    pub database_revision: Revision,
    /// Revision after the last entry.
    pub revision: Revision,
    /// All leases after the last entry, ascending.
    pub leases: Vec<Lease>,
    /// Newest compaction, if one of the entries scheduled it.
    pub scheduled_compact: Option<Revision>,
}

/// Receives the new rows in the order of their keys.
pub type RowSink<'a> = &'a mut dyn FnMut(&ReplayedRow<'_>) -> Result<(), BboltError>;

/// Replays the entries after the consistent index of the database.
///
/// # Errors
///
/// [`ReplayError::Unsupported`] and the like if an entry cannot be applied exactly; then the rows received are not valid.
pub fn replay_log<S: ReadAt>(
    database: &Database<S>,
    log: &Log,
    scope: ReplayScope,
    sink: RowSink<'_>,
) -> Result<ReplaySummary, ReplayError> {
    let status = DatabaseStatus::read(database)?;
    let applied = status.consistent_index.unwrap_or_default();
    let log = log.since(applied.max(RaftIndex(1)));
    let summary = log.read()?;
    let pending = PendingEntries {
        log: &log,
        summary: &summary,
        applied,
        scope,
    };
    let mut touched = TouchedKeys::default();
    let entries = pending.for_each(|_, request| {
        touched.add(&request);
        Ok(())
    })?;
    let leases = read_leases(database)?;
    if touched.is_empty() {
        return Ok(ReplaySummary {
            entries,
            rows: 0,
            database_revision: status.revision,
            revision: status.revision,
            leases: leases.into_values().collect(),
            scheduled_compact: None,
        });
    }
    refuse_restricted(database)?;
    let keys = TouchedState::load(database, &touched)?;
    let mut replay = Applier::new(keys, leases, &status, sink);
    pending.for_each(|entry, request| replay.apply(entry.index, &request))?;
    Ok(replay.finish(entries, status.revision))
}

fn read_leases<S: ReadAt>(
    database: &Database<S>,
) -> Result<std::collections::BTreeMap<mainstay_ids::LeaseId, Lease>, ReplayError> {
    let rows = read_small_bucket(database, schema::LEASE)?;
    let decode = |(_, value): &(Vec<u8>, Vec<u8>)| {
        let lease = Lease::decode(value).map_err(|source| ReplayError::Lease { source })?;
        Ok((lease.id, lease))
    };
    rows.iter().map(decode).collect()
}

/// With authentication every write is checked against roles, and with an alarm writes fail.
fn refuse_restricted<S: ReadAt>(database: &Database<S>) -> Result<(), ReplayError> {
    let auth = read_small_bucket(database, schema::AUTH)?;
    let is_enabled = |(key, value): &(Vec<u8>, Vec<u8>)| {
        key == schema::AUTH_ENABLED && value.first().is_some_and(|byte| *byte == 1)
    };
    if auth.iter().any(is_enabled) {
        return Err(ReplayError::AuthenticationEnabled);
    }
    if !read_small_bucket(database, schema::ALARM)?.is_empty() {
        return Err(ReplayError::AlarmActive);
    }
    Ok(())
}

/// The entries that the database does not contain.
struct PendingEntries<'a> {
    log: &'a Log,
    summary: &'a LogSummary,
    applied: RaftIndex,
    scope: ReplayScope,
}

impl PendingEntries<'_> {
    fn iter(&self) -> Entries<'_> {
        match self.scope {
            ReplayScope::Committed => self.log.committed_after(self.summary, self.applied),
            ReplayScope::OnlyVoter => self.log.entries_after(self.summary, self.applied),
        }
    }

    /// Visits every entry with its request and returns their number.
    fn for_each(
        &self,
        mut visit: impl FnMut(&Entry, RaftRequest) -> Result<(), ReplayError>,
    ) -> Result<u64, ReplayError> {
        let mut last = self.applied;
        let mut count = 0;
        for entry in self.iter() {
            let entry = entry?;
            let expected = RaftIndex(last.0.saturating_add(1));
            if entry.index != expected {
                let found = entry.index;
                return Err(ReplayError::MissingEntries { expected, found });
            }
            last = entry.index;
            count += 1;
            visit(&entry, RaftRequest::from_entry(&entry)?)?;
        }
        Ok(count)
    }
}
