//! The rows of a data directory: those of its database, and those that its log adds.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

use mainstay_bbolt::{BboltError, BucketRoot, Database};
use mainstay_ids::Revision;
use mainstay_mvcc::{DatabaseStatus, DatabaseStatusError, KeyValue, RevisionKey, schema};
use mainstay_wal::Log;

use crate::event::BackupEvent;
use crate::object::COMPARED_EVENTS;
use crate::replay::{ReplayError, ReplayScope, ReplayedRow, replay_log};

/// Rows of a data directory that no process uses.
#[derive(Debug)]
pub struct DataDirHistory {
    database: Database<File>,
    root: BucketRoot,
    /// Rows that only the log has.
    replayed: BTreeMap<Revision, Vec<BackupEvent>>,
    revision: Revision,
    compacted: Option<Revision>,
}

impl DataDirHistory {
    /// Opens a database without its log: the data may have more than this history.
    pub fn open_database(db: &Path) -> Result<Self, ReplayError> {
        let unreadable = |source| BboltError::Read {
            offset: 0,
            len: 0,
            source,
        };
        let database = Database::open(File::open(db).map_err(unreadable)?)?;
        let status = DatabaseStatus::read(&database)?;
        let root = database
            .bucket(schema::KEY)?
            .ok_or(DatabaseStatusError::NotEtcd)?;
        Ok(Self {
            root,
            replayed: BTreeMap::new(),
            revision: status.revision,
            compacted: status.compact_revision(),
            database,
        })
    }

    /// Opens a database and replays its log. The caller has verified the directory.
    pub fn open(db: &Path, wal: &Path, scope: ReplayScope) -> Result<Self, ReplayError> {
        let mut data = Self::open_database(db)?;
        let replayed = &mut data.replayed;
        let mut keep = |row: &ReplayedRow<'_>| {
            let event = BackupEvent::from_row(row.at, &row.row);
            replayed.entry(event.revision).or_default().push(event);
            Ok(())
        };
        let summary = replay_log(&data.database, &Log::open(wal)?, scope, &mut keep)?;
        data.revision = summary.revision;
        data.compacted = data.compacted.max(summary.scheduled_compact);
        Ok(data)
    }

    /// Newest revision, entries of the log included.
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// Whether nothing was ever written: such data has no history of its own.
    pub fn is_empty(&self) -> bool {
        self.revision <= Revision::EMPTY
    }

    /// Whether rows of this revision may have been removed by a compaction.
    pub(crate) fn is_compacted(&self, revision: Revision) -> bool {
        self.compacted
            .is_some_and(|compacted| revision <= compacted)
    }

    /// All rows of a revision, up to a limit.
    pub(crate) fn rows_at(&self, revision: Revision) -> Result<Vec<BackupEvent>, ReplayError> {
        if let Some(rows) = self.replayed.get(&revision) {
            return Ok(rows.clone());
        }
        let mut found = Vec::new();
        let mut rows = self.database.scan(&self.root)?;
        rows.seek(&RevisionKey::first_of(revision).encode())?;
        while let Some(item) = rows.next()? {
            let at = RevisionKey::decode(item.key)?;
            if at.main > revision || found.len() >= COMPARED_EVENTS {
                break;
            }
            found.push(BackupEvent::from_row(at, &KeyValue::decode(item.value)?));
        }
        Ok(found)
    }
}
