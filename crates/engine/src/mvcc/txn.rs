//! Evaluates writes: checks first, so that what was begun cannot fail for a reason of the request.

use mainstay_ids::{LeaseId, Revision};

use super::compare::{Decision, decide};
use super::state::{FetchError, State, fetch};
use crate::answer::{DeleteAnswer, KeyVersion, OpAnswer, PutAnswer, RangeAnswer, TxnAnswer};
use crate::error::EngineError;
use crate::request::{DeleteRange, KeyRange, Op, Put, PutLease, RangeQuery, Txn};
use crate::row::{Change, Position, Row};
use crate::row_store::{RowReader, StorageError};

/// One write in evaluation. All its changes get the revision after `begin`.
pub(super) struct Evaluation<'e> {
    pub(super) state: &'e mut State,
    pub(super) reader: &'e dyn RowReader,
    pub(super) begin: Revision,
    /// Rows of this and of the writes before it in the same commit.
    pub(super) rows: &'e mut Vec<Row>,
    pub(super) next_sub: i64,
}

impl<'e> Evaluation<'e> {
    pub(super) fn new(
        state: &'e mut State,
        reader: &'e dyn RowReader,
        rows: &'e mut Vec<Row>,
    ) -> Self {
        let begin = state.current;
        Self {
            state,
            reader,
            begin,
            rows,
            next_sub: 0,
        }
    }

    /// Checks and runs a transaction.
    pub(super) fn run(
        &mut self,
        txn: &Txn,
        quota_bytes: Option<u64>,
    ) -> Result<TxnAnswer, EngineError> {
        let decision = decide(txn, self.state, (self.reader, self.begin)).map_err(storage)?;
        if let Some(quota_bytes) = quota_bytes
            && txn.has_put()
            && self.state.bytes >= quota_bytes
        {
            return Err(EngineError::NoSpace { quota_bytes });
        }
        self.check(&decision)?;
        let mut answer = self.execute(&decision)?;
        answer.revision = self.revision();
        Ok(answer)
    }

    /// Revision of the store as the next operation observes it.
    pub(super) fn revision(&self) -> Revision {
        if self.next_sub == 0 {
            self.begin
        } else {
            self.begin.next()
        }
    }

    fn check(&self, decision: &Decision<'_>) -> Result<(), EngineError> {
        let mut nested = decision.nested.iter();
        for op in decision.ops {
            match op {
                Op::Range(query) => {
                    if let Some(at) = query.at {
                        self.state.check_readable(at, self.begin)?;
                    }
                }
                Op::Put(put) => self.check_put(put)?,
                Op::DeleteRange(_) => {}
                Op::Txn(_) => nested.next().map_or(Ok(()), |inner| self.check(inner))?,
            }
        }
        Ok(())
    }

    fn check_put(&self, put: &Put) -> Result<(), EngineError> {
        let needs_key = put.value.is_none() || put.lease == PutLease::Keep;
        if needs_key && self.state.index.newest(&put.key).is_none() {
            return Err(EngineError::KeyNotFound);
        }
        match put.lease {
            PutLease::Set(id) if id != LeaseId::NONE && !self.state.leases.contains(id) => {
                Err(EngineError::LeaseNotFound)
            }
            PutLease::Set(_) | PutLease::Keep => Ok(()),
        }
    }

    fn execute(&mut self, decision: &Decision<'_>) -> Result<TxnAnswer, EngineError> {
        let mut nested = decision.nested.iter();
        let mut answers = Vec::with_capacity(decision.ops.len());
        for op in decision.ops {
            answers.push(match op {
                Op::Range(query) => OpAnswer::Range(self.range(query)?),
                Op::Put(put) => OpAnswer::Put(self.put(put)?),
                Op::DeleteRange(delete) => OpAnswer::DeleteRange(self.delete(delete)?),
                Op::Txn(_) => match nested.next() {
                    Some(inner) => OpAnswer::Txn(self.execute(inner)?),
                    None => continue, // there is one for each
                },
            });
        }
        Ok(TxnAnswer {
            revision: Revision(0), // etcd leaves it out of nested answers
            succeeded: decision.succeeded,
            answers,
        })
    }

    fn range(&self, query: &RangeQuery) -> Result<RangeAnswer, EngineError> {
        let revision = self.revision();
        let found = self.state.find(query, revision)?;
        Ok(RangeAnswer {
            revision,
            keys: fetch(self.reader, Some(&self.state.pending), &found.positions)
                .map_err(storage)?,
            count: found.count,
        })
    }

    fn version_at(&self, at: Position) -> Result<Option<KeyVersion>, EngineError> {
        let found = fetch(self.reader, Some(&self.state.pending), &[at]).map_err(storage)?;
        Ok(found.into_iter().next())
    }

    fn put(&mut self, put: &Put) -> Result<PutAnswer, EngineError> {
        let newest = self.state.index.newest(&put.key);
        let present = match newest {
            Some(stamp) if put.wants_previous || put.value.is_none() => {
                self.version_at(stamp.at)?
            }
            _ => None,
        };
        let main = self.begin.next();
        let value = match &put.value {
            Some(value) => value.clone(),
            None => present
                .as_ref()
                .map(|version| version.value.clone())
                .unwrap_or_default(),
        };
        let lease = match put.lease {
            PutLease::Set(id) => id,
            PutLease::Keep => self.state.leases.of_key(&put.key),
        };
        self.add(Change::Put(KeyVersion {
            key: put.key.clone(),
            value,
            create_revision: newest.map_or(main, |stamp| stamp.create),
            mod_revision: main,
            version: newest.map_or(1, |stamp| stamp.version + 1),
            lease,
        }));
        Ok(PutAnswer {
            revision: main,
            previous: present.filter(|_| put.wants_previous),
        })
    }

    fn delete(&mut self, delete: &DeleteRange) -> Result<DeleteAnswer, EngineError> {
        let live = self.state.index.live_range(&delete.range, self.revision());
        let found: Vec<_> = live.map(|(key, stamp)| (key.clone(), stamp.at)).collect();
        let positions: Vec<Position> = found.iter().map(|(_, at)| *at).collect();
        let previous = if delete.wants_previous {
            fetch(self.reader, Some(&self.state.pending), &positions).map_err(storage)?
        } else {
            Vec::new()
        };
        let deleted = found.len();
        for (key, _) in found {
            self.add(Change::Delete(key));
        }
        Ok(DeleteAnswer {
            revision: self.revision(),
            deleted,
            previous,
        })
    }

    /// Deletes keys one by one, as a revoked lease does.
    pub(super) fn delete_keys(&mut self, keys: Vec<bytes::Bytes>) -> Result<(), EngineError> {
        for key in keys {
            self.delete(&DeleteRange {
                range: KeyRange::Key(key),
                wants_previous: false,
            })?;
        }
        Ok(())
    }

    fn add(&mut self, change: Change) {
        let at = Position {
            main: self.begin.next(),
            sub: self.next_sub,
        };
        self.next_sub += 1;
        let row = Row { at, change };
        self.state.add_row(&row);
        self.state.pending.insert(at, row.clone());
        self.rows.push(row);
    }
}

fn storage(error: FetchError) -> EngineError {
    EngineError::Storage(match error {
        FetchError::Storage(error) => error,
        // No compaction runs beside a write that holds the state.
        FetchError::Moved => {
            StorageError::new("read a row", "the row of an indexed version is missing")
        }
    })
}
