//! From pieces of a snapshot to compressed bytes, hash verified on the way. Blocking.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;

use bytes::Bytes;
use mainstay_archive::compression::{Compression, StreamEncoder, EncoderOptions, OpenStreamError};
use sha2::{Digest, Sha256};

/// Batches that wait to be hashed.
const BATCHES_TO_HASH: usize = 2;
/// Length of the SHA-256 behind the database.
const TRAILER_BYTES: usize = 32;
/// A database file is made of whole pages of at least this size.
const BLOCK_BYTES: u64 = 512;

/// Why a stream is no snapshot.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotStreamError {
    /// The stream broke off.
    #[error("the snapshot stream broke off after {read} bytes")]
    Broken {
        /// Bytes that arrived.
        read: u64,
    },
    /// The compression cannot be set up.
    #[error("open the compression of a full snapshot")]
    Open {
        /// What it said.
        source: OpenStreamError,
    },
    /// The bytes cannot be passed on.
    #[error("pass on the snapshot after {read} bytes")]
    Write {
        /// Bytes that arrived.
        read: u64,
        /// What the sink said.
        source: io::Error,
    },
    /// Not a database with a hash behind it.
    #[error("the snapshot has {read} bytes, which is no database with a hash behind it")]
    Length {
        /// Bytes that arrived.
        read: u64,
    },
    /// The content is not what etcd sent.
    #[error("the hash behind the {read} bytes of the snapshot differs from their content")]
    Hash {
        /// Bytes that arrived.
        read: u64,
    },
}

/// What was poured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamedSnapshot {
    /// Bytes before compression, the hash included.
    pub raw_bytes: u64,
}

/// Pieces that change threads together: waking one costs as much as compressing a piece.
pub(super) type ChunkBatch = Arc<[Bytes]>;

/// Passes pieces on into `sink`, compressed. `next` gives `None` at the end, and an error when the stream broke off. The hash
/// is computed meanwhile on a thread of its own.
pub fn compress_snapshot<W: Write>(
    next: impl FnMut() -> Option<Result<ChunkBatch, ()>>,
    compression: &Compression,
    options: EncoderOptions,
    sink: W,
) -> Result<StreamedSnapshot, SnapshotStreamError> {
    let encoder =
        StreamEncoder::new(compression, sink, options).map_err(|source| SnapshotStreamError::Open { source })?;
    thread::scope(|scope| {
        let (send, receive) = sync_channel::<ChunkBatch>(BATCHES_TO_HASH);
        let hashing = scope.spawn(move || {
            let mut trailer = TrailerHasher::default();
            for batch in receive {
                for piece in &*batch {
                    trailer.update(piece);
                }
            }
            trailer
        });
        let encoder = compress_chunks(next, encoder, send)?;
        let trailer = hashing
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let read = trailer.read;
        trailer.verify()?;
        encoder
            .finish()
            .map_err(|source| SnapshotStreamError::Write { read, source })?;
        Ok(StreamedSnapshot { raw_bytes: read })
    })
}

/// Compresses every piece, and passes each on to be hashed.
fn compress_chunks<W: Write>(
    mut next: impl FnMut() -> Option<Result<ChunkBatch, ()>>,
    mut encoder: StreamEncoder<W>,
    hash: SyncSender<ChunkBatch>,
) -> Result<StreamEncoder<W>, SnapshotStreamError> {
    let mut read: u64 = 0;
    while let Some(batch) = next() {
        let batch = batch.map_err(|()| SnapshotStreamError::Broken { read })?;
        // Whoever hashes goes on until this end is dropped.
        hash.send(Arc::clone(&batch)).ok();
        for piece in &*batch {
            encoder
                .write_all(piece)
                .map_err(|source| SnapshotStreamError::Write { read, source })?;
            read = read.saturating_add(piece.len() as u64);
        }
    }
    drop(hash);
    Ok(encoder)
}

/// Hashes everything but the last 32 bytes, whichever those turn out to be.
#[derive(Default)]
struct TrailerHasher {
    hash: Sha256,
    pending: Vec<u8>,
    read: u64,
}

impl TrailerHasher {
    fn update(&mut self, piece: &[u8]) {
        self.read = self.read.saturating_add(piece.len() as u64);
        let keep = piece.len().min(TRAILER_BYTES);
        let (body, tail) = piece.split_at(piece.len() - keep);
        let surplus = (self.pending.len() + keep).saturating_sub(TRAILER_BYTES);
        let surplus = surplus.min(self.pending.len());
        self.hash.update(&self.pending[..surplus]);
        self.pending.drain(..surplus);
        self.hash.update(body);
        self.pending.extend_from_slice(tail);
    }

    fn verify(self) -> Result<(), SnapshotStreamError> {
        let read = self.read;
        if read <= TRAILER_BYTES as u64 || read % BLOCK_BYTES != TRAILER_BYTES as u64 {
            return Err(SnapshotStreamError::Length { read });
        }
        if self.hash.finalize().as_slice() == self.pending {
            Ok(())
        } else {
            Err(SnapshotStreamError::Hash { read })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot_bytes(blocks: usize) -> Vec<u8> {
        let mut bytes: Vec<u8> = (0..blocks * 512)
            .map(|i| u8::try_from(i % 251).unwrap())
            .collect();
        let hash = Sha256::digest(&bytes);
        bytes.extend_from_slice(&hash);
        bytes
    }

    fn compress_in_pieces(bytes: &[u8], piece: usize) -> Result<StreamedSnapshot, SnapshotStreamError> {
        let pieces: Vec<_> = bytes.chunks(piece).map(Bytes::copy_from_slice).collect();
        let mut batches = pieces.chunks(3).map(|batch| Ok(batch.into()));
        let options = EncoderOptions::default();
        compress_snapshot(|| batches.next(), &Compression::None, options, io::sink())
    }

    #[test]
    fn a_sound_snapshot_passes_in_pieces_of_any_size() {
        let bytes = snapshot_bytes(5);
        for piece in [1, 7, 31, 32, 33, 512, 544, 1000, 10_000] {
            let poured = compress_in_pieces(&bytes, piece).unwrap();
            assert_eq!(poured.raw_bytes, bytes.len() as u64, "pieces of {piece}");
        }
    }

    #[test]
    fn a_single_wrong_byte_is_found_wherever_it_is() {
        let bytes = snapshot_bytes(2);
        for at in [0, 500, 1023, 1024, bytes.len() - 1] {
            let mut wrong = bytes.clone();
            wrong[at] ^= 1;
            let error = compress_in_pieces(&wrong, 100).unwrap_err();
            assert!(
                matches!(error, SnapshotStreamError::Hash { .. }),
                "byte {at}: {error}"
            );
        }
    }

    #[test]
    fn a_stream_that_ends_early_is_no_snapshot() {
        let bytes = snapshot_bytes(2);
        for length in [0, 1, 32, 512, 544, 1023, 1055] {
            let error = compress_in_pieces(&bytes[..length], 100).unwrap_err();
            let is_refused = matches!(error, SnapshotStreamError::Length { .. } | SnapshotStreamError::Hash { .. });
            assert!(is_refused, "{length} bytes: {error}");
        }
    }

    #[test]
    fn a_broken_stream_is_not_taken_for_its_end() {
        let bytes = snapshot_bytes(1);
        let mut pieces = vec![Ok([Bytes::from(bytes)].into()), Err(())].into_iter();
        let options = EncoderOptions::default();
        let error = compress_snapshot(|| pieces.next(), &Compression::None, options, io::sink()).unwrap_err();
        assert!(matches!(error, SnapshotStreamError::Broken { .. }), "{error}");
    }
}
