//! Revisions are dense: the one rule that makes a missing event visible. Pure.

use std::fmt;

use mainstay_ids::Revision;

pub use crate::metrics::GapCause;

/// Revisions that did not arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CaptureGap {
    /// The first missing one.
    pub from: Revision,
    /// The last missing one, as far as is known.
    pub to: Revision,
    /// Why.
    pub cause: GapCause,
}

impl fmt::Display for CaptureGap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let why = match self.cause {
            GapCause::Compacted => "etcd compacted them before they were captured",
            GapCause::Lost => "the watch skipped them",
            GapCause::StoreAhead | GapCause::ForeignHistory => {
                "the store holds a history etcd does not have"
            }
        };
        write!(
            f,
            "revisions {} to {} are missing: {why}",
            self.from, self.to
        )
    }
}

/// What an arriving revision is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RevisionCheck {
    /// The next one.
    Next,
    /// One that is captured already.
    Duplicate,
    /// One too far.
    AfterGap(CaptureGap),
}

/// How far the history is captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RevisionSequence {
    captured: Revision,
}

impl RevisionSequence {
    /// Goes on after a revision.
    pub fn starting_after(captured: Revision) -> Self {
        Self { captured }
    }

    /// The last revision captured whole.
    pub fn captured(self) -> Revision {
        self.captured
    }

    /// Judges a revision that arrives.
    pub fn classify(self, partial: Revision) -> RevisionCheck {
        let expected = self.captured.next();
        if partial <= self.captured {
            RevisionCheck::Duplicate
        } else if partial == expected {
            RevisionCheck::Next
        } else {
            RevisionCheck::AfterGap(CaptureGap {
                from: expected,
                to: partial.previous(),
                cause: GapCause::Lost,
            })
        }
    }

    /// The next revision is captured whole.
    pub fn advance(&mut self) -> Revision {
        self.captured = self.captured.next();
        self.captured
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_revision_is_the_only_one_taken() {
        let mut history = RevisionSequence::starting_after(Revision(10));
        assert_eq!(history.classify(Revision(10)), RevisionCheck::Duplicate);
        assert_eq!(history.classify(Revision(11)), RevisionCheck::Next);
        assert_eq!(history.advance(), Revision(11));
        assert_eq!(history.classify(Revision(11)), RevisionCheck::Duplicate);
        assert_eq!(history.classify(Revision(12)), RevisionCheck::Next);
    }

    #[test]
    fn a_skipped_revision_is_named() {
        let RevisionCheck::AfterGap(gap) = RevisionSequence::starting_after(Revision(10)).classify(Revision(14)) else {
            panic!("not seen")
        };
        assert_eq!((gap.from, gap.to), (Revision(11), Revision(13)));
        assert!(gap.to_string().contains("revisions 11 to 13"), "{gap}");
    }
}
