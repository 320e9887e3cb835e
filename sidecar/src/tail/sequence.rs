//! Detects missing revisions: etcd's revisions are dense, so a skipped number is a gap. Pure.

use std::fmt;

use mainstay_ids::Revision;

pub(crate) use crate::metrics::GapCause;

/// Revisions that were not captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CaptureGap {
    /// First missing revision.
    pub(crate) from: Revision,
    /// Last missing revision, as far as known.
    pub(crate) to: Revision,
    pub(crate) cause: GapCause,
}

impl fmt::Display for CaptureGap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reason = match self.cause {
            GapCause::Compacted => "etcd compacted them before they were captured",
            GapCause::Lost => "the watch skipped them",
            GapCause::StoreAhead | GapCause::ForeignHistory => {
                "the store holds a different history than etcd"
            }
        };
        write!(
            f,
            "revisions {} to {} are missing: {reason}",
            self.from, self.to
        )
    }
}

/// Classification of an arriving revision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RevisionCheck {
    Next,
    /// Captured already.
    Duplicate,
    /// Revisions before it are missing.
    AfterGap(CaptureGap),
}

/// The captured part of etcd's history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RevisionSequence {
    captured: Revision,
}

impl RevisionSequence {
    /// Continues after a revision.
    pub(crate) fn starting_after(captured: Revision) -> Self {
        Self { captured }
    }

    /// Last completely captured revision.
    pub(crate) fn captured(self) -> Revision {
        self.captured
    }

    /// Classifies an arriving revision.
    pub(crate) fn classify(self, revision: Revision) -> RevisionCheck {
        let expected = self.captured.next();
        if revision <= self.captured {
            RevisionCheck::Duplicate
        } else if revision == expected {
            RevisionCheck::Next
        } else {
            RevisionCheck::AfterGap(CaptureGap {
                from: expected,
                to: revision.previous(),
                cause: GapCause::Lost,
            })
        }
    }

    /// Marks the next revision as captured.
    pub(crate) fn advance(&mut self) -> Revision {
        self.captured = self.captured.next();
        self.captured
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_next_revision_is_accepted() {
        let mut history = RevisionSequence::starting_after(Revision(10));
        assert_eq!(history.classify(Revision(10)), RevisionCheck::Duplicate);
        assert_eq!(history.classify(Revision(11)), RevisionCheck::Next);
        assert_eq!(history.advance(), Revision(11));
        assert_eq!(history.classify(Revision(11)), RevisionCheck::Duplicate);
        assert_eq!(history.classify(Revision(12)), RevisionCheck::Next);
    }

    #[test]
    fn skipped_revisions_are_reported_as_a_gap() {
        let RevisionCheck::AfterGap(gap) =
            RevisionSequence::starting_after(Revision(10)).classify(Revision(14))
        else {
            panic!("the gap is not detected")
        };
        assert_eq!((gap.from, gap.to), (Revision(11), Revision(13)));
        assert!(gap.to_string().contains("revisions 11 to 13"), "{gap}");
    }
}
