//! Downloads an object in parallel ranges, in order and with bounded memory.
//!
//! ```text
//! head ─► pin version ─► ranges ─► N tasks ─► queue in order ─► next_part / stream / Read
//!                                   │ each: get range If-Match, append; after a fault resume
//!                                   └──────  at the byte reached, until the deadline
//! ```
//!
//! **Invariants**: at most N parts exist, including the one being consumed, and N parts never exceed
//! [`crate::config::DOWNLOAD_BUDGET_BYTES`]. Every response must be of the version pinned at the start,
//! so bytes of two versions never mix. Only complete parts are returned.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, Read};
use std::ops::Range;
use std::sync::Arc;

use bytes::{Buf, Bytes, BytesMut};
use futures::{Stream, TryStreamExt, stream};
use tokio::runtime::Handle;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::AbortOnDropHandle;

use crate::error::{AttemptError, StoreError, StoreOperation};
use crate::retry::RetryState;
use crate::store::{ObjectInfo, StoreInner};

type PartHandle = AbortOnDropHandle<Result<Bytes, StoreError>>;

/// An object being downloaded. Dropping it cancels all requests.
pub struct Download {
    store: Arc<StoreInner>,
    object: Arc<ObjectInfo>,
    /// Offset at which the next range starts.
    next_offset: u64,
    parts: VecDeque<PartHandle>,
    part_bytes: u64,
    runtime: Handle,
}

impl Download {
    /// Parallel parts use at most `budget_bytes` together.
    pub(crate) fn start(store: Arc<StoreInner>, object: ObjectInfo, budget_bytes: u64) -> Self {
        let part_bytes = store.transfer.part_bytes_within(budget_bytes);
        let mut download = Self {
            store,
            object: Arc::new(object),
            next_offset: 0,
            parts: VecDeque::new(),
            part_bytes,
            runtime: Handle::current(),
        };
        download.schedule_parts();
        download
    }

    /// The pinned version of the object.
    pub fn object(&self) -> &ObjectInfo {
        &self.object
    }

    /// Size of the object in bytes.
    pub fn size(&self) -> u64 {
        self.object.size
    }

    /// Starts range requests up to the parallelism limit.
    fn schedule_parts(&mut self) {
        let part_bytes = self.part_bytes;
        let max_parts = usize::from(self.store.transfer.parallel_downloads.max(1));
        while self.parts.len() < max_parts && self.next_offset < self.object.size {
            let range = self.next_offset..(self.next_offset + part_bytes).min(self.object.size);
            self.next_offset = range.end;
            let fetch = fetch_range(Arc::clone(&self.store), Arc::clone(&self.object), range);
            self.parts
                .push_back(AbortOnDropHandle::new(self.runtime.spawn(fetch)));
        }
    }

    /// The next bytes of the object, or `None` at its end. Cancel safe.
    ///
    /// Drop the previous part first, or its bytes come on top of the memory limit. After an error the
    /// download returns `None`.
    pub async fn next_part(&mut self) -> Option<Result<Bytes, StoreError>> {
        self.schedule_parts();
        let outcome = match self.parts.front_mut()?.await {
            Ok(outcome) => outcome,
            Err(source) => Err(StoreError::TaskFailed {
                place: self.store.location(&self.object.key),
                source,
            }),
        };
        self.parts.pop_front();
        if outcome.is_err() {
            self.parts.clear();
            self.next_offset = self.object.size;
        }
        Some(outcome)
    }

    /// The parts as a stream.
    pub fn into_stream(self) -> impl Stream<Item = Result<Bytes, StoreError>> + Send {
        stream::unfold(self, |mut download| async move {
            let part = download.next_part().await?;
            Some((part, download))
        })
    }

    /// A blocking reader for code that uses `std::io`, on a thread outside the runtime.
    pub fn into_reader(self) -> DownloadReader {
        DownloadReader {
            download: self,
            current: Bytes::new(),
        }
    }

    /// A blocking reader whose reads fail once the guard is dropped: a future that is dropped with its guard leaves no
    /// blocking thread behind.
    pub fn into_cancellable_reader(self) -> (CancellableReader<DownloadReader>, DropGuard) {
        CancellableReader::new(self.into_reader())
    }
}

/// A reader that fails once the [`DropGuard`] created with it is dropped.
#[derive(Debug)]
pub struct CancellableReader<R> {
    reader: R,
    stop: CancellationToken,
}

