//! Parses an element in the exact form etcd-backup-restore writes: fixed field order, no white space, no escapes.
//!
//! `None` means "another form, or incomplete", never "invalid": the caller then uses [`super::general`], which must
//! agree on every element this module accepts.

use std::ops::Range;

use memchr::memchr;

use super::RawNumbers;

/// Positions of the parts of an element in its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ElementParts {
    pub(super) numbers: RawNumbers,
    /// The key in base64.
    pub(super) key: Range<usize>,
    /// The value in base64.
    pub(super) value: Range<usize>,
    pub(super) time: Range<usize>,
    /// Length of the element.
    pub(super) length: usize,
}

/// Parses the element at the start of `text`.
pub(super) fn scan_element(text: &[u8]) -> Option<ElementParts> {
    let mut at = TextCursor { text, position: 0 };
    let mut numbers = RawNumbers::default();
    at.skip_literal(b"{\"etcdEvent\":{")?;
    if at.skip_literal(b"\"type\":").is_some() {
        numbers.kind = at.parse_number()?;
        at.skip_literal(b",")?;
    }
    at.skip_literal(b"\"kv\":{\"key\":\"")?;
    let key = at.read_until_quote()?;
    at.skip_literal(b",")?;
    if at.skip_literal(b"\"create_revision\":").is_some() {
        numbers.create_revision = at.parse_number()?;
        at.skip_literal(b",")?;
    }
    at.skip_literal(b"\"mod_revision\":")?;
    numbers.mod_revision = at.parse_number()?;
    if at.skip_literal(b",\"version\":").is_some() {
        numbers.version = at.parse_number()?;
    }
    let mut value = 0..0;
    if at.skip_literal(b",\"value\":\"").is_some() {
        value = at.read_until_quote()?;
    }
    if at.skip_literal(b",\"lease\":").is_some() {
        numbers.lease = at.parse_number()?;
    }
    at.skip_literal(b"}},\"time\":\"")?;
    let time = at.read_until_quote()?;
    if at.skip_literal(b",\"leaseTTL\":").is_some() {
        numbers.lease_ttl = Some(at.parse_number()?);
    }
    at.skip_literal(b"}")?;
    // A fold instead of `all`, which stops early and so prevents vectorization.
    let odd = |b: &u8| !(b' '..=b'~').contains(b) || *b == b'\\';
    let is_odd = text
        .get(time.clone())?
        .iter()
        .fold(false, |any, b| any | odd(b));
    (!is_odd).then_some(ElementParts {
        numbers,
        key,
        value,
        time,
        length: at.position,
    })
}

struct TextCursor<'a> {
    text: &'a [u8],
    position: usize,
}

impl TextCursor<'_> {
    #[inline]
    fn rest(&self) -> &[u8] {
        self.text.get(self.position..).unwrap_or_default()
    }

    /// Consumes `expected`, or nothing when the text differs.
    #[inline]
    fn skip_literal(&mut self, expected: &[u8]) -> Option<()> {
        self.rest()
            .starts_with(expected)
            .then(|| self.position += expected.len())
    }

    /// Parses a non-negative JSON integer that fits into an `i64`.
    #[inline]
    fn parse_number(&mut self) -> Option<i64> {
        let mut value: i64 = 0;
        let mut digits = 0_usize;
        for byte in self.rest() {
            if !byte.is_ascii_digit() {
                break;
            }
            value = value.checked_mul(10)?.checked_add(i64::from(byte - b'0'))?;
            digits += 1;
        }
        let has_leading_zero = digits > 1 && self.rest().first() == Some(&b'0');
        if digits == 0 || has_leading_zero {
            return None;
        }
        self.position += digits;
        Some(value)
    }

    /// Returns the range up to the closing quote and consumes the quote.
    #[inline]
    fn read_until_quote(&mut self) -> Option<Range<usize>> {
        let length = memchr(b'"', self.rest())?;
        let range = self.position..self.position + length;
        self.position = range.end + 1;
        Some(range)
    }
}
