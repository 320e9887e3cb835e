//! The frame of each record: a length field before it, zero padding to eight bytes after it.
//!
//! The low 56 bits of the field are the record length. The top byte is `0x80 | padding`, or 0 without padding. A
//! field of 0 marks the end of the written part of a segment.

/// Length of the length field in bytes.
pub(crate) const LENGTH_BYTES: u64 = 8;

/// Smallest unit a disk writes atomically, by which etcd recognises torn writes.
const SECTOR_BYTES: usize = 512;

const RECORD_MASK: u64 = (1 << 56) - 1;

/// A decoded length field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameLength {
    /// Bytes of the record itself, below 2^56.
    pub(crate) record_len: u64,
    /// The top byte, not validated.
    flag: u8,
}

impl FrameLength {
    /// Decodes a length field; `None` is the end marker.
    pub(crate) fn decode(field: [u8; 8]) -> Option<Self> {
        let value = u64::from_le_bytes(field);
        let [.., flag] = field;
        (value != 0).then_some(Self {
            record_len: value & RECORD_MASK,
            flag,
        })
    }

    /// Encodes the field for a record of `length` bytes, which must be below 2^56.
    pub(crate) fn encode(length: u64) -> [u8; 8] {
        let mut field = (length & RECORD_MASK).to_le_bytes();
        let [.., flag] = &mut field;
        *flag = flag_for(length);
        field
    }

    /// Number of zero bytes after the record.
    pub(crate) fn padding_len(self) -> u64 {
        padding_for(self.record_len)
    }

    /// Bytes after the length field: record and padding.
    pub(crate) fn payload_len(self) -> u64 {
        self.record_len + self.padding_len()
    }

    /// Returns true when the top byte is the one etcd writes for this length. The checksum does not cover the field, so
    /// only this check detects a flipped bit in it.
    pub(crate) fn has_valid_padding(self) -> bool {
        self.flag == flag_for(self.record_len)
    }
}

/// Number of zero bytes after a record of `length` bytes.
pub(crate) fn padding_for(length: u64) -> u64 {
    (8 - length % 8) % 8
}

fn flag_for(length: u64) -> u8 {
    match padding_for(length).to_le_bytes() {
        [0, ..] => 0,
        [padding, ..] => 0x80 | padding,
    }
}

/// Returns true when the part of `payload` in some sector is all zero: the sign of a partial write. `payload` starts
/// at byte `offset` of the file.
pub(crate) fn has_zero_sector(offset: u64, payload: &[u8]) -> bool {
    let into_sector = usize::try_from(offset % SECTOR_BYTES as u64).unwrap_or(0);
    let (head, rest) = payload.split_at(payload.len().min(SECTOR_BYTES - into_sector));
    let mut shares = std::iter::once(head).chain(rest.chunks(SECTOR_BYTES));
    shares.any(|share| !share.is_empty() && is_all_zero(share))
}

/// Returns true when every byte is zero. Compares with a constant, which compiles to `memcmp`.
pub(crate) fn is_all_zero(bytes: &[u8]) -> bool {
    const ZEROS: [u8; 4096] = [0; 4096];
    bytes
        .chunks(ZEROS.len())
        .all(|chunk| ZEROS.starts_with(chunk))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn length_field_matches_etcd() {
        assert_eq!(hex::encode(FrameLength::encode(4)), "0400000000000084");
        assert_eq!(hex::encode(FrameLength::encode(0x1f)), "1f00000000000081");
        assert_eq!(hex::encode(FrameLength::encode(0x10)), "1000000000000000");
    }

    #[test]
    fn length_field_round_trips() {
        for length in 1..=64 {
            let decoded = FrameLength::decode(FrameLength::encode(length)).unwrap();
            assert_eq!(decoded.record_len, length);
            assert!(decoded.has_valid_padding());
            assert_eq!(decoded.payload_len() % 8, 0);
        }
        assert_eq!(FrameLength::decode([0; 8]), None);
    }

    #[test]
    fn padding_that_does_not_match_the_length_is_detected() {
        let mut field = FrameLength::encode(5);
        field[7] ^= 1;
        assert!(!FrameLength::decode(field).unwrap().has_valid_padding());
    }

    #[test]
    fn only_a_fully_zeroed_sector_counts_as_torn() {
        let mut payload = vec![1; 1500];
        assert!(!has_zero_sector(8, &payload));
        payload[505..1016].fill(0); // the second sector's share is 504..1016 when the payload starts at byte 8
        assert!(!has_zero_sector(8, &payload));
        payload[504] = 0;
        assert!(has_zero_sector(8, &payload));
        assert!(
            !has_zero_sector(100, &payload),
            "the same zeros straddle two sectors"
        );
        assert!(!has_zero_sector(0, &[]));
    }
}
