//! Blocking writer for an upload.

use std::io::{self, Write};

use super::Upload;
use crate::error::StoreError;
use crate::store::ObjectInfo;

/// An upload as blocking [`Write`].
///
/// Panics on a thread that drives the runtime; use `spawn_blocking` or a separate thread. Dropping it
/// without [`UploadWriter::finish`] aborts the upload. Errors wrap the [`StoreError`]; `downcast`
/// returns it.
#[derive(Debug)]
pub struct UploadWriter {
    upload: Upload,
}

impl UploadWriter {
    pub(super) fn new(upload: Upload) -> Self {
        Self { upload }
    }

    /// The inner upload, to be finished or aborted by a cancellable task.
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
        self.upload
            .ensure_open()
            .map_err(StoreError::into_io_error)?;
        let taken = self.upload.fill_buffer(bytes);
        if self.upload.is_full() {
            let runtime = self.upload.runtime.clone();
            runtime
                .block_on(self.upload.send_buffer())
                .map_err(StoreError::into_io_error)?;
        }
        Ok(taken)
    }

    /// Does nothing: a full part is sent by `write`, the rest by [`UploadWriter::finish`].
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
