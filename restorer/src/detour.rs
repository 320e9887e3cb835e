//! Finds another way to the same state when an object of the chain turns out to be unusable.
//!
//! Overlapping deltas of two leaders, duplicate deltas and older full snapshots often cover what a
//! damaged object was needed for. A detour is taken only when it leads exactly as far.

use std::collections::BTreeSet;
use std::fs::File;

use mainstay_archive::catalogue::Catalogue;
use mainstay_archive::chain::{Chain, ChooseError, Request, choose};
use mainstay_telemetry::Chain as ErrorChain;

use crate::failure::{Classify, Verdict};
use crate::rebuild::{RebuildError, Rebuilt};

/// Detours taken before giving up: each costs reading a chain again.
const MOST: usize = 8;

/// The way to a state, and what had to be avoided.
#[derive(Clone, Debug)]
pub struct Route {
    /// The objects.
    pub chain: Chain,
    request: Request,
    avoided: Vec<String>,
}

impl Route {
    /// The best chain for a request.
    pub fn find(catalogue: &Catalogue, request: Request) -> Result<Self, ChooseError> {
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
    pub fn around(&self, catalogue: &Catalogue, error: &RebuildError) -> Option<Self> {
        let is_about_the_object = matches!(
            error.verdict(),
            Verdict::DamagedBackup | Verdict::Incomplete
        );
        let culprit = error.culprit().filter(|_| is_about_the_object)?;
        if self.avoided.len() >= MOST || self.request.from.is_some() {
            return None;
        }
        let mut request = self.request.clone();
        request.without.extend(self.keys_of(culprit));
        let chain = choose(catalogue, &request).ok()?;
        if chain.reaches < self.chain.reaches {
            return None;
        }
        let mut avoided = self.avoided.clone();
        avoided.push(culprit.to_owned());
        Some(Self {
            chain,
            request,
            avoided,
        })
    }

    fn keys_of(&self, name: &str) -> BTreeSet<String> {
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
pub fn rebuild_around(
    mut route: Route,
    catalogue: &Catalogue,
    file: &File,
    mut attempt: impl FnMut(&Chain) -> Result<Rebuilt, RebuildError>,
) -> Result<(Rebuilt, Route), RebuildError> {
    loop {
        let error = match attempt(&route.chain) {
            Ok(rebuilt) => return Ok((rebuilt, route)),
            Err(error) => error,
        };
        let Some(detour) = route.around(catalogue, &error) else {
            return Err(error);
        };
        tracing::warn!(error = %ErrorChain(&error), "object is unusable, taking another way");
        file.set_len(0)
            .map_err(|source| RebuildError::Write { source })?;
        route = detour;
    }
}
