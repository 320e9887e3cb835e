//! Full snapshots: a bbolt database as etcd streams it, followed by the raw SHA-256 of the database.
//!
//! ```text
//! ‹pages, a multiple of 512 bytes›‹32 bytes›
//! ```
//!
//! [`FullScanner`] separates the database from the hash while the bytes arrive, and compares the hash at the end.
//! [`FullWriter`] appends the hash. A database file copied from a data directory is the same without the hash.

use std::io::{self, Write};

use sha2::{Digest, Sha256};

/// Length of the SHA-256 after the database, in bytes.
pub const TRAILER_LEN: usize = 32;

/// etcd writes a database in multiples of this size, so a remainder of [`TRAILER_LEN`] means that a hash follows.
const SECTOR_LEN: u64 = 512;

/// Whether a full snapshot without a hash is accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HashCheck {
    /// A snapshot without a hash is refused: damage could not be detected.
    Required,
    /// A snapshot without a hash is accepted: it was copied from a data directory. A hash is compared nevertheless.
    Skipped,
}

/// Why the bytes are not a full snapshot.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FullDamage {
    /// Neither a database with a hash nor a database.
    #[error("invalid length {bytes}: must be a multiple of 512 bytes plus a 32-byte hash")]
    Length {
        /// Decompressed bytes.
        bytes: u64,
    },
    /// The length is that of a database without a hash.
    #[error("no hash after {bytes} bytes")]
    Unhashed {
        /// Decompressed bytes.
        bytes: u64,
    },
    /// The hash does not match.
    #[error("checksum mismatch over {bytes} bytes: SHA-256 stored {stored}, computed {computed}")]
    Hash {
        /// Size of the database.
        bytes: u64,
        /// Hash in the snapshot, as hex digits.
        stored: String,
        /// Hash of the database, as hex digits.
        computed: String,
    },
}

/// Where the database ends in a full snapshot of a certain length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FullLayout {
    /// Size of the database without the hash.
    pub database_bytes: u64,
    /// Whether a hash follows the database.
    pub is_hashed: bool,
}

impl FullLayout {
    /// Returns the layout of a full snapshot of `bytes`, decompressed.
    ///
    /// # Errors
    /// No full snapshot has this length.
    pub fn of(bytes: u64) -> Result<Self, FullDamage> {
        let trailer = TRAILER_LEN as u64;
        match bytes % SECTOR_LEN {
            0 if bytes > 0 => Ok(Self {
                database_bytes: bytes,
                is_hashed: false,
            }),
            rest if rest == trailer && bytes > trailer => Ok(Self {
                database_bytes: bytes - trailer,
                is_hashed: true,
            }),
            _ => Err(FullDamage::Length { bytes }),
        }
    }
}

/// A full snapshot that was received to its last byte.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScannedFull {
    /// What was received; a hash was compared.
    pub layout: FullLayout,
    /// The end of the database, not yet returned by [`FullScanner::push`]. Empty if a hash follows.
    pub rest: Vec<u8>,
}

/// Hashes a full snapshot as its bytes arrive. It holds the last 32 bytes back, which may be the hash: only the end of
/// the stream shows which they are.
#[derive(Clone, Debug, Default)]
pub struct FullScanner {
    hash: Sha256,
    held: Vec<u8>,
    released: Vec<u8>,
    received: u64,
}

impl FullScanner {
    /// Accepts the next bytes of the stream, in pieces of any size. Returns the bytes that certainly belong to the
    /// database, in order.
    pub fn push<'a>(&'a mut self, chunk: &'a [u8]) -> [&'a [u8]; 2] {
        self.received = self.received.saturating_add(chunk.len() as u64);
        let surplus = (self.held.len() + chunk.len()).saturating_sub(TRAILER_LEN);
        self.released.clear();
        self.released
            .extend(self.held.drain(..surplus.min(self.held.len())));
        let (data, rest) = chunk.split_at(surplus - self.released.len());
        self.held.extend_from_slice(rest);
        self.hash.update(&self.released);
        self.hash.update(data);
        [&self.released, data]
    }

    /// Returns the number of bytes received.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// Compares the hash after the last byte.
    ///
    /// # Errors
    /// The length is invalid, the hash does not match, or there is none although `check` requires it.
    pub fn finish(self, check: HashCheck) -> Result<ScannedFull, FullDamage> {
        let layout = FullLayout::of(self.received)?;
        let bytes = layout.database_bytes;
        if !layout.is_hashed {
            return match check {
                HashCheck::Required => Err(FullDamage::Unhashed { bytes }),
                HashCheck::Skipped => Ok(ScannedFull {
                    layout,
                    rest: self.held,
                }),
            };
        }
        let computed = self.hash.finalize();
        if computed.as_slice() != self.held {
            return Err(FullDamage::Hash {
                bytes,
                stored: hex::encode(&self.held),
                computed: hex::encode(computed),
            });
        }
        let rest = Vec::new();
        Ok(ScannedFull { layout, rest })
    }
}

/// Writes a database and appends its hash.
#[derive(Debug)]
pub struct FullWriter<W> {
    inner: W,
    hash: Sha256,
}

impl<W: Write> FullWriter<W> {
    /// Starts a full snapshot.
    pub fn new(inner: W) -> Self {
        let hash = Sha256::new();
        Self { inner, hash }
    }

    /// Writes the hash.
    ///
    /// # Errors
    /// The write failed.
    pub fn finish(mut self) -> io::Result<W> {
        self.inner.write_all(&self.hash.finalize())?;
        Ok(self.inner)
    }
}

impl<W: Write> Write for FullWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.inner.write(bytes)?;
        self.hash.update(bytes.get(..count).unwrap_or_default());
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

#[cfg(test)]
mod tests;
