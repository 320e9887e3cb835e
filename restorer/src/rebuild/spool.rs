//! Records the written leaves in a temporary file: their number grows with the backup, and memory must not.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek, Write};
use std::path::Path;

use mainstay_bbolt::PagePointer;
use mainstay_ids::PageId;

/// One byte for the length, and the longest revision key.
const KEY_SLOT_BYTES: usize = 19;
const RECORD_BYTES: usize = KEY_SLOT_BYTES + 8;

/// Leaves in the order in which they were written.
#[derive(Debug)]
pub(crate) struct LeafSpool {
    file: BufWriter<File>,
}

impl LeafSpool {
    /// Creates a spool in an unnamed file of `directory`.
    pub(crate) fn create(directory: &Path) -> io::Result<Self> {
        Ok(Self {
            file: BufWriter::with_capacity(64 << 10, tempfile::tempfile_in(directory)?),
        })
    }

    pub(crate) fn push(&mut self, (key, page): &PagePointer) -> io::Result<()> {
        let mut record = [0u8; RECORD_BYTES];
        let (head, tail) = record.split_at_mut(KEY_SLOT_BYTES);
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
    pub(crate) fn into_leaves(self) -> io::Result<SpooledLeaves> {
        let mut file = self
            .file
            .into_inner()
            .map_err(io::IntoInnerError::into_error)?;
        file.rewind()?;
        Ok(SpooledLeaves {
            file: BufReader::with_capacity(64 << 10, file),
        })
    }
}

/// Iterator over the leaves of a [`LeafSpool`].
#[derive(Debug)]
pub(crate) struct SpooledLeaves {
    file: BufReader<File>,
}

impl Iterator for SpooledLeaves {
    type Item = io::Result<PagePointer>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut record = [0u8; RECORD_BYTES];
        match self.file.read_exact(&mut record) {
            Ok(()) => Some(decode_record(&record).ok_or_else(|| io::ErrorKind::InvalidData.into())),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => None,
            Err(error) => Some(Err(error)),
        }
    }
}

fn decode_record(record: &[u8; RECORD_BYTES]) -> Option<PagePointer> {
    let (head, tail) = record.split_at(KEY_SLOT_BYTES);
    let (len, room) = head.split_first()?;
    let key = room.get(..usize::from(*len))?.to_vec();
    Some((key, PageId(u64::from_le_bytes(tail.try_into().ok()?))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spooled_leaves_are_read_in_order() {
        let directory = tempfile::tempdir().unwrap();
        let mut spool = LeafSpool::create(directory.path()).unwrap();
        let leaves: Vec<PagePointer> = (0..5000u64)
            .map(|n| (vec![7; 17 + (n % 2) as usize], PageId(n * 3)))
            .collect();
        for leaf in &leaves {
            spool.push(leaf).unwrap();
        }
        let back: Vec<PagePointer> = spool.into_leaves().unwrap().map(Result::unwrap).collect();
        assert_eq!(back, leaves);
    }
}
