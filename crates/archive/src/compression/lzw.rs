//! LZW as etcd-backup-restore writes it: codes packed from the least significant bit, 8-bit literals, an end code.

use std::io::{self, BufRead, BufReader, Read, Write};

use weezl::{BitOrder, LzwStatus};

use super::{Compression, READ_AHEAD, StreamError};

/// Bits of a literal.
const LITERAL_BITS: u8 = 8;

/// Decodes one LZW stream and requires its end code. LZW has no checksum; the payload carries its own hash.
pub(super) struct LzwReader<R> {
    source: BufReader<R>,
    decoder: weezl::decode::Decoder,
    offset: u64,
    has_ended: bool,
}

impl<R: Read> LzwReader<R> {
    pub(super) fn new(source: R) -> Self {
        let source = BufReader::with_capacity(READ_AHEAD, source);
        let decoder = weezl::decode::Decoder::new(BitOrder::Lsb, LITERAL_BITS);
        Self {
            source,
            decoder,
            offset: 0,
            has_ended: false,
        }
    }
}

impl<R: Read> Read for LzwReader<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let compression = Compression::Lzw;
        while !out.is_empty() {
            let input = self.source.fill_buf()?;
            let is_empty = input.is_empty();
            let offset = self.offset;
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
            let result = self.decoder.decode_bytes(input, out);
            self.source.consume(result.consumed_in);
            self.offset = offset.saturating_add(result.consumed_in as u64);
            let status = result.status.map_err(|_| {
                StreamError::Damaged {
                    compression: Compression::Lzw,
                    offset: self.offset,
                }
                .into_io()
            })?;
            self.has_ended = matches!(status, LzwStatus::Done);
            if result.consumed_out > 0 {
                return Ok(result.consumed_out);
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

/// Encodes one LZW stream. Only [`LzwWriter::finish`] writes the end code.
pub(super) struct LzwWriter<W> {
    sink: W,
    encoder: weezl::encode::Encoder,
    buffer: Box<[u8]>,
}

impl<W: Write> LzwWriter<W> {
    pub(super) fn new(sink: W) -> Self {
        let encoder = weezl::encode::Encoder::new(BitOrder::Lsb, LITERAL_BITS);
        Self {
            sink,
            encoder,
            buffer: vec![0; READ_AHEAD].into_boxed_slice(),
        }
    }

    pub(super) fn get_ref(&self) -> &W {
        &self.sink
    }

    /// Writes pending codes and the end code.
    pub(super) fn finish(mut self) -> io::Result<W> {
        self.encoder.finish();
        loop {
            let (_, status) = self.step(&[])?;
            if matches!(status, LzwStatus::Done) {
                return Ok(self.sink);
            }
        }
    }

    fn step(&mut self, input: &[u8]) -> io::Result<(usize, LzwStatus)> {
        let result = self.encoder.encode_bytes(input, &mut self.buffer);
        let encoded = self.buffer.get(..result.consumed_out).unwrap_or_default();
        self.sink.write_all(encoded)?;
        let status = result.status.map_err(io::Error::other)?;
        Ok((result.consumed_in, status))
    }
}

impl<W: Write> Write for LzwWriter<W> {
    fn write(&mut self, input: &[u8]) -> io::Result<usize> {
        loop {
            let (consumed, _) = self.step(input)?;
            if consumed > 0 || input.is_empty() {
                return Ok(consumed);
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.sink.flush()
    }
}
