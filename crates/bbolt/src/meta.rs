//! Meta pages: the two roots of a file, one of which is current.

use mainstay_ids::{PageId, TxId};

use crate::bytes::{u32_at, u64_at};
use crate::disk::ReadAt;
use crate::error::{BboltError, MetaFault};
use crate::page::{HEADER_LEN, PageKind, encode_header};

/// Page size in bytes of every file this crate creates.
pub const DEFAULT_PAGE_SIZE: u32 = 4096;
/// Smallest page size accepted, in bytes.
pub const MIN_PAGE_SIZE: u32 = 1024;
/// Largest page size accepted, in bytes.
pub const MAX_PAGE_SIZE: u32 = 65_536;

const MAGIC: u32 = 0xED0C_DAED;
const VERSION: u32 = 2;
const NO_FREELIST: u64 = u64::MAX;

const MAGIC_OFFSET: usize = HEADER_LEN;
const VERSION_OFFSET: usize = MAGIC_OFFSET + 4;
const PAGE_SIZE_OFFSET: usize = VERSION_OFFSET + 4;
const FLAGS_OFFSET: usize = PAGE_SIZE_OFFSET + 4;
const ROOT_OFFSET: usize = FLAGS_OFFSET + 4;
const SEQUENCE_OFFSET: usize = ROOT_OFFSET + 8;
const FREELIST_OFFSET: usize = SEQUENCE_OFFSET + 8;
const HIGH_WATER_OFFSET: usize = FREELIST_OFFSET + 8;
const TXID_OFFSET: usize = HIGH_WATER_OFFSET + 8;
const CHECKSUM_OFFSET: usize = TXID_OFFSET + 8;
/// Length of the used part of a meta page in bytes.
pub(crate) const META_LEN: usize = CHECKSUM_OFFSET + 8;

/// A verified meta page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meta {
    /// Bytes per page.
    pub page_size: u32,
    /// Root page of the root bucket.
    pub root: PageId,
    /// Page of the stored freelist; `None` when it is not stored.
    pub freelist: Option<PageId>,
    /// High-water mark: the first page never allocated.
    pub high_water: PageId,
    /// The transaction that wrote this meta.
    pub txid: TxId,
}

impl Meta {
    /// Decodes and validates a meta page.
    pub fn decode(page: &[u8]) -> Result<Self, MetaFault> {
        let covered = page
            .get(MAGIC_OFFSET..CHECKSUM_OFFSET)
            .ok_or(MetaFault::Absent)?;
        let (Some(magic), Some(version), Some(page_size), Some(stored)) = (
            u32_at(page, MAGIC_OFFSET),
            u32_at(page, VERSION_OFFSET),
            u32_at(page, PAGE_SIZE_OFFSET),
            u64_at(page, CHECKSUM_OFFSET),
        ) else {
            return Err(MetaFault::Absent);
        };
        // bbolt writes in host byte order: reversed magic means a big-endian writer, not corruption.
        if magic == MAGIC.swap_bytes() {
            return Err(MetaFault::ByteOrder);
        }
        if magic != MAGIC {
            return Err(MetaFault::Magic(magic));
        }
        if version != VERSION {
            return Err(MetaFault::Version(version));
        }
        let computed = fnv64a(covered);
        if stored != computed {
            return Err(MetaFault::Checksum { stored, computed });
        }
        if !page_size.is_power_of_two() || !(MIN_PAGE_SIZE..=MAX_PAGE_SIZE).contains(&page_size) {
            return Err(MetaFault::PageSize(page_size));
        }
        let word = |at| u64_at(page, at).ok_or(MetaFault::Absent);
        Ok(Self {
            page_size,
            root: PageId(word(ROOT_OFFSET)?),
            freelist: Some(word(FREELIST_OFFSET)?)
                .filter(|id| *id != NO_FREELIST)
                .map(PageId),
            high_water: PageId(word(HIGH_WATER_OFFSET)?),
            txid: TxId(word(TXID_OFFSET)?),
        })
    }

    /// Finds the current meta in the first bytes of a file, while the rest is still being received.
    ///
    /// Requires at least twice [`MAX_PAGE_SIZE`] bytes, or the whole file when it is shorter.
    pub fn from_first_bytes(bytes: &[u8]) -> Result<Self, BboltError> {
        choose_meta(bytes, bytes.len() as u64).map(|(meta, _)| meta)
    }

    /// Encodes this meta as page `slot` (0 or 1), one whole page.
    pub(crate) fn encode(&self, slot: u64) -> Vec<u8> {
        let mut page = Vec::with_capacity(crate::bytes::to_index(self.page_size));
        page.extend_from_slice(&encode_header(PageId(slot), PageKind::Meta, 0, 0));
        page.extend_from_slice(&MAGIC.to_le_bytes());
        page.extend_from_slice(&VERSION.to_le_bytes());
        page.extend_from_slice(&self.page_size.to_le_bytes());
        page.extend_from_slice(&0u32.to_le_bytes());
        page.extend_from_slice(&self.root.0.to_le_bytes());
        page.extend_from_slice(&0u64.to_le_bytes());
        page.extend_from_slice(&self.freelist.map_or(NO_FREELIST, |id| id.0).to_le_bytes());
        page.extend_from_slice(&self.high_water.0.to_le_bytes());
        page.extend_from_slice(&self.txid.0.to_le_bytes());
        let checksum = fnv64a(page.get(MAGIC_OFFSET..CHECKSUM_OFFSET).unwrap_or_default());
        page.extend_from_slice(&checksum.to_le_bytes());
        page.resize(crate::bytes::to_index(self.page_size), 0);
        page
    }

