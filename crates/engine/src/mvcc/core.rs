//! Evaluates and commits writes.

use std::sync::{Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use bytes::Bytes;
use mainstay_ids::{LeaseId, Revision};

use super::MvccOptions;
use super::state::State;
use super::txn::Evaluation;
use crate::answer::{LeaseStatus, TxnAnswer};
use crate::engine::EngineSize;
use crate::error::EngineError;
use crate::hub::Hub;
use crate::request::Txn;
use crate::row_store::{Batch, RowReader, RowStore};

/// A write.
#[derive(Debug)]
pub(super) enum Job {
    Txn(Txn),
    Compact(Revision),
    Grant(LeaseId, i64),
    Revoke(LeaseId),
    /// Revokes a lease if its time is still over.
    RevokeExpired(LeaseId),
}

/// Answer to a [`Job`].
#[derive(Debug)]
pub(super) enum Reply {
    Txn(TxnAnswer),
    Lease(LeaseStatus),
    Revision(Revision),
}

pub(super) struct Core {
    pub(super) rows: Box<dyn RowStore>,
    pub(super) options: MvccOptions,
    pub(super) hub: Hub,
    state: RwLock<State>,
    /// Held from the evaluation of writes until they are visible, and while rows are discarded.
    turn: Mutex<()>,
}

impl std::fmt::Debug for Core {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Core")
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl Core {
    pub(super) fn new(rows: Box<dyn RowStore>, options: MvccOptions, state: State) -> Self {
        Self {
            rows,
            options,
            hub: Hub::new(state.visible),
            state: RwLock::new(state),
            turn: Mutex::new(()),
        }
    }

    pub(super) fn state(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn state_mut(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn with_turn<T>(&self, run: impl FnOnce() -> T) -> T {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        run()
    }

    /// Evaluates jobs in order and commits them together. Returns one reply for each.
    pub(super) fn apply(&self, jobs: Vec<Job>) -> Vec<Result<Reply, EngineError>> {
        self.with_turn(|| {
            let mut batch = Batch::default();
            let replies = self.evaluate(jobs, &mut batch);
            if batch.is_empty() {
                return replies;
            }
            if let Err(error) = self.rows.commit(&batch) {
                self.state_mut().is_poisoned = true;
                tracing::error!(error = %error.source, "failed to commit; no more writes are accepted");
                let unknown = |reply: Result<Reply, EngineError>| reply.and(Err(EngineError::OutcomeUnknown));
                return replies.into_iter().map(unknown).collect();
            }
            self.publish(batch);
            replies
        })
    }

    fn evaluate(&self, jobs: Vec<Job>, batch: &mut Batch) -> Vec<Result<Reply, EngineError>> {
        let reader = match self.rows.reader() {
            Ok(reader) => reader,
            Err(error) => {
                tracing::error!(error = %error.source, "failed to read the store");
                return jobs.iter().map(|_| Err(EngineError::Poisoned)).collect();
            }
        };
        let mut state = self.state_mut();
        let mut replies = Vec::with_capacity(jobs.len());
        for job in jobs {
            if state.is_poisoned {
                replies.push(Err(EngineError::Poisoned));
                continue;
            }
            let reply = self.evaluate_one(job, &mut state, (&*reader, &mut *batch));
            // A write that stopped halfway is in the index, so nothing after it may be committed either.
            if matches!(reply, Err(EngineError::Storage(_))) {
                state.is_poisoned = true;
            }
            replies.push(reply);
        }
        if state.is_poisoned {
            *batch = Batch::default();
            return replies
                .into_iter()
                .map(|reply| reply.and(Err(EngineError::Poisoned)))
                .collect();
        }
        replies
    }

    fn evaluate_one(
        &self,
        job: Job,
        state: &mut State,
        (reader, batch): (&dyn RowReader, &mut Batch),
    ) -> Result<Reply, EngineError> {
        match job {
            Job::Txn(txn) => Evaluation::new(state, reader, &mut batch.rows)
                .run(&txn, self.options.quota_bytes)
                .map(Reply::Txn),
            Job::Compact(revision) => {
                check_compaction(state, revision)?;
                state.compacted = Some(revision);
                batch.compacted = Some(revision);
                Ok(Reply::Revision(state.current))
            }
            Job::Grant(id, ttl) => {
                let status = state.leases.grant(id, ttl)?;
                batch.granted.push((status.id, status.granted_ttl));
                Ok(Reply::Lease(status))
            }
            Job::Revoke(id) => revoke(id, state, (reader, batch)),
            Job::RevokeExpired(id) if state.leases.expired().contains(&id) => {
                revoke(id, state, (reader, batch))
            }
            Job::RevokeExpired(_) => Err(EngineError::LeaseNotFound),
        }
    }

    /// Makes a committed batch visible, to readers first and then to watches.
    fn publish(&self, batch: Batch) {
        let visible = {
            let mut state = self.state_mut();
            state.visible = state.current;
            state.pending.clear();
            state.visible
        };
        let changes: Vec<(Bytes, Revision)> = batch
            .rows
            .into_iter()
            .map(|row| (row.key().clone(), row.at.main))
            .collect();
        self.hub.publish(visible, &changes);
    }

    pub(super) fn size(&self) -> Result<EngineSize, EngineError> {
        let in_use_bytes = self.state().bytes;
        let allocated = self.rows.allocated_bytes().map_err(EngineError::Storage)?;
        Ok(EngineSize {
            total_bytes: allocated.unwrap_or(in_use_bytes),
            in_use_bytes,
        })
    }
}

fn check_compaction(state: &State, revision: Revision) -> Result<(), EngineError> {
    // A batch may contain writes before this job that are not visible yet; they are committed with it.
    if revision > state.current {
        return Err(EngineError::FutureRevision {
            current: state.current,
        });
    }
    // etcd counts as compacted at -1 before the first compaction.
    let oldest = state.compacted.unwrap_or(Revision(-1));
    if revision <= oldest {
        return Err(EngineError::Compacted { oldest });
    }
    Ok(())
}

fn revoke(
    id: LeaseId,
    state: &mut State,
    (reader, batch): (&dyn RowReader, &mut Batch),
) -> Result<Reply, EngineError> {
    let keys = state.leases.remove(id)?;
    batch.revoked.push(id);
    let mut evaluation = Evaluation::new(state, reader, &mut batch.rows);
    evaluation.delete_keys(keys)?;
    Ok(Reply::Revision(evaluation.revision()))
}
