//! Collects events into one delta object and compresses them as they arrive.

use bytes::Bytes;
use jiff::Timestamp;
use mainstay_archive::compression::{
    Compression, CompressionEffort, EncoderOptions, OpenStreamError, StreamEncoder,
};
use mainstay_archive::delta::{DeltaWriteError, DeltaWriter, Event, EventFault, EventKind};
use mainstay_archive::name::SnapshotName;
use mainstay_ids::{LeaseId, Revision};

use super::lease_ttls::LeaseTtls;
use super::sequence::{CaptureGap, RevisionCheck, RevisionSequence};

/// Why an event cannot be added.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BatchError {
    #[error("{0}")]
    Gap(CaptureGap),
    #[error("set up the compression of a delta")]
    Open { source: OpenStreamError },
    /// A reader would reject the event.
    #[error("write revision {revision} to a delta")]
    Write {
        revision: Revision,
        source: DeltaWriteError,
    },
    #[error("finish the delta up to revision {revision}")]
    Finish {
        revision: Revision,
        source: std::io::Error,
    },
}

/// A complete delta, ready for upload.
#[derive(Clone, Debug)]
pub struct SealedDelta {
    pub(crate) name: SnapshotName,
    /// Compressed content of the object.
    pub(crate) bytes: Bytes,
    pub events: u64,
    /// Bytes before compression.
    pub(crate) raw_bytes: u64,
}

/// Uncompressed growth of a delta while the store is slow, as a multiple of the limit.
const MAX_GROWTH_FACTOR: u64 = 8;

type BatchWriter = DeltaWriter<StreamEncoder<Vec<u8>>>;

/// Events of the next delta. Complete revisions are compressed; the one still arriving is kept apart, so that a
/// transaction is never split.
pub struct DeltaBatch {
    compression: Compression,
    sequence: RevisionSequence,
    /// Last revision of the previous delta.
    previous_end: Revision,
    writer: Option<BatchWriter>,
    partial: Vec<(etcd_client::Event, Timestamp)>,
    partial_bytes: u64,
}

impl DeltaBatch {
    /// Continues after a revision.
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

    /// Last completely captured revision.
    pub fn captured(&self) -> Revision {
        self.sequence.captured()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.captured() == self.previous_end
    }

    /// Bytes before compression.
    pub(crate) fn raw_len(&self) -> u64 {
        let complete = self.writer.as_ref().map_or(0, DeltaWriter::text_len);
        complete.saturating_add(self.partial_bytes)
    }

    /// Bytes in memory: compressed revisions plus the one still arriving.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let compressed = self
            .writer
            .as_ref()
            .map_or(0, |writer| writer.sink().get_ref().len());
        (compressed as u64).saturating_add(self.partial_bytes)
    }

    /// Whether more events may be added. A due batch keeps growing while the previous one is being uploaded, bounded in
    /// memory and, for the sake of readers, in uncompressed size.
    pub(crate) fn has_room(&self, limit: u64) -> bool {
        self.memory_bytes() < limit && self.raw_len() < limit.saturating_mul(MAX_GROWTH_FACTOR)
    }

    /// Adds one event. Events of one revision must arrive together.
    pub fn push(
        &mut self,
        event: etcd_client::Event,
        received: Timestamp,
        leases: &LeaseTtls,
    ) -> Result<(), BatchError> {
        let Some(revision) = event.kv().map(|kv| Revision(kv.mod_revision())) else {
            return Ok(()); // an event without a key has no content
        };
        let partial = self.partial.first().and_then(|(event, _)| event.kv());
        if partial.is_some_and(|kv| kv.mod_revision() != revision.0) {
            self.finish_revision(leases)?;
        }
        match self.sequence.classify(revision) {
            RevisionCheck::Duplicate => Ok(()),
            RevisionCheck::AfterGap(gap) => Err(BatchError::Gap(gap)),
            RevisionCheck::Next => {
                self.partial_bytes = self
                    .partial_bytes
                    .saturating_add(estimate_text_bytes(&event));
                self.partial.push((event, received));
                Ok(())
            }
        }
    }

    /// Completes the arriving revision.
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

    /// Drops the incomplete revision: a reopened watch sends it again from its start.
    pub fn discard_partial(&mut self) {
        self.partial.clear();
        self.partial_bytes = 0;
    }

    /// Completes the delta; `None` if nothing was captured. The batch continues after it.
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
    // `etcd_client::Event::event_type` panics on an unknown type.
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

/// Estimated size of the event as text: base64 takes 4/3, plus metadata.
fn estimate_text_bytes(event: &etcd_client::Event) -> u64 {
    let kv = event.kv();
    let bytes = kv.map_or(0, |kv| kv.key().len().saturating_add(kv.value().len()));
    (bytes as u64).saturating_mul(4) / 3 + 128
}

#[cfg(test)]
mod tests;
