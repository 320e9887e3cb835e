//! One attempt at a full snapshot.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;
use mainstay_archive::compression::{Compression, CompressionEffort, EncoderOptions};
use mainstay_archive::layout::object_key;
use mainstay_archive::name::SnapshotName;
use mainstay_ids::Revision;
use mainstay_store::{ObjectInfo, StoreError, Upload, UploadOptions};
use mainstay_telemetry::ErrorChain;
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;
use tracing::info;

use super::pour::{ChunkBatch, SnapshotStreamError, compress_snapshot};
use super::sink::UploadSink;
use crate::ask::Finality;
use crate::bucket::{BackupStore, BackupStoreError};
use crate::election::{LeaderFence, LeaderFenceError};
use crate::etcd::{EtcdClient, EtcdError, EtcdCall, with_timeout};
use crate::state::StoredSnapshot;
use crate::tail::{DeltaFlusher, PendingFlush};

/// Pieces that are passed on together; etcd sends 32 KiB at a time.
const CHUNKS_PER_BATCH: usize = 16;
/// Batches of them between the stream and the thread that compresses.
const BATCH_QUEUE_CAPACITY: usize = 3;
/// How long a snapshot that is whole waits for the deltas up to it.
const DELTA_FLUSH_TIMEOUT: Duration = Duration::from_secs(10);
/// A stream that is silent for this long has broken: etcd reads its own disk and memory only.
const STREAM_IDLE_TIMEOUT: Duration = Duration::from_mins(1);

/// How full snapshots are made.
#[derive(Clone, Debug)]
pub struct FullConfig {
    /// How objects are compressed.
    pub compression: Compression,
    /// Threads that compress.
    pub threads: NonZeroUsize,
    /// How long all of it may take.
    pub timeout: Duration,
}

/// Why there is no full snapshot.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FullError {
    /// etcd did not deliver.
    #[error(transparent)]
    Etcd(#[from] EtcdError),
    /// The store cannot be opened.
    #[error(transparent)]
    BackupStore(#[from] BackupStoreError),
    /// What etcd delivered is no snapshot, or cannot be passed on.
    #[error("stream {name}")]
    Stream {
        /// The snapshot.
        name: String,
        /// Why not.
        source: SnapshotStreamError,
    },
    /// This sidecar leads no more.
    #[error("{name} is not completed")]
    Fenced {
        /// The snapshot.
        name: String,
        /// Why not.
        source: LeaderFenceError,
    },
    /// The store did not take it.
    #[error("store {name}")]
    Store {
        /// The snapshot.
        name: String,
        /// What the store said.
        source: StoreError,
    },
    /// It took too long.
    #[error("the full snapshot took longer than {} s: see --etcd-snapshot-timeout", limit.as_secs())]
    Timeout {
        /// The limit.
        limit: Duration,
    },
    /// Whoever took it stopped: the process ends, backups begin anew, or another sidecar takes over.
    #[error("the full snapshot was given up before its end")]
    Interrupted,
}

impl FullError {
    /// One word for metrics.
    pub fn class(&self) -> &'static str {
        match self {
            Self::Etcd(_) => "etcd",
            Self::Stream {
                source: SnapshotStreamError::Write { .. },
                ..
            }
            | Self::BackupStore(_)
            | Self::Store { .. } => "store",
            Self::Stream { .. } => "integrity",
            Self::Fenced { .. } => "fenced",
            Self::Timeout { .. } => "timeout",
            Self::Interrupted => "interrupted",
        }
    }
}

/// A full snapshot that is in the store.
#[derive(Clone, Debug)]
pub struct UploadedFull {
    /// The object.
    pub stored: StoredSnapshot,
    /// Bytes before compression.
    pub raw_bytes: u64,
    /// Parts it was sent in.
    pub parts: usize,
}

/// Takes full snapshots.
#[derive(Clone)]
pub struct FullSnapshotter {
    /// Where from.
    pub etcd: EtcdClient,
    /// Where to.
    pub store: BackupStore,
    /// What is asked before an object is completed.
    pub fence: LeaderFence,
    /// How.
    pub config: FullConfig,
    /// Held while a snapshot is taken; whoever defragments holds it, too.
    pub maintenance_lock: Arc<Semaphore>,
}

impl FullSnapshotter {
    /// Takes a full snapshot, once. `flusher` is told which deltas to store beside it.
    pub async fn take(
        &self,
        finality: Finality,
        flusher: Option<DeltaFlusher>,
    ) -> Result<UploadedFull, FullError> {
        let _quiet = self
            .maintenance_lock
            .acquire()
            .await
            .map_err(|_| FullError::Interrupted)?;
        let limit = self.config.timeout;
        tokio::time::timeout(limit, self.stream_to_store(finality, flusher))
            .await
            .unwrap_or(Err(FullError::Timeout { limit }))
    }

