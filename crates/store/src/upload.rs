//! Uploads an object of unknown length: in one request if it is small, otherwise in parallel parts.
//!
//! ```text
//! write ─► buffer ─full─► begin once ─► N part tasks ─┐
//!            │                                        ├─► complete ─► head: is the size right?
//!            └─finish, never full─► one put ──────────┘
//! ```
//!
//! **Invariants**: memory use is N parts in flight plus one being filled. No object is visible before
//! [`Upload::finish`]; dropping an upload aborts it.
//!
//! **Create-only**: the store enforces it atomically for single writes and local files. The client has no
//! conditional multipart completion, so existence is checked right before completion. If two writers
//! complete the same key in that window, both succeed and the later one remains. Snapshot names contain
//! revision and time, so two writers of one key hold the same data.
//!
//! **After a crash**: no object. Parts of S3 and GCS uploads remain until a lifecycle rule of the bucket
//! removes them; Azure deletes them after a week.

mod part;
mod writer;

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use object_store::multipart::PartId;
use tokio::runtime::Handle;
use tokio::task::JoinSet;

use self::part::{PartTask, SentPart};
pub use self::writer::UploadWriter;
use crate::backend::{PartPosition, UploadSession, WriteMode};
use crate::error::{ErrorClass, StoreError, StoreOperation};
use crate::retry::RetryState;
use crate::store::{ObjectInfo, StoreInner};

/// The part size doubles after this many parts, because stores allow at most 10 000 parts per object.
/// With the smallest part size, memory use is minimal up to 12 GiB and the limit is above 180 GiB.
const PARTS_PER_PART_SIZE: usize = 2_500;

/// Options of an upload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct UploadOptions {
    /// Fail if an object with the same key exists.
    pub if_absent: bool,
}

impl UploadOptions {
    /// Fail if an object with the same key exists.
    pub fn create_only() -> Self {
        Self { if_absent: true }
    }

