//! Builds the tree of one bucket from ascending items, in one pass, one open page per level.
//!
//! Two rules that bbolt itself does not check and etcd later crashes on are kept here: a branch key
//! equals the first key of its child, and a branch has at least two children.

use mainstay_ids::PageId;

use crate::bucket::BucketRoot;
use crate::bytes::index;
use crate::disk::Disk;
use crate::error::Error;
use crate::page::{
    BUCKET_FLAG, ELEMENT_LEN, HEADER_LEN, Item, MAX_ELEMENTS, MAX_KEY_LEN, MAX_VALUE_LEN, PageKind,
    encode_header,
};

/// Written pages are handed to the disk in pieces of this size.
const WRITE_PIECE: usize = 1 << 20;

/// Appends pages to a disk, strictly forward.
#[derive(Debug)]
pub(crate) struct PageOut<D> {
    pub(crate) disk: D,
    pub(crate) page_size: u32,
    next: PageId,
    pending: Vec<u8>,
    pending_at: u64,
}

impl<D: Disk> PageOut<D> {
    pub(crate) fn new(disk: D, page_size: u32, next: PageId) -> Result<Self, Error> {
        let pending_at = next
            .0
            .checked_mul(u64::from(page_size))
            .ok_or(Error::TooLarge)?;
        let pending = Vec::with_capacity(WRITE_PIECE + index(page_size));
        Ok(Self {
            disk,
            page_size,
            next,
            pending,
            pending_at,
        })
    }

    /// First page not yet used.
    pub(crate) fn next(&self) -> PageId {
        self.next
    }

    /// Appends one logical page of `size` bytes whose content after the header `fill` writes.
    fn append(
        &mut self,
        kind: PageKind,
        count: usize,
        size: usize,
        fill: impl FnOnce(&mut Vec<u8>),
    ) -> Result<PageId, Error> {
        let page = self.next;
        let page_size = index(self.page_size);
        let pages = size.div_ceil(page_size).max(1);
        let overflow = u32::try_from(pages - 1).map_err(|_| Error::TooLarge)?;
        let count = u16::try_from(count).map_err(|_| Error::TooLarge)?;
        let start = self.pending.len();
        self.pending
            .extend_from_slice(&encode_header(page, kind, count, overflow));
        fill(&mut self.pending);
        self.pending.resize(start + pages * page_size, 0);
        self.next = PageId(page.0.checked_add(pages as u64).ok_or(Error::TooLarge)?);
        if self.pending.len() >= WRITE_PIECE {
            self.flush()?;
        }
        Ok(page)
    }

    /// Hands everything appended so far to the disk.
    pub(crate) fn flush(&mut self) -> Result<(), Error> {
        let len = self.pending.len();
        let offset = self.pending_at;
        self.disk
            .write_all_at(&self.pending, offset)
            .map_err(|source| Error::Write {
                offset,
                len,
                source,
            })?;
        self.pending_at += len as u64;
        self.pending.clear();
        Ok(())
    }
}

/// A leaf that still takes items.
#[derive(Debug, Default)]
pub(crate) struct OpenLeaf {
    elements: Vec<Element>,
    data: Vec<u8>,
    first_key_len: usize,
}

#[derive(Clone, Copy, Debug)]
struct Element {
    flags: u32,
    key_len: u32,
    value_len: u32,
}

impl OpenLeaf {
    pub(crate) fn is_empty(&self) -> bool {
        self.elements.is_empty()
    }

    fn size(&self) -> usize {
        HEADER_LEN + self.elements.len() * ELEMENT_LEN + self.data.len()
    }

    /// Whether an item of `payload` bytes must go to the next leaf.
    pub(crate) fn is_full_for(&self, payload: usize, limit: usize) -> bool {
        !self.is_empty()
            && (self.size() + ELEMENT_LEN + payload > limit || self.elements.len() >= MAX_ELEMENTS)
    }

    pub(crate) fn first_key(&self) -> &[u8] {
        self.data.get(..self.first_key_len).unwrap_or_default()
    }

