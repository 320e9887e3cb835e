//! Receives the base snapshot: decompresses, hashes and writes it, and announces early where its pages end.

use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::sync::mpsc::SyncSender;

use mainstay_archive::compression::open_decoder;
use mainstay_bbolt::{MAX_PAGE_SIZE, Meta};
use sha2::{Digest, Sha256};

use super::error::RebuildError;
use super::{HashCheck, RebuildContext};

/// Read size in bytes.
const CHUNK_BYTES: usize = 1 << 20;
/// Length of the SHA-256 that follows the database in a snapshot.
const HASH_LEN: usize = 32;
/// etcd writes a database in multiples of this size, so a remainder of [`HASH_LEN`] means that a hash follows.
const SECTOR_BYTES: u64 = 512;
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
        .map_err(|source| RebuildError::Open {
            object: name(),
            source,
        })?;
    let mut stream =
        open_decoder(&object.name.compression, stored, job.options.threads).map_err(|source| {
            RebuildError::Compression {
                object: name(),
                source,
            }
        })?;
    let mut tail = BaseWriter::new(job);
    let mut chunk = vec![0u8; CHUNK_BYTES];
    loop {
        if job.is_cancelled() {
            return Err(RebuildError::Cancelled);
        }
        let count =
            read_full(&mut stream, &mut chunk).map_err(|source| RebuildError::ReadBase {
                object: name(),
                offset: tail.received,
                source,
            })?;
        let received = chunk.get(..count).unwrap_or_default();
        if tail.limit == 0 {
            let first = received.get(..FIRST_BYTES.min(count)).unwrap_or_default();
            let meta =
                Meta::from_first_bytes(first).map_err(|source| RebuildError::BaseStructure {
                    object: name(),
                    source,
                })?;
            tail.limit = meta.bytes_in_use().unwrap_or(u64::MAX);
            let _ = announce.send(meta); // an error means that the receiver has failed already
        }
        tail.push(received)?;
        // fill() returns less than a whole chunk only at the end of the stream.
        if count < CHUNK_BYTES {
            return tail.finish(&name());
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

/// Writes everything but the last 32 bytes, which may be the hash, and only up to the high-water mark: the rows of the
/// deltas are written after it at the same time.
struct BaseWriter<'a> {
    job: &'a RebuildContext<'a>,
    hash: Sha256,
    trailer: Vec<u8>,
    received: u64,
    hashed: u64,
    /// Size of the database up to the high-water mark; 0 until the meta pages are read.
    limit: u64,
}

impl<'a> BaseWriter<'a> {
    fn new(job: &'a RebuildContext<'a>) -> Self {
        Self {
            job,
            hash: Sha256::new(),
            trailer: Vec::new(),
            received: 0,
            hashed: 0,
            limit: 0,
        }
    }

    fn push(&mut self, chunk: &[u8]) -> Result<(), RebuildError> {
        self.received += chunk.len() as u64;
        if chunk.len() < HASH_LEN {
            self.trailer.extend_from_slice(chunk);
            let surplus = self.trailer.len().saturating_sub(HASH_LEN);
            let first: Vec<u8> = self.trailer.drain(..surplus).collect();
            return self.write(&first);
        }
        let held = std::mem::take(&mut self.trailer);
        self.write(&held)?;
        let (data, rest) = chunk.split_at(chunk.len() - HASH_LEN);
        self.trailer = rest.to_vec();
        self.write(data)
    }

    fn write(&mut self, data: &[u8]) -> Result<(), RebuildError> {
        self.hash.update(data);
        let room = usize::try_from(self.limit.saturating_sub(self.hashed)).unwrap_or(usize::MAX);
        let kept = data.get(..room).unwrap_or(data);
        self.job
            .file
            .file
            .write_all_at(kept, self.hashed)
            .map_err(|source| RebuildError::Write { source })?;
        self.hashed += data.len() as u64;
        self.job.flusher.record_written(kept.len() as u64);
        Ok(())
    }

    /// Checks that the stream contained the whole database.
    fn check_length(&self, object: &str) -> Result<(), RebuildError> {
        if self.hashed >= self.limit {
            return Ok(());
        }
        let (object, bytes) = (object.to_owned(), self.received);
        Err(RebuildError::BaseLength { object, bytes })
    }

    fn finish(mut self, object: &str) -> Result<(), RebuildError> {
        let object = || object.to_owned();
        match self.received % SECTOR_BYTES {
            // No hash follows, so the held bytes are the end of the database.
            0 if self.job.options.hash_check == HashCheck::Skipped => {
                let held = std::mem::take(&mut self.trailer);
                self.write(&held)?;
                self.check_length(&object())
            }
            0 if self.received > 0 => Err(RebuildError::BaseUnhashed { object: object() }),
            32 => {
                let computed = self.hash.clone().finalize();
                if computed.as_slice() == self.trailer {
                    return self.check_length(&object());
                }
                Err(RebuildError::BaseHash {
                    object: object(),
                    stored: hex::encode(&self.trailer),
                    computed: hex::encode(computed),
                })
            }
            _ => Err(RebuildError::BaseLength {
                object: object(),
                bytes: self.received,
            }),
        }
    }
}
