//! Writing from a thread that may block.

use std::io::{self, Write};

use super::Upload;
use crate::error::StoreError;
use crate::store::ObjectInfo;

/// An upload as [`Write`], for a thread that may block.
///
/// Writing on a thread that drives the runtime panics; use `spawn_blocking` or a thread of its own.
/// Dropping it without [`UploadWriter::finish`] aborts the upload. Errors carry the [`StoreError`],
/// to be had back with `downcast`.
#[derive(Debug)]
pub struct UploadWriter {
    upload: Upload,
}

impl UploadWriter {
    pub(super) fn new(upload: Upload) -> Self {
        Self { upload }
    }

    /// The upload itself, to be finished or aborted by a task that can be ended.
    pub fn into_upload(self) -> Upload {
        self.upload
    }

    /// See [`Upload::finish`].
    pub fn finish(self) -> Result<ObjectInfo, StoreError> {
        let runtime = self.upload.runtime.clone();
        runtime.block_on(self.upload.finish())
    }

    /// See [`Upload::abort`].
    pub fn abort(self) -> Result<(), StoreError> {
        let runtime = self.upload.runtime.clone();
        runtime.block_on(self.upload.abort())
    }
}

impl Write for UploadWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.upload.ensure_open().map_err(StoreError::into_io_error)?;
        let taken = self.upload.fill_buffer(bytes);
        if self.upload.is_full() {
            let runtime = self.upload.runtime.clone();
            runtime
                .block_on(self.upload.send_buffer())
                .map_err(StoreError::into_io_error)?;
        }
        Ok(taken)
    }

    /// Does nothing: a part is sent when it is full, the rest by [`UploadWriter::finish`].
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
