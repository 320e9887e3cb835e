//! Values of the `key` bucket: `mvccpb.KeyValue`, fields ascending, zero fields omitted.

use mainstay_ids::{LeaseId, Revision};

use crate::proto::{FieldReader, FieldValue, WireError, put_bytes, put_number};

/// One version of a key, borrowed from its row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyValue<'a> {
    /// The user's key.
    pub key: &'a [u8],
    /// Revision that created the key; 0 in a delete.
    pub create_revision: Revision,
    /// Revision of this change; 0 in a delete.
    pub mod_revision: Revision,
    /// Number of puts since the key was created; 0 in a delete.
    pub version: i64,
    /// The user's value.
    pub value: &'a [u8],
    /// Lease attached to the key; 0 for none.
    pub lease: LeaseId,
}

/// The bytes are not a `mvccpb.KeyValue` message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid mvccpb.KeyValue message")]
pub struct KeyValueError {
    #[from]
    source: WireError,
}

impl<'a> KeyValue<'a> {
    /// Decodes the value of a row.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, KeyValueError> {
        let mut decoded = Self::default();
        let mut fields = FieldReader::new(bytes);
        while let Some((field, value)) = fields.next_field()? {
            match (field, value) {
                (1, FieldValue::Bytes(key)) => decoded.key = key,
                (2, FieldValue::Number(n)) => decoded.create_revision = Revision(n.cast_signed()),
                (3, FieldValue::Number(n)) => decoded.mod_revision = Revision(n.cast_signed()),
                (4, FieldValue::Number(n)) => decoded.version = n.cast_signed(),
                (5, FieldValue::Bytes(value)) => decoded.value = value,
                (6, FieldValue::Number(n)) => decoded.lease = LeaseId(n),
                (1..=6, _) => return Err(WireError::WireType { field, wire: 7 }.into()),
                _ => {}
            }
        }
        Ok(decoded)
    }

    /// Appends the encoded value to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put_bytes(out, 1, self.key);
        put_number(out, 2, self.create_revision.0);
        put_number(out, 3, self.mod_revision.0);
        put_number(out, 4, self.version);
        put_bytes(out, 5, self.value);
        put_number(out, 6, self.lease.to_signed());
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn documented_rows_round_trip() {
        let row = hex::decode("0a01611002180420022a0133").unwrap();
        let decoded = KeyValue::decode(&row).unwrap();
        assert_eq!(
            decoded,
            KeyValue {
                key: b"a",
                create_revision: Revision(2),
                mod_revision: Revision(4),
                version: 2,
                value: b"3",
                lease: LeaseId::NONE,
            }
        );
        let leased = "0a066c65617365641008180820012a0176308dfebec5a0bca8e21c";
        for hex in ["0a01611002180220012a0131", "0a0162", leased] {
            let bytes = hex::decode(hex).unwrap();
            let mut again = Vec::new();
            KeyValue::decode(&bytes).unwrap().encode(&mut again);
            assert_eq!(hex::encode(again), hex);
        }
        let lease = KeyValue::decode(&hex::decode(leased).unwrap())
            .unwrap()
            .lease;
        assert_eq!(lease, LeaseId(2_072_959_720_677_687_053));
    }

    #[test]
    fn truncated_row_is_an_error() {
        let row = hex::decode("0a01611002180420022a0133").unwrap();
        let whole_fields = [0, 3, 5, 7, 9, 12];
        for len in (0..row.len()).filter(|len| !whole_fields.contains(len)) {
            assert!(KeyValue::decode(&row[..len]).is_err(), "{len}");
        }
    }

    proptest! {
        #[test]
        fn any_key_value_round_trips(
            key in prop::collection::vec(any::<u8>(), 0..40),
            value in prop::collection::vec(any::<u8>(), 0..300),
            numbers in any::<[i64; 3]>(),
            lease in any::<u64>(),
        ) {
            let [create, modified, version] = numbers;
            let row = KeyValue {
                key: &key, create_revision: Revision(create), mod_revision: Revision(modified),
                version, value: &value, lease: LeaseId(lease),
            };
            let mut bytes = Vec::new();
            row.encode(&mut bytes);
            prop_assert_eq!(KeyValue::decode(&bytes), Ok(row));
        }

        #[test]
        fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = KeyValue::decode(&bytes);
        }
    }
}
