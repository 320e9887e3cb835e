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

use super::sink::UploadSink;
use super::stream::{ChunkBatch, SnapshotStreamError, compress_snapshot};
use crate::backup_store::{BackupStore, BackupStoreError};
use crate::election::{LeaderFence, LeaderFenceError};
use crate::etcd::{EtcdCall, EtcdClient, EtcdError, with_timeout};
use crate::snapshotter::Finality;
use crate::state::StoredSnapshot;
use crate::tail::{DeltaFlusher, PendingFlush};

/// Chunks passed on together; etcd sends 32 KiB at a time.
const CHUNKS_PER_BATCH: usize = 16;
/// Batches queued between the stream and the compressing thread.
const BATCH_QUEUE_CAPACITY: usize = 3;
/// How long a complete snapshot waits for the deltas up to it.
const DELTA_FLUSH_TIMEOUT: Duration = Duration::from_secs(10);
/// Silence after which the stream counts as broken: etcd only reads its own disk and memory.
const STREAM_IDLE_TIMEOUT: Duration = Duration::from_mins(1);

/// Settings of full snapshots.
#[derive(Clone, Debug)]
pub(crate) struct FullConfig {
    pub(crate) compression: Compression,
    /// Compression threads.
    pub(crate) threads: NonZeroUsize,
    /// Limit for the whole snapshot, including the upload.
    pub(crate) timeout: Duration,
}

/// Why a full snapshot failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum FullError {
    #[error(transparent)]
    Etcd(#[from] EtcdError),
    #[error(transparent)]
    BackupStore(#[from] BackupStoreError),
    /// The stream was invalid, or could not be compressed or uploaded.
    #[error("stream {name}")]
    Stream {
        name: String,
        source: SnapshotStreamError,
    },
    /// Leadership was lost or could not be confirmed before the upload was completed.
    #[error("upload of {name} cancelled")]
    Fenced {
        name: String,
        source: LeaderFenceError,
    },
    #[error("upload {name}")]
    Store { name: String, source: StoreError },
    #[error("full snapshot not finished within {} s, see --etcd-snapshot-timeout", limit.as_secs())]
    Timeout { limit: Duration },
    /// The session stopped, restarted, or lost leadership.
    #[error("full snapshot aborted")]
    Interrupted,
}

impl FullError {
    /// Failure class for metrics.
    pub(crate) fn class(&self) -> &'static str {
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

/// A stored full snapshot.
#[derive(Clone, Debug)]
pub(crate) struct UploadedFull {
    pub(crate) stored: StoredSnapshot,
    /// Bytes before compression.
    pub(crate) raw_bytes: u64,
    /// Number of multipart upload parts.
    pub(crate) parts: usize,
}

/// Takes full snapshots.
#[derive(Clone)]
pub(crate) struct FullSnapshotter {
    pub(crate) etcd: EtcdClient,
    pub(crate) store: BackupStore,
    /// Confirms leadership before an object becomes visible.
    pub(crate) fence: LeaderFence,
    pub(crate) config: FullConfig,
    /// One permit: full snapshots and defragmentation exclude each other.
    pub(crate) maintenance_lock: Arc<Semaphore>,
}

impl FullSnapshotter {
    /// Takes a full snapshot without retrying. Deltas up to it are requested from `flusher`.
    pub(crate) async fn take(
        &self,
        finality: Finality,
        flusher: Option<DeltaFlusher>,
    ) -> Result<UploadedFull, FullError> {
        let _quiet = self
            .maintenance_lock
            .acquire()
            .await
            .map_err(|_| FullError::Interrupted)?;
        // The limit does not include the wait for a running defragmentation.
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
        // Create only: an object of another leader is never overwritten.
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
        // The error of the stream is the cause; the writer then only reports a missing end.
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
        // The next leader starts at this object once it is visible, so the deltas up to it must be stored before.
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

    /// Reads the stream into the queue.
    async fn read_stream(
        &self,
        send: mpsc::Sender<Result<ChunkBatch, ()>>,
        flusher: Option<DeltaFlusher>,
    ) -> Result<Option<PendingFlush>, EtcdError> {
        let outcome = self.read_chunks(&send, flusher).await;
        if outcome.is_err() {
            let _ = send.send(Err(())).await; // the writer may have failed before
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
            let message =
                with_timeout(STREAM_IDLE_TIMEOUT, EtcdCall::Snapshot, stream.message()).await?;
            let Some(message) = message else {
                send.send(Ok(batch.into())).await.ok(); // a failed writer reports its own error
                return Ok(flushing);
            };
            // The first chunk shows that etcd has fixed the content; it cannot be newer than the revision confirmed now.
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
                return Ok(flushing); // the failed writer reports its own error
            }
        }
    }

    /// Compresses on a blocking thread and returns the upload in any case. Dropping the future ends the thread.
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
            let poured =
                compress_snapshot(|| receive.blocking_recv(), &compression, options, &mut sink);
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
        // Checked as late as possible: the object becomes visible with `finish`.
        if let Err(source) = self.fence.check().await {
            abort_upload(upload).await;
            return Err(FullError::Fenced { name, source });
        }
        // Not in a task of its own: aborting this one when leadership is lost must abort the completion as well.
        let parts = upload.part_count();
        let finished = upload.finish().await;
        let object = finished.map_err(|source| FullError::Store { name, source })?;
        Ok((object, parts))
    }
}

/// Aborts an upload; nothing of it becomes visible. Parts that cannot be removed stay until the bucket's lifecycle rule
/// deletes them.
async fn abort_upload(upload: Upload) {
    if let Err(error) = upload.abort().await {
        tracing::debug!(error = %ErrorChain(&error), "failed to abort upload");
    }
}
