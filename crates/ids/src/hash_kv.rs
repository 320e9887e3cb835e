//! etcd's `HashKV` response in a form that fits into an annotation and on a command line.

use std::fmt;
use std::str::FromStr;

use crate::Revision;

/// The `HashKV` response of a live etcd, or its equivalent computed from a file.
///
/// Text form: `<revision>:<compacted revision, 0 for none>:<hash, 8 hexadecimal digits>`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HashKv {
    /// CRC-32C over the rows of the key space.
    pub hash: u32,
    /// Revision the hash was computed at.
    pub revision: Revision,
    /// Compacted revision; `None` when never compacted (-1 in etcd's response). Only hashes with the same compacted
    /// revision are comparable.
    pub compact_revision: Option<Revision>,
}

/// The text is not a [`HashKv`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParseHashKvError;

impl fmt::Display for ParseHashKvError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("expected <revision>:<compacted revision>:<8 hexadecimal digits>")
    }
}

impl std::error::Error for ParseHashKvError {}

impl fmt::Display for HashKv {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let compact = self.compact_revision.map_or(0, |compact| compact.0);
        write!(f, "{}:{compact}:{:08x}", self.revision, self.hash)
    }
}

impl FromStr for HashKv {
    type Err = ParseHashKvError;

    fn from_str(text: &str) -> Result<Self, ParseHashKvError> {
        let parts: Vec<&str> = text.split(':').collect();
        let [revision, compact, hash] = parts[..] else {
            return Err(ParseHashKvError);
        };
        let is_plain = |part: &str| part.bytes().all(|byte| byte.is_ascii_hexdigit()); // no sign
        if ![revision, compact, hash].into_iter().all(is_plain) {
            return Err(ParseHashKvError);
        }
        let number = |part: &str| part.parse::<i64>().map_err(|_| ParseHashKvError);
        let (revision, compact) = (number(revision)?, number(compact)?);
        if revision < compact || hash.len() != 8 {
            return Err(ParseHashKvError);
        }
        Ok(Self {
            hash: u32::from_str_radix(hash, 16).map_err(|_| ParseHashKvError)?,
            revision: Revision(revision),
            compact_revision: (compact > 0).then_some(Revision(compact)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hash_kv_round_trips() {
        for compact_revision in [None, Some(Revision(41))] {
            let hash = HashKv {
                hash: 0x0a_bcde,
                revision: Revision(4711),
                compact_revision,
            };
            assert_eq!(hash.to_string().parse(), Ok(hash));
        }
        assert_eq!(
            "7:0:000000ff".parse::<HashKv>().map(|hash| hash.hash),
            Ok(255)
        );
    }

    #[test]
    fn malformed_hash_kv_is_refused() {
        let wrong = [
            "",
            "7",
            "7:0",
            "7:0:ff",
            "7:8:000000ff",
            "-7:0:000000ff",
            "7:0:+00000ff",
            "7:0:000000ff:",
            "a:0:000000ff",
            "99999999999999999999:0:000000ff",
        ];
        for text in wrong {
            assert_eq!(text.parse::<HashKv>(), Err(ParseHashKvError), "{text}");
        }
    }
}
