//! Bucket headers: the root page of a bucket, or the whole bucket when it is small.

use mainstay_ids::PageId;

use crate::bytes::u64_at;
use crate::error::BboltError;
use crate::page::{HEADER_LEN, PageHeader, PageRef};

/// Length of a bucket header in bytes: root page and sequence.
const BUCKET_HEADER_LEN: usize = 16;

/// The root of a bucket as stored in its parent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BucketRoot {
    /// A tree of pages.
    Page(PageId),
    /// A leaf page image stored inside the parent's value.
    Inline(Vec<u8>),
}

impl BucketRoot {
    /// Decodes the value of a bucket entry.
    pub(crate) fn decode(name: &[u8], value: &[u8]) -> Result<Self, BboltError> {
        let malformed = || BboltError::InvalidBucketHeader {
            name: String::from_utf8_lossy(name).into_owned(),
        };
        let root = u64_at(value, 0).ok_or_else(malformed)?;
        let rest = value.get(BUCKET_HEADER_LEN..).ok_or_else(malformed)?;
        // Root 0 marks an inline bucket; pages 0 and 1 are metas and never a root.
        match (root, rest.len()) {
            (0, HEADER_LEN..) => Ok(Self::Inline(rest.to_vec())),
            (2.., 0) => Ok(Self::Page(PageId(root))),
            _ => Err(malformed()),
        }
    }

    /// Encodes the value to store under the bucket's name.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let (root, image) = match self {
            Self::Page(page) => (page.0, [].as_slice()),
            Self::Inline(image) => (0, image.as_slice()),
        };
        let mut value = Vec::with_capacity(BUCKET_HEADER_LEN + image.len());
        value.extend_from_slice(&root.to_le_bytes());
        value.extend_from_slice(&0u64.to_le_bytes());
        value.extend_from_slice(image);
        value
    }
}

/// The page image of an inline bucket.
pub(crate) fn decode_inline_page(image: &[u8]) -> Result<PageRef<'_>, BboltError> {
    let header = PageHeader::decode(image, PageId(0))?;
    Ok(PageRef::new(header, image))
}
