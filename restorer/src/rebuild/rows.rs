//! Turns the events of the deltas into rows and the rows into leaves, and checks that no revision is missing.

use std::collections::BTreeMap;

use std::path::Path;
use std::thread;

use mainstay_archive::catalogue::SnapshotObject;
use mainstay_archive::delta::{DeltaError, DeltaReader, Event, EventKind, parse_time};
use mainstay_backup::ProofError;
use mainstay_bbolt::{LeafWriter, Meta};
use mainstay_ids::{LeaseId, PageId, Revision};
use mainstay_mvcc::{KeyValue, RevisionKey};

use super::error::RebuildError;
use super::leases::{LeaseTracker, NewLease};
use super::prefetch::{DeltaPrefetcher, DeltaStream};
use super::spool::{LeafSpool, SpooledLeaves};
use super::{DatabaseFile, RebuildContext, StopPoint};

/// Limit of threads that decompress deltas. The base has its own thread, and one thread parses all deltas: more than four
/// workers gain nothing.
const MAX_WORKERS: usize = 4;

/// The deltas as leaves after the pages of the base.
pub(crate) struct DeltaLeaves {
    pub(crate) leaves: SpooledLeaves,
    /// First unused page.
    pub(crate) next_page: PageId,
    /// First and last revision written.
    pub(crate) revisions: Option<(Revision, Revision)>,
    /// Name of the object with the first revision.
    pub(crate) first_object: String,
    /// First revision after the requested revision or time.
    pub(crate) stopped_before: Option<Revision>,
    /// Name of the object with that revision.
    pub(crate) stopped_in_object: Option<String>,
    pub(crate) leases: BTreeMap<LeaseId, NewLease>,
    pub(crate) rows: u64,
    pub(crate) skipped: u64,
}

/// Reads the deltas of the chain and writes their rows after the pages of the base.
pub(crate) fn write_deltas(
    job: &RebuildContext<'_>,
    meta: &Meta,
    scratch: &Path,
) -> Result<DeltaLeaves, RebuildError> {
    let spool = LeafSpool::create(scratch).map_err(|source| RebuildError::Scratch { source })?;
    let leaves = LeafWriter::new(job.file, meta.page_size, meta.high_water)
        .map_err(|source| RebuildError::Database { source })?;
    let mut rows = RowWriter {
        job,
        leaves,
        spool,
        leases: LeaseTracker::default(),
        position: None,
        first: None,
        stopped_before: None,
        written: 0,
        skipped: 0,
        value_buffer: Vec::new(),
        previous_object: job.chain.base.name.to_string(),
    };
    let workers = job
        .options
        .threads
        .get()
        .min(MAX_WORKERS)
        .min(job.chain.deltas.len());
    thread::scope(|scope| {
        let mut ahead = DeltaPrefetcher::start(scope, job, workers);
        for link in &job.chain.deltas {
            if rows.stopped_before.is_some() {
                break;
            }
            rows.write_delta(&link.object, ahead.next_delta())?;
        }
        Ok::<_, RebuildError>(()) // the workers end when their queues are dropped
    })?;
    rows.finish()
}

/// Returns the error of the worker that decompresses, or that of the reader of events.
fn delta_error(object: &SnapshotObject, error: DeltaError) -> RebuildError {
    let object = object.name.to_string();
    match error {
        DeltaError::Read { offset, source } => match source.downcast::<RebuildError>() {
            Ok(error) => error,
            Err(source) => {
                let source = DeltaError::Read { offset, source };
                ProofError::Delta { object, source }.into()
            }
        },
        source => ProofError::Delta { object, source }.into(),
    }
}

struct RowWriter<'a> {
    job: &'a RebuildContext<'a>,
    leaves: LeafWriter<DatabaseFile<'a>>,
    spool: LeafSpool,
    leases: LeaseTracker,
    /// Revision being written, and the sub-revision of its last row.
    position: Option<(Revision, i64)>,
    first: Option<(Revision, String)>,
    stopped_before: Option<Revision>,
    written: u64,
    skipped: u64,
    value_buffer: Vec<u8>,
    previous_object: String,
}

