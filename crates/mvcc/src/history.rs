//! Checks the rows of the `key` bucket against the rules a real history obeys.

use hashbrown::HashMap;
use steward_ids::{LeaseId, Revision};

use crate::digest::{BuildReady, Digest, Digester};
use crate::facts::Facts;
use crate::key_value::{KeyValue, KeyValueError};
use crate::revision_key::{RevisionKey, RevisionKeyError};

/// A row no server can have written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RowFault {
    /// Its key is no revision.
    #[error("row {ordinal} of the key bucket has a malformed revision")]
    Key {
        /// Ordinal in the bucket.
        ordinal: u64,
        /// What is wrong.
        source: RevisionKeyError,
    },
    /// Its value cannot be read.
    #[error("row of revision {revision} cannot be read")]
    Value {
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
    Numbers {
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
pub enum Warning {
    /// Rows a finished compaction should have removed.
    #[error("{rows} rows at or below the compaction revision {compact} should have been removed")]
    Superseded {
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
    pub warnings: Vec<Warning>,
}

#[derive(Clone, Copy, Debug)]
struct KeyState {
    created: Revision,
    /// 0 while deleted.
    version: i64,
    lease: LeaseId,
}

/// Follows the rows in order. Memory: some 50 bytes per user key.
#[derive(Debug)]
pub struct History {
    compact: Option<Revision>,
    is_compaction_finished: bool,
    digester: Digester,
    keys: HashMap<Digest, KeyState, BuildReady>,
    previous: Option<RevisionKey>,
    rows: u64,
    superseded: u64,
}

impl History {
    /// For the rows of the database the facts are about.
    pub fn new(facts: &Facts) -> Self {
        Self {
            compact: facts.compact_revision(),
            is_compaction_finished: facts.is_compaction_finished(),
            digester: Digester::default(),
            keys: HashMap::default(),
            previous: None,
            rows: 0,
            superseded: 0,
        }
    }

    /// Checks the next row.
    pub fn row(&mut self, key: &[u8], value: &[u8]) -> Result<(), RowFault> {
        let row = RevisionKey::decode(key).map_err(|source| RowFault::Key {
            ordinal: self.rows,
            source,
        })?;
        let kv = KeyValue::decode(value).map_err(|source| RowFault::Value {
            revision: row.main,
            source,
        })?;
        self.rows += 1;
        self.check_density(row)?;
        self.previous = Some(row);
        if value.is_empty() && !row.is_tombstone && self.is_compacted(row.main) {
            return Ok(()); // the mark `--bump-revision` of etcdutl leaves
        }
        if row.is_tombstone {
            self.delete(row, &kv)
        } else {
            self.put(row, &kv)
        }
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

    fn put(&mut self, row: RevisionKey, kv: &KeyValue<'_>) -> Result<(), RowFault> {
        let KeyValue {
            create_revision: created,
            mod_revision: modified,
            version,
            lease,
            ..
        } = *kv;
        let is_first = version == 1;
        let is_sound = modified == row.main
            && created.0 >= 1
            && created <= modified
            && version >= 1
            && is_first == (created == modified)
            && !kv.key.is_empty();
        if !is_sound {
            return Err(RowFault::Numbers {
                revision: row.main,
                modified,
                created,
                version,
            });
        }
        let is_compacted = self.is_compacted(row.main);
        let digest = self.digester.digest(kv.key);
        let previous = self.keys.insert(
            digest,
            KeyState {
                created,
                version,
                lease,
            },
        );
        let continues = match previous {
            Some(KeyState { version: 0, .. }) => is_first,
            Some(before) => version == before.version + 1 && created == before.created,
            // What came before the oldest row of a key may be compacted away.
            None => is_first || is_compacted,
        };
        if !continues {
            let previous = previous.map_or(0, |before| before.version);
            return Err(RowFault::Discontinuous {
                revision: row.main,
                version,
                previous,
            });
        }
        if is_compacted && previous.is_some() {
            self.superseded += 1;
        }
        Ok(())
    }

    fn delete(&mut self, row: RevisionKey, kv: &KeyValue<'_>) -> Result<(), RowFault> {
        let KeyValue {
            create_revision: created,
            mod_revision: modified,
            version,
            ..
        } = *kv;
        if kv.key.is_empty() || created.0 != 0 || modified.0 != 0 || version != 0 {
            return Err(RowFault::Numbers {
                revision: row.main,
                modified,
                created,
                version,
            });
        }
        let deleted = KeyState {
            created: Revision(0),
            version: 0,
            lease: LeaseId::NONE,
        };
        let previous = self.keys.insert(self.digester.digest(kv.key), deleted);
        let existed = previous.is_some_and(|before| before.version > 0);
        if !existed && !self.is_compacted(row.main) {
            return Err(RowFault::OrphanDelete { revision: row.main });
        }
        if self.compact.is_some_and(|compact| row.main < compact) {
            self.superseded += 1;
        }
        Ok(())
    }

    /// Closes the history; `has_lease` tells whether a lease exists.
    pub fn finish(self, has_lease: impl Fn(LeaseId) -> bool) -> HistorySummary {
        let mut summary = HistorySummary {
            rows: self.rows,
            ..HistorySummary::default()
        };
        let mut unknown = 0;
        for state in self.keys.values().filter(|state| state.version > 0) {
            summary.live_keys += 1;
            if state.lease != LeaseId::NONE {
                summary.leased_keys += 1;
                unknown += u64::from(!has_lease(state.lease));
            }
        }
        if let (Some(compact), true, 1..) =
            (self.compact, self.is_compaction_finished, self.superseded)
        {
            summary.warnings.push(Warning::Superseded {
                rows: self.superseded,
                compact,
            });
        }
        if unknown > 0 {
            summary
                .warnings
                .push(Warning::UnknownLease { keys: unknown });
        }
        summary
    }
}
