//! Checks the rows of the `key` bucket against the rules of an etcd history.

use hashbrown::HashMap;
use mainstay_ids::{LeaseId, Revision};

use crate::digest::{BuildIdentityHasher, KeyDigest, KeyDigester};
use crate::key_value::{KeyValue, KeyValueError};
use crate::revision_key::{RevisionKey, RevisionKeyError};
use crate::status::DatabaseStatus;

/// Why etcd cannot have written a row.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RowFault {
    /// The key of the row is not a revision.
    #[error("row {ordinal} of the key bucket has an invalid revision key")]
    InvalidKey {
        /// Number of the row in the bucket, starting at 0.
        ordinal: u64,
        /// Why the key is invalid.
        source: RevisionKeyError,
    },
    /// The value of the row cannot be decoded.
    #[error("decode the row of revision {revision}")]
    InvalidValue {
        /// Revision of the row.
        revision: Revision,
        /// Why the value is invalid.
        source: KeyValueError,
    },
    /// The numbers of the row contradict each other.
    #[error(
        "row of revision {revision} is inconsistent: mod revision {modified}, create revision {created}, \
         version {version}"
    )]
    InconsistentNumbers {
        /// Revision of the row.
        revision: Revision,
        /// Stored mod revision.
        modified: Revision,
        /// Stored create revision.
        created: Revision,
        /// Stored version.
        version: i64,
    },
    /// The version of the row does not follow the version of the key's earlier row.
    #[error(
        "row of revision {revision} has version {version}, but the previous version of its key is {previous}"
    )]
    Discontinuous {
        /// Revision of the row.
        revision: Revision,
        /// Stored version.
        version: i64,
        /// Version of the key before; 0 when it did not exist.
        previous: i64,
    },
    /// The row deletes a key that did not exist.
    #[error("row of revision {revision} deletes a key that did not exist")]
    OrphanDelete {
        /// Revision of the row.
        revision: Revision,
    },
    /// Transactions are missing before the row.
    #[error("revision {found}.{sub} follows {expected}: transactions are missing in between")]
    Gap {
        /// The revision before the gap, or the start of the history.
        expected: String,
        /// Revision of the row.
        found: Revision,
        /// Sub-revision of the row in its transaction.
        sub: i64,
    },
}

/// An irregularity that etcd tolerates.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HistoryWarning {
    /// Rows that a finished compaction should have removed.
    #[error("{rows} rows at or below the compaction revision {compact} should have been removed")]
    UncompactedRows {
        /// Number of rows.
        rows: u64,
        /// Compacted revision.
        compact: Revision,
    },
    /// Keys attached to leases that do not exist; they never expire.
    #[error("{keys} keys are attached to leases that do not exist and never expire")]
    UnknownLease {
        /// Number of keys.
        keys: u64,
    },
}

/// Counts of a valid history.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HistorySummary {
    /// Number of rows, deletes included.
    pub rows: u64,
    /// Number of keys that exist at the newest revision.
    pub live_keys: u64,
    /// Number of live keys attached to a lease.
    pub leased_keys: u64,
    /// Irregularities that etcd tolerates.
    pub warnings: Vec<HistoryWarning>,
}

/// State of a key after its newest row.
#[derive(Clone, Copy, Debug)]
struct KeyState {
    created: Revision,
    /// 0 while deleted.
    version: i64,
}

/// A valid row, not yet compared with the previous row of the same key.
#[derive(Clone, Copy, Debug)]
struct KeyChange {
    digest: KeyDigest,
    revision: Revision,
    /// State of the key after this row.
    state: KeyState,
    lease: LeaseId,
}

/// Rows compared per batch. The table of a large key space exceeds the CPU caches: lookups in a batch overlap their
/// cache misses, single ones would wait for each.
const BATCH_ROWS: usize = 256;

/// Checks the rows in order. Memory: about 70 bytes per user key.
#[derive(Debug)]
pub struct HistoryChecker {
    compact: Option<Revision>,
    is_compaction_finished: bool,
    digester: KeyDigester,
    keys: HashMap<KeyDigest, KeyState, BuildIdentityHasher>,
    /// Lease of each key that has one.
    leases: HashMap<KeyDigest, LeaseId, BuildIdentityHasher>,
    pending: Vec<KeyChange>,
    previous: Option<RevisionKey>,
    rows: u64,
    uncompacted_rows: u64,
}

impl HistoryChecker {
    /// Creates a checker for the rows of the database that `facts` describes.
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

    /// Checks the next row. The error may concern a row passed some calls earlier, but it is always the first error of
    /// the history.
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

    /// Checks a row by itself and its position after the previous row.
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
            return Ok(None); // `etcdutl snapshot restore --bump-revision` writes such a row
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

    /// Above the compacted revision, every revision and every sub-revision must exist.
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
                gap(format!("the start of the history at {first}.0"))
            }
        }
    }

    /// Compares the batched rows with the previous rows of the same keys.
    fn compare_pending(&mut self) -> Result<(), RowFault> {
        let mut waiting = std::mem::take(&mut self.pending);
        // Counting the new keys reserves their space at once and loads the slots into the cache in parallel, which makes
        // the second lookup fast.
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
            // The rows before the oldest row of a key may be compacted.
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

    /// Completes the check; `has_lease` returns whether a lease exists.
    pub fn finish(
        mut self,
        has_lease: impl Fn(LeaseId) -> bool,
    ) -> Result<HistorySummary, RowFault> {
        self.compare_pending()?;
        let unknown = self.leases.values().filter(|id| !has_lease(**id)).count() as u64;
        let live_keys = self.keys.values().filter(|state| state.version > 0).count();
        let mut warnings = Vec::new();
        if let (Some(compact), true, rows @ 1..) = (
            self.compact,
            self.is_compaction_finished,
            self.uncompacted_rows,
        ) {
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

/// Returns true when the numbers of a row are consistent.
fn is_consistent(row: RevisionKey, kv: &KeyValue<'_>) -> bool {
    let KeyValue {
        create_revision,
        mod_revision,
        version,
        ..
    } = *kv;
    if kv.key.is_empty() {
        return false;
    }
    // etcd stores only the key in a delete.
    if row.is_tombstone {
        return create_revision.0 == 0 && mod_revision.0 == 0 && version == 0;
    }
    mod_revision == row.main
        && create_revision.0 >= 1
        && create_revision <= mod_revision
        && version >= 1
        && (version == 1) == (create_revision == mod_revision)
}
