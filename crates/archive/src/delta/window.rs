//! The part of the stream in memory: refilled in chunks and hashed, with the last 32 bytes held back.

use std::io::{ErrorKind, Read};

use sha2::{Digest, Sha256};

use super::{DeltaError, MAX_EVENT_LEN, TRAILER_LEN};

/// Bytes requested from the stream at once.
const READ_CHUNK_LEN: usize = 512 << 10;

/// A sliding view of the JSON text. It excludes the last bytes read, which may be the hash.
pub(super) struct Window<R> {
    stream: R,
    buffer: Vec<u8>,
    /// Index of the first unconsumed byte.
    start: usize,
    /// End of the bytes read.
    filled: usize,
    /// End of the hashed text: always `filled` less the held back tail.
    text_end: usize,
    /// Position of `buffer[0]` in the stream.
    origin: u64,
    hasher: Sha256,
    at_end: bool,
}

/// Result of a refill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refill {
    /// More text is available.
    More,
    /// The text ends here.
    End,
    /// The unconsumed text has reached [`MAX_EVENT_LEN`].
    Full,
}

impl<R: Read> Window<R> {
    pub(super) fn new(stream: R) -> Self {
        Self {
            stream,
            buffer: Vec::new(),
            start: 0,
            filled: 0,
            text_end: 0,
            origin: 0,
            hasher: Sha256::new(),
            at_end: false,
        }
    }

    /// The unconsumed text in memory.
    pub(super) fn text(&self) -> &[u8] {
        self.buffer
            .get(self.start..self.text_end)
            .unwrap_or_default()
    }

    /// Position of the first byte of [`Self::text`] in the stream.
    pub(super) fn offset(&self) -> u64 {
        self.origin.saturating_add(self.start as u64)
    }

    /// Consumes the first `count` bytes of the text.
    pub(super) fn consume(&mut self, count: usize) {
        self.start = self.start.saturating_add(count).min(self.text_end);
    }

    /// Reads more, moving unconsumed text to the front and growing the buffer when needed.
    pub(super) fn refill(&mut self) -> Result<Refill, DeltaError> {
        if self.at_end {
            return Ok(Refill::End);
        }
        if self.text().len() >= MAX_EVENT_LEN {
            return Ok(Refill::Full);
        }
        self.make_room();
        let before = self.text_end;
        while self.filled < self.buffer.len() {
            let free = self.buffer.get_mut(self.filled..).unwrap_or_default();
            match self.stream.read(free) {
                Ok(0) => {
                    self.at_end = true;
                    break;
                }
                Ok(count) => self.filled = self.filled.saturating_add(count).min(self.buffer.len()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(source) => {
                    let offset = self.origin.saturating_add(self.filled as u64);
                    return Err(DeltaError::Read { offset, source });
                }
            }
        }
        self.text_end = self.filled.saturating_sub(TRAILER_LEN).max(before);
        let fresh = self.buffer.get(before..self.text_end).unwrap_or_default();
        self.hasher.update(fresh);
        if self.at_end && self.origin.saturating_add(self.filled as u64) < TRAILER_LEN as u64 {
            return Err(DeltaError::TooShort {
                length: self.filled as u64,
            });
        }
        Ok(if self.text_end > before {
            Refill::More
        } else {
            Refill::End
        })
    }

    /// Returns true when the held back bytes are the hash of all text. Valid only after [`Refill::End`].
    pub(super) fn hash_matches(&mut self) -> bool {
        let trailer = self
            .buffer
            .get(self.text_end..self.filled)
            .unwrap_or_default();
        self.at_end && self.hasher.finalize_reset().as_slice() == trailer
    }

    /// Moves unconsumed text to the front, into a larger buffer when it takes up half of this one.
    ///
    /// Doubling bounds the cost of scanning an incomplete element again after each refill.
    fn make_room(&mut self) {
        let kept = self.start..self.filled;
        let capacity = READ_CHUNK_LEN
            .max(kept.len().saturating_mul(2))
            .min(MAX_EVENT_LEN.saturating_mul(2));
        if self.buffer.len() < capacity {
            let mut larger = vec![0; capacity];
            let old = self.buffer.get(kept).unwrap_or_default();
            if let Some(front) = larger.get_mut(..old.len()) {
                front.copy_from_slice(old);
            }
            self.buffer = larger;
        } else {
            self.buffer.copy_within(kept, 0);
        }
        self.origin = self.origin.saturating_add(self.start as u64);
        self.filled -= self.start;
        self.text_end -= self.start;
        self.start = 0;
    }
}
