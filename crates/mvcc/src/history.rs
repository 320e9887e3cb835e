//! Checks the rows of the `key` bucket against the rules a real history obeys.

use hashbrown::HashMap;
use mainstay_ids::{LeaseId, Revision};

use crate::digest::{BuildIdentityHasher, KeyDigest, KeyDigester};
use crate::facts::DatabaseStatus;
use crate::key_value::{KeyValue, KeyValueError};
use crate::revision_key::{RevisionKey, RevisionKeyError};

/// A row no server can have written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RowFault {
    /// Its key is no revision.
    #[error("row {ordinal} of the key bucket has a malformed revision")]
    InvalidKey {
        /// Ordinal in the bucket.
        ordinal: u64,
        /// What is wrong.
        source: RevisionKeyError,
    },
    /// Its value cannot be read.
    #[error("row of revision {revision} cannot be read")]
    InvalidValue {
        /// Which row.
        revision: Revision,
        /// What is wrong.
        source: KeyValueError,
    },
    /// Its own numbers contradict each other.
    #[error(
        "row of revision {revision} says mod revision {modified}, create revision {created}, \
         version {version}"
    )]
    InconsistentNumbers {
        /// Which row.
        revision: Revision,
        /// Stored mod revision.
        modified: Revision,
        /// Stored create revision.
        created: Revision,
        /// Stored version.
        version: i64,
    },
    /// It does not continue the key's earlier row.
    #[error(
        "row of revision {revision} has version {version}, its key was at version {previous} before"
    )]
    Discontinuous {
        /// Which row.
        revision: Revision,
        /// Stored version.
        version: i64,
        /// Version of the key before; 0 when it did not exist.
        previous: i64,
    },
    /// It deletes a key that did not exist.
    #[error("row of revision {revision} deletes a key that did not exist")]
    OrphanDelete {
        /// Which row.
        revision: Revision,
    },
    /// Transactions are missing before it.
    #[error("revision {found}.{sub} follows {expected}: transactions are missing between")]
    Gap {
        /// What should have come.
        expected: String,
        /// What came.
        found: Revision,
        /// Its ordinal in the transaction.
        sub: i64,
    },
}

/// Something odd that a server lives with.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HistoryWarning {
    /// Rows a finished compaction should have removed.
    #[error("{rows} rows at or below the compaction revision {compact} should have been removed")]
    UncompactedRows {
        /// How many.
        rows: u64,
        /// The compaction.
        compact: Revision,
    },
    /// Keys attached to leases that do not exist: they will never expire.
    #[error("{keys} keys are attached to leases that do not exist and will never expire")]
    UnknownLease {
        /// How many.
        keys: u64,
    },
}

/// What a sound history holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HistorySummary {
    /// Rows, deletes included.
    pub rows: u64,
    /// Keys that exist at the newest revision.
    pub live_keys: u64,
    /// Keys of those that are attached to a lease.
    pub leased_keys: u64,
    /// Oddities.
    pub warnings: Vec<HistoryWarning>,
}

/// What the newest row of a key says.
#[derive(Clone, Copy, Debug)]
struct KeyState {
    created: Revision,
    /// 0 while deleted.
    version: i64,
}

/// A sound row that has not been compared with the one before it of the same key.
#[derive(Clone, Copy, Debug)]
struct KeyChange {
    digest: KeyDigest,
    revision: Revision,
    /// What the key is from here on.
    state: KeyState,
    lease: LeaseId,
}

/// Rows that are compared at a time. One after the other, each would wait for memory: the table of a
/// large key space fits no cache. Looked up together, they wait together.
const BATCH_ROWS: usize = 256;

/// Follows the rows in order. Memory: some 70 bytes per user key.
#[derive(Debug)]
pub struct HistoryChecker {
    compact: Option<Revision>,
    is_compaction_finished: bool,
    digester: KeyDigester,
    keys: HashMap<KeyDigest, KeyState, BuildIdentityHasher>,
    /// Of the keys that are attached to one.
    leases: HashMap<KeyDigest, LeaseId, BuildIdentityHasher>,
    pending: Vec<KeyChange>,
    previous: Option<RevisionKey>,
    rows: u64,
    uncompacted_rows: u64,
}

impl HistoryChecker {
    /// For the rows of the database the facts are about.
    pub fn new(facts: &DatabaseStatus) -> Self {
        Self {
            compact: facts.compact_revision(),
            is_compaction_finished: facts.is_compaction_finished(),
            digester: KeyDigester::default(),
            keys: HashMap::default(),
            leases: HashMap::default(),
            pending: Vec::with_capacity(BATCH_ROWS),
            previous: None,
            rows: 0,
            uncompacted_rows: 0,
        }
    }

    /// Checks the next row. A fault may be that of a row given some calls earlier, but is always the
    /// first of the history.
    pub fn check_row(&mut self, key: &[u8], value: &[u8]) -> Result<(), RowFault> {
        match self.decode_row(key, value) {
            Ok(change) => self.pending.extend(change),
            Err(fault) => {
                self.compare_pending()?;
                return Err(fault);
            }
        }
        if self.pending.len() < BATCH_ROWS {
            return Ok(());
        }
        self.compare_pending()
    }

