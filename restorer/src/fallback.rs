//! Falls back to another chain for the same state if an object of the first chain is unusable.
//!
//! Overlapping deltas of two leaders, duplicate deltas and older full snapshots often cover the revisions of a
//! damaged object. A fallback is used only if it reaches at least the same revision.

use std::collections::BTreeSet;
use std::fs::File;

use mainstay_archive::catalogue::Catalogue;
use mainstay_archive::chain::{ChainRequest, ChooseError, SnapshotChain, choose};
use mainstay_telemetry::ErrorChain;
use mainstay_verdict::Verdict;

use crate::failure::Classify;
use crate::rebuild::{RebuildError, RebuildSummary};

/// Limit of fallbacks: each one reads a chain again from its full snapshot.
const MAX_FALLBACKS: usize = 8;

/// A chain for the requested state, and the objects found unusable so far.
#[derive(Clone, Debug)]
pub struct ChainSelection {
    pub(crate) chain: SnapshotChain,
    request: ChainRequest,
    avoided: Vec<String>,
}

impl ChainSelection {
    /// Chooses the best chain for a request.
    pub fn find(catalogue: &Catalogue, request: ChainRequest) -> Result<Self, ChooseError> {
        let chain = choose(catalogue, &request)?;
        Ok(Self {
            chain,
            request,
            avoided: Vec::new(),
        })
    }

    /// Returns the names of the unusable objects.
    pub fn avoided(&self) -> &[String] {
        &self.avoided
    }

    /// Returns another chain for the same state after a rebuild failed; `None` if there is none.
    pub(crate) fn without_failed_object(
        &self,
        catalogue: &Catalogue,
        error: &RebuildError,
    ) -> Option<Self> {
        // Another chain does not help if the store or the disk failed.
        let is_about_the_object = matches!(
            error.verdict(),
            Verdict::DamagedBackup | Verdict::Incomplete
        );
        let failed_object = error.failed_object().filter(|_| is_about_the_object)?;
        // With --from the user chose the full snapshot: do not replace it silently.
        if self.avoided.len() >= MAX_FALLBACKS || self.request.base.is_some() {
            return None;
        }
        let mut request = self.request.clone();
        request.excluded.extend(self.object_keys(failed_object));
        let chain = choose(catalogue, &request).ok()?;
        // A shorter chain would silently lose the newest changes.
        if chain.last_revision < self.chain.last_revision {
            return None;
        }
        let mut avoided = self.avoided.clone();
        avoided.push(failed_object.to_owned());
        Some(Self {
            chain,
            request,
            avoided,
        })
    }

    /// Returns the keys of an object: the same name may be stored in both layouts.
    fn object_keys(&self, name: &str) -> BTreeSet<String> {
        let deltas = self.chain.deltas.iter().map(|link| &link.object);
        std::iter::once(&self.chain.base)
            .chain(deltas)
            .filter(|object| object.name.to_string() == name)
            .map(|object| object.key.clone())
            .collect()
    }
}

/// Rebuilds the database from the chain, and from other chains if objects turn out to be unusable. Every call of
/// `attempt` gets a chain and an empty file.
pub fn rebuild_with_fallback(
    mut route: ChainSelection,
    catalogue: &Catalogue,
    file: &File,
    mut attempt: impl FnMut(&SnapshotChain) -> Result<RebuildSummary, RebuildError>,
) -> Result<(RebuildSummary, ChainSelection), RebuildError> {
    loop {
        let error = match attempt(&route.chain) {
            Ok(rebuilt) => return Ok((rebuilt, route)),
            Err(error) => error,
        };
        let Some(fallback) = route.without_failed_object(catalogue, &error) else {
            return Err(error);
        };
        tracing::warn!(error = %ErrorChain(&error), "object unusable, using another chain");
        // `attempt` expects an empty file.
        file.set_len(0)
            .map_err(|source| RebuildError::Write { source })?;
        route = fallback;
    }
}
