//! Relates a data directory to a chain of a backup, at the newest revision that both have.

use std::fs::File;
use std::io;

use mainstay_archive::catalogue::{Catalogue, SnapshotObject};
use mainstay_archive::chain::SnapshotChain;
use mainstay_ids::Revision;

use crate::data_dir::DataDirHistory;
use crate::event::BackupEvent;
use crate::key_match::HistoryMatch;
use crate::object::{
    BaseEvidence, COMPARED_EVENTS, DeltaEvidence, EvidenceError, ObjectStream, read_base,
    read_delta,
};
use crate::replay::ReplayError;

/// Relation of data to a backup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HistoryRelation {
    /// The same history, and both end at the same revision.
    Equal,
    /// The same history, and the backup has more of it.
    Behind,
    /// The same history, and the data has more of it.
    Ahead,
    /// Both have a revision with different content.
    Diverged,
    /// No common row was found that proves either.
    Unknown,
}

/// Opens the objects of a backup.
pub trait ChainReader {
    /// Opens an object at its first byte.
    fn open(&self, object: &SnapshotObject) -> io::Result<ObjectStream>;

    /// Creates an empty local file for a full snapshot.
    fn scratch(&self) -> io::Result<File>;

    /// Whether the store failed, which says nothing about the object.
    fn is_store_failure(&self, error: &EvidenceError) -> bool;
}

/// Result of a comparison.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainFinding {
    /// The relation of the data.
    pub relation: HistoryRelation,
    /// Name of the object that was compared.
    pub object: String,
    /// Revision of the data that was compared.
    pub compared_at: Revision,
    /// Newest revision of the data.
    pub data_revision: Revision,
    /// Newest revision of the chain according to its names.
    pub chain_revision: Revision,
}

/// Why a comparison failed.
#[derive(Debug, thiserror::Error)]
pub enum CompareHistoryError {
    /// An object of the backup gives no evidence; another chain may.
    #[error(transparent)]
    Object(#[from] EvidenceError),
    /// The data cannot be read completely.
    #[error("read the data directory")]
    Data(#[from] ReplayError),
}

/// Relates the data to a chain of the catalogue.
///
/// # Errors
///
/// [`CompareHistoryError::Object`] names an unreadable object: exclude it and choose another chain.
pub fn relate_to_chain(
    data: &DataDirHistory,
    catalogue: &Catalogue,
    chain: &SnapshotChain,
    reader: &impl ChainReader,
) -> Result<ChainFinding, CompareHistoryError> {
    if let Some((_, last_missing)) = chain.gap_after_base {
        // The base may be newer than its name and fill the gap. If it does not, a restore ends with the base.
        let base = Comparison::new(data, catalogue, chain, reader).read_base(&chain.base)?;
        if base.revision < last_missing {
            let base_only = SnapshotChain {
                deltas: Vec::new(),
                last_revision: base.revision,
                gap_after_base: None,
                ..chain.clone()
            };
            return Comparison::new(data, catalogue, &base_only, reader).run();
        }
    }
    Comparison::new(data, catalogue, chain, reader).run()
}

struct Comparison<'a, R> {
    data: &'a DataDirHistory,
    catalogue: &'a Catalogue,
    chain: &'a SnapshotChain,
    reader: &'a R,
    /// Newest revision that both have, according to the names.
    at: Revision,
}

impl<'a, R: ChainReader> Comparison<'a, R> {
    fn new(
        data: &'a DataDirHistory,
        catalogue: &'a Catalogue,
        chain: &'a SnapshotChain,
        reader: &'a R,
    ) -> Self {
        Self {
            data,
            catalogue,
            chain,
            reader,
            at: data.revision().min(chain.last_revision),
        }
    }

    fn run(&self) -> Result<ChainFinding, CompareHistoryError> {
        let holds_it =
            |object: &&SnapshotObject| object.name.start <= self.at && self.at <= object.name.last;
        let mut deltas = self.chain.deltas.iter().map(|link| &link.object);
        match deltas.find(holds_it) {
            // Data without a row has nothing that a backup could contradict.
            _ if self.data.is_empty() => self.relate_empty(),
            Some(delta) => self.relate_to_delta(delta),
            None => self.relate_to_base(),
        }
    }

    fn finding(&self, object: &SnapshotObject, relation: HistoryRelation) -> ChainFinding {
        ChainFinding {
            relation,
            object: object.name.to_string(),
            compared_at: self.at,
            data_revision: self.data.revision(),
            chain_revision: self.chain.last_revision,
        }
    }

    /// The backup is ahead of empty data if one of its objects is readable and has a revision.
    fn relate_empty(&self) -> Result<ChainFinding, CompareHistoryError> {
        let base = &self.chain.base;
        let holds = self.read_base(base)?.revision;
        let is_behind = holds > Revision::EMPTY || self.has_readable_revision_after(holds)?;
        let relation = if is_behind {
            HistoryRelation::Behind
        } else {
            HistoryRelation::Equal
        };
        Ok(self.finding(base, relation))
    }

    fn relate_to_delta(&self, delta: &SnapshotObject) -> Result<ChainFinding, CompareHistoryError> {
        let stored = self.open(delta)?;
        let found = read_delta(delta, stored, self.at)?;
        let verdict = self.match_events(&found.newest)?;
        let relation = match verdict {
            HistoryMatch::Foreign | HistoryMatch::Diverged => HistoryRelation::Diverged,
            HistoryMatch::Unknown => HistoryRelation::Unknown,
            HistoryMatch::Same => self.order(found.beyond.is_some())?,
        };
        Ok(self.finding(delta, relation))
    }

