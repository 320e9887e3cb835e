//! Writing an object of unknown length: in one request if it is small, in parallel parts if not.
//!
//! ```text
//! write ─► buffer ─full─► begin once ─► N part tasks ─┐
//!            │                                        ├─► complete ─► head: is the size right?
//!            └─finish, never full─► one put ──────────┘
//! ```
//!
//! **Holds**: N parts in flight and one being filled are all the memory used. Nothing is visible
//! before [`Upload::finish`]; dropping an upload aborts it.
//!
//! **Create-only**: single writes and files are decided by the store, atomically. No store lets its
//! multipart completion depend on the key being free through this client, so large objects are
//! checked right before completion; two writers that complete the same key within that moment are
//! both told that they succeeded, and the later one stays. Names of snapshots carry revision and
//! time, so that two writers of one key hold the same data.
//!
//! **After a crash**: no object. Parts of S3 and GCS uploads stay until a lifecycle rule of the
//! bucket removes them; Azure forgets them after a week.

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
use crate::backend::{Mode, Session, Slot};
use crate::error::{Class, Step, StoreError};
use crate::retry::Attempts;
use crate::store::{Inner, Object};

/// Parts grow after this many, so that no object hits the ten thousand parts a store allows: with the
/// smallest part, memory stays at its minimum up to 12 GiB and the end is beyond 180 GiB.
const PARTS_PER_SIZE: usize = 2_500;

/// How an object is to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct UploadOptions {
    /// Refuse to replace an object of the same name.
    pub if_absent: bool,
}

impl UploadOptions {
    /// Refuse to replace an object of the same name.
    pub fn create_only() -> Self {
        Self { if_absent: true }
    }

