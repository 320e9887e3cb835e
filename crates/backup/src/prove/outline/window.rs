//! A window of a file, addressed with offsets of the file.

/// Bytes of the file from offset `start` on.
pub(super) struct FileWindow<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) start: u64,
}

impl<'a> FileWindow<'a> {
    /// Returns `len` bytes from `offset` on, if the window contains all of them.
    pub(super) fn get(&self, offset: u64, len: usize) -> Option<&'a [u8]> {
        let from = usize::try_from(offset.checked_sub(self.start)?).ok()?;
        self.bytes.get(from..from.checked_add(len)?)
    }

    /// Returns the bytes of the window between two offsets; empty if the first one is before the window.
    pub(super) fn slice(&self, from: u64, to: u64) -> &'a [u8] {
        let index = |at: u64| usize::try_from(at.saturating_sub(self.start)).unwrap_or(usize::MAX);
        if from < self.start {
            return &[];
        }
        self.bytes
            .get(index(from)..index(to).min(self.bytes.len()))
            .unwrap_or_default()
    }
}

pub(super) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes
        .get(at..)?
        .first_chunk()
        .copied()
        .map(u16::from_le_bytes)
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes
        .get(at..)?
        .first_chunk()
        .copied()
        .map(u32::from_le_bytes)
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes
        .get(at..)?
        .first_chunk()
        .copied()
        .map(u64::from_le_bytes)
}