    /// Orders two histories that are the same up to [`Self::at`].
    fn order(&self, has_newer: bool) -> Result<HistoryRelation, CompareHistoryError> {
        let data = self.data.revision();
        if has_newer {
            return Ok(HistoryRelation::Behind);
        }
        if data < self.chain.last_revision {
            // A name alone is no evidence of newer data.
            return Ok(if self.has_readable_revision_after(data)? {
                HistoryRelation::Behind
            } else {
                HistoryRelation::Equal
            });
        }
        Ok(if data > self.chain.last_revision {
            HistoryRelation::Ahead
        } else {
            HistoryRelation::Equal
        })
    }

    /// Whether the first delta of the chain that reaches beyond a revision is readable and has an event there.
    fn has_readable_revision_after(&self, revision: Revision) -> Result<bool, CompareHistoryError> {
        let mut deltas = self.chain.deltas.iter().map(|link| &link.object);
        let Some(delta) = deltas.find(|delta| delta.name.last > revision) else {
            return Ok(false);
        };
        let stored = self.open(delta)?;
        Ok(read_delta(delta, stored, revision)?.beyond.is_some())
    }

    fn relate_to_base(&self) -> Result<ChainFinding, CompareHistoryError> {
        let base = &self.chain.base;
        let found = self.read_base(base)?;
        let relation = match self.match_rows(&found)? {
            HistoryMatch::Foreign | HistoryMatch::Diverged => HistoryRelation::Diverged,
            HistoryMatch::Unknown => HistoryRelation::Unknown,
            HistoryMatch::Same => self.order(found.revision > self.data.revision())?,
        };
        Ok(self.finding(base, relation))
    }

    fn read_base(&self, base: &SnapshotObject) -> Result<BaseEvidence, CompareHistoryError> {
        let key = || base.key.clone();
        let stored = self.open(base)?;
        let scratch = self
            .reader
            .scratch()
            .map_err(|source| EvidenceError::Full {
                key: key(),
                source: crate::object::FullReadError::Scratch(source),
            })?;
        Ok(read_base(base, stored, &scratch, self.at)?)
    }

    /// Rows of the base up to the revision of the data. No row may contradict the data; the histories are the same only
    /// if a row at the newest common revision is equal, in the base or in an older delta.
    fn match_rows(&self, base: &BaseEvidence) -> Result<HistoryMatch, CompareHistoryError> {
        let mut has_equal = false;
        for row in &base.newest {
            let rows = self.data.rows_at(row.revision)?;
            match rows.iter().find(|own| own.key == row.key) {
                Some(own) if own == row => has_equal = true,
                // A compaction of the data may have removed the row.
                None if self.data.is_compacted(row.revision) => {}
                Some(_) | None => return Ok(HistoryMatch::Foreign),
            }
        }
        let at = self.at.min(base.revision);
        let newest = base.newest.first().map(|row| row.revision);
        if newest == Some(at) && has_equal {
            return Ok(HistoryMatch::Same);
        }
        // The keys of the newest common revision were written again before the base was taken.
        if has_equal && self.has_equal_older_delta()? {
            return Ok(HistoryMatch::Same);
        }
        Ok(HistoryMatch::Unknown)
    }

    /// Whether a delta before the base holds the newest common revision as the data does. A delta that differs proves
    /// nothing: it is not part of the chain and may be a leftover of another history.
    fn has_equal_older_delta(&self) -> Result<bool, CompareHistoryError> {
        let holds_it =
            |object: &&SnapshotObject| object.name.start <= self.at && self.at <= object.name.last;
        for delta in self.catalogue.deltas.iter().filter(holds_it) {
            let found = match self.read_older_delta(delta) {
                Ok(found) => found,
                Err(error) if self.reader.is_store_failure(&error) => return Err(error.into()),
                // Not part of the chain: if it is unreadable, the chain still is not.
                Err(_) => continue,
            };
            if self.match_events(&found.newest)? == HistoryMatch::Same {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn read_older_delta(&self, delta: &SnapshotObject) -> Result<DeltaEvidence, EvidenceError> {
        read_delta(delta, self.open(delta)?, self.at)
    }

    /// All events of the newest common revision against all rows of that revision.
    fn match_events(&self, events: &[BackupEvent]) -> Result<HistoryMatch, CompareHistoryError> {
        let Some(revision) = events.first().map(|event| event.revision) else {
            return Ok(HistoryMatch::Unknown);
        };
        // A delta has every revision of its range, so an older event means that its name is wrong.
        if revision != self.at {
            return Ok(HistoryMatch::Unknown);
        }
        let rows = self.data.rows_at(revision)?;
        let is_compacted = self.data.is_compacted(revision);
        let mut has_equal = false;
        for event in events {
            match rows.iter().find(|row| row.key == event.key) {
                Some(row) if row == event => has_equal = true,
                None if is_compacted || rows.len() >= COMPARED_EVENTS => {}
                Some(_) | None => return Ok(HistoryMatch::Foreign),
            }
        }
        let is_extra = |row: &BackupEvent| events.iter().all(|event| event.key != row.key);
        if events.len() < COMPARED_EVENTS && rows.iter().any(is_extra) {
            return Ok(HistoryMatch::Foreign);
        }
        Ok(if has_equal {
            HistoryMatch::Same
        } else {
            HistoryMatch::Unknown
        })
    }

    fn open(&self, object: &SnapshotObject) -> Result<ObjectStream, EvidenceError> {
        let opened = self.reader.open(object);
        opened.map_err(|source| EvidenceError::Open {
            key: object.key.clone(),
            source,
        })
    }
}
