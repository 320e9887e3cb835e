//! Copies objects: downloads, verifies and uploads each one in a single stream, and makes them visible in order.
//!
//! Memory: a transfer buffers parts of its download and upload. It reserves their maximum from a shared budget before
//! it starts, so either many small objects or a few large ones are copied in parallel.

use std::io::{self, Read, Write};
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use mainstay_archive::layout::object_key;
use mainstay_archive::name::SnapshotKind;
use mainstay_backup::prove::{FullDepth, prove_delta, prove_full};
use mainstay_backup::{ProofError, ReadOptions, StopPoint};
use mainstay_store::{
    ErrorClass, SnapStore, StoreError, TransferConfig, UploadOptions, UploadWriter,
};
use mainstay_verdict::Verdict;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinSet;

use super::plan::CopyTask;
use crate::failure::{Classify, CommandFailure};
use crate::rebuild::{HashCheck, Meter, MeteredRead};

/// Memory budget of all transfers together, in units of [`UNIT_BYTES`].
const BUDGET_UNITS: u32 = 192;
const UNIT_BYTES: u64 = 1 << 20;
/// Bytes of one object that are downloaded ahead of the reader.
const DOWNLOAD_BUDGET_BYTES: u64 = 16 << 20;

/// Error of copying an object.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(super) enum CopyError {
    /// The object is damaged in the source.
    #[error(transparent)]
    Damaged(ProofError),
    /// A store failed before or after the stream.
    #[error("failed to copy {name}")]
    Store {
        /// Name in the source.
        name: String,
        source: StoreError,
    },
    /// A store failed in the middle of the stream.
    #[error("failed to copy {name}")]
    Stream {
        /// Name in the source.
        name: String,
        source: ProofError,
    },
    /// The verification stopped before the end of the object, so the upload is incomplete.
    #[error("failed to copy {name}: only {read} of {size} bytes were read")]
    NotFullyRead {
        /// Name in the source.
        name: String,
        read: u64,
        size: u64,
    },
}

impl Classify for CopyError {
    fn verdict(&self) -> Verdict {
        match self {
            Self::Damaged(_) => Verdict::DamagedBackup,
            Self::Store { source, .. } => source.verdict(),
            Self::Stream { .. } => Verdict::StoreUnavailable,
            Self::NotFullyRead { .. } => Verdict::Failed,
        }
    }
}

impl CopyError {
    /// Returns whether the error concerns this object only, so that the others can still be copied.
    pub(super) fn is_object_error(&self) -> bool {
        match self {
            Self::Damaged(_) => true,
            // Retention may have deleted it from the source, or another run copied it in the meantime.
            Self::Store { source, .. } => {
                matches!(
                    source.class(),
                    ErrorClass::Corrupt | ErrorClass::NotFound | ErrorClass::Exists
                )
            }
            Self::Stream { .. } | Self::NotFullyRead { .. } => false,
        }
    }
}

/// Source, destination and options of a copy.
#[derive(Clone)]
pub(super) struct Transfer {
    pub(super) source: SnapStore,
    pub(super) destination: SnapStore,
    pub(super) destination_effort: TransferConfig,
    pub(super) parallelism: usize,
    pub(super) hash_check: HashCheck,
}

type CopyResult = Result<u64, CopyError>;

impl Transfer {
    /// Copies the tasks and returns one result for each; `None` for those not started because a store failed.
    pub(super) async fn run(
        &self,
        tasks: &[CopyTask],
        meter: &Arc<Meter>,
    ) -> Result<Vec<Option<CopyResult>>, CommandFailure> {
        let unexpected =
            |error: &(dyn std::error::Error + 'static)| CommandFailure::new(Verdict::Failed, error);
        let memory = Arc::new(Semaphore::new(BUDGET_UNITS as usize));
        let slots = Arc::new(Semaphore::new(self.parallelism));
        let has_failed = Arc::new(AtomicBool::new(false));
        let mut running = JoinSet::new();
        let mut turn = None;
        for (at, task) in tasks.iter().enumerate() {
            // Acquired in the order of the plan: a transfer then only waits for one that is already running. In another
            // order all slots could be held by transfers that wait for one without a slot.
            let slot = Arc::clone(&slots)
                .acquire_owned()
                .await
                .map_err(|error| unexpected(&error))?;
            let room = Arc::clone(&memory)
                .acquire_many_owned(self.memory_units(task.object.size))
                .await
                .map_err(|error| unexpected(&error))?;
            if has_failed.load(Ordering::Relaxed) {
                break;
            }
            let (done, next) = oneshot::channel();
            let job = ObjectTransfer {
                transfer: self.clone(),
                task: task.clone(),
                meter: Arc::clone(meter),
                predecessor: turn.replace(next),
                has_failed: Arc::clone(&has_failed),
                runtime: Handle::current(),
            };
            running.spawn_blocking(move || {
                let result = job.run();
                drop((done, slot, room)); // lets the next transfer finish
                (at, result)
            });
        }
        let mut results: Vec<Option<CopyResult>> = tasks.iter().map(|_| None).collect();
        while let Some(joined) = running.join_next().await {
            let (at, result) = joined.map_err(|error| unexpected(&error))?;
            if let Some(slot) = results.get_mut(at) {
                *slot = Some(result);
            }
        }
        Ok(results)
    }

    /// Returns the memory a transfer of this size may need: the parts of the download, those of the upload and the one
    /// being filled; at most twice the object.
    fn memory_units(&self, size: u64) -> u32 {
        let out = u64::from(self.destination_effort.parallel_uploads) + 1;
        let most =
            DOWNLOAD_BUDGET_BYTES + out.saturating_mul(self.destination_effort.upload_part_bytes);
        let units = most.min(size.saturating_mul(2)) / UNIT_BYTES + 1;
        // An object that needs more than the whole budget is copied alone instead of waiting forever.
        u32::try_from(units)
            .unwrap_or(BUDGET_UNITS)
            .min(BUDGET_UNITS)
    }
}

/// The transfer of one object.
struct ObjectTransfer {
    transfer: Transfer,
    task: CopyTask,
    meter: Arc<Meter>,
    /// Closed when the previous object is visible, or has failed.
    predecessor: Option<oneshot::Receiver<()>>,
    has_failed: Arc<AtomicBool>,
    runtime: Handle,
}

impl ObjectTransfer {
    fn run(mut self) -> CopyResult {
        let before = self.predecessor.take();
        let result = self.transfer_object(before);
        if matches!(&result, Err(error) if !error.is_object_error()) {
            self.has_failed.store(true, Ordering::Relaxed);
        }
        result
    }

