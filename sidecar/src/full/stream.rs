//! Compresses the chunks of a snapshot and verifies its hash. Blocking.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;

use bytes::Bytes;
use mainstay_archive::compression::{Compression, EncoderOptions, OpenStreamError, StreamEncoder};
use mainstay_archive::full::{FullDamage, FullScanner, HashCheck};

/// Batches that may queue for hashing.
const BATCHES_TO_HASH: usize = 2;

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
    #[error("damaged snapshot stream from etcd")]
    Damaged(#[from] FullDamage),
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
            let mut scanner = FullScanner::default();
            for batch in receive {
                for piece in &*batch {
                    scanner.push(piece);
                }
            }
            scanner
        });
        let encoder = compress_chunks(next, encoder, send)?;
        let scanner = hashing
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let read = scanner.received();
        // Verify before the encoder writes its end: an unfinished stream cannot pass for a snapshot.
        scanner.finish(HashCheck::Required)?;
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

#[cfg(test)]
mod tests {
    use mainstay_archive::full::FullWriter;

    use super::*;

    fn snapshot_bytes(blocks: usize) -> Vec<u8> {
        let database: Vec<u8> = (0..blocks * 512)
            .map(|i| u8::try_from(i % 251).unwrap())
            .collect();
        let mut writer = FullWriter::new(Vec::new());
        writer.write_all(&database).unwrap();
        writer.finish().unwrap()
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
                matches!(error, SnapshotStreamError::Damaged(FullDamage::Hash { .. })),
                "byte {at}: {error}"
            );
        }
    }

    #[test]
    fn truncated_stream_is_refused() {
        let bytes = snapshot_bytes(2);
        for length in [0, 1, 32, 512, 544, 1023, 1055] {
            let error = compress_in_pieces(&bytes[..length], 100).unwrap_err();
            let is_refused = matches!(error, SnapshotStreamError::Damaged(_));
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