    /// Checks what a row says by itself and its place behind the one before.
    fn decode_row(&mut self, key: &[u8], value: &[u8]) -> Result<Option<KeyChange>, RowFault> {
        let row = RevisionKey::decode(key).map_err(|source| RowFault::InvalidKey {
            ordinal: self.rows,
            source,
        })?;
        let kv = KeyValue::decode(value).map_err(|source| RowFault::InvalidValue {
            revision: row.main,
            source,
        })?;
        self.rows += 1;
        self.check_density(row)?;
        self.previous = Some(row);
        if value.is_empty() && !row.is_tombstone && self.is_compacted(row.main) {
            return Ok(None); // the mark `--bump-revision` of etcdutl leaves
        }
        if !is_consistent(row, &kv) {
            return Err(RowFault::InconsistentNumbers {
                revision: row.main,
                modified: kv.mod_revision,
                created: kv.create_revision,
                version: kv.version,
            });
        }
        Ok(Some(KeyChange {
            digest: self.digester.digest(kv.key),
            revision: row.main,
            state: KeyState {
                created: kv.create_revision,
                version: kv.version,
            },
            lease: if row.is_tombstone {
                LeaseId::NONE
            } else {
                kv.lease
            },
        }))
    }

    fn is_compacted(&self, main: Revision) -> bool {
        self.compact.is_some_and(|compact| main <= compact)
    }

    /// Above the compaction every revision and every ordinal must be there.
    fn check_density(&self, row: RevisionKey) -> Result<(), RowFault> {
        if self.is_compacted(row.main) {
            return Ok(());
        }
        let gap = |expected: String| {
            Err(RowFault::Gap {
                expected,
                found: row.main,
                sub: row.sub,
            })
        };
        let before = self
            .previous
            .filter(|previous| !self.is_compacted(previous.main))
            .map(|previous| (previous.main, previous.sub));
        match before {
            Some((main, sub)) if row.main == main && row.sub == sub + 1 => Ok(()),
            Some((main, _)) if row.main == main.next() && row.sub == 0 => Ok(()),
            Some((main, sub)) => gap(format!("{main}.{sub}")),
            None => {
                let first = self
                    .compact
                    .unwrap_or(Revision::EMPTY)
                    .max(Revision::EMPTY)
                    .next();
                if row.main == first && row.sub == 0 {
                    return Ok(());
                }
                gap(format!("the beginning of the history at {first}.0"))
            }
        }
    }

    /// Compares the rows that wait with the ones before them of the same keys.
    fn compare_pending(&mut self) -> Result<(), RowFault> {
        let mut waiting = std::mem::take(&mut self.pending);
        // Counting the new keys makes room for them at once; that it also brings every slot into the
        // cache, many at a time, is what makes the second look quick.
        let is_new = |change: &&KeyChange| !self.keys.contains_key(&change.digest);
        self.keys.reserve(waiting.iter().filter(is_new).count());
        for change in waiting.drain(..) {
            self.apply(change)?;
        }
        self.pending = waiting;
        Ok(())
    }

    fn apply(&mut self, change: KeyChange) -> Result<(), RowFault> {
        let KeyChange {
            digest,
            revision,
            state,
            lease,
        } = change;
        let previous = self.keys.insert(digest, state);
        if lease != LeaseId::NONE {
            self.leases.insert(digest, lease);
        } else if !self.leases.is_empty() {
            self.leases.remove(&digest);
        }
        let was = previous.map_or(0, |before| before.version);
        let is_compacted = self.is_compacted(revision);
        if state.version == 0 {
            if was == 0 && !is_compacted {
                return Err(RowFault::OrphanDelete { revision });
            }
            let is_below = self.compact.is_some_and(|compact| revision < compact);
            self.uncompacted_rows += u64::from(is_below);
            return Ok(());
        }
        let is_first = state.version == 1;
        let continues = match previous {
            Some(KeyState { version: 0, .. }) => is_first,
            Some(before) => {
                before.version.checked_add(1) == Some(state.version)
                    && state.created == before.created
            }
            // What came before the oldest row of a key may be compacted away.
            None => is_first || is_compacted,
        };
        if !continues {
            return Err(RowFault::Discontinuous {
                revision,
                version: state.version,
                previous: was,
            });
        }
        self.uncompacted_rows += u64::from(is_compacted && previous.is_some());
        Ok(())
    }

    /// Closes the history; `has_lease` tells whether a lease exists.
    pub fn finish(
        mut self,
        has_lease: impl Fn(LeaseId) -> bool,
    ) -> Result<HistorySummary, RowFault> {
        self.compare_pending()?;
        let unknown = self.leases.values().filter(|id| !has_lease(**id)).count() as u64;
        let live_keys = self.keys.values().filter(|state| state.version > 0).count();
        let mut warnings = Vec::new();
        if let (Some(compact), true, rows @ 1..) =
            (self.compact, self.is_compaction_finished, self.uncompacted_rows)
        {
            warnings.push(HistoryWarning::UncompactedRows { rows, compact });
        }
        if unknown > 0 {
            warnings.push(HistoryWarning::UnknownLease { keys: unknown });
        }
        Ok(HistorySummary {
            rows: self.rows,
            live_keys: live_keys as u64,
            leased_keys: self.leases.len() as u64,
            warnings,
        })
    }
}

/// Whether the numbers of a row go together.
fn is_consistent(row: RevisionKey, kv: &KeyValue<'_>) -> bool {
    let KeyValue {
        create_revision: created,
        mod_revision: modified,
        version,
        ..
    } = *kv;
    if kv.key.is_empty() {
        return false;
    }
    if row.is_tombstone {
        return created.0 == 0 && modified.0 == 0 && version == 0;
    }
    modified == row.main
        && created.0 >= 1
        && created <= modified
        && version >= 1
        && (version == 1) == (created == modified)
}