    pub(crate) fn push(&mut self, item: Item<'_>) -> Result<(), Error> {
        let Item {
            key,
            value,
            is_bucket,
        } = item;
        let unstorable = || Error::Unstorable {
            key_len: key.len(),
            value_len: value.len(),
        };
        if key.is_empty() || key.len() > MAX_KEY_LEN || value.len() > MAX_VALUE_LEN {
            return Err(unstorable());
        }
        if self.is_empty() {
            self.first_key_len = key.len();
        }
        self.elements.push(Element {
            flags: if is_bucket { BUCKET_FLAG } else { 0 },
            key_len: u32::try_from(key.len()).map_err(|_| unstorable())?,
            value_len: u32::try_from(value.len()).map_err(|_| unstorable())?,
        });
        self.data.extend_from_slice(key);
        self.data.extend_from_slice(value);
        Ok(())
    }

    /// Element array and data, as they follow the page header.
    fn fill(&self, out: &mut Vec<u8>) {
        let mut position = self.elements.len() * ELEMENT_LEN;
        for element in &self.elements {
            out.extend_from_slice(&element.flags.to_le_bytes());
            out.extend_from_slice(&narrow(position).to_le_bytes());
            out.extend_from_slice(&element.key_len.to_le_bytes());
            out.extend_from_slice(&element.value_len.to_le_bytes());
            position += index(element.key_len) + index(element.value_len);
            position -= ELEMENT_LEN;
        }
        out.extend_from_slice(&self.data);
    }

    /// Writes the leaf as a page and empties it.
    pub(crate) fn write<D: Disk>(&mut self, out: &mut PageOut<D>) -> Result<PageId, Error> {
        if u32::try_from(self.size()).is_err() {
            return Err(Error::TooLarge); // positions inside a page have 32 bits
        }
        let page = out.append(PageKind::Leaf, self.elements.len(), self.size(), |b| {
            self.fill(b);
        })?;
        self.elements.clear();
        self.data.clear();
        Ok(page)
    }

    fn inline_image(&self) -> Vec<u8> {
        let count = u16::try_from(self.elements.len()).unwrap_or(u16::MAX);
        let mut image = encode_header(PageId(0), PageKind::Leaf, count, 0).to_vec();
        self.fill(&mut image);
        image
    }
}

/// Page-internal positions fit 32 bits: `OpenLeaf::write` and the branch rules see to it.
fn narrow(position: usize) -> u32 {
    u32::try_from(position).unwrap_or(u32::MAX)
}

/// The first key of a finished page, and where it is.
pub type Pointer = (Vec<u8>, PageId);

/// A key and its value.
pub type OwnedItem = (Vec<u8>, Vec<u8>);

/// The branches of one height that are not written yet.
#[derive(Debug, Default)]
struct Level {
    pointers: Vec<Pointer>,
    /// How many of the first pointers go into the next branch, and its size with them.
    fitting: usize,
    fitting_size: usize,
}

impl Level {
    fn push(&mut self, pointer: Pointer, page_size: usize) {
        let size = self.fitting_size.max(HEADER_LEN) + ELEMENT_LEN + pointer.0.len();
        let all_fit_so_far = self.fitting == self.pointers.len();
        if all_fit_so_far && (self.fitting < 2 || size <= page_size) && self.fitting < MAX_ELEMENTS
        {
            self.fitting += 1;
            self.fitting_size = size;
        }
        self.pointers.push(pointer);
    }
}

/// Builds one bucket.
#[derive(Debug)]
pub(crate) struct Tree {
    page_size: usize,
    leaf_limit: usize,
    leaf: OpenLeaf,
    levels: Vec<Level>,
    may_inline: bool,
}

impl Tree {
    pub(crate) fn new(page_size: u32) -> Self {
        let page_size = index(page_size);
        Self {
            page_size,
            leaf_limit: page_size,
            leaf: OpenLeaf::default(),
            levels: Vec::new(),
            may_inline: true,
        }
    }

    /// For the root bucket, which must have a page.
    pub(crate) fn never_inline(mut self) -> Self {
        self.may_inline = false;
        self
    }

    /// Adds an item; keys must ascend (the caller checks).
    pub(crate) fn add<D: Disk>(
        &mut self,
        item: Item<'_>,
        out: &mut PageOut<D>,
    ) -> Result<(), Error> {
        if self
            .leaf
            .is_full_for(item.key.len() + item.value.len(), self.leaf_limit)
        {
            self.close_leaf(out)?;
        }
        self.leaf.push(item)
    }

