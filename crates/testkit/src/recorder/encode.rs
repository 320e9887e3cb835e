//! The delta format of etcd-backup-restore: a JSON array and its SHA-256, compressed together.

use std::fs::File;
use std::io::Write;

use base64_simd::STANDARD;
use etcd_client::EventType;
use flate2::write::{GzEncoder, ZlibEncoder};
use jiff::Timestamp;
use mainstay_ids::Revision;
use serde::{Serialize, Serializer};
use sha2::{Digest, Sha256};

/// Compression of objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RecorderCompression {
    /// `.gz`, the default of etcd-backup-restore.
    #[default]
    Gzip,
    /// `.zlib`
    Zlib,
    /// No compression.
    None,
}

impl RecorderCompression {
    pub(super) fn suffix(self) -> &'static str {
        match self {
            Self::Gzip => ".gz",
            Self::Zlib => ".zlib",
            Self::None => "",
        }
    }

    pub(super) fn compress(self, content: &[u8], file: &mut File) {
        let level = flate2::Compression::default();
        let written = match self {
            Self::Gzip => {
                let mut encoder = GzEncoder::new(file, level);
                encoder
                    .write_all(content)
                    .and_then(|()| encoder.finish().map(drop))
            }
            Self::Zlib => {
                let mut encoder = ZlibEncoder::new(file, level);
                encoder
                    .write_all(content)
                    .and_then(|()| encoder.finish().map(drop))
            }
            Self::None => file.write_all(content),
        };
        written.expect("write an object");
    }
}

/// One event of a delta. Names and order of the fields are those of etcd-backup-restore.
#[derive(Clone, Debug, Serialize)]
pub(super) struct DeltaEvent {
    #[serde(rename = "etcdEvent")]
    event: RecordedEvent,
    time: String,
}

#[derive(Clone, Debug, Serialize)]
struct RecordedEvent {
    #[serde(rename = "type", skip_serializing_if = "is_zero")]
    kind: i64,
    kv: RecordedKeyValue,
}

#[derive(Clone, Debug, Serialize)]
struct RecordedKeyValue {
    #[serde(serialize_with = "base64")]
    key: Vec<u8>,
    #[serde(skip_serializing_if = "is_zero")]
    create_revision: i64,
    mod_revision: i64,
    #[serde(skip_serializing_if = "is_zero")]
    version: i64,
    #[serde(serialize_with = "base64", skip_serializing_if = "Vec::is_empty")]
    value: Vec<u8>,
    #[serde(skip_serializing_if = "is_zero")]
    lease: i64,
}

impl DeltaEvent {
    pub(super) fn new(event: &etcd_client::Event, time: Timestamp) -> Self {
        let kv = event.kv().expect("an event has a key");
        let kind = match event.event_type() {
            EventType::Put => 0,
            EventType::Delete => 1,
        };
        let kv = RecordedKeyValue {
            key: kv.key().to_vec(),
            create_revision: kv.create_revision(),
            mod_revision: kv.mod_revision(),
            version: kv.version(),
            value: kv.value().to_vec(),
            lease: kv.lease(),
        };
        Self {
            event: RecordedEvent { kind, kv },
            time: time.to_string(),
        }
    }

    pub(super) fn revision(&self) -> Revision {
        Revision(self.event.kv.mod_revision)
    }
}

/// Content of a delta object before compression.
pub(super) fn encode_delta(events: &[DeltaEvent]) -> Vec<u8> {
    let mut content = serde_json::to_vec(events).expect("serialize events");
    let hash = Sha256::digest(&content);
    content.extend_from_slice(&hash);
    content
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn is_zero(number: &i64) -> bool {
    *number == 0
}

fn base64<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&STANDARD.encode_to_string(bytes))
}
