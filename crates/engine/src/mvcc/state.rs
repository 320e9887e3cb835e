//! What is kept in memory beside the rows.

use std::collections::BTreeMap;

use mainstay_ids::Revision;

use super::index::{KeyIndex, Stamp};
use super::leases::Leases;
use crate::answer::{KeyVersion, Progress};
use crate::error::EngineError;
use crate::request::{Projection, RangeQuery};
use crate::row::{Change, Position, Row};
use crate::row_store::{RowReader, StorageError};

#[derive(Debug)]
pub(super) struct State {
    pub(super) index: KeyIndex,
    pub(super) leases: Leases,
    /// Newest revision of an evaluated write.
    pub(super) current: Revision,
    /// Newest revision that the store has. Reads end here.
    pub(super) visible: Revision,
    pub(super) compacted: Option<Revision>,
    /// Rows of evaluated writes that the store does not have yet.
    pub(super) pending: BTreeMap<Position, Row>,
    /// Bytes of the retained rows.
    pub(super) bytes: u64,
    /// A commit failed: what is in memory may never become durable.
    pub(super) is_poisoned: bool,
}

/// Positions found for a range.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) positions: Vec<Position>,
    pub(super) count: usize,
}

impl State {
    pub(super) fn empty() -> Self {
        Self {
            index: KeyIndex::default(),
            leases: Leases::default(),
            current: Revision::EMPTY,
            visible: Revision::EMPTY,
            compacted: None,
            pending: BTreeMap::new(),
            bytes: 0,
            is_poisoned: false,
        }
    }

    /// Adds a row of the store, or of a write.
    pub(super) fn add_row(&mut self, row: &Row) {
        self.index.append(row.key(), Stamp::of(row));
        self.leases.attach(row.key(), row.lease());
        self.bytes += row.size();
        self.current = self.current.max(row.at.main);
    }

    pub(super) fn progress(&self) -> Progress {
        Progress {
            current: self.visible,
            compacted: self.compacted,
        }
    }

    /// Checks that a revision can be read when the store is at `current`.
    pub(super) fn check_readable(
        &self,
        at: Revision,
        current: Revision,
    ) -> Result<(), EngineError> {
        if at > current {
            return Err(EngineError::FutureRevision { current });
        }
        match self.compacted {
            Some(oldest) if at < oldest => Err(EngineError::Compacted { oldest }),
            _ => Ok(()),
        }
    }

    /// Finds what a query at `current` reads.
    pub(super) fn find(&self, query: &RangeQuery, current: Revision) -> Result<Found, EngineError> {
        let at = query.at.unwrap_or(current);
        self.check_readable(at, current)?;
        let live = self.index.live_range(&query.range, at);
        if query.projection == Projection::CountOnly {
            return Ok(Found {
                positions: Vec::new(),
                count: live.count(),
            });
        }
        let limit = query.limit.unwrap_or(usize::MAX);
        let mut found = Found::default();
        for (_, stamp) in live {
            if found.positions.len() < limit {
                found.positions.push(stamp.at);
            }
            found.count += 1;
        }
        Ok(found)
    }
}

/// Why a row that the index has is not there.
#[derive(Debug)]
pub(super) enum FetchError {
    /// A compaction deleted it in the meantime: the read is repeated.
    Moved,
    /// The store failed.
    Storage(StorageError),
}

/// Reads the versions at the given positions.
pub(super) fn fetch(
    reader: &dyn RowReader,
    pending: Option<&BTreeMap<Position, Row>>,
    positions: &[Position],
) -> Result<Vec<KeyVersion>, FetchError> {
    let mut versions = Vec::with_capacity(positions.len());
    for at in positions {
        let row = match pending.and_then(|rows| rows.get(at)) {
            Some(row) => row.clone(),
            None => reader
                .row(*at)
                .map_err(FetchError::Storage)?
                .ok_or(FetchError::Moved)?,
        };
        match row.change {
            Change::Put(version) => versions.push(version),
            // The index knows only puts as live.
            Change::Delete(_) => return Err(FetchError::Moved),
        }
    }
    Ok(versions)
}