    fn close_leaf<D: Disk>(&mut self, out: &mut PageOut<D>) -> Result<(), Error> {
        if self.leaf.is_empty() {
            return Ok(());
        }
        let first_key = self.leaf.first_key().to_vec();
        let page = self.leaf.write(out)?;
        self.point(0, (first_key, page), out)
    }

    /// Adds a pointer to a finished page at `height` (0 = parents of leaves).
    pub(crate) fn point<D: Disk>(
        &mut self,
        height: usize,
        pointer: Pointer,
        out: &mut PageOut<D>,
    ) -> Result<(), Error> {
        if self.levels.len() <= height {
            self.levels.resize_with(height + 1, Level::default);
        }
        let page_size = self.page_size;
        let Some(level) = self.levels.get_mut(height) else {
            return Err(Error::TooLarge);
        };
        level.push(pointer, page_size);
        // Two pointers beyond a full branch: the rest can never be a branch of one child.
        if level.pointers.len() < level.fitting + 2 {
            return Ok(());
        }
        let rest = level.pointers.split_off(level.fitting);
        let full = std::mem::take(level).pointers;
        for pointer in rest {
            level.push(pointer, page_size);
        }
        let parent = write_branch(full, out)?;
        self.point(height + 1, parent, out)
    }

    /// Closes everything and returns the root.
    pub(crate) fn finish<D: Disk>(mut self, out: &mut PageOut<D>) -> Result<BucketRoot, Error> {
        let has_no_pages = self.levels.iter().all(|level| level.pointers.is_empty());
        if has_no_pages && self.may_inline && self.leaf.size() <= self.page_size / 4 {
            return Ok(BucketRoot::Inline(self.leaf.inline_image()));
        }
        if has_no_pages && self.leaf.is_empty() {
            return Ok(BucketRoot::Page(self.leaf.write(out)?));
        }
        self.close_leaf(out)?;
        let mut height = 0;
        loop {
            let Some(level) = self.levels.get_mut(height).map(std::mem::take) else {
                return Err(Error::TooLarge);
            };
            let is_top = self
                .levels
                .iter()
                .skip(height + 1)
                .all(|l| l.pointers.is_empty());
            if let ([(_, page)], true) = (level.pointers.as_slice(), is_top) {
                return Ok(BucketRoot::Page(*page));
            }
            self.close_level(height, level, out)?;
            height += 1;
        }
    }

    /// Writes what is left of a level as one branch, or two when it exceeds a page.
    fn close_level<D: Disk>(
        &mut self,
        height: usize,
        mut level: Level,
        out: &mut PageOut<D>,
    ) -> Result<(), Error> {
        if level.pointers.len() > level.fitting && level.fitting > 2 {
            let last_two = level.pointers.split_off(level.pointers.len() - 2);
            let first = write_branch(level.pointers, out)?;
            self.point(height + 1, first, out)?;
            level.pointers = last_two;
        }
        let last = write_branch(level.pointers, out)?;
        self.point(height + 1, last, out)
    }
}

fn write_branch<D: Disk>(pointers: Vec<Pointer>, out: &mut PageOut<D>) -> Result<Pointer, Error> {
    let children = pointers.len();
    if children < 2 {
        return Err(Error::Lonely {
            page: out.next(),
            children,
        });
    }
    let keys: usize = pointers.iter().map(|(key, _)| key.len()).sum();
    let size = HEADER_LEN + children * ELEMENT_LEN + keys;
    let page = out.append(PageKind::Branch, children, size, |bytes| {
        let mut position = children * ELEMENT_LEN;
        for (key, child) in &pointers {
            bytes.extend_from_slice(&narrow(position).to_le_bytes());
            bytes.extend_from_slice(&narrow(key.len()).to_le_bytes());
            bytes.extend_from_slice(&child.0.to_le_bytes());
            position = position + key.len() - ELEMENT_LEN;
        }
        for (key, _) in &pointers {
            bytes.extend_from_slice(key);
        }
    })?;
    let first_key = pointers
        .into_iter()
        .next()
        .map(|(key, _)| key)
        .unwrap_or_default();
    Ok((first_key, page))
}
