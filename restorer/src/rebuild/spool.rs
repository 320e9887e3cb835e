//! Remembers which leaves were written, in a file: their number grows with the backup.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek, Write};
use std::path::Path;

use mainstay_bbolt::Pointer;
use mainstay_ids::PageId;

/// Length of the longest revision key, and one byte to tell how long it is.
const KEY_ROOM: usize = 19;
const RECORD: usize = KEY_ROOM + 8;

/// Leaves in the order they were written.
#[derive(Debug)]
pub(crate) struct LeafSpool {
    file: BufWriter<File>,
}

impl LeafSpool {
    /// A spool in an unnamed file of `directory`.
    pub(crate) fn create(directory: &Path) -> io::Result<Self> {
        Ok(Self {
            file: BufWriter::with_capacity(64 << 10, tempfile::tempfile_in(directory)?),
        })
    }

    pub(crate) fn push(&mut self, (key, page): &Pointer) -> io::Result<()> {
        let mut record = [0u8; RECORD];
        let (head, tail) = record.split_at_mut(KEY_ROOM);
        let room = head.split_first_mut().and_then(|(len, room)| {
            *len = u8::try_from(key.len()).ok()?;
            room.get_mut(..key.len())
        });
        room.ok_or(io::ErrorKind::InvalidInput)?
            .copy_from_slice(key);
        tail.copy_from_slice(&page.0.to_le_bytes());
        self.file.write_all(&record)
    }

    /// Reads the leaves back, in order.
    pub(crate) fn into_leaves(self) -> io::Result<Leaves> {
        let mut file = self
            .file
            .into_inner()
            .map_err(io::IntoInnerError::into_error)?;
        file.rewind()?;
        Ok(Leaves {
            file: BufReader::with_capacity(64 << 10, file),
        })
    }
}

/// The leaves of a [`LeafSpool`].
#[derive(Debug)]
pub(crate) struct Leaves {
    file: BufReader<File>,
}

impl Iterator for Leaves {
    type Item = io::Result<Pointer>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut record = [0u8; RECORD];
        match self.file.read_exact(&mut record) {
            Ok(()) => Some(decode(&record).ok_or_else(|| io::ErrorKind::InvalidData.into())),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => None,
            Err(error) => Some(Err(error)),
        }
    }
}

fn decode(record: &[u8; RECORD]) -> Option<Pointer> {
    let (head, tail) = record.split_at(KEY_ROOM);
    let (len, room) = head.split_first()?;
    let key = room.get(..usize::from(*len))?.to_vec();
    Some((key, PageId(u64::from_le_bytes(tail.try_into().ok()?))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leaves_come_back_in_order() {
        let directory = tempfile::tempdir().unwrap();
        let mut spool = LeafSpool::create(directory.path()).unwrap();
        let leaves: Vec<Pointer> = (0..5000u64)
            .map(|n| (vec![7; 17 + (n % 2) as usize], PageId(n * 3)))
            .collect();
        for leaf in &leaves {
            spool.push(leaf).unwrap();
        }
        let back: Vec<Pointer> = spool.into_leaves().unwrap().map(Result::unwrap).collect();
        assert_eq!(back, leaves);
    }
}
