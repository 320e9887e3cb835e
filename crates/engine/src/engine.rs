//! The protocol.

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use mainstay_ids::{LeaseId, Revision};

use crate::answer::{
    HistoryPage, KeyVersion, LeaseStatus, OpAnswer, Progress, RangeAnswer, TxnAnswer,
};
use crate::error::EngineError;
use crate::hub::Hub;
use crate::request::{
    Compare, CompareResult, CompareTarget, DeleteRange, HistoryQuery, KeyRange, Op, Projection,
    Put, PutLease, RangeQuery, Txn,
};

/// What an engine can do. The front refuses the rest before it reaches the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Name of the engine, for people.
    pub name: &'static str,
    /// Writes are accepted.
    pub is_writable: bool,
    /// An acknowledged write survives the process.
    pub is_durable: bool,
    /// Leases expire. A view of a backup has a frozen clock.
    pub expires_leases: bool,
}

/// Bytes an engine uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineSize {
    /// Bytes allocated.
    pub total_bytes: u64,
    /// Bytes of rows that are retained.
    pub in_use_bytes: u64,
}

/// etcd's `HashKV` of the retained history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HashAnswer {
    /// CRC-32C.
    pub hash: u32,
    /// Revision up to which rows are hashed.
    pub revision: Revision,
    /// Progress of the store in the same moment.
    pub progress: Progress,
}

/// Outcome of a conditional write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WriteOutcome {
    /// Written at this revision.
    Done(Revision),
    /// The condition did not hold. Nothing was written.
    Conflict {
        /// Revision of the store.
        revision: Revision,
        /// The key as it is, if it exists and the operation reads it.
        present: Option<KeyVersion>,
    },
}

