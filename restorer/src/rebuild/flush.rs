//! Makes written bytes durable while the next ones are still being computed.
//!
//! Without it all of the writing to disk would wait for the final sync.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;

use super::error::RebuildError;
use super::file::{DatabaseFile, Durability};

/// A flush is started for every this many bytes written.
const FLUSH_INTERVAL_BYTES: u64 = 32 << 20;

/// Flushes a file in the background. [`FileFlusher::finish`] tells how that went.
#[derive(Debug)]
pub struct FileFlusher {
    written: AtomicU64,
    wake: Option<SyncSender<()>>,
    thread: Option<JoinHandle<io::Result<()>>>,
}

impl FileFlusher {
    /// Starts the background thread; scratch needs none.
    pub fn new(file: DatabaseFile<'_>) -> Result<Self, RebuildError> {
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
        // One token: a flush that is due while one runs covers everything written until it starts.
        let (wake, woken) = sync_channel::<()>(1);
        let thread = std::thread::Builder::new()
            .name("flush".into())
            .spawn(move || {
                // The kernel reports a failed write to one sync only: if it is this one, the final
                // sync knows nothing of it.
                woken.into_iter().try_for_each(|()| file.sync_data())
            })
            .map_err(|source| RebuildError::Write { source })?;
        Ok(Self {
            written: AtomicU64::new(0),
            wake: Some(wake),
            thread: Some(thread),
        })
    }

    /// Notes that bytes were written.
    pub fn record_written(&self, bytes: u64) {
        let before = self.written.fetch_add(bytes, Ordering::Relaxed);
        let is_due = before / FLUSH_INTERVAL_BYTES != (before + bytes) / FLUSH_INTERVAL_BYTES;
        if let (true, Some(wake)) = (is_due, &self.wake) {
            match wake.try_send(()) {
                Ok(()) | Err(TrySendError::Full(()) | TrySendError::Disconnected(())) => {}
            }
        }
    }
}

impl FileFlusher {
    /// Waits for the flush under way; tells whether all of them succeeded.
    pub fn finish(mut self) -> Result<(), RebuildError> {
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
            let _ = thread.join(); // only after a failure that is already being told
        }
    }
}
