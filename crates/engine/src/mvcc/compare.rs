//! Compares of transactions. All of them observe the state before the outermost transaction.

use std::cmp::Ordering;

use mainstay_ids::{LeaseId, Revision};

use super::index::Stamp;
use super::state::{FetchError, State, fetch};
use crate::request::{Compare, CompareResult, CompareTarget, Op, Txn};
use crate::row_store::RowReader;

/// Which branch of a transaction and of those nested in it is taken.
#[derive(Debug)]
pub(super) struct Decision<'t> {
    pub(super) succeeded: bool,
    pub(super) ops: &'t [Op],
    /// One for each nested transaction of the branch, in order.
    pub(super) nested: Vec<Self>,
}

/// Decides a transaction at a revision.
pub(super) fn decide<'t>(
    txn: &'t Txn,
    state: &State,
    (reader, at): (&dyn RowReader, Revision),
) -> Result<Decision<'t>, FetchError> {
    let mut succeeded = true;
    for compare in &txn.compare {
        if !holds(compare, state, (reader, at))? {
            succeeded = false;
            break;
        }
    }
    let ops = if succeeded {
        &txn.success
    } else {
        &txn.failure
    };
    let mut nested = Vec::new();
    for op in ops {
        if let Op::Txn(inner) = op {
            nested.push(decide(inner, state, (reader, at))?);
        }
    }
    Ok(Decision {
        succeeded,
        ops,
        nested,
    })
}

fn holds(
    compare: &Compare,
    state: &State,
    (reader, at): (&dyn RowReader, Revision),
) -> Result<bool, FetchError> {
    let mut is_empty = true;
    for (_, stamp) in state.index.live_range(&compare.range, at) {
        is_empty = false;
        if !matches_result(
            compare.result,
            order(&compare.target, stamp, state, reader)?,
        ) {
            return Ok(false);
        }
    }
    if !is_empty {
        return Ok(true);
    }
    // A missing key compares as zero, but has no value, not even an empty one.
    Ok(match &compare.target {
        CompareTarget::Value(_) => false,
        CompareTarget::Version(n)
        | CompareTarget::CreateRevision(n)
        | CompareTarget::ModRevision(n) => matches_result(compare.result, 0.cmp(n)),
        CompareTarget::Lease(id) => matches_result(compare.result, 0.cmp(&id.to_signed())),
    })
}

fn order(
    target: &CompareTarget,
    stamp: Stamp,
    state: &State,
    reader: &dyn RowReader,
) -> Result<Ordering, FetchError> {
    Ok(match target {
        CompareTarget::Version(n) => stamp.version.cmp(n),
        CompareTarget::CreateRevision(n) => stamp.create.0.cmp(n),
        CompareTarget::ModRevision(n) => stamp.at.main.0.cmp(n),
        CompareTarget::Value(value) => {
            let versions = fetch(reader, Some(&state.pending), &[stamp.at])?;
            let found = versions.first().map(|version| &version.value[..]);
            found.unwrap_or_default().cmp(&value[..])
        }
        CompareTarget::Lease(id) => {
            let versions = fetch(reader, Some(&state.pending), &[stamp.at])?;
            let found = versions
                .first()
                .map_or(LeaseId::NONE, |version| version.lease);
            found.to_signed().cmp(&id.to_signed())
        }
    })
}

fn matches_result(result: CompareResult, order: Ordering) -> bool {
    match result {
        CompareResult::Equal => order.is_eq(),
        CompareResult::Greater => order.is_gt(),
        CompareResult::Less => order.is_lt(),
        CompareResult::NotEqual => order.is_ne(),
    }
}