    fn mode(self) -> Mode {
        if self.if_absent {
            Mode::Create
        } else {
            Mode::Overwrite
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Open,
    /// A call was abandoned or failed in the middle: what was sent is not known.
    Broken,
    Finished,
}

/// An object being written. Dropping it aborts the upload in the background.
pub struct Upload {
    store: Arc<Inner>,
    key: String,
    options: UploadOptions,
    buffer: Vec<u8>,
    sent: u64,
    next_index: usize,
    session: Option<Arc<Session>>,
    tasks: JoinSet<Result<SentPart, StoreError>>,
    /// Buffers of parts that were sent, to be filled again: allocating megabytes over and over, on whichever thread,
    /// leaves a heap of holes.
    spare: Vec<Vec<u8>>,
    done: Vec<(usize, PartId)>,
    state: State,
    runtime: Handle,
}

impl Upload {
    pub(crate) fn new(store: Arc<Inner>, key: String, options: UploadOptions) -> Self {
        Self {
            store,
            key,
            options,
            buffer: Vec::new(),
            sent: 0,
            next_index: 0,
            session: None,
            tasks: JoinSet::new(),
            spare: Vec::new(),
            done: Vec::new(),
            state: State::Open,
            runtime: Handle::current(),
        }
    }

    /// The key being written.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Parts of a multipart upload that were sent so far; none for an object that fits into one request.
    pub fn parts(&self) -> usize {
        self.next_index
    }

    /// Takes the next bytes. Returns when they are buffered; waits while too many parts are under way.
    ///
    /// After an error, or when the future was dropped before it finished, only [`Upload::abort`] is
    /// left.
    pub async fn write(&mut self, mut bytes: Bytes) -> Result<(), StoreError> {
        self.usable()?;
        while !bytes.is_empty() {
            let taken = self.fill(&bytes);
            bytes = bytes.slice(taken..);
            if self.is_full() {
                self.ship().await?;
            }
        }
        Ok(())
    }

    fn usable(&self) -> Result<(), StoreError> {
        match self.state {
            State::Open => Ok(()),
            _ => Err(StoreError::Closed {
                place: self.store.place(&self.key),
            }),
        }
    }

    fn part_bytes(&self) -> usize {
        let growth = u32::try_from(self.next_index / PARTS_PER_SIZE).unwrap_or(u32::MAX);
        let size = self
            .store
            .effort
            .upload_part_bytes
            .checked_shl(growth)
            .unwrap_or(u64::MAX);
        usize::try_from(size).unwrap_or(usize::MAX)
    }

    fn is_full(&self) -> bool {
        self.buffer.len() >= self.part_bytes()
    }

    /// Copies what fits into the part being filled.
    fn fill(&mut self, bytes: &[u8]) -> usize {
        let room = self.part_bytes().saturating_sub(self.buffer.len());
        let taken = &bytes[..room.min(bytes.len())];
        if self.buffer.capacity() == 0 {
            self.buffer = self.spare.pop().unwrap_or_default();
        }
        let needed = self.buffer.len() + taken.len();
        if needed > self.buffer.capacity() {
            // Doubles like a vector does, but never beyond the part: that is the memory promised.
            let capacity = needed
                .max(self.buffer.capacity() * 2)
                .min(self.part_bytes());
            self.buffer.reserve_exact(capacity - self.buffer.len());
        }
        self.buffer.extend_from_slice(taken);
        taken.len()
    }

    /// Hands the buffer to a task, as soon as one may start.
    async fn ship(&mut self) -> Result<(), StoreError> {
        self.state = State::Broken;
        let session = self.begin().await?;
        while self.tasks.len() >= usize::from(self.store.effort.parallel_uploads.max(1)) {
            self.collect_one().await?;
        }
        let bytes = Bytes::from(std::mem::take(&mut self.buffer));
        let slot = Slot {
            index: self.next_index,
            offset: self.sent,
        };
        self.sent += bytes.len() as u64;
        self.next_index += 1;
        let part = PartTask::new(Arc::clone(&self.store), &self.key, session, slot, bytes);
        self.tasks.spawn_on(part.run(), &self.runtime);
        self.state = State::Open;
        Ok(())
    }

    async fn begin(&mut self) -> Result<Arc<Session>, StoreError> {
        if let Some(session) = &self.session {
            return Ok(Arc::clone(session));
        }
        let begun = self
            .store
            .patience
            .run(|_| self.store.backend.begin(&self.key))
            .await;
        let session =
            begun.map_err(|gave_up| gave_up.at(Step::Begin, self.store.place(&self.key)))?;
        Ok(Arc::clone(self.session.insert(Arc::new(session))))
    }

    async fn collect_one(&mut self) -> Result<bool, StoreError> {
        match self.tasks.join_next().await {
            None => Ok(false),
            Some(Ok(outcome)) => {
                let sent = outcome?;
                self.done.push((sent.index, sent.id));
                if sent.bytes.is_unique() {
                    let mut buffer = Vec::from(sent.bytes);
                    buffer.clear();
                    self.spare.push(buffer);
                }
                Ok(true)
            }
            Some(Err(source)) => Err(StoreError::Task {
                place: self.store.place(&self.key),
                source,
            }),
        }
    }

    /// Makes the object visible and checks that the store has all of it.
    ///
    /// On an error nothing is left behind, except when the answer to the last request was lost.
    pub async fn finish(mut self) -> Result<Object, StoreError> {
        self.usable()?;
        self.state = State::Broken;
        let total = self.sent + self.buffer.len() as u64;
        let outcome = match self.session {
            None => {
                let bytes = Bytes::from(std::mem::take(&mut self.buffer));
                self.store.put(&self.key, bytes, self.options.mode()).await
            }
            Some(_) => self.complete(total).await,
        };
        if let Err(error) = outcome {
            // The first error is the one to report; an upload that cannot be aborted expires.
            let _ = self.abort_session().await;
            return Err(error);
        }
        self.state = State::Finished;
        let object = self.store.head(&self.key).await?;
        if object.size != total {
            let place = self.store.place(&self.key);
            return Err(StoreError::Size {
                place,
                expected: total,
                found: object.size,
            });
        }
        Ok(object)
    }

    async fn complete(&mut self, total: u64) -> Result<(), StoreError> {
        if !self.buffer.is_empty() {
            self.ship().await?;
            self.state = State::Broken;
        }
        while self.collect_one().await? {}
        self.done.sort_by_key(|(index, _)| *index);
        let parts: Vec<PartId> = self.done.drain(..).map(|(_, part)| part).collect();
        if self.options.if_absent && self.size_now().await?.is_some() {
            return Err(StoreError::Exists {
                place: self.store.place(&self.key),
            });
        }
        let Some(session) = self.session.clone() else {
            return Ok(());
        };
        self.complete_session(&session, &parts, total).await
    }

    /// Completes, knowing that an answer may be lost and the next attempt then finds no upload.
    async fn complete_session(
        &self,
        session: &Session,
        parts: &[PartId],
        total: u64,
    ) -> Result<(), StoreError> {
        let mut attempts = Attempts::new(self.store.patience);
        let mut is_repeat = false;
        loop {
            let complete = session.complete(parts.to_vec(), self.options.mode());
            let outcome = if session.is_file() {
                // Syncing gigabytes takes as long as the disk takes, and cannot be tried again.
                complete.await
            } else {
                attempts.within(complete).await
            };
            let Err(fault) = outcome else {
                return Ok(());
            };
            match fault.class() {
                Class::Exists => {
                    return Err(StoreError::Exists {
                        place: self.store.place(&self.key),
                    });
                }
                Class::Transient => {}
                _ if is_repeat && self.size_now().await? == Some(total) => return Ok(()),
                _ => {}
            }
            is_repeat = true;
            attempts
                .pause(fault)
                .await
                .map_err(|gave_up| gave_up.at(Step::Complete, self.store.place(&self.key)))?;
        }
    }

    /// The size of what is under the key now.
    async fn size_now(&self) -> Result<Option<u64>, StoreError> {
        match self.store.head(&self.key).await {
            Ok(object) => Ok(Some(object.size)),
            Err(error) if error.class() == Class::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Throws away what was sent. No object appears.
    pub async fn abort(mut self) -> Result<(), StoreError> {
        self.abort_session().await
    }

    async fn abort_session(&mut self) -> Result<(), StoreError> {
        self.tasks.shutdown().await;
        self.state = State::Finished;
        let Some(session) = self.session.take() else {
            return Ok(());
        };
        let outcome = self.store.patience.run(|_| session.abort()).await;
        outcome.map_err(|gave_up| gave_up.at(Step::Abort, self.store.place(&self.key)))
    }

    /// The upload for code that writes through `std::io`, on a thread outside the runtime.
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
            .filter(|_| self.state != State::Finished)
        else {
            return;
        };
        let patience = self.store.patience;
        self.runtime.spawn(async move {
            // Nobody is left to tell; what cannot be aborted expires.
            let _ = patience.run(|_| session.abort()).await;
        });
    }
}

impl fmt::Debug for Upload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upload")
            .field("key", &self.key)
            .field("sent", &self.sent)
            .field("buffered", &self.buffer.len())
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}
