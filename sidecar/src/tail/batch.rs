//! Events on their way into one delta object, compressed as they come.

use bytes::Bytes;
use jiff::Timestamp;
use mainstay_archive::compression::{Compression, CompressionEffort, StreamEncoder, EncoderOptions, OpenStreamError};
use mainstay_archive::delta::{DeltaWriteError, DeltaWriter, Event, EventFault, EventKind};
use mainstay_archive::name::SnapshotName;
use mainstay_ids::{LeaseId, Revision};

use super::gapless::{CaptureGap, RevisionSequence, RevisionCheck};
use super::leases::LeaseTtls;

/// Why an event cannot be taken.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BatchError {
    /// Revisions are missing before it.
    #[error("{0}")]
    Gap(CaptureGap),
    /// The compression cannot be set up.
    #[error("open the compression of a delta")]
    Open {
        /// What it said.
        source: OpenStreamError,
    },
    /// The event is none a reader would take.
    #[error("write revision {revision} into a delta")]
    Write {
        /// The revision.
        revision: Revision,
        /// What the writer said.
        source: DeltaWriteError,
    },
    /// The end of the object cannot be written.
    #[error("finish the delta up to revision {revision}")]
    Finish {
        /// The last revision in it.
        revision: Revision,
        /// What the compression said.
        source: std::io::Error,
    },
}

/// A delta that is complete and waits to be stored.
#[derive(Clone, Debug)]
pub struct SealedDelta {
    /// Its name.
    pub name: SnapshotName,
    /// The object as it will be stored.
    pub bytes: Bytes,
    /// Events in it.
    pub events: u64,
    /// Bytes before compression.
    pub raw_bytes: u64,
}

/// How many times its limit the text of a delta may grow to while the store is slow.
const MAX_GROWTH_FACTOR: u64 = 8;

type BatchWriter = DeltaWriter<StreamEncoder<Vec<u8>>>;

/// Events being gathered. Whole revisions are compressed; one that is still arriving waits beside.
pub struct DeltaBatch {
    compression: Compression,
    sequence: RevisionSequence,
    /// The last revision of the delta before this one.
    previous_end: Revision,
    writer: Option<BatchWriter>,
    partial: Vec<(etcd_client::Event, Timestamp)>,
    partial_bytes: u64,
}

impl DeltaBatch {
    /// Goes on after a revision.
    pub fn starting_after(revision: Revision, compression: Compression) -> Self {
        Self {
            compression,
            sequence: RevisionSequence::starting_after(revision),
            previous_end: revision,
            writer: None,
            partial: Vec::new(),
            partial_bytes: 0,
        }
    }

    /// The last revision captured whole.
    pub fn captured(&self) -> Revision {
        self.sequence.captured()
    }

    /// Whether there is nothing to store.
    pub fn is_empty(&self) -> bool {
        self.captured() == self.previous_end
    }

    /// Bytes that will be written, before compression.
    pub fn raw_len(&self) -> u64 {
        let complete = self.writer.as_ref().map_or(0, DeltaWriter::text_len);
        complete.saturating_add(self.partial_bytes)
    }

    /// Bytes kept in memory: what is compressed, and what is still arriving.
    pub fn memory_bytes(&self) -> u64 {
        let compressed = self
            .writer
            .as_ref()
            .map_or(0, |writer| writer.sink().get_ref().len());
        (compressed as u64).saturating_add(self.partial_bytes)
    }

    /// Whether more events may be taken. A batch that is due waits while the one before it is stored, and grows
    /// meanwhile, as long as it stays small in memory and no reader would choke on its text.
    pub fn has_room(&self, limit: u64) -> bool {
        self.memory_bytes() < limit && self.raw_len() < limit.saturating_mul(MAX_GROWTH_FACTOR)
    }

