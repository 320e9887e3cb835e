//! The compressions an object may have, told apart by the suffix of its name.
//!
//! [`decoder`] and [`Encoder`] are streams with bounded memory. Every decoder ends in an error when its input
//! is cut short, altered where a checksum sees it, or followed by something else: never in a short success.
//! Gzip of our own making is a row of members that several threads can inflate at once (see [`member`]);
//! any gzip reader reads it.

mod encoder;
mod gunzip;
mod lanes;
mod lzw;
pub mod member;
mod zlib;

use std::fmt;
use std::io::{BufReader, Read};
use std::num::NonZeroUsize;

pub use encoder::{CompressionEffort, StreamEncoder, EncoderOptions};

/// Bytes read ahead from a source.
const READ_AHEAD: usize = 128 << 10;

/// The largest zstd window accepted, as a power of two: 16 MiB, far above what our own writer uses.
const ZSTD_WINDOW_LOG_MAX: u32 = 24;

/// How an object is compressed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Compression {
    /// Stored as it is.
    None,
    /// `.gz`
    Gzip,
    /// `.zlib`
    Zlib,
    /// `.Z`: LZW, least significant bit first, 8-bit literals. Not what Unix `compress` writes.
    Lzw,
    /// `.zst`, our addition.
    Zstd,
    /// A suffix no version of this program knows. The object takes its place in a chain and fails when it is
    /// opened: leaving it out would end a restore silently before the newest data.
    Unknown(String),
}

impl Compression {
    /// From the suffix of a name, without its dot.
    pub fn from_suffix(suffix: &str) -> Self {
        match suffix {
            "gz" => Self::Gzip,
            "zlib" => Self::Zlib,
            "Z" => Self::Lzw,
            "zst" => Self::Zstd,
            other => Self::Unknown(other.to_owned()),
        }
    }

    /// The suffix of a name, without its dot; `None` when nothing is appended.
    pub fn suffix(&self) -> Option<&str> {
        match self {
            Self::None => None,
            Self::Gzip => Some("gz"),
            Self::Zlib => Some("zlib"),
            Self::Lzw => Some("Z"),
            Self::Zstd => Some("zst"),
            Self::Unknown(suffix) => Some(suffix),
        }
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::Gzip => "gzip",
            Self::Zlib => "zlib",
            Self::Lzw => "lzw",
            Self::Zstd => "zstd",
            Self::Unknown(suffix) => suffix,
        })
    }
}

/// Why a stream cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenStreamError {
    /// The name ends in a suffix that is not known.
    #[error("compression .{suffix} is not known; gz, zlib, Z and zst are")]
    UnknownCompression {
        /// The suffix as found.
        suffix: String,
    },
    /// The first bytes could not be read.
    #[error("read the beginning of the compressed stream")]
    ReadStart {
        /// What the source said.
        source: std::io::Error,
    },
    /// The codec could not be set up.
    #[error("set up {compression}")]
    Codec {
        /// The codec.
        compression: Compression,
        /// What it said.
        source: std::io::Error,
    },
}

/// What is wrong with a compressed stream; found inside the [`std::io::Error`] a decoder returns.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StreamError {
    /// The input ended in the middle.
    #[error("{compression} stream is cut short at byte {offset}")]
    Truncated {
        /// The codec.
        compression: Compression,
        /// Length of the input.
        offset: u64,
    },
    /// The input does not follow the format, or a checksum differs.
    #[error("{compression} stream is damaged at or before byte {offset}")]
    Damaged {
        /// The codec.
        compression: Compression,
        /// Position in the input.
        offset: u64,
    },
    /// Something follows the end of the stream.
    #[error("{compression} stream ends at byte {offset} but more follows")]
    TrailingData {
        /// The codec.
        compression: Compression,
        /// Position of the first byte too many, or a little behind it.
        offset: u64,
    },
    /// A worker thread is gone.
    #[error("a {compression} worker thread stopped")]
    WorkerStopped {
        /// The codec.
        compression: Compression,
    },
}

impl StreamError {
    fn into_io(self) -> std::io::Error {
        let kind = match self {
            Self::Truncated { .. } => std::io::ErrorKind::UnexpectedEof,
            Self::Damaged { .. } | Self::TrailingData { .. } => std::io::ErrorKind::InvalidData,
            Self::WorkerStopped { .. } => std::io::ErrorKind::Other,
        };
        std::io::Error::new(kind, self)
    }
}

/// Opens a compressed stream for reading.
///
/// `threads` is how many threads may inflate: it matters for gzip of our own making only, everything else is
/// one stream. With one, nothing is spawned. Dropping the reader early ends and joins its threads.
///
/// # Errors
///
/// [`OpenError`] for a compression that is not known or a source that cannot be read. Damage is
/// found while reading, as a [`StreamError`] inside the [`std::io::Error`].
pub fn open_decoder<R: Read + Send + 'static>(
    compression: &Compression,
    source: R,
    threads: NonZeroUsize,
) -> Result<Box<dyn Read + Send>, OpenStreamError> {
    match compression {
        Compression::None => Ok(Box::new(source)),
        Compression::Gzip => {
            gunzip::open(source, threads).map_err(|source| OpenStreamError::ReadStart { source })
        }
        Compression::Zlib => Ok(Box::new(zlib::ZlibReader::new(source))),
        Compression::Lzw => Ok(Box::new(lzw::LzwReader::new(source))),
        Compression::Zstd => open_zstd_decoder(source).map_err(|source| OpenStreamError::Codec {
            compression: Compression::Zstd,
            source,
        }),
        Compression::Unknown(suffix) => Err(OpenStreamError::UnknownCompression {
            suffix: suffix.clone(),
        }),
    }
}

fn open_zstd_decoder<R: Read + Send + 'static>(
    source: R,
) -> Result<Box<dyn Read + Send>, std::io::Error> {
    let source = BufReader::with_capacity(READ_AHEAD, source);
    let mut decoder = zstd::stream::read::Decoder::with_buffer(source)?;
    decoder.window_log_max(ZSTD_WINDOW_LOG_MAX)?;
    Ok(Box::new(decoder))
}

#[cfg(test)]
mod tests;
