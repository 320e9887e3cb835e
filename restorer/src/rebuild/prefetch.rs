//! Prefetches and decompresses deltas on a few worker threads, each with a bounded queue.
//!
//! Worker `w` of `n` reads the deltas `w`, `w + n`, `w + 2n`, …; the consumer reads them in order, so each worker is at
//! most one queue ahead. Memory: workers × queue.

use std::io::{self, Read};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::Scope;

use mainstay_archive::compression::open_decoder;
use mainstay_backup::ProofError;

use super::RebuildContext;
use super::error::RebuildError;

/// Size of a chunk in a queue.
const CHUNK_BYTES: usize = 256 << 10;
/// Chunks in a queue: 4 MiB, a few milliseconds of decompressing.
const QUEUE_CHUNKS: usize = 16;

enum DeltaChunk {
    Bytes(Vec<u8>),
    End,
    Failed(RebuildError),
}

/// The decompressed deltas, in order.
pub(crate) struct DeltaPrefetcher {
    queues: Vec<(Receiver<DeltaChunk>, SyncSender<Vec<u8>>)>,
    next: usize,
}

impl DeltaPrefetcher {
    pub(crate) fn start<'scope>(
        scope: &'scope Scope<'scope, '_>,
        job: &'scope RebuildContext<'scope>,
        workers: usize,
    ) -> Self {
        let queues = (0..workers)
            .map(|worker| {
                let (give, take) = sync_channel(QUEUE_CHUNKS);
                let (give_back, spare) = sync_channel(QUEUE_CHUNKS);
                scope.spawn(move || run_worker(job, worker, workers, &give, &spare));
                (take, give_back)
            })
            .collect();
        Self { queues, next: 0 }
    }

    /// Returns the decompressed stream of the next delta.
    pub(crate) fn next_delta(&mut self) -> DeltaStream<'_> {
        let at = self.next % self.queues.len().max(1);
        self.next += 1;
        DeltaStream {
            queue: self.queues.get(at),
            chunk: Vec::new(),
            position: 0,
        }
    }
}

fn run_worker(
    job: &RebuildContext<'_>,
    worker: usize,
    workers: usize,
    give: &SyncSender<DeltaChunk>,
    spare: &Receiver<Vec<u8>>,
) {
    for link in job.chain.deltas.iter().skip(worker).step_by(workers.max(1)) {
        let end = match inflate_delta(job, &link.object, give, spare) {
            Ok(true) => DeltaChunk::End,
            Ok(false) => return,
            Err(error) => DeltaChunk::Failed(error),
        };
        if give.send(end).is_err() {
            return;
        }
    }
}

/// Sends the decompressed chunks of a delta; `Ok(false)` if the consumer does not need the rest.
fn inflate_delta(
    job: &RebuildContext<'_>,
    object: &mainstay_archive::catalogue::SnapshotObject,
    give: &SyncSender<DeltaChunk>,
    spare: &Receiver<Vec<u8>>,
) -> Result<bool, RebuildError> {
    let name = || object.name.to_string();
    let stored = job
        .sources
        .open(object)
        .map_err(|source| ProofError::Open {
            object: name(),
            source,
        })?;
    let one = std::num::NonZeroUsize::MIN;
    let mut stream = open_decoder(&object.name.compression, stored, one).map_err(|source| {
        ProofError::Compression {
            object: name(),
            source,
        }
    })?;
    let mut offset = 0u64;
    loop {
        if job.is_cancelled() {
            return Ok(false);
        }
        let mut chunk = spare.try_recv().unwrap_or_default();
        chunk.resize(CHUNK_BYTES, 0);
        let count = stream
            .read(&mut chunk)
            .map_err(|source| ProofError::Delta {
                object: name(),
                source: mainstay_archive::delta::DeltaError::Read { offset, source },
            })?;
        offset += count as u64;
        if count == 0 {
            return Ok(true);
        }
        chunk.truncate(count);
        if give.send(DeltaChunk::Bytes(chunk)).is_err() {
            return Ok(false);
        }
    }
}

/// One decompressed delta.
pub(crate) struct DeltaStream<'a> {
    queue: Option<&'a (Receiver<DeltaChunk>, SyncSender<Vec<u8>>)>,
    chunk: Vec<u8>,
    position: usize,
}

impl Read for DeltaStream<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let Some((take, give_back)) = self.queue else {
            return Ok(0);
        };
        if self.position == self.chunk.len() {
            let used = std::mem::take(&mut self.chunk);
            if used.capacity() > 0 {
                // Buffers are reused; a full queue only means that one is freed instead.
                let _ = give_back.try_send(used);
            }
            self.position = 0;
            match take.recv() {
                Ok(DeltaChunk::Bytes(chunk)) => self.chunk = chunk,
                Ok(DeltaChunk::End) => {
                    self.queue = None;
                    return Ok(0);
                }
                Ok(DeltaChunk::Failed(error)) => {
                    self.queue = None;
                    return Err(io::Error::other(error));
                }
                Err(_) => {
                    return Err(io::Error::other(
                        "decompression thread ended without a result",
                    ));
                }
            }
        }
        let rest = self.chunk.get(self.position..).unwrap_or_default();
        let count = rest.len().min(buffer.len());
        if let (Some(to), Some(from)) = (buffer.get_mut(..count), rest.get(..count)) {
            to.copy_from_slice(from);
        }
        self.position += count;
        Ok(count)
    }
}
