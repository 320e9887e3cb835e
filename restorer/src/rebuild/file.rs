//! The file a database is rebuilt into.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use mainstay_bbolt::{Disk, ReadAt};

/// Whether the file must survive a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// The file becomes part of a data directory.
    Durable,
    /// The file is temporary and never synced.
    Scratch,
}

/// A database file that is synced only if it must be durable.
#[derive(Clone, Copy, Debug)]
pub struct DatabaseFile<'f> {
    pub file: &'f File,
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