/// A store of versioned keys with etcd's semantics.
///
/// Each answer carries the revision of the store at which it is the truth. Writes are atomic: after an error other than
/// [`EngineError::OutcomeUnknown`], nothing was changed. Dropping the future of a write leaves its outcome unknown.
///
/// The named operations are what a Kubernetes API server uses; their default forms are transactions. An engine that
/// cannot do general transactions implements them directly and refuses [`Engine::txn`].
#[async_trait]
pub trait Engine: Send + Sync + 'static {
    /// Returns what the engine can do.
    fn capabilities(&self) -> Capabilities;

    /// Returns how far the store is.
    fn progress(&self) -> Progress;

    /// Returns false when the engine needs a restart.
    fn is_healthy(&self) -> bool;

    /// Returns where changes are announced. See [`crate::WatchInstance`].
    fn hub(&self) -> &Hub;

    /// Reads a range.
    async fn range_keys(&self, query: RangeQuery) -> Result<RangeAnswer, EngineError>;

    /// Runs a transaction.
    async fn txn(&self, txn: Txn) -> Result<TxnAnswer, EngineError>;

    /// Reads a page of the history.
    async fn history(&self, query: HistoryQuery) -> Result<HistoryPage, EngineError>;

    /// Discards the history before `revision`. Returns the progress after it.
    async fn compact(&self, revision: Revision) -> Result<Progress, EngineError>;

    /// Grants a lease. An ID of [`LeaseId::NONE`] lets the engine choose one.
    async fn grant(&self, id: LeaseId, ttl: i64) -> Result<LeaseStatus, EngineError>;

    /// Revokes a lease and deletes its keys in one revision.
    async fn revoke(&self, id: LeaseId) -> Result<Revision, EngineError>;

    /// Sets the remaining time of a lease to the granted one.
    async fn keep_alive(&self, id: LeaseId) -> Result<LeaseStatus, EngineError>;

    /// Returns the state of a lease.
    async fn lease_status(&self, id: LeaseId) -> Result<LeaseStatus, EngineError>;

    /// Returns every lease, in the order of IDs.
    async fn leases(&self) -> Result<Vec<LeaseId>, EngineError>;

    /// Revokes the leases whose time is over. See [`crate::LeaseExpiry`].
    async fn revoke_expired(&self) -> Result<usize, EngineError>;

    /// Computes `HashKV`; at the current revision when `None`.
    async fn hash(&self, at: Option<Revision>) -> Result<HashAnswer, EngineError>;

    /// Returns the bytes in use.
    async fn size(&self) -> Result<EngineSize, EngineError>;

    /// Returns free space to the operating system, where the engine can.
    async fn defragment(&self) -> Result<(), EngineError>;

    /// Writes the retained history as an etcd database file, which etcdutl can restore.
    async fn export(&self, file: &Path) -> Result<Revision, EngineError>;

    /// Writes the key if it does not exist.
    async fn create_if_absent(
        &self,
        key: Bytes,
        value: Bytes,
        lease: LeaseId,
    ) -> Result<WriteOutcome, EngineError> {
        let compare = mod_revision_is(&key, Revision(0));
        let txn = Txn {
            compare: vec![compare],
            success: vec![put(key, value, lease)],
            failure: Vec::new(),
        };
        Ok(outcome(self.txn(txn).await?))
    }

    /// Writes the key if its last write was at `expected`; 0 means that the key does not exist.
    async fn update_at_revision(
        &self,
        key: Bytes,
        expected: Revision,
        (value, lease): (Bytes, LeaseId),
    ) -> Result<WriteOutcome, EngineError> {
        let txn = Txn {
            compare: vec![mod_revision_is(&key, expected)],
            success: vec![put(key.clone(), value, lease)],
            failure: vec![Op::Range(RangeQuery::latest(KeyRange::Key(key)))],
        };
        Ok(outcome(self.txn(txn).await?))
    }

    /// Deletes the key if its last write was at `expected`.
    async fn delete_key(
        &self,
        key: Bytes,
        expected: Revision,
    ) -> Result<WriteOutcome, EngineError> {
        let txn = Txn {
            compare: vec![mod_revision_is(&key, expected)],
            success: vec![Op::DeleteRange(DeleteRange {
                range: KeyRange::Key(key.clone()),
                wants_previous: false,
            })],
            failure: vec![Op::Range(RangeQuery::latest(KeyRange::Key(key)))],
        };
        Ok(outcome(self.txn(txn).await?))
    }

    /// Writes the key if it has `version`. API servers elect with it the one that compacts.
    async fn compact_vote(
        &self,
        key: Bytes,
        version: i64,
        value: Bytes,
    ) -> Result<WriteOutcome, EngineError> {
        let compare = Compare {
            range: KeyRange::Key(key.clone()),
            target: CompareTarget::Version(version),
            result: CompareResult::Equal,
        };
        let txn = Txn {
            compare: vec![compare],
            success: vec![put(key.clone(), value, LeaseId::NONE)],
            failure: vec![Op::Range(RangeQuery::latest(KeyRange::Key(key)))],
        };
        Ok(outcome(self.txn(txn).await?))
    }

    /// Counts the keys of a range.
    async fn count_keys(
        &self,
        range: KeyRange,
        at: Option<Revision>,
    ) -> Result<(Revision, usize), EngineError> {
        let query = RangeQuery {
            range,
            at,
            limit: None,
            projection: Projection::CountOnly,
        };
        let answer = self.range_keys(query).await?;
        Ok((answer.revision, answer.count))
    }

    /// Reads one key at a revision.
    async fn get_at_revision(
        &self,
        key: Bytes,
        at: Revision,
    ) -> Result<(Revision, Option<KeyVersion>), EngineError> {
        let query = RangeQuery {
            at: Some(at),
            ..RangeQuery::latest(KeyRange::Key(key))
        };
        let mut answer = self.range_keys(query).await?;
        Ok((answer.revision, answer.keys.pop()))
    }

    /// Reads one key.
    async fn get_latest(&self, key: Bytes) -> Result<(Revision, Option<KeyVersion>), EngineError> {
        let query = RangeQuery::latest(KeyRange::Key(key));
        let mut answer = self.range_keys(query).await?;
        Ok((answer.revision, answer.keys.pop()))
    }
}

/// An engine that can be shared.
pub(crate) type SharedEngine = Arc<dyn Engine>;

fn mod_revision_is(key: &Bytes, revision: Revision) -> Compare {
    Compare {
        range: KeyRange::Key(key.clone()),
        target: CompareTarget::ModRevision(revision.0),
        result: CompareResult::Equal,
    }
}

fn put(key: Bytes, value: Bytes, lease: LeaseId) -> Op {
    Op::Put(Put {
        key,
        value: Some(value),
        lease: PutLease::Set(lease),
        wants_previous: false,
    })
}

fn outcome(answer: TxnAnswer) -> WriteOutcome {
    if answer.succeeded {
        return WriteOutcome::Done(answer.revision);
    }
    let present = answer.answers.into_iter().find_map(|op| match op {
        OpAnswer::Range(mut read) => read.keys.pop(),
        OpAnswer::Put(_) | OpAnswer::DeleteRange(_) | OpAnswer::Txn(_) => None,
    });
    WriteOutcome::Conflict {
        revision: answer.revision,
        present,
    }
}
