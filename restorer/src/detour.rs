//! Finds another way to the same state when an object of the chain turns out to be unusable.
//!
//! Overlapping deltas of two leaders, duplicate deltas and older full snapshots often cover what a
//! damaged object was needed for. A detour is taken only when it leads exactly as far.

use std::collections::BTreeSet;
use std::fs::File;

use mainstay_archive::catalogue::Catalogue;
use mainstay_archive::chain::{SnapshotChain, ChooseError, ChainRequest, choose};
use mainstay_telemetry::ErrorChain as ErrorChain;

use crate::failure::{Classify, ExitVerdict};
use crate::rebuild::{RebuildError, RebuildSummary};

/// Detours taken before giving up: each costs reading a chain again.
const MAX_FALLBACKS: usize = 8;

/// The way to a state, and what had to be avoided.
#[derive(Clone, Debug)]
pub struct ChainSelection {
    /// The objects.
    pub chain: SnapshotChain,
    request: ChainRequest,
    avoided: Vec<String>,
}

impl ChainSelection {
    /// The best chain for a request.
    pub fn find(catalogue: &Catalogue, request: ChainRequest) -> Result<Self, ChooseError> {
        let chain = choose(catalogue, &request)?;
        Ok(Self {
            chain,
            request,
            avoided: Vec::new(),
        })
    }

    /// Names of the objects that could not be used.
    pub fn avoided(&self) -> &[String] {
        &self.avoided
    }

    /// The same state by another way, after a rebuild failed; `None` when there is none.
    pub fn without_failed_object(&self, catalogue: &Catalogue, error: &RebuildError) -> Option<Self> {
        let is_about_the_object = matches!(
            error.verdict(),
            ExitVerdict::DamagedBackup | ExitVerdict::Incomplete
        );
        let failed_object = error.failed_object().filter(|_| is_about_the_object)?;
        if self.avoided.len() >= MAX_FALLBACKS || self.request.base.is_some() {
            return None;
        }
        let mut request = self.request.clone();
        request.excluded.extend(self.object_keys(failed_object));
        let chain = choose(catalogue, &request).ok()?;
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

    fn object_keys(&self, name: &str) -> BTreeSet<String> {
        let deltas = self.chain.deltas.iter().map(|link| &link.object);
        std::iter::once(&self.chain.base)
            .chain(deltas)
            .filter(|object| object.name.to_string() == name)
            .map(|object| object.key.clone())
            .collect()
    }
}

/// Rebuilds along the route, and around objects that turn out to be unusable. `attempt` is given a
/// chain and an empty file each time.
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
        let Some(detour) = route.without_failed_object(catalogue, &error) else {
            return Err(error);
        };
        tracing::warn!(error = %ErrorChain(&error), "object is unusable, taking another way");
        file.set_len(0)
            .map_err(|source| RebuildError::Write { source })?;
        route = detour;
    }
}
