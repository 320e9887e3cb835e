//! Codecs of objects, selected by the suffix of the object name.
//!
//! [`open_decoder`] and [`StreamEncoder`] stream with bounded memory. A decoder returns an error when its input is truncated,
//! altered where a checksum covers it, or followed by other data: never a short success.
//! Gzip written by [`StreamEncoder`] is a sequence of members that several threads can inflate in parallel (see
//! [`member`]). Any gzip reader reads it.

mod encoder;
mod gunzip;
mod lzw;
pub mod member;
mod worker_pool;
mod zlib;

use std::fmt;
use std::io::{BufReader, Read};
use std::num::NonZeroUsize;

pub use encoder::{CompressionEffort, EncoderOptions, StreamEncoder};

/// Read buffer size in bytes.
const READ_AHEAD: usize = 128 << 10;

/// Largest zstd window accepted, as a power of two: 16 MiB, above the windows [`StreamEncoder`] writes.
const ZSTD_WINDOW_LOG_MAX: u32 = 24;

/// Compression of an object.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Compression {
    /// Uncompressed, no suffix.
    None,
    /// `.gz`
    Gzip,
    /// `.zlib`
    Zlib,
    /// `.Z`: LZW, least significant bit first, 8-bit literals. Not what Unix `compress` writes.
    Lzw,
    /// `.zst`; not supported by etcd-backup-restore.
    Zstd,
    /// An unknown suffix. The object keeps its place in a chain and fails when opened: leaving it out would end a
    /// restore silently before the newest data.
    Unknown(String),
}

impl Compression {
    /// Parses the suffix of an object name, without its dot.
    pub fn from_suffix(suffix: &str) -> Self {
        match suffix {
            "gz" => Self::Gzip,
            "zlib" => Self::Zlib,
            "Z" => Self::Lzw,
            "zst" => Self::Zstd,
            other => Self::Unknown(other.to_owned()),
        }
    }

    /// Returns the suffix of an object name without its dot; `None` for no suffix.
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
    /// The object name has an unknown suffix.
    #[error("unsupported compression .{suffix}, expected gz, zlib, Z or zst")]
    UnknownCompression {
        /// The suffix without its dot.
        suffix: String,
    },
    /// The first bytes could not be read.
    #[error("read the start of the compressed stream")]
    ReadStart {
        /// Error of the underlying reader.
        source: std::io::Error,
    },
    /// The codec, or one of its threads, could not be started.
    #[error("initialize {compression} codec")]
    Codec {
        /// Codec of the stream.
        compression: Compression,
        /// Error of the codec or of the thread.
        source: std::io::Error,
    },
}

/// A defect of a compressed stream, carried inside the [`std::io::Error`] of a decoder.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StreamError {
    /// The input ended before the end of the stream.
    #[error("{compression} stream truncated at byte {offset}")]
    Truncated {
        /// Codec of the stream.
        compression: Compression,
        /// Length of the input.
        offset: u64,
    },
    /// The input does not follow the format, or a checksum differs.
    #[error("{compression} stream corrupt at or before byte {offset}")]
    Damaged {
        /// Codec of the stream.
        compression: Compression,
        /// Byte position in the compressed input.
        offset: u64,
    },
    /// Data follows the end of the stream.
    #[error("{compression} stream ends at byte {offset}, but more data follows")]
    TrailingData {
        /// Codec of the stream.
        compression: Compression,
        /// Byte position of the first extra byte, or slightly after it.
        offset: u64,
    },
    /// A worker thread panicked.
    #[error("{compression} worker thread panicked")]
    WorkerStopped {
        /// Codec of the stream.
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
/// `threads` is the number of inflating threads. Only gzip written by [`StreamEncoder`] uses more than one; with one, no
/// thread is spawned. Dropping the reader early stops and joins its threads.
///
/// # Errors
///
/// [`OpenStreamError`] for an unknown compression or an unreadable source. Corruption is reported while reading, as a
/// [`StreamError`] inside the [`std::io::Error`].
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
    // A hostile frame header could otherwise demand a much larger window.
    decoder.window_log_max(ZSTD_WINDOW_LOG_MAX)?;
    Ok(Box::new(decoder))
}

#[cfg(test)]
mod tests;
