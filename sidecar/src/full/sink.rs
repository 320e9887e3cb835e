//! Blocking writer into an asynchronous upload, for the compressing thread.

use std::io::{self, Write};

use bytes::Bytes;
use mainstay_store::{StoreError, Upload};
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

/// Blocks while the store is slow, but not after `stop`: an aborted snapshot leaves no blocked thread behind, nor the
/// memory of its upload.
pub(super) struct UploadSink {
    upload: Upload,
    runtime: Handle,
    stop: CancellationToken,
}

impl UploadSink {
    /// Must be called on the runtime; writes must happen where blocking is allowed.
    pub(super) fn new(upload: Upload, stop: CancellationToken) -> Self {
        let runtime = Handle::current();
        Self {
            upload,
            runtime,
            stop,
        }
    }

    /// Returns the upload, to be finished or aborted.
    pub(super) fn into_upload(self) -> Upload {
        self.upload
    }
}

impl Write for UploadSink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let writing = self.upload.write(Bytes::copy_from_slice(bytes));
        match self
            .runtime
            .block_on(self.stop.run_until_cancelled(writing))
        {
            Some(written) => written.map_err(StoreError::into_io_error)?,
            None => return Err(io::ErrorKind::BrokenPipe.into()),
        }
        Ok(bytes.len())
    }

    /// Does nothing: the upload sends each part when it is full, and the rest when it is finished.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::time::Duration;

    use mainstay_store::{Environment, SnapStore, StorageProvider, StoreConfig, UploadOptions};

    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn aborted_snapshot_does_not_wait_for_an_unresponsive_store() {
        // The kernel accepts connections; nothing ever answers them.
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut config = StoreConfig::new(StorageProvider::S3, "bucket");
        let address = format!("http://{}", silent.local_addr().unwrap());
        config.endpoint = Some(address.parse().unwrap());
        config.transfer.request_timeout = Duration::from_hours(1);
        config.transfer.retry_timeout = Duration::from_hours(1);
        let keys = tempfile::tempdir().unwrap();
        for field in ["region", "accessKeyID", "secretAccessKey"] {
            std::fs::write(keys.path().join(field), "any").unwrap();
        }
        let directory = keys.path().to_str().unwrap();
        let environment = Environment::from_iter([("AWS_APPLICATION_CREDENTIALS", directory)]);
        let store = SnapStore::open(&config, &environment).unwrap();
        let upload = store.upload("v2/full", UploadOptions::create_only());
        let stop = CancellationToken::new();
        let mut sink = UploadSink::new(upload.unwrap(), stop.clone());
        let (full, is_full) = tokio::sync::oneshot::channel();
        let writing = tokio::task::spawn_blocking(move || {
            let half_a_part = vec![0; 3 << 20];
            sink.write_all(&half_a_part).unwrap();
            full.send(()).unwrap();
            loop {
                if let Err(error) = sink.write_all(&half_a_part) {
                    return error.kind();
                }
            }
        });
        is_full.await.unwrap();
        stop.cancel();
        let ended = tokio::time::timeout(Duration::from_mins(1), writing).await;
        let kind = ended.expect("the write still waits for the store").unwrap();
        assert_eq!(kind, io::ErrorKind::BrokenPipe);
    }
}
