//! Encoding of DNS questions and answers.
//!
//! ```text
//! header: id 2 | flags 2 | questions 2 | answers 2 | authorities 2 | additional 2
//! question: name | kind 2 | class 2        record: name | kind 2 | class 2 | ttl 4 | length 2 | data
//! ```
//!
//! Numbers are big-endian. A name is a sequence of length-prefixed labels, ended by an empty label; an answer may
//! instead point to an earlier name with two bytes.

use std::net::Ipv4Addr;

/// Header size in bytes.
const HEADER_BYTES: usize = 12;
/// Pointer to the name of the question, which directly follows the header.
const POINTER_TO_QUESTION: [u8; 2] = [0xC0, 0x0C];
/// Class IN.
const CLASS_INTERNET: u16 = 1;
/// In seconds. Short, because pods come and go.
const TTL_SECONDS: u32 = 1;
/// Maximum size of a UDP answer without EDNS, in bytes.
const MAX_REPLY_BYTES: usize = 512;

/// The record type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordType {
    /// A record: an IPv4 address.
    Address,
    /// PTR record: the name of an address.
    Pointer,
    /// SRV record: host and port of a Service port.
    Service,
    /// A type that is not supported.
    Other(u16),
}

impl RecordType {
    fn from_number(number: u16) -> Self {
        match number {
            1 => Self::Address,
            12 => Self::Pointer,
            33 => Self::Service,
            other => Self::Other(other),
        }
    }

    fn to_number(self) -> u16 {
        match self {
            Self::Address => 1,
            Self::Pointer => 12,
            Self::Service => 33,
            Self::Other(other) => other,
        }
    }
}

/// A question in a datagram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// Query ID chosen by the client.
    pub id: u16,
    /// The name in lower case, without a trailing dot.
    pub name: String,
    /// The record type.
    pub record_type: RecordType,
    /// The encoded question, repeated in the answer.
    raw: Vec<u8>,
    wants_recursion: bool,
}

impl Question {
    /// Decodes a datagram; `None` if it is not a question.
    pub fn decode(datagram: &[u8]) -> Option<Self> {
        let number = |at: usize| {
            Some(u16::from_be_bytes(
                datagram.get(at..at + 2)?.try_into().ok()?,
            ))
        };
        let flags = number(2)?;
        let is_question = flags & 0xF800 == 0; // QR bit unset, opcode QUERY
        if !is_question || number(4)? != 1 {
            return None;
        }
        let (name, end) = decode_name(datagram, HEADER_BYTES)?;
        Some(Self {
            id: number(0)?,
            record_type: RecordType::from_number(number(end)?),
            raw: datagram.get(HEADER_BYTES..end + 4)?.to_vec(),
            name,
            wants_recursion: flags & 0x0100 != 0,
        })
    }
}

/// Decodes a name without compression; returns it and the offset of its end.
fn decode_name(datagram: &[u8], start: usize) -> Option<(String, usize)> {
    let mut labels = Vec::new();
    let mut at = start;
    loop {
        let length = usize::from(*datagram.get(at)?);
        at += 1;
        if length == 0 {
            return Some((labels.join("."), at));
        }
        if length > 63 || at - start > 255 {
            return None;
        }
        let label = std::str::from_utf8(datagram.get(at..at + length)?).ok()?;
        labels.push(label.to_ascii_lowercase());
        at += length;
    }
}

/// The data of a record.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RecordData {
    /// The address of an A record.
    Address(Ipv4Addr),
    /// The name of a PTR record.
    Pointer(String),
    /// The target of an SRV record.
    Service {
        /// Port number.
        port: u16,
        /// Host name of the server.
        target: String,
    },
}

impl RecordData {
    fn encode(&self) -> Vec<u8> {
        match self {
            Self::Address(address) => address.octets().to_vec(),
            Self::Pointer(name) => encode_name(name),
            Self::Service { port, target } => {
                let (priority, weight) = (0_u16, 100_u16);
                let numbers = [priority, weight, *port].map(u16::to_be_bytes);
                [numbers.concat(), encode_name(target)].concat()
            }
        }
    }

    fn record_type(&self) -> RecordType {
        match self {
            Self::Address(_) => RecordType::Address,
            Self::Pointer(_) => RecordType::Pointer,
            Self::Service { .. } => RecordType::Service,
        }
    }
}

/// Labels of Kubernetes names have at most 63 bytes, so the length fits.
fn encode_name(name: &str) -> Vec<u8> {
    let label = |label: &str| {
        let length = u8::try_from(label.len()).unwrap_or(u8::MAX);
        [&[length], label.as_bytes()].concat()
    };
    let mut bytes: Vec<u8> = name.split('.').flat_map(label).collect();
    bytes.push(0);
    bytes
}

/// The answer of a zone to a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DnsAnswer {
    /// The matching records; empty if the name has only records of other types.
    Records(Vec<RecordData>),
    /// The name does not exist.
    NxDomain,
}

impl DnsAnswer {
    /// Encodes the answer datagram.
    pub fn encode(&self, question: &Question) -> Vec<u8> {
        let records = match self {
            Self::Records(records) => records.as_slice(),
            Self::NxDomain => &[],
        };
        let mut body = question.raw.clone();
        let mut count = 0_u16;
        let mut is_cut = false;
        for record in records {
            let record = encode_record(record);
            if HEADER_BYTES + body.len() + record.len() > MAX_REPLY_BYTES {
                is_cut = true;
                break;
            }
            body.extend(record);
            count += 1;
        }
        let mut flags = 0x8400; // QR and AA: an authoritative answer
        flags |= u16::from(question.wants_recursion) * 0x0180;
        flags |= u16::from(is_cut) * 0x0200;
        flags |= u16::from(*self == Self::NxDomain) * 3;
        let header = [question.id, flags, 1, count, 0, 0].map(u16::to_be_bytes);
        [header.concat(), body].concat()
    }
}

fn encode_record(data: &RecordData) -> Vec<u8> {
    let bytes = data.encode();
    let length = u16::try_from(bytes.len()).unwrap_or(u16::MAX);
    let mut record = POINTER_TO_QUESTION.to_vec();
    record.extend(data.record_type().to_number().to_be_bytes());
    record.extend(CLASS_INTERNET.to_be_bytes());
    record.extend(TTL_SECONDS.to_be_bytes());
    record.extend(length.to_be_bytes());
    record.extend(bytes);
    record
}

#[cfg(test)]
mod tests;
