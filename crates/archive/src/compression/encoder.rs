//! Compressing: gzip as a row of members on several threads, the others as one stream.

use std::io::{self, Write};
use std::num::NonZeroUsize;

use flate2::write::ZlibEncoder;

use super::lanes::{LaneStopped, Lanes};
use super::lzw::LzwWriter;
use super::member::{self, CONTENT};
use super::{Compression, OpenError, StreamError};

/// How hard to try to make the object small.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Effort {
    /// As fast as it goes.
    Fast,
    /// About the size the peer's default level gives.
    #[default]
    Balanced,
}

/// How to compress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncoderOptions {
    /// Threads that compress; gzip only. With one, the caller's own thread does it.
    pub threads: NonZeroUsize,
    /// Speed against size.
    pub effort: Effort,
}

impl Default for EncoderOptions {
    fn default() -> Self {
        Self {
            threads: NonZeroUsize::MIN,
            effort: Effort::default(),
        }
    }
}

/// A compressing writer. [`Encoder::finish`] completes the stream; dropping it instead leaves an object no
/// decoder accepts, except for [`Compression::None`], which has no end of its own.
pub struct Encoder<W: Write>(Inner<W>);

enum Inner<W: Write> {
    Plain(W),
    Gzip(Box<GzipWriter<W>>),
    Zlib(ZlibEncoder<W>),
    Lzw(Box<LzwWriter<W>>),
    Zstd(zstd::stream::write::Encoder<'static, W>),
}

impl<W: Write> Encoder<W> {
    /// Opens a compressed stream for writing.
    ///
    /// # Errors
    ///
    /// [`OpenError`] for a compression that is not known, or when the codec or a thread cannot be set up.
    pub fn new(
        compression: &Compression,
        sink: W,
        options: EncoderOptions,
    ) -> Result<Self, OpenError> {
        let codec = |source| OpenError::Codec {
            compression: compression.clone(),
            source,
        };
        let inner = match compression {
            Compression::None => Inner::Plain(sink),
            Compression::Gzip => {
                Inner::Gzip(Box::new(GzipWriter::new(sink, options).map_err(codec)?))
            }
            Compression::Zlib => {
                let level = match options.effort {
                    Effort::Fast => flate2::Compression::fast(),
                    Effort::Balanced => flate2::Compression::default(),
                };
                Inner::Zlib(ZlibEncoder::new(sink, level))
            }
            Compression::Lzw => Inner::Lzw(Box::new(LzwWriter::new(sink))),
            Compression::Zstd => Inner::Zstd(zstd_encoder(sink, options.effort).map_err(codec)?),
            Compression::Unknown(suffix) => {
                return Err(OpenError::UnknownCompression {
                    suffix: suffix.clone(),
                });
            }
        };
        Ok(Self(inner))
    }

    /// Where the compressed bytes go; some are still being gathered.
    pub fn get_ref(&self) -> &W {
        match &self.0 {
            Inner::Plain(sink) => sink,
            Inner::Gzip(gzip) => &gzip.sink,
            Inner::Zlib(zlib) => zlib.get_ref(),
            Inner::Lzw(lzw) => lzw.get_ref(),
            Inner::Zstd(zstd) => zstd.get_ref(),
        }
    }

    /// Completes the stream and gives the sink back. The sink is not flushed.
    pub fn finish(self) -> io::Result<W> {
        match self.0 {
            Inner::Plain(sink) => Ok(sink),
            Inner::Gzip(gzip) => gzip.finish(),
            Inner::Zlib(zlib) => zlib.finish(),
            Inner::Lzw(lzw) => lzw.finish(),
            Inner::Zstd(zstd) => zstd.finish(),
        }
    }
}

impl<W: Write> Write for Encoder<W> {
    fn write(&mut self, input: &[u8]) -> io::Result<usize> {
        match &mut self.0 {
            Inner::Plain(sink) => sink.write(input),
            Inner::Gzip(gzip) => gzip.write(input),
            Inner::Zlib(zlib) => zlib.write(input),
            Inner::Lzw(lzw) => lzw.write(input),
            Inner::Zstd(zstd) => zstd.write(input),
        }
    }

    /// Passes on what is already compressed; what is being gathered stays until there is enough of it.
    fn flush(&mut self) -> io::Result<()> {
        match &mut self.0 {
            Inner::Plain(sink) => sink.flush(),
            Inner::Gzip(gzip) => gzip.sink.flush(),
            Inner::Zlib(zlib) => zlib.get_mut().flush(),
            Inner::Lzw(lzw) => lzw.flush(),
            Inner::Zstd(zstd) => zstd.get_mut().flush(),
        }
    }
}

fn zstd_encoder<W: Write>(
    sink: W,
    effort: Effort,
) -> io::Result<zstd::stream::write::Encoder<'static, W>> {
    let level = match effort {
        Effort::Fast => 1,
        Effort::Balanced => 3,
    };
    let mut encoder = zstd::stream::write::Encoder::new(sink, level)?;
    encoder.include_checksum(true)?;
    Ok(encoder)
}

/// Content on its way to becoming a member; both buffers are used again.
#[derive(Default)]
struct Piece {
    content: Vec<u8>,
    member: Vec<u8>,
}

/// Cuts the input into pieces and writes each as a gzip member that carries its length.
struct GzipWriter<W> {
    sink: W,
    lanes: Lanes<Piece, Piece>,
    filling: Piece,
    spare: Vec<Piece>,
}

impl<W: Write> GzipWriter<W> {
    fn new(sink: W, options: EncoderOptions) -> io::Result<Self> {
        let level = match options.effort {
            Effort::Fast => 1,
            Effort::Balanced => 6,
        };
        let lanes = Lanes::start(options.threads, || {
            let mut compressor = member::compressor(level);
            move |mut piece: Piece| {
                member::deflate(&mut compressor, &piece.content, &mut piece.member);
                piece
            }
        })?;
        Ok(Self {
            sink,
            lanes,
            filling: Piece::default(),
            spare: Vec::new(),
        })
    }

    /// Hands the gathered content to the lanes, making room first.
    fn dispatch(&mut self) -> io::Result<()> {
        while !self.lanes.has_room() {
            self.write_oldest()?;
        }
        let next = self.spare.pop().unwrap_or_default();
        let piece = std::mem::replace(&mut self.filling, next);
        self.filling.content.clear();
        self.lanes.give(piece).map_err(stopped)
    }

    /// Writes the oldest member owed; `false` when none is.
    fn write_oldest(&mut self) -> io::Result<bool> {
        let Some(piece) = self.lanes.take().map_err(stopped)? else {
            return Ok(false);
        };
        self.sink.write_all(&piece.member)?;
        self.spare.push(piece);
        Ok(true)
    }

    fn write(&mut self, input: &[u8]) -> io::Result<usize> {
        let room = CONTENT.saturating_sub(self.filling.content.len());
        let taken = input.get(..room).unwrap_or(input);
        self.filling.content.extend_from_slice(taken);
        if self.filling.content.len() >= CONTENT {
            self.dispatch()?;
        }
        Ok(taken.len())
    }

    fn finish(mut self) -> io::Result<W> {
        if !self.filling.content.is_empty() {
            self.dispatch()?;
        }
        self.dispatch()?; // the empty member that ends the row
        while self.write_oldest()? {}
        Ok(self.sink)
    }
}

fn stopped(_: LaneStopped) -> io::Error {
    StreamError::Worker {
        compression: Compression::Gzip,
    }
    .into_io()
}
