//! Finds the newest chain that is whole, reading each object at most once in the life of the process.

use mainstay_archive::catalogue::{Catalogue, Object};
use mainstay_archive::chain::{Chain, ChooseError, Request, Target, choose};
use mainstay_store::SnapStore;
use mainstay_telemetry::Chain as Causes;
use tracing::error;

use super::examine::{self, ExamineError};
use super::memory::{Memory, Verdict};

/// Key of the base of the newest chain all of whose objects are whole; `None` when there is no such chain.
///
/// A damaged object is left out and another way chosen: a spare delta, an older base, or an end before the
/// damage. A hole directly behind a base may be filled by its content, but that is not known from its hash;
/// such a chain counts up to the hole.
pub(super) async fn newest(
    store: &SnapStore,
    catalogue: &Catalogue,
    memory: &Memory,
) -> Result<Option<String>, ExamineError> {
    let mut request = Request::new(Target::Latest);
    loop {
        let chain = match choose(catalogue, &request) {
            Ok(chain) => chain,
            Err(ChooseError::Missing {
                newest_restorable, ..
            }) if request.target == Target::Latest => {
                request.target = Target::Revision(newest_restorable);
                continue;
            }
            Err(_) => return Ok(None),
        };
        if let Some(damaged) = first_damaged(store, &chain, memory).await? {
            request.without.insert(damaged);
            request.target = Target::Latest;
        } else if chain.hole_after_base.is_some() && request.target == Target::Latest {
            request.target = Target::Revision(chain.base.name.last);
        } else {
            return Ok(Some(chain.base.key));
        }
    }
}

/// Key of the first object of a chain that is not whole.
async fn first_damaged(
    store: &SnapStore,
    chain: &Chain,
    memory: &Memory,
) -> Result<Option<String>, ExamineError> {
    let deltas = chain.deltas.iter().map(|link| &link.object);
    for object in std::iter::once(&chain.base).chain(deltas) {
        let verdict = match memory.verdict(object) {
            Some(verdict) => verdict,
            None => read(store, object, memory).await?,
        };
        if verdict == Verdict::Damaged {
            return Ok(Some(object.key.clone()));
        }
    }
    Ok(None)
}

async fn read(
    store: &SnapStore,
    object: &Object,
    memory: &Memory,
) -> Result<Verdict, ExamineError> {
    let verdict = match examine::object(store, object).await? {
        Ok(()) => Verdict::Sound,
        Err(damage) => {
            error!(object_key = %object.key, error = %Causes(&damage), "snapshot is damaged");
            Verdict::Damaged
        }
    };
    memory.examined(object, verdict);
    Ok(verdict)
}
