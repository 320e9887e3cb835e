//! Writes a delta as etcd-backup-restore does: fixed field order, zero fields omitted, padded base64, trailing hash.

use std::io::{self, Write};

use base64_simd::STANDARD;
use sha2::{Digest, Sha256};

use super::{Event, EventFault, EventHeader, EventKind, RawNumbers};
use mainstay_ids::Revision;

/// Bytes of text buffered before they are hashed and written to the sink.
const WRITE_CHUNK_LEN: usize = 256 << 10;

/// Why writing a delta failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeltaWriteError {
    /// The event is invalid; a reader would reject it.
    #[error("write event {event}: {fault}")]
    InvalidEvent {
        /// Number of the event, starting at 0.
        event: u64,
        /// Why the event is invalid.
        fault: EventFault,
    },
    /// The time contains characters that RFC 3339 does not allow.
    #[error("write event {event}: invalid RFC 3339 time {time:?}")]
    InvalidTime {
        /// Number of the event, starting at 0.
        event: u64,
        /// The rejected time.
        time: String,
    },
    /// Writing to the sink failed.
    #[error("write delta after byte {offset}")]
    Write {
        /// Bytes of text written before.
        offset: u64,
        /// Error of the sink.
        source: io::Error,
    },
}

/// Writes the events of one delta, uncompressed.
///
/// Without [`DeltaWriter::finish`] the output has no hash and readers reject it. After an error the writer must
/// not be used.
pub struct DeltaWriter<W> {
    sink: W,
    hasher: Sha256,
    pending: Vec<u8>,
    written: u64,
    event_count: u64,
    previous: Revision,
}

impl<W: Write> DeltaWriter<W> {
    /// Writes to `sink` in large pieces; the sink needs no buffer around it.
    pub fn new(sink: W) -> Self {
        let hasher = Sha256::new();
        let pending = vec![b'['];
        Self {
            sink,
            hasher,
            pending,
            written: 0,
            event_count: 0,
            previous: Revision(0),
        }
    }

    /// Appends an event. Revisions must not decrease.
    ///
    /// # Errors
    ///
    /// [`DeltaWriteError`] when the event is invalid or the sink fails.
    pub fn write_event(&mut self, event: &Event<'_>) -> Result<(), DeltaWriteError> {
        self.verify(event)?;
        if self.event_count > 0 {
            self.pending.push(b',');
        }
        self.append_event(event);
        self.event_count = self.event_count.saturating_add(1);
        self.previous = event.mod_revision;
        if self.pending.len() >= WRITE_CHUNK_LEN {
            self.write_pending()
        } else {
            Ok(())
        }
    }

    /// Returns the number of events written so far.
    pub fn event_count(&self) -> u64 {
        self.event_count
    }

    /// Returns the length of the text so far in bytes, without the closing bracket and the hash.
    pub fn text_len(&self) -> u64 {
        self.written.saturating_add(self.pending.len() as u64)
    }

    /// Returns the sink.
    pub fn sink(&self) -> &W {
        &self.sink
    }

    /// Closes the text, appends its hash and returns the sink, which is not flushed.
    ///
    /// # Errors
    ///
    /// [`DeltaWriteError::Write`] when the sink fails.
    pub fn finish(mut self) -> Result<W, DeltaWriteError> {
        self.pending.push(b']');
        self.write_pending()?;
        let hash = self.hasher.finalize();
        let offset = self.written;
        self.sink
            .write_all(hash.as_slice())
            .map_err(|source| DeltaWriteError::Write { offset, source })?;
        Ok(self.sink)
    }

    /// Checks what the reader checks: an unreadable delta would be found only at the restore.
    fn verify(&self, event: &Event<'_>) -> Result<(), DeltaWriteError> {
        let position = self.event_count;
        let numbers = RawNumbers {
            kind: match event.kind {
                EventKind::Put => 0,
                EventKind::Delete => 1,
            },
            create_revision: event.create_revision.0,
            mod_revision: event.mod_revision.0,
            version: event.version,
            ..RawNumbers::default()
        };
        let (previous, found) = (self.previous, event.mod_revision);
        let ordered = if found < previous {
            Err(EventFault::Descending { previous, found })
        } else {
            Ok(())
        };
        EventHeader::verify(numbers, event.key)
            .and(ordered)
            .map_err(|fault| DeltaWriteError::InvalidEvent {
                event: position,
                fault,
            })?;
        let is_time_char =
            |b: u8| b.is_ascii_alphanumeric() || matches!(b, b':' | b'.' | b'+' | b'-');
        if event.time.bytes().all(is_time_char) {
            return Ok(());
        }
        Err(DeltaWriteError::InvalidTime {
            event: position,
            time: event.time.to_owned(),
        })
    }

    fn append_event(&mut self, event: &Event<'_>) {
        self.push_text("{\"etcdEvent\":{");
        if event.kind == EventKind::Delete {
            self.push_text("\"type\":1,");
        }
        self.push_text("\"kv\":{\"key\":\"");
        STANDARD.encode_append(event.key, &mut self.pending);
        self.push_text("\"");
        self.push_number(",\"create_revision\":", event.create_revision.0);
        self.push_number(",\"mod_revision\":", event.mod_revision.0);
        self.push_number(",\"version\":", event.version);
        if !event.value.is_empty() {
            self.push_text(",\"value\":\"");
            STANDARD.encode_append(event.value, &mut self.pending);
            self.push_text("\"");
        }
        self.push_number(",\"lease\":", event.lease.to_signed());
        self.push_text("}},\"time\":\"");
        self.push_text(event.time);
        self.push_text("\"");
        if let Some(seconds) = event.lease_ttl {
            self.push_text(",\"leaseTTL\":");
            self.push_text(&seconds.to_string());
        }
        self.push_text("}");
    }

    fn push_text(&mut self, text: &str) {
        self.pending.extend_from_slice(text.as_bytes());
    }

    /// Writes a field, omitted when it is zero, as Go's `omitempty` does.
    fn push_number(&mut self, name: &str, value: i64) {
        if value != 0 {
            self.push_text(name);
            self.push_text(&value.to_string());
        }
    }

    fn write_pending(&mut self) -> Result<(), DeltaWriteError> {
        self.hasher.update(&self.pending);
        let offset = self.written;
        self.sink
            .write_all(&self.pending)
            .map_err(|source| DeltaWriteError::Write { offset, source })?;
        self.written = offset.saturating_add(self.pending.len() as u64);
        self.pending.clear();
        Ok(())
    }
}
