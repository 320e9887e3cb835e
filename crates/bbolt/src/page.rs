//! Pages: a 16-byte header, an array of 16-byte elements, then keys and values.

use mainstay_ids::PageId;

use crate::bytes::{to_index, u16_at, u32_at, u64_at};
use crate::error::BboltError;

/// Length of the page header in bytes.
pub(crate) const HEADER_LEN: usize = 16;
/// Length of one branch or leaf element in bytes.
pub(crate) const ELEMENT_LEN: usize = 16;
/// Most elements per page: bbolt panics on one more.
pub(crate) const MAX_ELEMENTS: usize = 65_534;
/// Longest key bbolt accepts, in bytes.
pub(crate) const MAX_KEY_LEN: usize = 32_768;
/// Longest value bbolt accepts, in bytes.
pub(crate) const MAX_VALUE_LEN: usize = (1 << 31) - 2;
/// Leaf flag of an item whose value is a bucket header.
pub(crate) const BUCKET_FLAG: u32 = 0x01;

const FLAGS_OFFSET: usize = 8;
const COUNT_OFFSET: usize = FLAGS_OFFSET + 2;
const OVERFLOW_OFFSET: usize = COUNT_OFFSET + 2;

/// Type of a page.
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

/// Encodes the header of `page`.
pub(crate) fn encode_header(page: PageId, kind: PageKind, count: u16, overflow: u32) -> [u8; 16] {
    let mut header = [0u8; HEADER_LEN];
    let (id, rest) = header.split_at_mut(FLAGS_OFFSET);
    id.copy_from_slice(&page.0.to_le_bytes());
    let (flags, rest) = rest.split_at_mut(COUNT_OFFSET - FLAGS_OFFSET);
    flags.copy_from_slice(&kind.flags().to_le_bytes());
    let (elements, extra) = rest.split_at_mut(OVERFLOW_OFFSET - COUNT_OFFSET);
    elements.copy_from_slice(&count.to_le_bytes());
    extra.copy_from_slice(&overflow.to_le_bytes());
    header
}

/// A verified page header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PageHeader {
    pub(crate) page: PageId,
    pub(crate) kind: PageKind,
    pub(crate) count: usize,
    pub(crate) overflow: u32,
}

impl PageHeader {
    /// Decodes the header of the branch or leaf at `page`.
    pub(crate) fn decode(bytes: &[u8], page: PageId) -> Result<Self, BboltError> {
        let (Some(id), Some(flags), Some(count), Some(overflow)) = (
            u64_at(bytes, 0),
            u16_at(bytes, FLAGS_OFFSET),
            u16_at(bytes, COUNT_OFFSET),
            u32_at(bytes, OVERFLOW_OFFSET),
        ) else {
            return Err(BboltError::ElementOutOfBounds { page, element: 0 });
        };
        if id != page.0 {
            return Err(BboltError::WrongId { page, found: id });
        }
        let kind = match flags {
            0x01 => PageKind::Branch,
            0x02 => PageKind::Leaf,
            _ => return Err(BboltError::WrongKind { page, flags }),
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
pub struct LeafItem<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The value.
    pub value: &'a [u8],
    /// True when the value is a bucket header.
    pub is_bucket: bool,
}

/// A branch or leaf page with all its bytes.
#[derive(Clone, Copy, Debug)]
pub struct PageRef<'a> {
    header: PageHeader,
    bytes: &'a [u8],
}

impl<'a> PageRef<'a> {
    pub(crate) fn new(header: PageHeader, bytes: &'a [u8]) -> Self {
        Self { header, bytes }
    }

    /// Returns the type: branch or leaf.
    pub fn kind(&self) -> PageKind {
        self.header.kind
    }

    /// Returns the page id; 0 for an inline bucket.
    pub fn id(&self) -> PageId {
        self.header.page
    }

    /// Returns the number of elements.
    pub fn count(&self) -> usize {
        self.header.count
    }

    /// Returns the number of physical pages after the first.
    pub fn overflow(&self) -> u32 {
        self.header.overflow
    }

    fn element_error(&self, element: usize) -> BboltError {
        BboltError::ElementOutOfBounds {
            page: self.header.page,
            element,
        }
    }

    /// Returns item `element` of a leaf.
    pub fn item(&self, element: usize) -> Result<LeafItem<'a>, BboltError> {
        self.locate_item(element)
            .ok_or_else(|| self.element_error(element))
    }

    fn locate_item(&self, element: usize) -> Option<LeafItem<'a>> {
        let at = HEADER_LEN.checked_add(element.checked_mul(ELEMENT_LEN)?)?;
        let descriptor: &[u8; ELEMENT_LEN] = self.bytes.get(at..)?.first_chunk()?;
        let flags = u32_at(descriptor, 0)?;
        let position = to_index(u32_at(descriptor, 4)?);
        let key_len = to_index(u32_at(descriptor, 8)?);
        let value_len = to_index(u32_at(descriptor, 12)?);
        let start = self.data_start(at, position)?;
        let key = self.bytes.get(start..start.checked_add(key_len)?)?;
        let value_start = start.checked_add(key_len)?;
        let value = self
            .bytes
            .get(value_start..value_start.checked_add(value_len)?)?;
        Some(LeafItem {
            key,
            value,
            is_bucket: flags & BUCKET_FLAG != 0,
        })
    }

    /// Returns key and child page of element `element` of a branch.
    pub fn child(&self, element: usize) -> Result<(&'a [u8], PageId), BboltError> {
        self.locate_child(element)
            .ok_or_else(|| self.element_error(element))
    }

    fn locate_child(&self, element: usize) -> Option<(&'a [u8], PageId)> {
        let at = HEADER_LEN.checked_add(element.checked_mul(ELEMENT_LEN)?)?;
        let descriptor: &[u8; ELEMENT_LEN] = self.bytes.get(at..)?.first_chunk()?;
        let position = to_index(u32_at(descriptor, 0)?);
        let key_len = to_index(u32_at(descriptor, 4)?);
        let start = self.data_start(at, position)?;
        let key = self.bytes.get(start..start.checked_add(key_len)?)?;
        Some((key, PageId(u64_at(descriptor, 8)?)))
    }

    /// Start of the key of an element; `None` when it overlaps the element array.
    fn data_start(&self, element_at: usize, position: usize) -> Option<usize> {
        let start = element_at.checked_add(position)?;
        let array_end = HEADER_LEN.checked_add(self.header.count.checked_mul(ELEMENT_LEN)?)?;
        (start >= array_end).then_some(start)
    }

    /// Returns the key of an element of a branch or leaf.
    pub fn key(&self, element: usize) -> Result<&'a [u8], BboltError> {
        match self.header.kind {
            PageKind::Leaf => Ok(self.item(element)?.key),
            _ => Ok(self.child(element)?.0),
        }
    }

    /// Number of leading elements whose key is `<= bound` (by binary search).
    pub(crate) fn count_up_to(&self, bound: &[u8]) -> Result<usize, BboltError> {
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
