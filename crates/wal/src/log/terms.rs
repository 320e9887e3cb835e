//! The term of every index, stored as runs of equal terms.

use mainstay_ids::{RaftIndex, Term};

/// Maximum number of term changes. One election per second needs twelve days for as many, and a log covers hours.
pub(super) const MAX_RUNS: usize = 1 << 20;

/// Runs of equal terms in index order.
#[derive(Clone, Debug, Default)]
pub(super) struct TermRuns {
    /// First index of each run and its term.
    runs: Vec<(RaftIndex, Term)>,
}

impl TermRuns {
    /// The term at `index`, treating the last run as open-ended; `None` before the first.
    pub(super) fn term_at(&self, index: RaftIndex) -> Option<Term> {
        let after = self.runs.partition_point(|(start, _)| *start <= index);
        self.runs.get(after.checked_sub(1)?).map(|(_, term)| *term)
    }

    /// Removes everything from `index` on, then starts `term` there. `None` when there are too many runs.
    pub(super) fn set(&mut self, index: RaftIndex, term: Term) -> Option<()> {
        let keep = self.runs.partition_point(|(start, _)| *start < index);
        self.runs.truncate(keep);
        if self.runs.last().is_none_or(|(_, last)| *last != term) {
            self.runs.push((index, term));
        }
        (self.runs.len() <= MAX_RUNS).then_some(())
    }

    /// Removes all runs.
    pub(super) fn clear(&mut self) {
        self.runs.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terms(runs: &TermRuns, until: u64) -> Vec<Option<u64>> {
        (0..=until)
            .map(|index| runs.term_at(RaftIndex(index)).map(|term| term.0))
            .collect()
    }

    #[test]
    fn overwriting_an_index_discards_all_later_terms() {
        let mut runs = TermRuns::default();
        for (index, term) in [(1, 1), (2, 1), (3, 2), (4, 2), (5, 3), (4, 4)] {
            runs.set(RaftIndex(index), Term(term)).unwrap();
        }
        assert_eq!(terms(&runs, 4), [None, Some(1), Some(1), Some(2), Some(4)]);
        runs.set(RaftIndex(2), Term(5)).unwrap();
        assert_eq!(terms(&runs, 3), [None, Some(1), Some(5), Some(5)]);
    }

    #[test]
    fn equal_terms_share_a_run() {
        let mut runs = TermRuns::default();
        for index in 1..1000 {
            runs.set(RaftIndex(index), Term(7)).unwrap();
        }
        assert_eq!(runs.runs.len(), 1);
    }
}
