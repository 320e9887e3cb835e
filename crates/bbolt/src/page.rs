//! Pages: a 16-byte header, an array of 16-byte elements, then keys and values.

use mainstay_ids::PageId;

use crate::bytes::{index, u16_at, u32_at, u64_at};
use crate::error::Error;

/// Bytes of the page header.
pub(crate) const HEADER_LEN: usize = 16;
/// Bytes of one element of a branch or a leaf.
pub(crate) const ELEMENT_LEN: usize = 16;
/// bbolt panics one above this.
pub(crate) const MAX_ELEMENTS: usize = 65_534;
/// Longest key bbolt accepts.
pub(crate) const MAX_KEY_LEN: usize = 32_768;
/// Longest value bbolt accepts.
pub(crate) const MAX_VALUE_LEN: usize = (1 << 31) - 2;
/// Leaf flag of an item whose value is a bucket header.
pub(crate) const BUCKET_FLAG: u32 = 0x01;

const AT_FLAGS: usize = 8;
const AT_COUNT: usize = AT_FLAGS + 2;
const AT_OVERFLOW: usize = AT_COUNT + 2;

/// What a page holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageKind {
    /// Pointers to pages.
    Branch,
    /// Keys and values.
    Leaf,
    /// One of the two roots of the file.
    Meta,
}

impl PageKind {
    fn flags(self) -> u16 {
        match self {
            Self::Branch => 0x01,
            Self::Leaf => 0x02,
            Self::Meta => 0x04,
        }
    }
}

/// The header of `page`, as 16 bytes.
pub(crate) fn encode_header(page: PageId, kind: PageKind, count: u16, overflow: u32) -> [u8; 16] {
    let mut header = [0u8; HEADER_LEN];
    let (id, rest) = header.split_at_mut(AT_FLAGS);
    id.copy_from_slice(&page.0.to_le_bytes());
    let (flags, rest) = rest.split_at_mut(AT_COUNT - AT_FLAGS);
    flags.copy_from_slice(&kind.flags().to_le_bytes());
    let (elements, extra) = rest.split_at_mut(AT_OVERFLOW - AT_COUNT);
    elements.copy_from_slice(&count.to_le_bytes());
    extra.copy_from_slice(&overflow.to_le_bytes());
    header
}

/// A verified page header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Header {
    pub(crate) page: PageId,
    pub(crate) kind: PageKind,
    pub(crate) count: usize,
    pub(crate) overflow: u32,
}

impl Header {
    /// Reads the header of a branch or leaf that lies at `page`.
    pub(crate) fn decode(bytes: &[u8], page: PageId) -> Result<Self, Error> {
        let (Some(id), Some(flags), Some(count), Some(overflow)) = (
            u64_at(bytes, 0),
            u16_at(bytes, AT_FLAGS),
            u16_at(bytes, AT_COUNT),
            u32_at(bytes, AT_OVERFLOW),
        ) else {
            return Err(Error::Element { page, element: 0 });
        };
        if id != page.0 {
            return Err(Error::WrongId { page, found: id });
        }
        let kind = match flags {
            0x01 => PageKind::Branch,
            0x02 => PageKind::Leaf,
            _ => return Err(Error::WrongKind { page, flags }),
        };
        Ok(Self {
            page,
            kind,
            count: usize::from(count),
            overflow,
        })
    }
}

/// One key with its value, borrowed from a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The value.
    pub value: &'a [u8],
    /// The value is the header of a bucket.
    pub is_bucket: bool,
}

/// A branch or leaf page with all its bytes.
#[derive(Clone, Copy, Debug)]
pub struct PageRef<'a> {
    header: Header,
    bytes: &'a [u8],
}

impl<'a> PageRef<'a> {
    pub(crate) fn new(header: Header, bytes: &'a [u8]) -> Self {
        Self { header, bytes }
    }

    /// Branch or leaf.
    pub fn kind(&self) -> PageKind {
        self.header.kind
    }

    /// Where the page lies.
    pub fn id(&self) -> PageId {
        self.header.page
    }

    /// Number of elements.
    pub fn count(&self) -> usize {
        self.header.count
    }

    /// Physical pages after the first.
    pub fn overflow(&self) -> u32 {
        self.header.overflow
    }

    fn outside(&self, element: usize) -> Error {
        Error::Element {
            page: self.header.page,
            element,
        }
    }

    /// Item `element` of a leaf.
    pub fn item(&self, element: usize) -> Result<Item<'a>, Error> {
        self.locate_item(element)
            .ok_or_else(|| self.outside(element))
    }

    fn locate_item(&self, element: usize) -> Option<Item<'a>> {
        let at = HEADER_LEN.checked_add(element.checked_mul(ELEMENT_LEN)?)?;
        let descriptor: &[u8; ELEMENT_LEN] = self.bytes.get(at..)?.first_chunk()?;
        let flags = u32_at(descriptor, 0)?;
        let position = index(u32_at(descriptor, 4)?);
        let key_len = index(u32_at(descriptor, 8)?);
        let value_len = index(u32_at(descriptor, 12)?);
        let start = self.data_start(at, position)?;
        let key = self.bytes.get(start..start.checked_add(key_len)?)?;
        let value_start = start.checked_add(key_len)?;
        let value = self
            .bytes
            .get(value_start..value_start.checked_add(value_len)?)?;
        Some(Item {
            key,
            value,
            is_bucket: flags & BUCKET_FLAG != 0,
        })
    }

    /// Key and child of element `element` of a branch.
    pub fn child(&self, element: usize) -> Result<(&'a [u8], PageId), Error> {
        self.locate_child(element)
            .ok_or_else(|| self.outside(element))
    }

    fn locate_child(&self, element: usize) -> Option<(&'a [u8], PageId)> {
        let at = HEADER_LEN.checked_add(element.checked_mul(ELEMENT_LEN)?)?;
        let descriptor: &[u8; ELEMENT_LEN] = self.bytes.get(at..)?.first_chunk()?;
        let position = index(u32_at(descriptor, 0)?);
        let key_len = index(u32_at(descriptor, 4)?);
        let start = self.data_start(at, position)?;
        let key = self.bytes.get(start..start.checked_add(key_len)?)?;
        Some((key, PageId(u64_at(descriptor, 8)?)))
    }

    /// Where the key of an element begins; `None` when that is inside the element array.
    fn data_start(&self, element_at: usize, position: usize) -> Option<usize> {
        let start = element_at.checked_add(position)?;
        let array_end = HEADER_LEN.checked_add(self.header.count.checked_mul(ELEMENT_LEN)?)?;
        (start >= array_end).then_some(start)
    }

    /// Key of any element, whatever the kind of page.
    pub fn key(&self, element: usize) -> Result<&'a [u8], Error> {
        match self.header.kind {
            PageKind::Leaf => Ok(self.item(element)?.key),
            _ => Ok(self.child(element)?.0),
        }
    }

    /// Number of leading elements whose key is `<= bound` (by binary search).
    pub(crate) fn count_up_to(&self, bound: &[u8]) -> Result<usize, Error> {
        let (mut low, mut high) = (0, self.header.count);
        while low < high {
            let middle = low.midpoint(high);
            if self.key(middle)? <= bound {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        Ok(low)
    }
}
