//! Physical compaction without a server: one backward scan finds the surviving rows, one forward scan writes them.
//!
//! Memory: 16 bytes (and a hash slot) per user key, one bit per row.

use hashbrown::HashSet;
use mainstay_bbolt::{BboltError, Database, Disk, ReadAt, Update};
use mainstay_ids::Revision;

use crate::digest::{BuildIdentityHasher, KeyDigest, KeyDigester};
use crate::hash::HashError;
use crate::key_value::KeyValue;
use crate::revision_key::RevisionKey;
use crate::schema;
use crate::status::DatabaseStatusError;

/// Result of a compaction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CompactionCounts {
    /// Number of rows kept.
    pub kept: u64,
    /// Number of rows dropped.
    pub dropped: u64,
}

/// Which rows survive a compaction, one bit per row of the `key` bucket, newest first.
#[derive(Clone, Debug, Default)]
pub struct SurvivingRows {
    words: Vec<u64>,
    rows: u64,
    kept: u64,
}

impl SurvivingRows {
    /// Finds the rows that survive a compaction at `revision`: all newer rows, and of each key the newest row at or
    /// below it, if that is a put, or a delete of exactly that revision.
    pub fn find<S: ReadAt>(database: &Database<S>, revision: Revision) -> Result<Self, HashError> {
        let key = database
            .bucket(schema::KEY)?
            .ok_or(DatabaseStatusError::NotEtcd)?;
        let digester = KeyDigester::default();
        let mut visited: HashSet<KeyDigest, BuildIdentityHasher> = HashSet::default();
        let mut survivors = Self::default();
        let mut cursor = database.scan_back(&key)?;
        while let Some(item) = cursor.next()? {
            let row = RevisionKey::decode(item.key).map_err(|source| HashError::RowKey {
                ordinal: survivors.rows,
                source,
            })?;
            if row.main > revision {
                survivors.push(true);
                continue;
            }
            let kv = KeyValue::decode(item.value).map_err(|source| HashError::RowValue {
                revision: row.main,
                source,
            })?;
            let is_newest = visited.insert(digester.digest(kv.key));
            // etcd keeps a tombstone of the compacted revision itself, since 3.4.34 and 3.5.16.
            survivors.push(is_newest && (!row.is_tombstone || row.main == revision));
        }
        Ok(survivors)
    }

    fn push(&mut self, survives: bool) {
        let bit = self.rows % 64;
        if bit == 0 {
            self.words.push(0);
        }
        if let (true, Some(word)) = (survives, self.words.last_mut()) {
            *word |= 1 << bit;
            self.kept += 1;
        }
        self.rows += 1;
    }

    /// Returns true when the row with this number, counted from the oldest, survives.
    fn contains(&self, ordinal: u64) -> bool {
        let Some(from_newest) = self.rows.checked_sub(ordinal + 1) else {
            return false;
        };
        let word = usize::try_from(from_newest / 64)
            .ok()
            .and_then(|at| self.words.get(at));
        word.is_some_and(|word| word >> (from_newest % 64) & 1 == 1)
    }

    /// Returns the number of rows kept and dropped.
    pub fn counts(&self) -> CompactionCounts {
        CompactionCounts {
            kept: self.kept,
            dropped: self.rows - self.kept,
        }
    }
}

/// Copies `database` into a new file, compacted at `revision`. The new file has no free pages.
///
/// Calls `progress` every 4096 rows with the number of rows read from the current bucket.
pub fn compact_into<S: ReadAt, D: Disk>(
    database: &Database<S>,
    survivors: &SurvivingRows,
    revision: Revision,
    disk: D,
    progress: &mut dyn FnMut(u64),
) -> Result<(), BboltError> {
    let mut update = Update::create(disk, database.meta().page_size)?;
    for (name, root) in database.buckets()? {
        let mut cursor = database.scan(&root)?;
        let mut bucket = update.rewrite_bucket(&name);
        if name == schema::META {
            let mut entries = std::collections::BTreeMap::new();
            while let Some(item) = cursor.next()? {
                entries.insert(item.key.to_vec(), item.value.to_vec());
            }
            let position = RevisionKey::first_of(revision).encode();
            // Scheduled without finished would make etcd repeat the compaction at start.
            entries.insert(schema::SCHEDULED_COMPACT.to_vec(), position.clone());
            entries.insert(schema::FINISHED_COMPACT.to_vec(), position);
            for (key, value) in &entries {
                bucket.add(key, value)?;
            }
        } else {
            let is_key = name == schema::KEY;
            let mut ordinal = 0u64;
            while let Some(item) = cursor.next()? {
                if !is_key || survivors.contains(ordinal) {
                    bucket.add(item.key, item.value)?;
                }
                ordinal += 1;
                if ordinal.is_multiple_of(4096) {
                    progress(ordinal);
                }
            }
        }
        bucket.finish()?;
    }
    update.commit()?;
    Ok(())
}
