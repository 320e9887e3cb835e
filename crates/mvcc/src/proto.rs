//! The subset of protobuf that rows need, over borrowed bytes.

/// Why a protobuf message is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// The message ends inside a field.
    #[error("message ends inside a field")]
    Truncated,
    /// A varint is longer than 64 bits.
    #[error("varint at byte {0} is longer than 64 bits")]
    VarintTooLong(usize),
    /// The wire type does not exist or does not fit the field.
    #[error("field {field} has unexpected wire type {wire}")]
    WireType {
        /// Field number.
        field: u64,
        /// Wire type; 7 when unspecific.
        wire: u8,
    },
}

/// The value of one field.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FieldValue<'a> {
    Number(u64),
    Bytes(&'a [u8]),
    Fixed,
}

/// Iterates over the fields of a message.
#[derive(Debug)]
pub(crate) struct FieldReader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> FieldReader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// Returns the next field with its number, or `None` at the end.
    pub(crate) fn next_field(&mut self) -> Result<Option<(u64, FieldValue<'a>)>, WireError> {
        if self.at >= self.bytes.len() {
            return Ok(None);
        }
        let tag = self.varint()?;
        let (field, wire) = (tag >> 3, tag & 7);
        let value = match wire {
            0 => FieldValue::Number(self.varint()?),
            2 => {
                let len = usize::try_from(self.varint()?).map_err(|_| WireError::Truncated)?;
                FieldValue::Bytes(self.take(len)?)
            }
            1 => self.take(8).map(|_| FieldValue::Fixed)?,
            5 => self.take(4).map(|_| FieldValue::Fixed)?,
            other => {
                return Err(WireError::WireType {
                    field,
                    wire: u8::try_from(other).unwrap_or(7),
                });
            }
        };
        Ok(Some((field, value)))
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], WireError> {
        let end = self.at.checked_add(len).ok_or(WireError::Truncated)?;
        let bytes = self.bytes.get(self.at..end).ok_or(WireError::Truncated)?;
        self.at = end;
        Ok(bytes)
    }

    fn varint(&mut self) -> Result<u64, WireError> {
        let start = self.at;
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = *self.bytes.get(self.at).ok_or(WireError::Truncated)?;
            self.at += 1;
            if shift == 63 && byte > 1 {
                break;
            }
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(WireError::VarintTooLong(start))
    }
}

/// Appends a varint field unless it is zero.
pub(crate) fn put_number(out: &mut Vec<u8>, field: u8, value: i64) {
    if value != 0 {
        out.push(field << 3);
        put_varint(out, value.cast_unsigned());
    }
}

/// Appends a bytes field unless it is empty.
pub(crate) fn put_bytes(out: &mut Vec<u8>, field: u8, value: &[u8]) {
    if !value.is_empty() {
        out.push(field << 3 | 2);
        put_varint(out, value.len() as u64);
        out.extend_from_slice(value);
    }
}

fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    loop {
        let [low, ..] = value.to_le_bytes();
        value >>= 7;
        if value == 0 {
            out.push(low & 0x7f);
            return;
        }
        out.push(low | 0x80);
    }
}
