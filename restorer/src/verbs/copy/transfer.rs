//! Carries objects over: downloads, proves and uploads at once, and makes them visible in order.
//!
//! Memory: a transfer holds parts on their way in and out. Each one reserves what it may come to from a
//! common budget before it begins, so many small objects or a few large ones are under way.

use std::io::{self, Read, Write};
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use mainstay_archive::layout::object_key;
use mainstay_archive::name::SnapshotKind;
use mainstay_store::{ErrorClass, TransferConfig, SnapStore, StoreError, UploadOptions, UploadWriter};
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinSet;

use super::plan::CopyTask;
use crate::examine::{ObjectReadOptions, check_delta, check_full};
use crate::failure::{Classify, CommandFailure, ExitVerdict};
use crate::rebuild::{HashCheck, Meter, MeteredRead, RebuildError, StopPoint};

/// What all transfers may hold in memory together, in [`UNIT_BYTES`]s.
const BUDGET_UNITS: u32 = 192;
const UNIT_BYTES: u64 = 1 << 20;
/// Bytes of one object on their way in.
const DOWNLOAD_BUDGET_BYTES: u64 = 16 << 20;

/// Why an object was not copied.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(super) enum CopyError {
    /// The object is damaged in the source.
    #[error(transparent)]
    Damaged(RebuildError),
    /// A store could not be read or written.
    #[error("copy {name}")]
    Store {
        /// The object's name in the source.
        name: String,
        /// The store's answer.
        source: StoreError,
    },
    /// A store could not be read or written, and said so in the middle of the object.
    #[error("copy {name}")]
    Stream {
        /// The object's name in the source.
        name: String,
        /// The store's answer.
        source: RebuildError,
    },
    /// The reader of an object stopped before its end.
    #[error("copy {name}: {read} of {size} bytes were looked at")]
    NotFullyRead {
        /// The object's name in the source.
        name: String,
        /// Bytes read.
        read: u64,
        /// Bytes there are.
        size: u64,
    },
}

impl Classify for CopyError {
    fn verdict(&self) -> ExitVerdict {
        match self {
            Self::Damaged(_) => ExitVerdict::DamagedBackup,
            Self::Store { source, .. } => source.verdict(),
            Self::Stream { .. } => ExitVerdict::StoreUnavailable,
            Self::NotFullyRead { .. } => ExitVerdict::Failed,
        }
    }
}

impl CopyError {
    /// It concerns this object alone: the others can go on.
    pub(super) fn is_object_error(&self) -> bool {
        match self {
            Self::Damaged(_) => true,
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

/// Two stores and how to work on them.
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
    /// Copies the tasks; one answer for each, `None` for those not begun because a store failed.
    pub(super) async fn run(
        &self,
        tasks: &[CopyTask],
        meter: &Arc<Meter>,
    ) -> Result<Vec<Option<CopyResult>>, CommandFailure> {
        let broken =
            |error: &(dyn std::error::Error + 'static)| CommandFailure::new(ExitVerdict::Failed, error);
        let memory = Arc::new(Semaphore::new(BUDGET_UNITS as usize));
        let slots = Arc::new(Semaphore::new(self.parallelism));
        let has_failed = Arc::new(AtomicBool::new(false));
        let mut running = JoinSet::new();
        let mut turn = None;
        for (at, task) in tasks.iter().enumerate() {
            // Taken in the order of the plan: whoever waits for its turn waits for one that runs.
            let slot = Arc::clone(&slots)
                .acquire_owned()
                .await
                .map_err(|error| broken(&error))?;
            let room = Arc::clone(&memory)
                .acquire_many_owned(self.memory_units(task.object.size))
                .await
                .map_err(|error| broken(&error))?;
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
                drop((done, slot, room)); // the next one's turn
                (at, result)
            });
        }
        let mut results: Vec<Option<CopyResult>> = tasks.iter().map(|_| None).collect();
        while let Some(joined) = running.join_next().await {
            let (at, result) = joined.map_err(|error| broken(&error))?;
            if let Some(slot) = results.get_mut(at) {
                *slot = Some(result);
            }
        }
        Ok(results)
    }

    /// What a transfer of this size may hold: the parts of a download, those of an upload and the one
    /// being filled, or twice the object where that is less.
    fn memory_units(&self, size: u64) -> u32 {
        let out = u64::from(self.destination_effort.parallel_uploads) + 1;
        let most = DOWNLOAD_BUDGET_BYTES + out.saturating_mul(self.destination_effort.upload_part_bytes);
        let units = most.min(size.saturating_mul(2)) / UNIT_BYTES + 1;
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
    /// Answers when the object before this one is visible, or will not be.
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
        let download = from.download_with_budget(&object.key, Some(object.size), DOWNLOAD_BUDGET_BYTES);
        let download = self.runtime.block_on(download).map_err(store)?;
        let upload = {
            let key = object_key(self.transfer.destination.prefix(), &self.task.name);
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
        // Dropping the writer throws away what was sent.
        let writer = sink.writer.take();
        if let Err(error) = proven {
            let name = object.name.to_string();
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
        if let Some(before) = before {
            let _ = before.blocking_recv(); // gone means done
        }
        match writer {
            Some(writer) => Ok(writer.finish().map_err(store)?.size),
            None => Ok(0),
        }
    }

    /// Reads the stored bytes to their end, as a restore would.
    fn verify_object(&self, stored: Box<dyn Read + Send>) -> Result<(), RebuildError> {
        let object = &self.task.object;
        let options = ObjectReadOptions {
            hash_check: self.transfer.hash_check,
            stop: StopPoint::End,
            threads: NonZeroUsize::MIN,
        };
        match object.name.kind {
            SnapshotKind::Full => check_full(object, stored, &options).map(|_| ()),
            SnapshotKind::Delta => check_delta(object, stored, &options).map(|_| ()),
        }
    }
}

/// Where the bytes that are read go as well.
struct TeeSink {
    writer: Option<UploadWriter>,
    bytes_written: u64,
    /// A store failed: what the reader says then tells nothing about the object.
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
            bytes_written: taken,
            has_failed,
        } = &mut *sink;
        let result = self.source.read(buffer).and_then(|count| {
            let bytes = buffer.get(..count).unwrap_or_default();
            writer
                .as_mut()
                .map_or(Ok(()), |writer| writer.write_all(bytes))?;
            *taken += count as u64;
            Ok(count)
        });
        *has_failed |= matches!(&result, Err(e) if e.kind() != io::ErrorKind::Interrupted);
        result
    }
}
