//! Receives the base snapshot: decompresses, hashes and writes it, and announces early where its pages end.

use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::sync::mpsc::SyncSender;

use mainstay_archive::compression::open_decoder;
use mainstay_archive::full::FullScanner;
use mainstay_backup::ProofError;
use mainstay_bbolt::{MAX_PAGE_SIZE, Meta};

use super::RebuildContext;
use super::error::RebuildError;

/// Read size in bytes.
const CHUNK_BYTES: usize = 1 << 20;
/// Contains both meta pages for every page size.
const FIRST_BYTES: usize = 2 * MAX_PAGE_SIZE as usize;

/// Writes the base into the file and compares its hash. Sends its meta page as soon as the first pages arrive.
pub(crate) fn receive_base(
    job: &RebuildContext<'_>,
    announce: &SyncSender<Meta>,
) -> Result<(), RebuildError> {
    let object = &job.chain.base;
    let name = || object.name.to_string();
    let stored = job
        .sources
        .open(object)
        .map_err(|source| ProofError::Open {
            object: name(),
            source,
        })?;
    let mut stream =
        open_decoder(&object.name.compression, stored, job.options.threads).map_err(|source| {
            ProofError::Compression {
                object: name(),
                source,
            }
        })?;
    let mut scanner = FullScanner::default();
    let mut writer = BaseWriter {
        job,
        written: 0,
        limit: 0,
    };
    let mut chunk = vec![0u8; CHUNK_BYTES];
    loop {
        if job.is_cancelled() {
            return Err(RebuildError::Cancelled);
        }
        let count = read_full(&mut stream, &mut chunk).map_err(|source| ProofError::ReadBase {
            object: name(),
            offset: scanner.received(),
            source,
        })?;
        let received = chunk.get(..count).unwrap_or_default();
        if writer.limit == 0 {
            let first = received.get(..FIRST_BYTES.min(count)).unwrap_or_default();
            let meta =
                Meta::from_first_bytes(first).map_err(|source| ProofError::BaseStructure {
                    object: name(),
                    source,
                })?;
            writer.limit = meta.bytes_in_use().unwrap_or(u64::MAX);
            let _ = announce.send(meta); // an error means that the receiver has failed already
        }
        for database in scanner.push(received) {
            writer.write(database)?;
        }
        // fill() returns less than a whole chunk only at the end of the stream.
        if count < CHUNK_BYTES {
            return writer.finish(scanner);
        }
    }
}

/// Reads until the buffer is full or the stream ends.
fn read_full(stream: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match stream.read(rest) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// Writes the database, only up to the high-water mark: the rows of the deltas are written after it at the same time.
struct BaseWriter<'a> {
    job: &'a RebuildContext<'a>,
    written: u64,
    /// Size of the database up to the high-water mark; 0 until the meta pages are read.
    limit: u64,
}

impl BaseWriter<'_> {
    fn write(&mut self, data: &[u8]) -> Result<(), RebuildError> {
        let room = usize::try_from(self.limit.saturating_sub(self.written)).unwrap_or(usize::MAX);
        let kept = data.get(..room).unwrap_or(data);
        self.job
            .file
            .file
            .write_all_at(kept, self.written)
            .map_err(|source| RebuildError::Write { source })?;
        self.written += data.len() as u64;
        self.job.flusher.record_written(kept.len() as u64);
        Ok(())
    }

    /// Compares the hash and checks that the stream contained the whole database.
    fn finish(mut self, scanner: FullScanner) -> Result<(), RebuildError> {
        let object = self.job.chain.base.name.to_string();
        let bytes = scanner.received();
        match scanner.finish(self.job.options.hash_check) {
            Ok(full) => self.write(&full.rest)?,
            Err(damage) => return Err(ProofError::from_full_damage(object, damage).into()),
        }
        if self.written < self.limit {
            return Err(ProofError::BaseLength { object, bytes }.into());
        }
        Ok(())
    }
}