    fn transfer_object(&self, before: Option<oneshot::Receiver<()>>) -> CopyResult {
        let object = &self.task.object;
        let store = |source| CopyError::Store {
            name: object.name.to_string(),
            source,
        };
        let from = &self.transfer.source;
        let download =
            from.download_with_budget(&object.key, Some(object.size), DOWNLOAD_BUDGET_BYTES);
        let download = self.runtime.block_on(download).map_err(store)?;
        let upload = {
            let key = object_key(self.transfer.destination.prefix(), &self.task.name);
            // upload() spawns tasks and needs the runtime of this blocking thread.
            let _inside = self.runtime.enter();
            self.transfer
                .destination
                .upload(&key, UploadOptions::create_only())
                .map_err(store)?
        };
        let sink = Arc::new(Mutex::new(TeeSink {
            writer: Some(upload.into_writer()),
            bytes_written: 0,
            has_failed: false,
        }));
        let source = MeteredRead::new(download.into_reader(), Arc::clone(&self.meter));
        let tee = TeeReader {
            source,
            sink: Arc::clone(&sink),
        };
        let proven = self.verify_object(Box::new(tee));
        let mut sink = sink.lock().unwrap_or_else(PoisonError::into_inner);
        // On the error paths below, dropping the writer discards the upload.
        let writer = sink.writer.take();
        if let Err(error) = proven {
            let name = object.name.to_string();
            // After a failure of a store the reader sees a truncated object, which is not damage.
            return Err(if sink.has_failed {
                CopyError::Stream {
                    name,
                    source: error,
                }
            } else {
                CopyError::Damaged(error)
            });
        }
        if sink.bytes_written != object.size {
            let (name, read, size) = (object.name.to_string(), sink.bytes_written, object.size);
            return Err(CopyError::NotFullyRead { name, read, size });
        }
        drop(sink);
        // A delta must not become visible before its full snapshot.
        if let Some(before) = before {
            let _ = before.blocking_recv(); // the sender is dropped, never used: an error means done
        }
        match writer {
            Some(writer) => Ok(writer.finish().map_err(store)?.size),
            None => Ok(0),
        }
    }

    /// Reads and verifies the stored bytes to their end, as a restore does.
    fn verify_object(&self, stored: Box<dyn Read + Send>) -> Result<(), ProofError> {
        let object = &self.task.object;
        let options = ReadOptions {
            hash_check: self.transfer.hash_check,
            stop: StopPoint::End,
            threads: NonZeroUsize::MIN, // objects are copied in parallel already
        };
        match object.name.kind {
            SnapshotKind::Full => prove_full(object, stored, &options, FullDepth::Pages).map(drop),
            SnapshotKind::Delta => prove_delta(object, stored, &options).map(drop),
        }
    }
}

/// Destination of the bytes that are read.
struct TeeSink {
    writer: Option<UploadWriter>,
    bytes_written: u64,
    /// Whether a store failed: then an error of the reader does not mean that the object is damaged.
    has_failed: bool,
}

/// A reader whose bytes are uploaded as they are read.
struct TeeReader<R> {
    source: R,
    sink: Arc<Mutex<TeeSink>>,
}

impl<R: Read> Read for TeeReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut sink = self.sink.lock().unwrap_or_else(PoisonError::into_inner);
        let TeeSink {
            writer,
            bytes_written,
            has_failed,
        } = &mut *sink;
        let result = self.source.read(buffer).and_then(|count| {
            let bytes = buffer.get(..count).unwrap_or_default();
            writer
                .as_mut()
                .map_or(Ok(()), |writer| writer.write_all(bytes))?;
            *bytes_written += count as u64;
            Ok(count)
        });
        *has_failed |= matches!(&result, Err(e) if e.kind() != io::ErrorKind::Interrupted);
        result
    }
}