    /// Returns the number of bytes in use; `None` on overflow.
    pub fn bytes_in_use(&self) -> Option<u64> {
        self.high_water.0.checked_mul(u64::from(self.page_size))
    }

    /// Returns the page (0 or 1) the next commit overwrites and its transaction number, when `self` is in `slot`.
    pub(crate) fn next_slot(&self, slot: u64) -> Option<(u64, TxId)> {
        let other = 1 - slot;
        let next = self.txid.0.checked_add(1)?;
        // bbolt writes the meta of transaction n to page n mod 2.
        let fits = if next % 2 == other {
            next
        } else {
            next.checked_add(1)?
        };
        Some((other, TxId(fits)))
    }
}

/// Returns the current meta and the page (0 or 1) it is in.
pub(crate) fn choose_meta<S: ReadAt + ?Sized>(
    source: &S,
    size: u64,
) -> Result<(Meta, u64), BboltError> {
    let first = read_meta(source, size, 0)?;
    let second = match first {
        Ok(meta) => read_meta(source, size, u64::from(meta.page_size))?,
        Err(_) => find_second_meta(source, size)?,
    };
    match (first, second) {
        (Ok(a), Ok(b)) if b.txid > a.txid && b.page_size == a.page_size => Ok((b, 1)),
        (Ok(a), _) => Ok((a, 0)),
        (Err(_), Ok(b)) => Ok((b, 1)),
        (Err(first), Err(second)) => Err(BboltError::NoMeta { first, second }),
    }
}

/// When page 0 is unusable, the page size is unknown: tries every possible position of page 1.
fn find_second_meta<S: ReadAt + ?Sized>(
    source: &S,
    size: u64,
) -> Result<Result<Meta, MetaFault>, BboltError> {
    let mut fault = MetaFault::Absent;
    let mut page_size = u64::from(MIN_PAGE_SIZE);
    while page_size <= u64::from(MAX_PAGE_SIZE) {
        match read_meta(source, size, page_size)? {
            Ok(meta) if u64::from(meta.page_size) == page_size => return Ok(Ok(meta)),
            Ok(meta) => fault = MetaFault::PageSize(meta.page_size),
            Err(found) if page_size == u64::from(DEFAULT_PAGE_SIZE) => fault = found,
            Err(_) => {}
        }
        page_size *= 2;
    }
    Ok(Err(fault))
}

fn read_meta<S: ReadAt + ?Sized>(
    source: &S,
    size: u64,
    offset: u64,
) -> Result<Result<Meta, MetaFault>, BboltError> {
    if size < offset.saturating_add(META_LEN as u64) {
        return Ok(Err(MetaFault::Absent));
    }
    let mut page = [0u8; META_LEN];
    source
        .read_exact_at(&mut page, offset)
        .map_err(|source| BboltError::Read {
            offset,
            len: META_LEN,
            source,
        })?;
    Ok(Meta::decode(&page))
}

fn fnv64a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xCBF2_9CE4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01B3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn real_page_0() -> Vec<u8> {
        hex::decode(concat!(
            "0000000000000000040000000000000",
            "0edda0ced020000000010000000000000",
            "03000000000000000000000000000000ffffffffffffffff0700000000000000",
            "0c00000000000000eb5aa56e874f49f2"
        ))
        .unwrap()
    }

    #[test]
    fn fnv64a_matches_its_published_vectors() {
        assert_eq!(fnv64a(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv64a(b"a"), 0xaf63_dc4c_8601_ec8c);
    }

    #[test]
    fn meta_of_a_real_snapshot_round_trips() {
        let bytes = real_page_0();
        let meta = Meta::decode(&bytes).unwrap();
        assert_eq!(
            (meta.root, meta.high_water, meta.txid),
            (PageId(3), PageId(7), TxId(12))
        );
        assert_eq!(meta.freelist, None);
        assert_eq!(meta.encode(0)[..META_LEN], bytes);
        let second = Meta {
            txid: TxId(11),
            ..meta
        }
        .encode(1);
        assert_eq!(
            u64_at(&second, CHECKSUM_OFFSET),
            Some(0x1144_1690_7994_a50c)
        );
    }

    #[test]
    fn flipped_bit_in_a_meta_is_detected() {
        for bit in MAGIC_OFFSET * 8..META_LEN * 8 {
            let mut bytes = real_page_0();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(Meta::decode(&bytes).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn other_byte_order_is_reported() {
        let mut bytes = real_page_0();
        bytes[MAGIC_OFFSET..VERSION_OFFSET].reverse();
        assert_eq!(Meta::decode(&bytes), Err(MetaFault::ByteOrder));
    }

    #[test]
    fn next_meta_is_written_to_the_other_page_with_matching_parity() {
        let meta = Meta::decode(&real_page_0()).unwrap();
        assert_eq!(meta.next_slot(0), Some((1, TxId(13))));
        assert_eq!(meta.next_slot(1), Some((0, TxId(14))));
        let odd = Meta {
            txid: TxId(13),
            ..meta
        };
        assert_eq!(odd.next_slot(0), Some((1, TxId(15))));
    }
}