impl<R: Read> CancellableReader<R> {
    fn new(reader: R) -> (Self, DropGuard) {
        let stop = CancellationToken::new();
        let guard = stop.clone().drop_guard();
        (Self { reader, stop }, guard)
    }
}

impl<R: Read> Read for CancellableReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.stop.is_cancelled() {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        self.reader.read(buffer)
    }
}

impl fmt::Debug for Download {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Download")
            .field("object", &self.object)
            .field("scheduled", &self.next_offset)
            .finish_non_exhaustive()
    }
}

/// A download as blocking [`Read`].
///
/// Panics on a thread that drives the runtime; use `spawn_blocking` or a separate thread. Errors wrap
/// the [`StoreError`]; `downcast` returns it.
#[derive(Debug)]
pub struct DownloadReader {
    download: Download,
    current: Bytes,
}

impl DownloadReader {
    /// Size of the object in bytes.
    pub fn size(&self) -> u64 {
        self.download.size()
    }
}

impl Read for DownloadReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        while self.current.is_empty() {
            // Free the consumed part before waiting for the next, to stay within the memory limit.
            self.current = Bytes::new();
            let runtime = self.download.runtime.clone();
            match runtime.block_on(self.download.next_part()) {
                None => return Ok(0),
                Some(part) => self.current = part.map_err(StoreError::into_io_error)?,
            }
        }
        let length = buffer.len().min(self.current.len());
        self.current.copy_to_slice(&mut buffer[..length]);
        Ok(length)
    }
}

/// Fetches one complete range; resumes at the byte reached after a fault.
async fn fetch_range(
    store: Arc<StoreInner>,
    object: Arc<ObjectInfo>,
    range: Range<u64>,
) -> Result<Bytes, StoreError> {
    let mut bytes = BytesMut::new();
    let mut attempts = RetryState::new(store.retry_policy);
    loop {
        let fault = match try_fetch_range(&store, &object, &range, &mut bytes, &mut attempts).await
        {
            Ok(()) => return Ok(bytes.freeze()),
            Err(fault) => fault,
        };
        let place = || store.location(&object.key);
        match &fault {
            AttemptError::Replaced { found } => {
                let (expected, found) = (describe_version(&object), found.clone());
                return Err(StoreError::Changed {
                    place: place(),
                    expected,
                    found,
                });
            }
            // Some stores also answer 412 for a deleted object; `head` then returns the not-found error.
            AttemptError::Remote(object_store::Error::Precondition { .. }) => {
                let (expected, found) = (
                    describe_version(&object),
                    describe_version(&store.head(&object.key).await?),
                );
                return Err(StoreError::Changed {
                    place: place(),
                    expected,
                    found,
                });
            }
            _ => {}
        }
        attempts
            .wait_before_retry(fault)
            .await
            .map_err(|exhausted| exhausted.into_store_error(StoreOperation::Read, place()))?;
    }
}

/// One attempt to read the missing bytes of `range`.
async fn try_fetch_range(
    store: &StoreInner,
    object: &ObjectInfo,
    range: &Range<u64>,
    bytes: &mut BytesMut,
    attempts: &mut RetryState,
) -> Result<(), AttemptError> {
    let expected = range.end - range.start;
    let missing = range.start + bytes.len() as u64..range.end;
    let read = store
        .backend
        .read(&object.key, missing, object.etag.as_deref());
    let mut body = attempts.with_stall_timeout(read).await?;
    // Local reads take no etag, and a server may ignore If-Match.
    if body.object.size != object.size || body.object.etag != object.etag {
        return Err(AttemptError::Replaced {
            found: describe_version(&body.object),
        });
    }
    if bytes.capacity() == 0 {
        // Safe to allocate: the store confirmed the size, and a range is at most one part.
        bytes.reserve(usize::try_from(expected).unwrap_or(0));
    }
    while let Some(chunk) = attempts.with_stall_timeout(body.chunks.try_next()).await? {
        if bytes.len() as u64 + chunk.len() as u64 > expected {
            return Err(AttemptError::BodyTooLong { expected });
        }
        bytes.extend_from_slice(&chunk);
        attempts.record_progress();
    }
    match bytes.len() as u64 {
        found if found < expected => Err(AttemptError::BodyTooShort { expected, found }),
        _ => Ok(()),
    }
}

fn describe_version(object: &ObjectInfo) -> String {
    format!(
        "{} ({} bytes)",
        object.etag.as_deref().unwrap_or("no version"),
        object.size
    )
}
