//! The file a database is rebuilt into.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use mainstay_bbolt::{Disk, ReadAt};

/// Whether the result must survive a power cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// It is a data directory in the making.
    Durable,
    /// It is scratch: read back and thrown away.
    Scratch,
}

/// A file that is synced only when that matters.
#[derive(Clone, Copy, Debug)]
pub struct DatabaseFile<'f> {
    /// The file.
    pub file: &'f File,
    /// Whether to sync.
    pub durability: Durability,
}

impl ReadAt for DatabaseFile<'_> {
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        FileExt::read_exact_at(self.file, buf, offset)
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }
}

impl Disk for DatabaseFile<'_> {
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        FileExt::write_all_at(self.file, bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        match self.durability {
            Durability::Durable => self.file.sync_data(),
            Durability::Scratch => Ok(()),
        }
    }

    fn set_size(&self, size: u64) -> io::Result<()> {
        self.file.set_len(size)
    }
}
