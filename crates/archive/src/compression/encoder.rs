//! Compression: gzip as a sequence of members on several threads, other codecs as one stream.

use std::io::{self, Write};
use std::num::NonZeroUsize;

use flate2::write::ZlibEncoder;

use super::lzw::LzwWriter;
use super::member::{self, CONTENT_LEN};
use super::worker_pool::{WorkerPanicked, WorkerPool};
use super::{Compression, OpenStreamError, StreamError};

/// Trade-off between speed and size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CompressionEffort {
    /// Fastest level.
    Fast,
    /// About the size that the default level of etcd-backup-restore gives.
    #[default]
    Balanced,
}

/// Options of an [`StreamEncoder`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncoderOptions {
    /// Number of compressing threads, used by gzip only. With one, the caller's thread compresses.
    pub threads: NonZeroUsize,
    /// Trade-off between speed and size.
    pub effort: CompressionEffort,
}

impl Default for EncoderOptions {
    fn default() -> Self {
        Self {
            threads: NonZeroUsize::MIN,
            effort: CompressionEffort::default(),
        }
    }
}

/// A compressing writer. [`StreamEncoder::finish`] completes the stream. Without it, decoders reject the object, except
/// for [`Compression::None`], which has no end marker.
pub struct StreamEncoder<W: Write>(CodecWriter<W>);

enum CodecWriter<W: Write> {
    Plain(W),
    Gzip(Box<GzipWriter<W>>),
    Zlib(ZlibEncoder<W>),
    Lzw(Box<LzwWriter<W>>),
    Zstd(zstd::stream::write::Encoder<'static, W>),
}

impl<W: Write> StreamEncoder<W> {
    /// Opens a compressed stream for writing.
    ///
    /// # Errors
    ///
    /// [`OpenStreamError`] for an unknown compression, or when the codec or a thread cannot be started.
    pub fn new(
        compression: &Compression,
        sink: W,
        options: EncoderOptions,
    ) -> Result<Self, OpenStreamError> {
        let codec = |source| OpenStreamError::Codec {
            compression: compression.clone(),
            source,
        };
        let inner = match compression {
            Compression::None => CodecWriter::Plain(sink),
            Compression::Gzip => {
                CodecWriter::Gzip(Box::new(GzipWriter::new(sink, options).map_err(codec)?))
            }
            Compression::Zlib => {
                let level = match options.effort {
                    CompressionEffort::Fast => flate2::Compression::fast(),
                    CompressionEffort::Balanced => flate2::Compression::default(),
                };
                CodecWriter::Zlib(ZlibEncoder::new(sink, level))
            }
            Compression::Lzw => CodecWriter::Lzw(Box::new(LzwWriter::new(sink))),
            Compression::Zstd => {
                CodecWriter::Zstd(open_zstd_encoder(sink, options.effort).map_err(codec)?)
            }
            Compression::Unknown(suffix) => {
                return Err(OpenStreamError::UnknownCompression {
                    suffix: suffix.clone(),
                });
            }
        };
        Ok(Self(inner))
    }

    /// Returns the sink. Some compressed bytes may still be buffered.
    pub fn get_ref(&self) -> &W {
        match &self.0 {
            CodecWriter::Plain(sink) => sink,
            CodecWriter::Gzip(gzip) => &gzip.sink,
            CodecWriter::Zlib(zlib) => zlib.get_ref(),
            CodecWriter::Lzw(lzw) => lzw.get_ref(),
            CodecWriter::Zstd(zstd) => zstd.get_ref(),
        }
    }

    /// Completes the stream and returns the sink, which is not flushed.
    pub fn finish(self) -> io::Result<W> {
        match self.0 {
            CodecWriter::Plain(sink) => Ok(sink),
            CodecWriter::Gzip(gzip) => gzip.finish(),
            CodecWriter::Zlib(zlib) => zlib.finish(),
            CodecWriter::Lzw(lzw) => lzw.finish(),
            CodecWriter::Zstd(zstd) => zstd.finish(),
        }
    }
}

impl<W: Write> Write for StreamEncoder<W> {
    fn write(&mut self, input: &[u8]) -> io::Result<usize> {
        match &mut self.0 {
            CodecWriter::Plain(sink) => sink.write(input),
            CodecWriter::Gzip(gzip) => gzip.write(input),
            CodecWriter::Zlib(zlib) => zlib.write(input),
            CodecWriter::Lzw(lzw) => lzw.write(input),
            CodecWriter::Zstd(zstd) => zstd.write(input),
        }
    }

