//! Syncs written bytes to disk in the background while the next ones are computed.
//!
//! Otherwise the final sync would have to write the whole database.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;

use super::error::RebuildError;
use super::file::{DatabaseFile, Durability};

/// Written bytes after which a sync starts.
const FLUSH_INTERVAL_BYTES: u64 = 32 << 20;

/// Syncs a file in the background. [`FileFlusher::finish`] returns the first error.
#[derive(Debug)]
pub(crate) struct FileFlusher {
    written: AtomicU64,
    wake: Option<SyncSender<()>>,
    thread: Option<JoinHandle<io::Result<()>>>,
}

impl FileFlusher {
    /// Starts the background thread; a scratch file needs none.
    pub(crate) fn new(file: DatabaseFile<'_>) -> Result<Self, RebuildError> {
        if file.durability == Durability::Scratch {
            return Ok(Self {
                written: AtomicU64::new(0),
                wake: None,
                thread: None,
            });
        }
        let file = file
            .file
            .try_clone()
            .map_err(|source| RebuildError::Write { source })?;
        // One token suffices: the next sync covers everything written before it starts.
        let (wake, woken) = sync_channel::<()>(1);
        let thread = std::thread::Builder::new()
            .name("flush".into())
            .spawn(move || {
                // Linux reports a failed write to one fsync only: if this one gets the error, the final sync
                // succeeds, so the error must be kept.
                woken.into_iter().try_for_each(|()| file.sync_data())
            })
            .map_err(|source| RebuildError::Write { source })?;
        Ok(Self {
            written: AtomicU64::new(0),
            wake: Some(wake),
            thread: Some(thread),
        })
    }

    /// Counts written bytes and starts a sync when it is due.
    pub(crate) fn record_written(&self, bytes: u64) {
        let before = self.written.fetch_add(bytes, Ordering::Relaxed);
        let is_due = before / FLUSH_INTERVAL_BYTES != (before + bytes) / FLUSH_INTERVAL_BYTES;
        if let (true, Some(wake)) = (is_due, &self.wake) {
            // Full: a sync is pending already. Disconnected: the thread failed, and finish() returns its error.
            match wake.try_send(()) {
                Ok(()) | Err(TrySendError::Full(()) | TrySendError::Disconnected(())) => {}
            }
        }
    }
}

impl FileFlusher {
    /// Waits for the running sync and returns the first error of all of them.
    pub(crate) fn finish(mut self) -> Result<(), RebuildError> {
        self.wake = None;
        match self.thread.take().map(JoinHandle::join) {
            None | Some(Ok(Ok(()))) => Ok(()),
            Some(Ok(Err(source))) => Err(RebuildError::Write { source }),
            Some(Err(_)) => Err(RebuildError::Thread { name: "flush" }),
        }
    }
}

impl Drop for FileFlusher {
    fn drop(&mut self) {
        self.wake = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // reached only after another failure, which is the one reported
        }
    }
}
