//! Location of the Kubernetes binaries.

use std::path::PathBuf;

use crate::paths::{cache_dir, env_path};

/// Path of a Kubernetes program, in the directory `MAINSTAY_KUBERNETES` or `KUBEBUILDER_ASSETS`, or in the cache.
///
/// # Panics
/// If none contains it; the message says what to run.
pub(super) fn find_program(name: &str) -> PathBuf {
    let directories = [
        env_path("MAINSTAY_KUBERNETES"),
        env_path("KUBEBUILDER_ASSETS"),
        cache_dir().map(|cache| cache.join("kubernetes/current/bin")),
    ];
    let mut programs = directories
        .into_iter()
        .flatten()
        .map(|directory| directory.join(name));
    programs
        .find(|program| program.exists())
        .unwrap_or_else(|| {
            panic!(
                "{name} not found: run `make test` (or `make setup`) once, \
             or set MAINSTAY_KUBERNETES to a directory with the Kubernetes binaries"
            )
        })
}