    /// Takes one event. Events of one revision arrive together.
    pub fn push(
        &mut self,
        event: etcd_client::Event,
        received: Timestamp,
        leases: &LeaseTtls,
    ) -> Result<(), BatchError> {
        let Some(revision) = event.kv().map(|kv| Revision(kv.mod_revision())) else {
            return Ok(()); // an event without a key says nothing
        };
        let partial = self.partial.first().and_then(|(event, _)| event.kv());
        if partial.is_some_and(|kv| kv.mod_revision() != revision.0) {
            self.finish_revision(leases)?;
        }
        match self.sequence.classify(revision) {
            RevisionCheck::Duplicate => Ok(()),
            RevisionCheck::AfterGap(gap) => Err(BatchError::Gap(gap)),
            RevisionCheck::Next => {
                self.partial_bytes = self.partial_bytes.saturating_add(estimate_text_bytes(&event));
                self.partial.push((event, received));
                Ok(())
            }
        }
    }

    /// The arriving revision is whole.
    pub fn finish_revision(&mut self, leases: &LeaseTtls) -> Result<(), BatchError> {
        if self.partial.is_empty() {
            return Ok(());
        }
        let revision = self.captured().next();
        let mut writer = match self.writer.take() {
            Some(writer) => writer,
            None => self.open_writer()?,
        };
        let mut written = Ok(());
        for (event, received) in self.partial.drain(..) {
            written = written.and_then(|()| write_event(&mut writer, &event, received, leases));
        }
        self.partial_bytes = 0;
        written.map_err(|source| BatchError::Write { revision, source })?;
        self.writer = Some(writer);
        self.sequence.advance();
        Ok(())
    }

    /// The stream broke off: what was arriving arrives again.
    pub fn discard_partial(&mut self) {
        self.partial.clear();
        self.partial_bytes = 0;
    }

    /// Completes the delta; `None` when nothing was captured. The batch goes on behind it.
    pub fn seal(&mut self, now: Timestamp) -> Result<Option<SealedDelta>, BatchError> {
        let Some(writer) = self.writer.take() else {
            return Ok(None);
        };
        let (start, last) = (self.previous_end.next(), self.captured());
        let (events, raw_bytes) = (writer.event_count(), writer.text_len());
        let encoder = writer.finish().map_err(|source| BatchError::Write {
            revision: last,
            source,
        })?;
        let bytes = encoder.finish().map_err(|source| BatchError::Finish {
            revision: last,
            source,
        })?;
        self.previous_end = last;
        Ok(Some(SealedDelta {
            name: SnapshotName::delta(start, last, now.as_second(), self.compression.clone()),
            bytes: Bytes::from(bytes),
            events,
            raw_bytes,
        }))
    }

    fn open_writer(&self) -> Result<BatchWriter, BatchError> {
        let options = EncoderOptions {
            effort: CompressionEffort::Fast,
            ..EncoderOptions::default()
        };
        let encoder = StreamEncoder::new(&self.compression, Vec::new(), options);
        encoder
            .map(DeltaWriter::new)
            .map_err(|source| BatchError::Open { source })
    }
}

fn write_event(
    writer: &mut BatchWriter,
    event: &etcd_client::Event,
    received: Timestamp,
    leases: &LeaseTtls,
) -> Result<(), DeltaWriteError> {
    let Some(kv) = event.kv() else { return Ok(()) };
    let lease = LeaseId::from_signed(kv.lease());
    let time = received.to_string();
    // The client's own accessor panics on a type it does not know.
    let kind = match event.0.r#type {
        0 => EventKind::Put,
        1 => EventKind::Delete,
        other => {
            return Err(DeltaWriteError::InvalidEvent {
                event: writer.event_count(),
                fault: EventFault::UnknownKind(i64::from(other)),
            });
        }
    };
    writer.write_event(&Event {
        kind,
        key: kv.key(),
        value: kv.value(),
        create_revision: Revision(kv.create_revision()),
        mod_revision: Revision(kv.mod_revision()),
        version: kv.version(),
        lease,
        lease_ttl: leases.granted_ttl(lease),
        time: &time,
    })
}

/// About what the event takes as text.
fn estimate_text_bytes(event: &etcd_client::Event) -> u64 {
    let kv = event.kv();
    let bytes = kv.map_or(0, |kv| kv.key().len().saturating_add(kv.value().len()));
    (bytes as u64).saturating_mul(4) / 3 + 128
}

#[cfg(test)]
mod tests;
