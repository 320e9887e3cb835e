//! Decodes one zlib stream and rejects truncated input.

use std::io::{self, BufRead, BufReader, Read};

use flate2::{Decompress, FlushDecompress, Status};

use super::{Compression, READ_AHEAD, StreamError};

/// Inflates one zlib stream, checks its Adler-32, and requires the input to end after it.
///
/// flate2's own reader treats a truncated input as the end of the data, hence this one.
pub(super) struct ZlibReader<R> {
    source: BufReader<R>,
    inflate: Decompress,
    has_ended: bool,
}

impl<R: Read> ZlibReader<R> {
    pub(super) fn new(source: R) -> Self {
        let source = BufReader::with_capacity(READ_AHEAD, source);
        Self {
            source,
            inflate: Decompress::new(true),
            has_ended: false,
        }
    }
}

impl<R: Read> Read for ZlibReader<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let compression = Compression::Zlib;
        while !out.is_empty() {
            let input = self.source.fill_buf()?;
            let is_empty = input.is_empty();
            let offset = self.inflate.total_in();
            if self.has_ended {
                let trailing = StreamError::TrailingData {
                    compression,
                    offset,
                };
                return if is_empty {
                    Ok(0)
                } else {
                    Err(trailing.into_io())
                };
            }
            let written = self.inflate.total_out();
            let status = self
                .inflate
                .decompress(input, out, FlushDecompress::None)
                .map_err(|_| {
                    StreamError::Damaged {
                        compression: Compression::Zlib,
                        offset,
                    }
                    .into_io()
                })?;
            let consumed = self.inflate.total_in().saturating_sub(offset);
            let produced = self.inflate.total_out().saturating_sub(written);
            self.source
                .consume(usize::try_from(consumed).unwrap_or(usize::MAX));
            self.has_ended = status == Status::StreamEnd;
            if produced > 0 {
                return Ok(usize::try_from(produced).unwrap_or(out.len()));
            }
            if is_empty && !self.has_ended {
                return Err(StreamError::Truncated {
                    compression,
                    offset,
                }
                .into_io());
            }
        }
        Ok(0)
    }
}
