//! Keys of the `key` bucket: `u64 BE main | '_' | u64 BE sub`, followed by `t` for deletes.

use mainstay_ids::Revision;

const SEPARATOR: u8 = b'_';
const TOMBSTONE: u8 = b't';
const LEN: usize = 17;

/// Key of a row: its position in the history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RevisionKey {
    /// Revision of the transaction.
    pub main: Revision,
    /// Number of the change within the transaction, starting at 0.
    pub sub: i64,
    /// True when the change is a delete.
    pub is_tombstone: bool,
}

/// Why bytes are not a revision key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RevisionKeyError {
    /// The length is neither 17 nor 18 bytes.
    #[error("revision key has {0} bytes, expected 17 or 18")]
    Length(usize),
    /// The separator or the tombstone marker is wrong.
    #[error("unexpected byte {found:#04x} at position {at} of the revision key")]
    UnexpectedByte {
        /// Position in the key.
        at: usize,
        /// The byte at this position.
        found: u8,
    },
    /// Main or sub revision is negative.
    #[error("negative number in the revision key")]
    Negative,
}

impl RevisionKey {
    /// Key of the first row of a revision.
    pub fn first_of(main: Revision) -> Self {
        Self {
            main,
            sub: 0,
            is_tombstone: false,
        }
    }

    /// A key greater than every row of revision `main` and smaller than every row of the next.
    pub fn end_of(main: Revision) -> [u8; LEN] {
        encode_halves(main.0, i64::MAX)
    }

    /// Decodes a key of the bucket.
    pub fn decode(bytes: &[u8]) -> Result<Self, RevisionKeyError> {
        let (head, is_tombstone) = match bytes {
            [head @ .., mark] if bytes.len() == LEN + 1 => {
                if *mark != TOMBSTONE {
                    return Err(RevisionKeyError::UnexpectedByte {
                        at: LEN,
                        found: *mark,
                    });
                }
                (head, true)
            }
            _ => (bytes, false),
        };
        let (Some(main), Some([mark, sub @ ..])) = (head.first_chunk::<8>(), head.get(8..)) else {
            return Err(RevisionKeyError::Length(bytes.len()));
        };
        let sub: &[u8; 8] = sub
            .try_into()
            .map_err(|_| RevisionKeyError::Length(bytes.len()))?;
        if *mark != SEPARATOR {
            return Err(RevisionKeyError::UnexpectedByte {
                at: 8,
                found: *mark,
            });
        }
        let (main, sub) = (i64::from_be_bytes(*main), i64::from_be_bytes(*sub));
        if main < 0 || sub < 0 {
            return Err(RevisionKeyError::Negative);
        }
        Ok(Self {
            main: Revision(main),
            sub,
            is_tombstone,
        })
    }

    /// Passes the encoded key to `use_key`, without allocating.
    pub fn with_encoded<T>(self, use_key: impl FnOnce(&[u8]) -> T) -> T {
        let head = encode_halves(self.main.0, self.sub);
        if self.is_tombstone {
            let mut key = [TOMBSTONE; LEN + 1];
            let (front, _) = key.split_at_mut(LEN);
            front.copy_from_slice(&head);
            use_key(&key)
        } else {
            use_key(&head)
        }
    }

    /// Encodes the key.
    pub fn encode(self) -> Vec<u8> {
        self.with_encoded(<[u8]>::to_vec)
    }
}

fn encode_halves(main: i64, sub: i64) -> [u8; LEN] {
    let mut key = [SEPARATOR; LEN];
    let (front, rest) = key.split_at_mut(8);
    front.copy_from_slice(&main.to_be_bytes());
    let (_, back) = rest.split_at_mut(1);
    back.copy_from_slice(&sub.to_be_bytes());
    key
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn decode(hex: &str) -> Result<RevisionKey, RevisionKeyError> {
        RevisionKey::decode(&hex::decode(hex).unwrap())
    }

    #[test]
    fn documented_keys_decode() {
        let put = RevisionKey {
            main: Revision(2),
            sub: 0,
            is_tombstone: false,
        };
        assert_eq!(decode("00000000000000025f0000000000000000"), Ok(put));
        let delete = RevisionKey {
            main: Revision(7),
            sub: 2,
            is_tombstone: true,
        };
        assert_eq!(decode("00000000000000075f000000000000000274"), Ok(delete));
        assert_eq!(
            hex::encode(delete.encode()),
            "00000000000000075f000000000000000274"
        );
    }

    #[test]
    fn key_with_wrong_length_or_marker_is_refused() {
        for len in (0..40).filter(|len| ![17, 18].contains(len)) {
            assert_eq!(
                RevisionKey::decode(&vec![0; len]),
                Err(RevisionKeyError::Length(len))
            );
        }
        let mark = RevisionKeyError::UnexpectedByte { at: 8, found: 0x5e };
        assert_eq!(decode("00000000000000025e0000000000000000"), Err(mark));
        let mark = RevisionKeyError::UnexpectedByte {
            at: 17,
            found: 0x75,
        };
        assert_eq!(decode("00000000000000025f000000000000000075"), Err(mark));
        assert_eq!(
            decode("80000000000000025f0000000000000000"),
            Err(RevisionKeyError::Negative)
        );
    }

    proptest! {
        #[test]
        fn byte_order_of_keys_is_revision_order(a in any::<(u32, u16)>(), b in any::<(u32, u16)>()) {
            let key = |(main, sub): (u32, u16)| RevisionKey {
                main: Revision(i64::from(main)), sub: i64::from(sub), is_tombstone: false,
            };
            prop_assert_eq!(key(a).encode().cmp(&key(b).encode()), a.cmp(&b));
            prop_assert_eq!(RevisionKey::decode(&key(a).encode()), Ok(key(a)));
        }
    }
}
