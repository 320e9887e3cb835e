//! Reads a delta to its last byte and records which revisions it contains.

use std::io::{self, Read};
use std::num::NonZeroUsize;

use mainstay_archive::catalogue::SnapshotObject;
use mainstay_archive::compression::open_decoder;
use mainstay_archive::delta::{DeltaError, DeltaReader, Event, parse_time};
use mainstay_archive::name::SnapshotName;
use mainstay_ids::Revision;

use super::{ProofError, ReadOptions, StopPoint};

/// Limit of recorded runs of revisions; revisions of etcd are dense, so an intact delta is one run.
const MAX_RUNS: usize = 64;

/// Verified content of a delta.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeltaSpan {
    /// First and last revision of each run without a gap, ascending. Runs after the 64th are left out: a restore cannot
    /// get past the gaps before them.
    pub runs: Vec<(Revision, Revision)>,
    /// Number of events.
    pub events: u64,
    /// Decompressed size.
    pub bytes: u64,
    /// Time of the first event, as stored.
    pub first_time: String,
    /// Time of the last event, as stored.
    pub last_time: String,
    /// First revision recorded later than the requested time.
    pub first_later: Option<Revision>,
    /// First revision without a valid time, if a time was requested.
    pub first_untimed: Option<Revision>,
}

/// Reads a delta and compares its hash.
///
/// # Errors
/// The error of a rebuild that uses this delta, with the object and the offset of the damage.
pub fn prove_delta(
    object: &SnapshotObject,
    stored: Box<dyn Read + Send>,
    options: &ReadOptions,
) -> Result<DeltaSpan, ProofError> {
    let name = || object.name.to_string();
    let stream =
        open_decoder(&object.name.compression, stored, NonZeroUsize::MIN).map_err(|source| {
            ProofError::Compression {
                object: name(),
                source,
            }
        })?;
    let mut counted = DeltaByteCounter { stream, bytes: 0 };
    let mut span = DeltaSpan::default();
    let failed = |source: DeltaError| ProofError::Delta {
        object: name(),
        source,
    };
    {
        let mut reader = DeltaReader::new(&mut counted);
        while let Some(event) = reader.next_event().map_err(failed)? {
            span.add_event(&event, options.stop);
        }
    }
    span.bytes = counted.bytes;
    Ok(span)
}

impl DeltaSpan {
    /// Returns the first and last revision; `None` without events.
    pub fn revisions(&self) -> Option<(Revision, Revision)> {
        Some((self.runs.first()?.0, self.runs.last()?.1))
    }

    /// Checks that every revision in the name of the delta is there. It may hold more: every reader skips overlapping
    /// events.
    ///
    /// # Errors
    /// A revision is missing inside the delta, or at one of its ends.
    pub fn check_name(&self, name: &SnapshotName) -> Result<(), ProofError> {
        let object = name.to_string();
        if let [(_, previous), (found, _), ..] = self.runs.as_slice() {
            let (previous, found) = (*previous, *found);
            return Err(ProofError::GapInside {
                object,
                previous,
                found,
            });
        }
        match self.revisions() {
            Some((first, last)) if first <= name.start && last >= name.last => Ok(()),
            revisions => {
                let (first, last) = revisions.unwrap_or_default();
                Err(ProofError::NameNotCovered {
                    object,
                    first,
                    last,
                })
            }
        }
    }

    fn add_event(&mut self, event: &Event<'_>, stop: StopPoint) {
        let revision = event.mod_revision;
        if self.events == 0 {
            event.time.clone_into(&mut self.first_time);
        }
        self.events += 1;
        let is_new = self.runs.last().is_none_or(|(_, last)| *last != revision);
        // Events of one revision are one transaction: the first one decides for all.
        if is_new && let StopPoint::Time(wanted) = stop {
            match parse_time(event.time) {
                Ok(time) if time > wanted => self.first_later = self.first_later.or(Some(revision)),
                Ok(_) => {}
                Err(_) => self.first_untimed = self.first_untimed.or(Some(revision)),
            }
        }
        if is_new {
            event.time.clone_into(&mut self.last_time);
            let has_room = self.runs.len() < MAX_RUNS;
            match self.runs.last_mut() {
                Some((_, last)) if last.next() == revision => *last = revision,
                _ if has_room => self.runs.push((revision, revision)),
                _ => {}
            }
        }
    }
}

struct DeltaByteCounter<R> {
    stream: R,
    bytes: u64,
}

impl<R: Read> Read for DeltaByteCounter<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.stream.read(buffer)?;
        self.bytes += count as u64;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use mainstay_archive::delta::EventKind;
    use mainstay_ids::LeaseId;

    use super::*;

    fn event(revision: i64, time: &str) -> Event<'_> {
        Event {
            kind: EventKind::Put,
            key: b"k",
            value: b"v",
            create_revision: Revision(revision),
            mod_revision: Revision(revision),
            version: 1,
            lease: LeaseId::NONE,
            lease_ttl: None,
            time,
        }
    }

    fn span(events: &[(i64, &str)], stop: StopPoint) -> DeltaSpan {
        let mut span = DeltaSpan::default();
        for (revision, time) in events {
            span.add_event(&event(*revision, time), stop);
        }
        span
    }

    #[test]
    fn revisions_with_several_events_are_not_gaps() {
        let span = span(
            &[(5, ""), (5, ""), (6, ""), (9, ""), (10, "")],
            StopPoint::End,
        );
        let runs = [(Revision(5), Revision(6)), (Revision(9), Revision(10))];
        assert_eq!(span.runs, runs);
        assert_eq!(span.revisions(), Some((Revision(5), Revision(10))));
        assert_eq!(span.events, 5);
    }

    #[test]
    fn first_revision_after_the_time_and_first_untimed_are_recorded() {
        let moment: Timestamp = "2026-01-01T00:00:05Z".parse().unwrap();
        let events = [
            (5, "2026-01-01T00:00:04Z"),
            (6, "2026-01-01T01:00:05+01:00"),
            (7, "never"),
            (8, "2026-01-01T00:00:05.000000001Z"),
            (9, "2026-01-01T00:00:09Z"),
        ];
        let span = span(&events, StopPoint::Time(moment));
        assert_eq!(span.first_later, Some(Revision(8)));
        assert_eq!(span.first_untimed, Some(Revision(7)));
        assert_eq!(
            (span.first_time.as_str(), span.last_time.as_str()),
            (events[0].1, events[4].1)
        );
    }

    #[test]
    fn memory_does_not_grow_with_the_number_of_gaps() {
        let events: Vec<(i64, &str)> = (0..1000).map(|n| (2 * n + 1, "")).collect();
        let span = span(&events, StopPoint::End);
        assert_eq!((span.runs.len(), span.events), (MAX_RUNS, 1000));
    }
}
