//! The storage of a database as a trait: a real file, bytes in memory, or a simulated disk that crashes.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// Storage that can be read at any offset without a shared position.
pub trait ReadAt {
    /// Fills `buf` from `offset`; `UnexpectedEof` when the bytes end before.
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()>;

    /// Returns the size in bytes.
    fn size(&self) -> io::Result<u64>;
}

/// A [`ReadAt`] that can also be written and synced.
pub trait Disk: ReadAt {
    /// Writes all of `bytes` at `offset`, growing the file when needed.
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Returns once everything written so far survives a power failure.
    fn sync(&self) -> io::Result<()>;

    /// Truncates or extends (with zeros) to exactly `size` bytes.
    fn set_size(&self, size: u64) -> io::Result<()>;
}

impl ReadAt for File {
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        FileExt::read_exact_at(self, buf, offset)
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }
}

impl Disk for File {
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        FileExt::write_all_at(self, bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }

    fn set_size(&self, size: u64) -> io::Result<()> {
        self.set_len(size)
    }
}

impl ReadAt for [u8] {
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let start = usize::try_from(offset).map_err(|_| io::ErrorKind::UnexpectedEof)?;
        let end = start
            .checked_add(buf.len())
            .ok_or(io::ErrorKind::UnexpectedEof)?;
        let bytes = self.get(start..end).ok_or(io::ErrorKind::UnexpectedEof)?;
        buf.copy_from_slice(bytes);
        Ok(())
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.len() as u64)
    }
}

impl ReadAt for Vec<u8> {
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.as_slice().read_exact_at(buf, offset)
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.len() as u64)
    }
}

macro_rules! impl_for_pointers {
    ($($pointer:ty),*) => {$(
        impl<T: ReadAt + ?Sized> ReadAt for $pointer {
            fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
                (**self).read_exact_at(buf, offset)
            }

            fn size(&self) -> io::Result<u64> {
                (**self).size()
            }
        }

        impl<T: Disk + ?Sized> Disk for $pointer {
            fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
                (**self).write_all_at(bytes, offset)
            }

            fn sync(&self) -> io::Result<()> {
                (**self).sync()
            }

            fn set_size(&self, size: u64) -> io::Result<()> {
                (**self).set_size(size)
            }
        }
    )*};
}

impl_for_pointers!(&T, Arc<T>);