    fn write_mode(self) -> WriteMode {
        if self.if_absent {
            WriteMode::Create
        } else {
            WriteMode::Overwrite
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum UploadState {
    Open,
    /// A call failed or was cancelled: the number of bytes sent is unknown.
    Broken,
    Finished,
}

/// An object being uploaded. Dropping it aborts the upload in the background.
pub struct Upload {
    store: Arc<StoreInner>,
    key: String,
    options: UploadOptions,
    buffer: Vec<u8>,
    sent_bytes: u64,
    next_part_index: usize,
    session: Option<Arc<UploadSession>>,
    tasks: JoinSet<Result<SentPart, StoreError>>,
    /// Buffers of sent parts, for reuse: repeated allocation of megabytes on different threads fragments
    /// the heap.
    spare_buffers: Vec<Vec<u8>>,
    completed_parts: Vec<(usize, PartId)>,
    state: UploadState,
    runtime: Handle,
}

impl Upload {
    pub(crate) fn new(store: Arc<StoreInner>, key: String, options: UploadOptions) -> Self {
        Self {
            store,
            key,
            options,
            buffer: Vec::new(),
            sent_bytes: 0,
            next_part_index: 0,
            session: None,
            tasks: JoinSet::new(),
            spare_buffers: Vec::new(),
            completed_parts: Vec::new(),
            state: UploadState::Open,
            runtime: Handle::current(),
        }
    }

    /// The key of the object.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Number of parts started so far; 0 for an object that fits into one request.
    pub fn part_count(&self) -> usize {
        self.next_part_index
    }

    /// Appends bytes. Returns when they are buffered; waits while the maximum number of parts is in flight.
    ///
    /// After an error, or after the future was dropped before completion, only [`Upload::abort`] is
    /// allowed.
    pub async fn write(&mut self, mut bytes: Bytes) -> Result<(), StoreError> {
        self.ensure_open()?;
        while !bytes.is_empty() {
            let taken = self.fill_buffer(&bytes);
            bytes = bytes.slice(taken..);
            if self.is_full() {
                self.send_buffer().await?;
            }
        }
        Ok(())
    }

    fn ensure_open(&self) -> Result<(), StoreError> {
        match self.state {
            UploadState::Open => Ok(()),
            _ => Err(StoreError::Closed {
                place: self.store.location(&self.key),
            }),
        }
    }

    fn part_bytes(&self) -> usize {
        let growth = u32::try_from(self.next_part_index / PARTS_PER_PART_SIZE).unwrap_or(u32::MAX);
        let size = self
            .store
            .transfer
            .upload_part_bytes
            .checked_shl(growth)
            .unwrap_or(u64::MAX);
        usize::try_from(size).unwrap_or(usize::MAX)
    }

    fn is_full(&self) -> bool {
        self.buffer.len() >= self.part_bytes()
    }

    /// Copies as many bytes as fit into the current part and returns their number.
    fn fill_buffer(&mut self, bytes: &[u8]) -> usize {
        let room = self.part_bytes().saturating_sub(self.buffer.len());
        let taken = &bytes[..room.min(bytes.len())];
        if self.buffer.capacity() == 0 {
            self.buffer = self.spare_buffers.pop().unwrap_or_default();
        }
        let needed = self.buffer.len() + taken.len();
        if needed > self.buffer.capacity() {
            // Doubles like `Vec`, but not beyond the part size, which is the memory limit.
            let capacity = needed
                .max(self.buffer.capacity() * 2)
                .min(self.part_bytes());
            self.buffer.reserve_exact(capacity - self.buffer.len());
        }
        self.buffer.extend_from_slice(taken);
        taken.len()
    }

    /// Sends the buffer as a part, once fewer than the maximum are in flight.
    async fn send_buffer(&mut self) -> Result<(), StoreError> {
        // Reset at the end: if the caller drops this future, the upload stays broken.
        self.state = UploadState::Broken;
        let session = self.begin_session().await?;
        while self.tasks.len() >= usize::from(self.store.transfer.parallel_uploads.max(1)) {
            self.collect_part().await?;
        }
        let bytes = Bytes::from(std::mem::take(&mut self.buffer));
        let slot = PartPosition {
            index: self.next_part_index,
            offset: self.sent_bytes,
        };
        self.sent_bytes += bytes.len() as u64;
        self.next_part_index += 1;
        let part = PartTask::new(Arc::clone(&self.store), &self.key, session, slot, bytes);
        self.tasks.spawn_on(part.run(), &self.runtime);
        self.state = UploadState::Open;
        Ok(())
    }

    async fn begin_session(&mut self) -> Result<Arc<UploadSession>, StoreError> {
        if let Some(session) = &self.session {
            return Ok(Arc::clone(session));
        }
        let started = self
            .store
            .retry_policy
            .run(|_| self.store.backend.begin_upload(&self.key))
            .await;
        let session = started.map_err(|exhausted| {
            exhausted.into_store_error(StoreOperation::BeginUpload, self.store.location(&self.key))
        })?;
        Ok(Arc::clone(self.session.insert(Arc::new(session))))
    }

    async fn collect_part(&mut self) -> Result<bool, StoreError> {
        match self.tasks.join_next().await {
            None => Ok(false),
            Some(Ok(outcome)) => {
                let sent = outcome?;
                self.completed_parts.push((sent.index, sent.id));
                // The HTTP client may still hold a reference to the bytes of a cancelled attempt.
                if sent.bytes.is_unique() {
                    let mut buffer = Vec::from(sent.bytes);
                    buffer.clear();
                    self.spare_buffers.push(buffer);
                }
                Ok(true)
            }
            Some(Err(source)) => Err(StoreError::TaskFailed {
                place: self.store.location(&self.key),
                source,
            }),
        }
    }

    /// Makes the object visible and verifies its size.
    ///
    /// After an error no object remains, unless the last response was lost or the size check itself failed.
    pub async fn finish(mut self) -> Result<ObjectInfo, StoreError> {
        self.ensure_open()?;
        self.state = UploadState::Broken;
        let total = self.sent_bytes + self.buffer.len() as u64;
        let outcome = match self.session {
            None => {
                let bytes = Bytes::from(std::mem::take(&mut self.buffer));
                self.store
                    .put_object(&self.key, bytes, self.options.write_mode())
                    .await
            }
            Some(_) => self.complete(total).await,
        };
        if let Err(error) = outcome {
            // Report the first error; an upload that cannot be aborted expires in the store.
            let _ = self.abort_session().await;
            return Err(error);
        }
        self.state = UploadState::Finished;
        let object = self.store.head(&self.key).await?;
        if object.size != total {
            let place = self.store.location(&self.key);
            return Err(StoreError::SizeMismatch {
                place,
                expected: total,
                found: object.size,
            });
        }
        Ok(object)
    }

    async fn complete(&mut self, total: u64) -> Result<(), StoreError> {
        if !self.buffer.is_empty() {
            self.send_buffer().await?;
            self.state = UploadState::Broken;
        }
        while self.collect_part().await? {}
        self.completed_parts.sort_by_key(|(index, _)| *index);
        let parts: Vec<PartId> = self
            .completed_parts
            .drain(..)
            .map(|(_, part)| part)
            .collect();
        if self.options.if_absent && self.read_current_size().await?.is_some() {
            return Err(StoreError::AlreadyExists {
                place: self.store.location(&self.key),
            });
        }
        let Some(session) = self.session.clone() else {
            return Ok(());
        };
        self.complete_session(&session, &parts, total).await
    }

    /// Completes the upload. If a response is lost, the retry finds no upload, so the object is checked.
    async fn complete_session(
        &self,
        session: &UploadSession,
        parts: &[PartId],
        total: u64,
    ) -> Result<(), StoreError> {
        let mut attempts = RetryState::new(self.store.retry_policy);
        let mut is_repeat = false;
        loop {
            let complete = session.complete(parts.to_vec(), self.options.write_mode());
            let outcome = if session.is_file() {
                // No timeout: syncing gigabytes depends on the disk, and publishing cannot be retried.
                complete.await
            } else {
                attempts.with_request_timeout(complete).await
            };
            let Err(fault) = outcome else {
                return Ok(());
            };
            match fault.class() {
                ErrorClass::Exists => {
                    return Err(StoreError::AlreadyExists {
                        place: self.store.location(&self.key),
                    });
                }
                ErrorClass::Transient => {}
                // The first attempt succeeded and its response was lost.
                _ if is_repeat && self.read_current_size().await? == Some(total) => return Ok(()),
                _ => {}
            }
            is_repeat = true;
            attempts
                .wait_before_retry(fault)
                .await
                .map_err(|exhausted| {
                    exhausted.into_store_error(
                        StoreOperation::CompleteUpload,
                        self.store.location(&self.key),
                    )
                })?;
        }
    }

    /// The size of the object at the key; `None` if there is none.
    async fn read_current_size(&self) -> Result<Option<u64>, StoreError> {
        match self.store.head(&self.key).await {
            Ok(object) => Ok(Some(object.size)),
            Err(error) if error.class() == ErrorClass::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Discards the sent parts; no object becomes visible.
    pub async fn abort(mut self) -> Result<(), StoreError> {
        self.abort_session().await
    }

    async fn abort_session(&mut self) -> Result<(), StoreError> {
        self.tasks.shutdown().await;
        self.state = UploadState::Finished;
        let Some(session) = self.session.take() else {
            return Ok(());
        };
        let outcome = self.store.retry_policy.run(|_| session.abort()).await;
        outcome.map_err(|exhausted| {
            exhausted.into_store_error(StoreOperation::AbortUpload, self.store.location(&self.key))
        })
    }

    /// A blocking writer for code that uses `std::io`, on a thread outside the runtime.
    pub fn into_writer(self) -> UploadWriter {
        UploadWriter::new(self)
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        self.tasks.abort_all();
        let Some(session) = self
            .session
            .take()
            .filter(|_| self.state != UploadState::Finished)
        else {
            return;
        };
        let patience = self.store.retry_policy;
        self.runtime.spawn(async move {
            // No caller to report to; an upload that cannot be aborted expires in the store.
            let _ = patience.run(|_| session.abort()).await;
        });
    }
}

impl fmt::Debug for Upload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upload")
            .field("key", &self.key)
            .field("sent", &self.sent_bytes)
            .field("buffered", &self.buffer.len())
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}
