//! Gzip members that carry their own length, so that they can be located and inflated independently.
//!
//! ```text
//! 1f 8b 08 04  mtime=0 (4)  00 ff  xlen=8 (2)  'E' 'S'  04 00  size (4)  deflate…  crc32 (4)  isize (4)
//! └ FEXTRA set                                 └ subfield id    └ whole member, header and trailer included
//! ```
//!
//! All numbers are little-endian. An ordinary gzip reader skips the subfield; this crate's reader splits the stream
//! at `size` without inflating. Inflated length and CRC are the ordinary gzip trailer.
//!
//! A sequence of members ends with an empty one. Without it the stream was cut between two members, which plain
//! gzip cannot distinguish from a complete stream.

use libdeflater::{CompressionLvl, Compressor, Decompressor};

/// Length of the header in bytes; constant.
pub const HEADER_LEN: usize = 20;
/// Length of CRC-32 and content length in bytes.
const TRAILER_LEN: usize = 8;
/// Bytes of content per member; the last one may be shorter.
pub const CONTENT_LEN: usize = 1 << 20;
/// Largest member, compressed or inflated, that is inflated in one piece, in bytes.
pub const MAX_MEMBER_LEN: usize = 4 << 20;

/// Everything before the size: magic, deflate, FEXTRA, no time, unknown system, eight extra bytes, subfield.
const HEADER_PREFIX: [u8; 16] = [
    0x1f, 0x8b, 8, 4, 0, 0, 0, 0, 0, 0xff, 8, 0, b'E', b'S', 4, 0,
];

/// The content of the member does not match its header or trailer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("gzip member does not match its header or trailer")]
pub(super) struct InvalidMember;

/// Returns the size of the member in bytes; `None` when the header has no size subfield or the member exceeds
/// [`MAX_MEMBER_LEN`].
pub fn parse_member_size(header: &[u8; HEADER_LEN]) -> Option<usize> {
    let (prefix, size) = header.split_first_chunk::<16>()?;
    let size = u32::from_le_bytes(*size.first_chunk::<4>()?);
    let size = usize::try_from(size).ok()?;
    let fits = (HEADER_LEN + TRAILER_LEN..=MAX_MEMBER_LEN).contains(&size);
    (*prefix == HEADER_PREFIX && fits).then_some(size)
}

/// Compresses `content` (at most [`MAX_MEMBER_LEN`] bytes) as one member into `member`, replacing its content.
pub(super) fn deflate_member(compressor: &mut Compressor, content: &[u8], member: &mut Vec<u8>) {
    let bound = compressor.deflate_compress_bound(content.len());
    member.clear();
    member.resize(HEADER_LEN + bound + TRAILER_LEN, 0);
    let body = member
        .get_mut(HEADER_LEN..HEADER_LEN + bound)
        .unwrap_or_default();
    let length = compressor
        .deflate_compress(content, body)
        .expect("the buffer has the size the compressor asked for");
    member.truncate(HEADER_LEN + length);
    member.extend_from_slice(&libdeflater::crc32(content).to_le_bytes());
    member.extend_from_slice(&to_u32(content.len()).to_le_bytes());
    let size = to_u32(member.len()).to_le_bytes();
    if let Some(header) = member.first_chunk_mut::<HEADER_LEN>() {
        for (to, from) in header.iter_mut().zip(HEADER_PREFIX.iter().chain(&size)) {
            *to = *from;
        }
    }
}

/// A compressor for [`deflate_member`]; the level is clamped to libdeflate's range 1 to 12.
pub(super) fn new_compressor(level: i32) -> Compressor {
    Compressor::new(CompressionLvl::new(level.clamp(1, 12)).unwrap_or_default())
}

/// Inflates a whole member into `content`, replacing its content.
///
/// # Errors
///
/// [`InvalidMember`] when length or CRC differ from the trailer, or the length exceeds [`MAX_MEMBER_LEN`].
pub(super) fn inflate_member(
    decompressor: &mut Decompressor,
    member: &[u8],
    content: &mut Vec<u8>,
) -> Result<(), InvalidMember> {
    let (rest, trailer) = member
        .split_last_chunk::<TRAILER_LEN>()
        .ok_or(InvalidMember)?;
    let body = rest.get(HEADER_LEN..).ok_or(InvalidMember)?;
    let (crc, length) = trailer.split_first_chunk::<4>().ok_or(InvalidMember)?;
    let length = u32::from_le_bytes(*length.first_chunk::<4>().ok_or(InvalidMember)?);
    let length = usize::try_from(length).map_err(|_| InvalidMember)?;
    // The trailer is untrusted: without the limit it could demand an allocation of 4 GiB.
    if length > MAX_MEMBER_LEN {
        return Err(InvalidMember);
    }
    content.resize(length, 0);
    let inflated = decompressor
        .deflate_decompress(body, content)
        .map_err(|_| InvalidMember)?;
    let whole = inflated == length && libdeflater::crc32(content) == u32::from_le_bytes(*crc);
    if whole { Ok(()) } else { Err(InvalidMember) }
}

/// Converts a length that [`MAX_MEMBER_LEN`] keeps far below 4 GiB.
fn to_u32(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}
