//! Compresses the chunks of a snapshot and verifies its hash. Blocking.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;

use bytes::Bytes;
use mainstay_archive::compression::{Compression, EncoderOptions, OpenStreamError, StreamEncoder};
use sha2::{Digest, Sha256};

/// Batches that may queue for hashing.
const BATCHES_TO_HASH: usize = 2;
/// Length of the SHA-256 at the end of a snapshot.
const TRAILER_BYTES: usize = 32;
/// Database size is a multiple of this.
const BLOCK_BYTES: u64 = 512;

/// Why streaming a snapshot failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum SnapshotStreamError {
    #[error("snapshot stream from etcd ended after {read} bytes")]
    Broken { read: u64 },
    #[error("set up the compression of a full snapshot")]
    Open { source: OpenStreamError },
    #[error("upload the snapshot after {read} bytes")]
    Write { read: u64, source: io::Error },
    /// etcd sends a multiple of 512 bytes plus a 32-byte hash.
    #[error("invalid snapshot length {read}: must be a multiple of 512 bytes plus a 32-byte hash")]
    Length { read: u64 },
    #[error("snapshot checksum mismatch over {read} bytes")]
    Hash { read: u64 },
}

/// Result of streaming a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StreamedSnapshot {
    /// Bytes before compression, including the hash.
    pub(crate) raw_bytes: u64,
}

/// Chunks passed between threads together: waking a thread costs as much as compressing a chunk.
pub(super) type ChunkBatch = Arc<[Bytes]>;

/// Compresses chunks into `sink`; a second thread computes the hash meanwhile. `next` returns `None` at the end, and an
/// error if the stream broke.
pub(crate) fn compress_snapshot<W: Write>(
    next: impl FnMut() -> Option<Result<ChunkBatch, ()>>,
    compression: &Compression,
    options: EncoderOptions,
    sink: W,
) -> Result<StreamedSnapshot, SnapshotStreamError> {
    let encoder = StreamEncoder::new(compression, sink, options)
        .map_err(|source| SnapshotStreamError::Open { source })?;
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
        // Verify before the encoder writes its end: an unfinished stream cannot pass for a snapshot.
        trailer.verify()?;
        encoder
            .finish()
            .map_err(|source| SnapshotStreamError::Write { read, source })?;
        Ok(StreamedSnapshot { raw_bytes: read })
    })
}

/// Compresses every chunk and passes it to the hashing thread.
fn compress_chunks<W: Write>(
    mut next: impl FnMut() -> Option<Result<ChunkBatch, ()>>,
    mut encoder: StreamEncoder<W>,
    hash: SyncSender<ChunkBatch>,
) -> Result<StreamEncoder<W>, SnapshotStreamError> {
    let mut read: u64 = 0;
    while let Some(batch) = next() {
        let batch = batch.map_err(|()| SnapshotStreamError::Broken { read })?;
        // Cannot fail: the hashing thread receives until `hash` is dropped.
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

/// Hashes everything but the last 32 bytes, which are the hash itself; only the end of the stream shows which they are.
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

    fn compress_in_pieces(
        bytes: &[u8],
        piece: usize,
    ) -> Result<StreamedSnapshot, SnapshotStreamError> {
        let pieces: Vec<_> = bytes.chunks(piece).map(Bytes::copy_from_slice).collect();
        let mut batches = pieces.chunks(3).map(|batch| Ok(batch.into()));
        let options = EncoderOptions::default();
        compress_snapshot(|| batches.next(), &Compression::None, options, io::sink())
    }

    #[test]
    fn valid_snapshot_passes_in_chunks_of_any_size() {
        let bytes = snapshot_bytes(5);
        for piece in [1, 7, 31, 32, 33, 512, 544, 1000, 10_000] {
            let poured = compress_in_pieces(&bytes, piece).unwrap();
            assert_eq!(poured.raw_bytes, bytes.len() as u64, "chunks of {piece}");
        }
    }

    #[test]
    fn single_wrong_byte_is_detected_at_any_position() {
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
    fn truncated_stream_is_refused() {
        let bytes = snapshot_bytes(2);
        for length in [0, 1, 32, 512, 544, 1023, 1055] {
            let error = compress_in_pieces(&bytes[..length], 100).unwrap_err();
            let is_refused = matches!(
                error,
                SnapshotStreamError::Length { .. } | SnapshotStreamError::Hash { .. }
            );
            assert!(is_refused, "{length} bytes: {error}");
        }
    }

    #[test]
    fn stream_error_is_not_treated_as_end_of_stream() {
        let bytes = snapshot_bytes(1);
        let mut pieces = vec![Ok([Bytes::from(bytes)].into()), Err(())].into_iter();
        let options = EncoderOptions::default();
        let error = compress_snapshot(|| pieces.next(), &Compression::None, options, io::sink())
            .unwrap_err();
        assert!(
            matches!(error, SnapshotStreamError::Broken { .. }),
            "{error}"
        );
    }
}