impl RowWriter<'_> {
    fn write_delta(
        &mut self,
        object: &SnapshotObject,
        stream: DeltaStream<'_>,
    ) -> Result<(), RebuildError> {
        // All revisions so far are complete: a transaction is never split between two objects.
        let complete = self.position.map(|(revision, _)| revision);
        let mut reader = DeltaReader::new(stream);
        loop {
            let event = match reader.next_event() {
                Ok(Some(event)) => event,
                Ok(None) => break,
                Err(error) => return Err(delta_error(object, error)),
            };
            if self.job.is_cancelled() {
                return Err(RebuildError::Cancelled);
            }
            if complete.is_some_and(|complete| event.mod_revision <= complete) {
                self.skip_event(object, &event)?;
                continue;
            }
            if self.stopped_before.is_some() {
                continue; // reads on to the hash at the end, which covers the events already written
            }
            if self.is_past_target(object, &event)? {
                self.stopped_before = Some(event.mod_revision);
            } else {
                self.write_event(object, &event)?;
            }
        }
        self.previous_object = object.name.to_string();
        Ok(())
    }

    fn skip_event(
        &mut self,
        object: &SnapshotObject,
        event: &Event<'_>,
    ) -> Result<(), RebuildError> {
        // The object does not start where its name says, so it might begin in the middle of a transaction.
        if event.mod_revision < object.name.start {
            return Err(ProofError::RevisionBeforeName {
                object: object.name.to_string(),
                found: event.mod_revision,
                start: object.name.start,
            }
            .into());
        }
        self.skipped += 1;
        Ok(())
    }

    fn is_past_target(
        &self,
        object: &SnapshotObject,
        event: &Event<'_>,
    ) -> Result<bool, RebuildError> {
        let is_new = self
            .position
            .is_none_or(|(revision, _)| event.mod_revision > revision);
        match self.job.options.stop {
            StopPoint::Revision(wanted) => Ok(event.mod_revision > wanted),
            // Only the first event of a revision decides: a transaction is restored whole or not at all.
            StopPoint::Time(wanted) if is_new => {
                let time = parse_time(event.time).map_err(|_| ProofError::MissingTime {
                    object: object.name.to_string(),
                    revision: event.mod_revision,
                })?;
                Ok(time > wanted)
            }
            StopPoint::Time(_) | StopPoint::End => Ok(false),
        }
    }

    fn write_event(
        &mut self,
        object: &SnapshotObject,
        event: &Event<'_>,
    ) -> Result<(), RebuildError> {
        let main = event.mod_revision;
        let sub = match self.position {
            Some((revision, sub)) if main == revision => sub + 1,
            Some((revision, _)) if main == revision.next() => 0,
            None => {
                self.first = Some((main, object.name.to_string()));
                0
            }
            Some((revision, _)) => {
                return Err(ProofError::Gap {
                    from: revision.next(),
                    to: main.previous(),
                    after: self.previous_object.clone(),
                    before: object.name.to_string(),
                    resumes: main,
                    newest_restorable: revision,
                }
                .into());
            }
        };
        if sub == 0 {
            self.job.meter.set_revision(main.0);
        }
        self.position = Some((main, sub));
        self.leases.track_event(event);
        self.write_row(
            RevisionKey {
                main,
                sub,
                is_tombstone: event.kind == EventKind::Delete,
            },
            event,
        )
    }

    fn write_row(&mut self, key: RevisionKey, event: &Event<'_>) -> Result<(), RebuildError> {
        // etcd stores nothing but the key in a tombstone.
        let row = if key.is_tombstone {
            KeyValue {
                key: event.key,
                ..KeyValue::default()
            }
        } else {
            KeyValue {
                key: event.key,
                create_revision: event.create_revision,
                mod_revision: event.mod_revision,
                version: event.version,
                value: event.value,
                lease: event.lease,
            }
        };
        self.value_buffer.clear();
        row.encode(&mut self.value_buffer);
        let written = key
            .with_encoded(|key| self.leaves.add(key, &self.value_buffer))
            .map_err(|source| RebuildError::Database { source })?;
        self.written += 1;
        self.job
            .flusher
            .record_written(self.value_buffer.len() as u64);
        match written {
            Some(leaf) => self.spool_leaf(&leaf),
            None => Ok(()),
        }
    }

    fn spool_leaf(&mut self, leaf: &mainstay_bbolt::PagePointer) -> Result<(), RebuildError> {
        self.spool
            .push(leaf)
            .map_err(|source| RebuildError::Scratch { source })
    }

    fn finish(self) -> Result<DeltaLeaves, RebuildError> {
        let Self {
            job,
            leaves,
            mut spool,
            leases,
            position,
            first,
            stopped_before,
            previous_object,
            ..
        } = self;
        let (last, next_page) = leaves
            .finish()
            .map_err(|source| RebuildError::Database { source })?;
        let scratch = |source| RebuildError::Scratch { source };
        if let Some(leaf) = last {
            spool.push(&leaf).map_err(scratch)?;
        }
        let leaves = spool.into_leaves().map_err(scratch)?;
        let (revisions, first_object) = match (first, position) {
            (Some((first, object)), Some((last, _))) => (Some((first, last)), object),
            _ => (None, String::new()),
        };
        Ok(DeltaLeaves {
            leaves,
            next_page,
            revisions,
            first_object,
            stopped_before,
            stopped_in_object: stopped_before.map(|_| previous_object),
            leases: leases.into_leases(job.options.default_lease_seconds),
            rows: self.written,
            skipped: self.skipped,
        })
    }
}
