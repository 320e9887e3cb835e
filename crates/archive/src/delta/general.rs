//! Parses an element in any form JSON allows: field order, white space, escapes, unknown fields, nulls.

use std::borrow::Cow;

use serde::Deserialize;

use super::{EventFault, RawNumbers};

/// Maximum nesting of an element. Valid ones have three levels; the JSON parser has its own, larger limit.
const MAX_DEPTH: usize = 64;

/// An element with strings unescaped and base64 still encoded.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ParsedElement<'a> {
    pub(super) numbers: RawNumbers,
    pub(super) key: Cow<'a, str>,
    pub(super) value: Cow<'a, str>,
    pub(super) time: Cow<'a, str>,
}

/// Extent of the element at the start of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extent {
    /// Length of the element in bytes.
    Complete(usize),
    /// The end of the element is not in the text.
    Partial,
    /// Nested too deeply, or does not start with `{`: position of the invalid byte.
    Invalid(usize),
}

#[derive(Deserialize)]
struct RawElement<'a> {
    #[serde(borrow, rename = "etcdEvent")]
    event: Option<RawEvent<'a>>,
    #[serde(borrow, default)]
    time: Option<RawText<'a>>,
    #[serde(rename = "leaseTTL", default)]
    lease_ttl: Option<i64>,
}

#[derive(Deserialize)]
struct RawEvent<'a> {
    #[serde(rename = "type", default)]
    kind: Option<i64>,
    #[serde(borrow)]
    kv: Option<RawKeyValue<'a>>,
}

#[derive(Deserialize)]
struct RawKeyValue<'a> {
    #[serde(borrow, default)]
    key: Option<RawText<'a>>,
    #[serde(default)]
    create_revision: Option<i64>,
    #[serde(default)]
    mod_revision: Option<i64>,
    #[serde(default)]
    version: Option<i64>,
    #[serde(borrow, default)]
    value: Option<RawText<'a>>,
    #[serde(default)]
    lease: Option<i64>,
}

/// A string, borrowed when it has no escapes. (Inside an `Option` the serde derive always copies.)
#[derive(Default, Deserialize)]
struct RawText<'a>(#[serde(borrow)] Cow<'a, str>);

/// Parses one complete element.
pub(super) fn parse_element(
    text: &[u8],
) -> Result<Result<ParsedElement<'_>, EventFault>, serde_json::Error> {
    let raw: RawElement<'_> = serde_json::from_slice(text)?;
    let Some(event) = raw.event else {
        return Ok(Err(EventFault::NoKeyValue));
    };
    let Some(kv) = event.kv else {
        return Ok(Err(EventFault::NoKeyValue));
    };
    Ok(Ok(ParsedElement {
        numbers: RawNumbers {
            kind: event.kind.unwrap_or_default(),
            create_revision: kv.create_revision.unwrap_or_default(),
            mod_revision: kv.mod_revision.unwrap_or_default(),
            version: kv.version.unwrap_or_default(),
            lease: kv.lease.unwrap_or_default(),
            lease_ttl: raw.lease_ttl,
        },
        key: kv.key.unwrap_or_default().0,
        value: kv.value.unwrap_or_default().0,
        time: raw.time.unwrap_or_default().0,
    }))
}

/// Finds the end of the element at the start of `text` by its braces, skipping strings.
pub(super) fn find_extent(text: &[u8]) -> Extent {
    match text.first() {
        None => return Extent::Partial,
        Some(b'{') => {}
        Some(_) => return Extent::Invalid(0),
    }
    let mut depth = 0_usize;
    let mut position = 0_usize;
    while let Some(&byte) = text.get(position) {
        match byte {
            b'"' => match string_length(text.get(position + 1..).unwrap_or_default()) {
                Some(length) => position += length,
                None => return Extent::Partial,
            },
            b'{' | b'[' if depth == MAX_DEPTH => return Extent::Invalid(position),
            b'{' | b'[' => depth += 1,
            b'}' | b']' if depth == 1 => return Extent::Complete(position + 1),
            b'}' | b']' => depth -= 1,
            _ => {}
        }
        position += 1;
    }
    Extent::Partial
}

/// Length of a string after its opening quote, closing quote included.
fn string_length(text: &[u8]) -> Option<usize> {
    let mut position = 0_usize;
    loop {
        position += memchr::memchr2(b'"', b'\\', text.get(position..)?)?;
        if text.get(position) == Some(&b'"') {
            return Some(position + 1);
        }
        position += 2;
    }
}