    /// Flushes bytes already compressed. Buffered input stays until it fills a member or block.
    fn flush(&mut self) -> io::Result<()> {
        match &mut self.0 {
            CodecWriter::Plain(sink) => sink.flush(),
            CodecWriter::Gzip(gzip) => gzip.sink.flush(),
            CodecWriter::Zlib(zlib) => zlib.get_mut().flush(),
            CodecWriter::Lzw(lzw) => lzw.flush(),
            CodecWriter::Zstd(zstd) => zstd.get_mut().flush(),
        }
    }
}

fn open_zstd_encoder<W: Write>(
    sink: W,
    effort: CompressionEffort,
) -> io::Result<zstd::stream::write::Encoder<'static, W>> {
    let level = match effort {
        CompressionEffort::Fast => 1,
        CompressionEffort::Balanced => 3,
    };
    let mut encoder = zstd::stream::write::Encoder::new(sink, level)?;
    encoder.include_checksum(true)?;
    Ok(encoder)
}

/// Content to be compressed into a member; both buffers are reused.
#[derive(Default)]
struct DeflateJob {
    content: Vec<u8>,
    member: Vec<u8>,
}

/// Splits the input into pieces and writes each as a gzip member that carries its length.
struct GzipWriter<W> {
    sink: W,
    workers: WorkerPool<DeflateJob, DeflateJob>,
    current: DeflateJob,
    spare: Vec<DeflateJob>,
}

impl<W: Write> GzipWriter<W> {
    fn new(sink: W, options: EncoderOptions) -> io::Result<Self> {
        let level = match options.effort {
            CompressionEffort::Fast => 1,
            CompressionEffort::Balanced => 6,
        };
        let workers = WorkerPool::start(options.threads, || {
            let mut compressor = member::new_compressor(level);
            move |mut piece: DeflateJob| {
                member::deflate_member(&mut compressor, &piece.content, &mut piece.member);
                piece
            }
        })?;
        Ok(Self {
            sink,
            workers,
            current: DeflateJob::default(),
            spare: Vec::new(),
        })
    }

    /// Submits the buffered content to the workers, waiting for room first.
    fn dispatch(&mut self) -> io::Result<()> {
        while !self.workers.has_room() {
            self.write_oldest()?;
        }
        let next = self.spare.pop().unwrap_or_default();
        let piece = std::mem::replace(&mut self.current, next);
        self.current.content.clear();
        self.workers.submit(piece).map_err(worker_stopped_error)
    }

    /// Writes the oldest pending member; `false` when none is pending.
    fn write_oldest(&mut self) -> io::Result<bool> {
        let Some(piece) = self.workers.receive().map_err(worker_stopped_error)? else {
            return Ok(false);
        };
        self.sink.write_all(&piece.member)?;
        self.spare.push(piece);
        Ok(true)
    }

    fn write(&mut self, input: &[u8]) -> io::Result<usize> {
        let room = CONTENT_LEN.saturating_sub(self.current.content.len());
        let taken = input.get(..room).unwrap_or(input);
        self.current.content.extend_from_slice(taken);
        if self.current.content.len() >= CONTENT_LEN {
            self.dispatch()?;
        }
        Ok(taken.len())
    }

    fn finish(mut self) -> io::Result<W> {
        if !self.current.content.is_empty() {
            self.dispatch()?;
        }
        self.dispatch()?; // the empty member that marks the end
        while self.write_oldest()? {}
        Ok(self.sink)
    }
}

fn worker_stopped_error(_: WorkerPanicked) -> io::Error {
    StreamError::WorkerStopped {
        compression: Compression::Gzip,
    }
    .into_io()
}
