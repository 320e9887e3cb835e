//! The engine above a [`RowStore`]: a key index in memory, and rows wherever the store keeps them, as in etcd.
//!
//! ```text
//! write → queue → evaluate in memory (index at `current`) → RowStore::commit → visible → hub → answer
//! read  → index at `visible` → rows
//! ```
//!
//! Reads and watches end at the visible revision, which the store has. A write that waits for its commit is in the
//! index already, so that the next write of the same commit observes it, but no reader does. When a commit fails, the
//! engine accepts no more writes: what its index has beyond the visible revision will never exist.

mod compact;
mod compare;
mod core;
mod export;
mod hash;
mod index;
mod leases;
mod open;
mod read;
mod state;
mod txn;
mod writer;

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use mainstay_ids::{LeaseId, Revision};

use self::core::{Core, Job, Reply};
use self::writer::Writer;
use crate::answer::{HistoryPage, LeaseStatus, Progress, RangeAnswer, TxnAnswer};
use crate::engine::{Capabilities, Engine, EngineSize, HashAnswer};
use crate::error::EngineError;
use crate::hub::Hub;
use crate::request::{HistoryQuery, RangeQuery, Txn};
use crate::row_store::RowStore;

/// How an [`Mvcc`] behaves.
#[derive(Clone, Copy, Debug)]
pub struct MvccOptions {
    /// What the engine declares.
    pub capabilities: Capabilities,
    /// Puts are refused when the retained rows reach this size.
    pub quota_bytes: Option<u64>,
}

impl MvccOptions {
    /// A writable engine whose leases expire.
    pub fn new(name: &'static str) -> Self {
        Self {
            capabilities: Capabilities {
                name,
                is_writable: true,
                is_durable: false,
                expires_leases: true,
            },
            quota_bytes: None,
        }
    }
}

/// An engine over a [`RowStore`].
#[derive(Debug)]
pub struct Mvcc {
    core: Arc<Core>,
    writer: Writer,
}

impl Mvcc {
    /// Reads the rows of the store and starts the engine.
    pub fn open(rows: Box<dyn RowStore>, options: MvccOptions) -> Result<Self, EngineError> {
        let core = Arc::new(Core::open(rows, options)?);
        let writer = Writer::start(&core)?;
        Ok(Self { core, writer })
    }

    /// Runs `read` where it may wait for a disk.
    async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Core) -> Result<T, EngineError> + Send + 'static,
    ) -> Result<T, EngineError> {
        if !self.core.rows.is_blocking() {
            return read(&self.core);
        }
        let core = Arc::clone(&self.core);
        let done = tokio::task::spawn_blocking(move || read(&core)).await;
        done.unwrap_or(Err(EngineError::Closed))
    }

    async fn write(&self, job: Job) -> Result<Reply, EngineError> {
        if !self.core.options.capabilities.is_writable {
            return Err(EngineError::ReadOnly);
        }
        self.writer.submit(&self.core, job).await
    }
}

#[async_trait]
impl Engine for Mvcc {
    fn capabilities(&self) -> Capabilities {
        self.core.options.capabilities
    }

    fn progress(&self) -> Progress {
        self.core.state().progress()
    }

    fn is_healthy(&self) -> bool {
        !self.core.state().is_poisoned
    }

    fn hub(&self) -> &Hub {
        &self.core.hub
    }

    async fn range_keys(&self, query: RangeQuery) -> Result<RangeAnswer, EngineError> {
        self.read(move |core| core.range(&query)).await
    }

    async fn txn(&self, txn: Txn) -> Result<TxnAnswer, EngineError> {
        if txn.is_read_only() {
            return self.read(move |core| core.read_txn(&txn)).await;
        }
        match self.write(Job::Txn(txn)).await? {
            Reply::Txn(answer) => Ok(answer),
            _ => Err(EngineError::Closed),
        }
    }

    async fn history(&self, query: HistoryQuery) -> Result<HistoryPage, EngineError> {
        self.read(move |core| core.history(&query)).await
    }

    async fn compact(&self, revision: Revision) -> Result<Progress, EngineError> {
        self.write(Job::Compact(revision)).await?;
        self.read(move |core| core.discard(revision)).await?;
        Ok(self.progress())
    }

    async fn grant(&self, id: LeaseId, ttl: i64) -> Result<LeaseStatus, EngineError> {
        match self.write(Job::Grant(id, ttl)).await? {
            Reply::Lease(status) => Ok(status),
            _ => Err(EngineError::Closed),
        }
    }

    async fn revoke(&self, id: LeaseId) -> Result<Revision, EngineError> {
        match self.write(Job::Revoke(id)).await? {
            Reply::Revision(revision) => Ok(revision),
            _ => Err(EngineError::Closed),
        }
    }

    async fn keep_alive(&self, id: LeaseId) -> Result<LeaseStatus, EngineError> {
        self.core.state_mut().leases.renew(id)
    }

    async fn lease_status(&self, id: LeaseId) -> Result<LeaseStatus, EngineError> {
        self.core.state().leases.status(id)
    }

    async fn leases(&self) -> Result<Vec<LeaseId>, EngineError> {
        Ok(self.core.state().leases.ids())
    }

    async fn revoke_expired(&self) -> Result<usize, EngineError> {
        if !self.core.options.capabilities.expires_leases {
            return Ok(0);
        }
        let expired = self.core.state().leases.expired();
        let mut revoked = 0;
        for id in expired {
            match self.write(Job::RevokeExpired(id)).await {
                Ok(_) => revoked += 1,
                // It was renewed or revoked in the meantime.
                Err(EngineError::LeaseNotFound) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(revoked)
    }

    async fn hash(&self, at: Option<Revision>) -> Result<HashAnswer, EngineError> {
        self.read(move |core| core.hash(at)).await
    }

    async fn size(&self) -> Result<EngineSize, EngineError> {
        self.read(Core::size).await
    }

    async fn defragment(&self) -> Result<(), EngineError> {
        self.read(|core| core.rows.defragment().map_err(EngineError::Storage))
            .await
    }

    async fn export(&self, file: &Path) -> Result<Revision, EngineError> {
        let file = file.to_owned();
        self.read(move |core| core.export(&file)).await
    }
}