    async fn stream_to_store(
        &self,
        finality: Finality,
        flusher: Option<DeltaFlusher>,
    ) -> Result<UploadedFull, FullError> {
        let patience = self.fence.timeout;
        let revision = self.etcd.read_quorum_revision(patience).await?;
        let name = self.build_name(revision, finality);
        let store = self.store.open().await?;
        let key = object_key(store.prefix(), &name);
        let upload = store.upload(&key, UploadOptions::create_only());
        let upload = upload.map_err(|source| FullError::Store {
            name: name.to_string(),
            source,
        })?;
        info!(object_key = %key, revision = %revision, "taking a full snapshot");
        let (send, receive) = mpsc::channel(BATCH_QUEUE_CAPACITY);
        let pouring = self.compress_and_upload(receive, upload);
        let reading = self.read_stream(send, flusher);
        let (read, poured) = tokio::join!(reading, pouring);
        let (upload, poured) = poured?;
        // The stream's own error says more than that the pouring missed its end.
        let (flushing, raw_bytes) = match (read, poured) {
            (Ok(flushing), Ok(raw_bytes)) => (flushing, raw_bytes),
            (Err(error), _) => {
                abort_upload(upload).await;
                return Err(error.into());
            }
            (Ok(_), Err(source)) => {
                abort_upload(upload).await;
                let name = name.to_string();
                return Err(FullError::Stream { name, source });
            }
        };
        // Once this object is there, the next start begins with it: the way to it has to be stored by then.
        if let Some(flushing) = flushing {
            flushing.wait(DELTA_FLUSH_TIMEOUT).await;
        }
        let (object, parts) = self.complete_upload(upload, &name).await?;
        let stored = StoredSnapshot {
            name,
            key,
            size: object.size,
        };
        Ok(UploadedFull {
            stored,
            raw_bytes,
            parts,
        })
    }

    fn build_name(&self, revision: Revision, finality: Finality) -> SnapshotName {
        let now = Timestamp::now().as_second();
        let mut name = SnapshotName::full(revision, now, self.config.compression.clone());
        name.is_final = finality == Finality::Final;
        name
    }

    /// Reads the stream into the queue. Its first piece means that etcd has fixed the content.
    async fn read_stream(
        &self,
        send: mpsc::Sender<Result<ChunkBatch, ()>>,
        flusher: Option<DeltaFlusher>,
    ) -> Result<Option<PendingFlush>, EtcdError> {
        let outcome = self.read_chunks(&send, flusher).await;
        if outcome.is_err() {
            let _ = send.send(Err(())).await; // the pouring may have failed before
        }
        outcome
    }

    async fn read_chunks(
        &self,
        send: &mpsc::Sender<Result<ChunkBatch, ()>>,
        mut flusher: Option<DeltaFlusher>,
    ) -> Result<Option<PendingFlush>, EtcdError> {
        let mut flushing = None;
        let mut client = self.etcd.own_client().await?;
        let patience = self.fence.timeout;
        let mut stream = with_timeout(patience, EtcdCall::Snapshot, client.snapshot()).await?;
        let mut batch = Vec::with_capacity(CHUNKS_PER_BATCH);
        loop {
            let message = with_timeout(STREAM_IDLE_TIMEOUT, EtcdCall::Snapshot, stream.message()).await?;
            let Some(message) = message else {
                send.send(Ok(batch.into())).await.ok(); // the pouring may have failed, and says why
                return Ok(flushing);
            };
            if let Some(flusher) = flusher.take() {
                let fixed = self.etcd.read_quorum_revision(patience).await?;
                flushing = Some(flusher.request(fixed).await);
            }
            batch.push(Bytes::from(message.0.blob));
            if batch.len() < CHUNKS_PER_BATCH {
                continue;
            }
            let full = batch.drain(..).collect();
            if send.send(Ok(full)).await.is_err() {
                return Ok(flushing); // the pouring has failed and says why
            }
        }
    }

    /// Compresses on a thread of its own and gives the upload back, whatever happened. The thread ends when nobody waits.
    async fn compress_and_upload(
        &self,
        mut receive: mpsc::Receiver<Result<ChunkBatch, ()>>,
        upload: Upload,
    ) -> Result<(Upload, Result<u64, SnapshotStreamError>), FullError> {
        let compression = self.config.compression.clone();
        let options = EncoderOptions {
            threads: self.config.threads,
            effort: CompressionEffort::Fast,
        };
        let stop = CancellationToken::new();
        let mut sink = UploadSink::new(upload, stop.clone());
        let _stop_when_dropped = stop.drop_guard();
        let work = tokio::task::spawn_blocking(move || {
            let poured = compress_snapshot(|| receive.blocking_recv(), &compression, options, &mut sink);
            (sink.into_upload(), poured.map(|poured| poured.raw_bytes))
        });
        work.await.map_err(|_| FullError::Interrupted)
    }

    async fn complete_upload(
        &self,
        upload: Upload,
        name: &SnapshotName,
    ) -> Result<(ObjectInfo, usize), FullError> {
        let name = name.to_string();
        if let Err(source) = self.fence.check().await {
            abort_upload(upload).await;
            return Err(FullError::Fenced { name, source });
        }
        // In this task: whoever ends it, because leadership is lost, ends the completion as well.
        let parts = upload.part_count();
        let finished = upload.finish().await;
        let object = finished.map_err(|source| FullError::Store { name, source })?;
        Ok((object, parts))
    }
}

/// Nothing of an upload that is given up becomes visible; parts that cannot be removed stay until the bucket's
/// lifecycle rule takes them.
async fn abort_upload(upload: Upload) {
    if let Err(error) = upload.abort().await {
        tracing::debug!(error = %ErrorChain(&error), "an upload could not be aborted");
    }
}
