//! Computes the revision that a chain of verified objects reaches, with the same result as a rebuild.

use mainstay_archive::chain::SnapshotChain;
use mainstay_ids::Revision;
use mainstay_mvcc::DatabaseStatus;

use super::{DeltaSpan, ProofError, StopPoint};

/// The state that a chain reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReachedState {
    /// Revision that a restore reaches.
    pub revision: Revision,
    /// Revision of the database in the full snapshot, which may be newer than its name.
    pub base_revision: Revision,
    /// Oldest readable revision; `None` if the database was never compacted.
    pub compact_revision: Option<Revision>,
}

/// Follows the revisions from the base through the deltas, whose spans are given in the order of the chain.
///
/// # Errors
/// The errors of a rebuild: a gap, a chain that ends before the target or before its names promise, a base compacted
/// beyond the target.
pub fn check_chain(
    chain: &SnapshotChain,
    facts: &DatabaseStatus,
    spans: &[DeltaSpan],
    stop: StopPoint,
) -> Result<ReachedState, ProofError> {
    let holds = facts.revision;
    let base = chain.base.name.to_string();
    let mut walk = RevisionWalk {
        chain,
        stop,
        first: None,
        position: None,
        stopped_before: None,
    };
    for ordinal in 0..spans.len().min(chain.deltas.len()) {
        if walk.stopped_before.is_some() {
            break;
        }
        walk.apply_delta(ordinal, spans)?;
    }
    let target = match stop {
        StopPoint::Revision(wanted) => Some(wanted),
        StopPoint::Time(_) => walk.stopped_before.map(Revision::previous),
        StopPoint::End => None,
    };
    let compact_revision = facts.compact_revision();
    let mut reached = ReachedState {
        revision: holds,
        base_revision: holds,
        compact_revision,
    };
    // The base is newer than the target: a restore removes its newer rows, if compaction left the older ones.
    if let Some(wanted) = target.filter(|wanted| *wanted < holds) {
        if let Some(compact) = compact_revision.filter(|compact| wanted < *compact) {
            return Err(ProofError::Compacted {
                object: base,
                holds,
                compact,
                target: wanted,
            });
        }
        reached.revision = wanted;
        return Ok(reached);
    }
    if let (Some((first, object)), Some((last, _))) = (walk.first, walk.position)
        && last > holds
    {
        // Only a base newer than its name fills a gap before the first delta.
        if first > holds.next() {
            return Err(gap_error(holds, first, base, object));
        }
        reached.revision = last;
    }
    let promised = match stop {
        StopPoint::Revision(wanted) => wanted,
        StopPoint::End => chain.last_revision,
        StopPoint::Time(_) => holds,
    };
    if reached.revision < promised {
        let reached = reached.revision;
        return Err(ProofError::ChainTooShort {
            reached,
            target: promised,
        });
    }
    Ok(reached)
}

fn gap_error(
    newest_restorable: Revision,
    resumes: Revision,
    after: String,
    before: String,
) -> ProofError {
    ProofError::Gap {
        from: newest_restorable.next(),
        to: resumes.previous(),
        after,
        before,
        resumes,
        newest_restorable,
    }
}

struct RevisionWalk<'a> {
    chain: &'a SnapshotChain,
    stop: StopPoint,
    /// First revision used from a delta, and the name of the delta.
    first: Option<(Revision, String)>,
    /// Last revision used, and the ordinal of its delta.
    position: Option<(Revision, usize)>,
    /// First revision after the target.
    stopped_before: Option<Revision>,
}

impl RevisionWalk<'_> {
    fn object_name(&self, ordinal: usize) -> String {
        let link = self.chain.deltas.get(ordinal);
        link.map(|link| link.object.name.to_string())
            .unwrap_or_default()
    }

    fn apply_delta(&mut self, ordinal: usize, spans: &[DeltaSpan]) -> Result<(), ProofError> {
        let (Some(span), Some(link)) = (spans.get(ordinal), self.chain.deltas.get(ordinal)) else {
            return Ok(());
        };
        let complete = self.position.map(|(revision, _)| revision);
        let start = link.object.name.start;
        for &(first, last) in &span.runs {
            // A transaction might be split between two objects, and half of it be skipped as a duplicate.
            if first < start && complete.is_some_and(|complete| first <= complete) {
                let object = self.object_name(ordinal);
                return Err(ProofError::RevisionBeforeName {
                    object,
                    found: first,
                    start,
                });
            }
            let new = complete.map_or(first, |complete| first.max(complete.next()));
            if new > last {
                continue; // already in an earlier delta
            }
            let end = self.cut_at_target(span, new, last, ordinal)?;
            if end >= new {
                self.advance(new, end, ordinal)?;
            }
            if self.stopped_before.is_some() {
                break;
            }
        }
        Ok(())
    }

    /// Returns the last revision of `new..=last` that belongs to the target.
    fn cut_at_target(
        &mut self,
        span: &DeltaSpan,
        new: Revision,
        last: Revision,
        ordinal: usize,
    ) -> Result<Revision, ProofError> {
        let after_target = match self.stop {
            StopPoint::End => None,
            StopPoint::Revision(wanted) => (last > wanted).then(|| new.max(wanted.next())),
            // Events are recorded in order: after the first later one all are later.
            StopPoint::Time(_) => span
                .first_later
                .map(|later| later.max(new))
                .filter(|later| *later <= last),
        };
        let end = after_target.map_or(last, Revision::previous);
        if let Some(revision) = span.first_untimed.filter(|at| (new..=end).contains(at)) {
            return Err(ProofError::MissingTime {
                object: self.object_name(ordinal),
                revision,
            });
        }
        self.stopped_before = after_target;
        Ok(end)
    }

    fn advance(&mut self, new: Revision, end: Revision, ordinal: usize) -> Result<(), ProofError> {
        match self.position {
            None => self.first = Some((new, self.object_name(ordinal))),
            Some((position, _)) if new == position.next() => {}
            Some((position, after)) => {
                return Err(gap_error(
                    position,
                    new,
                    self.object_name(after),
                    self.object_name(ordinal),
                ));
            }
        }
        self.position = Some((end, ordinal));
        Ok(())
    }
}

#[cfg(test)]
mod tests;
