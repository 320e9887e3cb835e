//! Reads little-endian fields from untrusted bytes: `None` when the bytes end too early.

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    read_field(bytes, at).map(u16::from_le_bytes)
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    read_field(bytes, at).map(u32::from_le_bytes)
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    read_field(bytes, at).map(u64::from_le_bytes)
}

/// Converts a 32-bit length to an index; every supported platform has at least 32-bit addresses.
pub(crate) fn to_index(value: u32) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}

fn read_field<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}
