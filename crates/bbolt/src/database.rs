//! An opened database: the current meta page and the source to read pages from.

use mainstay_ids::PageId;

use crate::bucket::BucketRoot;
use crate::bytes::to_index;
use crate::cursor::{Cursor, Direction};
use crate::disk::ReadAt;
use crate::error::BboltError;
use crate::meta::{self, Meta};
use crate::page::{HEADER_LEN, PageHeader, PageRef};

/// Largest logical page accepted, in bytes. etcd's largest request is some megabytes and a page holds only a few such
/// values, so a gigabyte in one page is corruption.
const MAX_LOGICAL_PAGE: u64 = 1 << 30;

/// A database file opened for reading. Only its meta pages are validated so far.
#[derive(Debug)]
pub struct Database<S> {
    source: S,
    meta: Meta,
    slot: u64,
}

impl<S: ReadAt> Database<S> {
    /// Selects the current meta page and checks that the file has the length it requires.
    pub fn open(source: S) -> Result<Self, BboltError> {
        let actual = source.size().map_err(|source| BboltError::Read {
            offset: 0,
            len: 0,
            source,
        })?;
        let (meta, slot) = meta::choose_meta(&source, actual)?;
        let needed = meta.bytes_in_use().ok_or(BboltError::FileTooLarge)?;
        if needed > actual {
            return Err(BboltError::Truncated { needed, actual });
        }
        Ok(Self { source, meta, slot })
    }

    /// A view with a meta that is not in the file.
    pub(crate) fn from_parts(source: S, meta: Meta, slot: u64) -> Self {
        Self { source, meta, slot }
    }

    /// The current meta page.
    pub fn meta(&self) -> &Meta {
        &self.meta
    }

    /// The page (0 or 1) that holds the current meta.
    pub(crate) fn slot(&self) -> u64 {
        self.slot
    }

    /// Returns the source the database is read from.
    pub fn source(&self) -> &S {
        &self.source
    }

    /// Reads the branch or leaf at `page` with its overflow pages into `buffer`.
    pub fn read_page<'b>(
        &self,
        page: PageId,
        buffer: &'b mut Vec<u8>,
    ) -> Result<PageRef<'b>, BboltError> {
        let header = self.load_page(page, buffer)?;
        Ok(PageRef::new(header, buffer.as_slice()))
    }

    /// As [`Self::read_page`], for callers that store buffer and header separately.
    pub(crate) fn load_page(
        &self,
        page: PageId,
        buffer: &mut Vec<u8>,
    ) -> Result<PageHeader, BboltError> {
        let pages = self.meta.high_water.0;
        if page.0 < 2 || page.0 >= pages {
            return Err(BboltError::OutOfRange { page, pages });
        }
        let page_size = to_index(self.meta.page_size);
        let offset = page
            .0
            .checked_mul(u64::from(self.meta.page_size))
            .ok_or(BboltError::FileTooLarge)?;
        buffer.resize(page_size.max(HEADER_LEN), 0);
        self.fill(buffer, offset)?;
        let header = PageHeader::decode(buffer, page)?;
        if header.overflow > 0 {
            let extra = u64::from(header.overflow);
            let last = page.0.saturating_add(extra);
            if last >= pages {
                return Err(BboltError::OutOfRange {
                    page: PageId(last),
                    pages,
                });
            }
            let total = (extra + 1).saturating_mul(u64::from(self.meta.page_size));
            if total > MAX_LOGICAL_PAGE {
                return Err(BboltError::Oversized {
                    page,
                    pages: extra + 1,
                });
            }
            let total = usize::try_from(total).map_err(|_| BboltError::FileTooLarge)?;
            buffer.resize(total, 0);
            let rest = buffer.get_mut(page_size..).unwrap_or_default();
            self.fill(rest, offset + u64::from(self.meta.page_size))?;
        }
        Ok(header)
    }

    fn fill(&self, buffer: &mut [u8], offset: u64) -> Result<(), BboltError> {
        let len = buffer.len();
        self.source
            .read_exact_at(buffer, offset)
            .map_err(|source| BboltError::Read {
                offset,
                len,
                source,
            })
    }

    /// Returns all buckets of the file, in name order.
    pub fn buckets(&self) -> Result<Vec<(Vec<u8>, BucketRoot)>, BboltError> {
        let root = BucketRoot::Page(self.meta.root);
        let mut cursor = Cursor::new(self, &root, Direction::Forward)?;
        let mut buckets = Vec::new();
        while let Some(item) = cursor.next()? {
            if !item.is_bucket {
                let name = String::from_utf8_lossy(item.key).into_owned();
                return Err(BboltError::InvalidBucketHeader { name });
            }
            buckets.push((item.key.to_vec(), BucketRoot::decode(item.key, item.value)?));
        }
        Ok(buckets)
    }

    /// Returns the root of one bucket; `None` when the file does not have it.
    pub fn bucket(&self, name: &[u8]) -> Result<Option<BucketRoot>, BboltError> {
        Ok(self
            .buckets()?
            .into_iter()
            .find(|(found, _)| found == name)
            .map(|(_, root)| root))
    }

    /// Iterates over the items of a bucket in ascending key order.
    pub fn scan<'d>(&'d self, root: &BucketRoot) -> Result<Cursor<'d, S>, BboltError> {
        Cursor::new(self, root, Direction::Forward)
    }

    /// Iterates over the items of a bucket in descending key order.
    pub fn scan_back<'d>(&'d self, root: &BucketRoot) -> Result<Cursor<'d, S>, BboltError> {
        Cursor::new(self, root, Direction::Backward)
    }
}
