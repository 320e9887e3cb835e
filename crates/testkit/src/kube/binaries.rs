//! Location of the Kubernetes binaries.

use std::path::PathBuf;
use std::process::Command;

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

/// Minor version of a program, for example 20 for `Kubernetes v1.20.2`; flags differ between versions.
pub(super) fn minor_version(name: &str) -> u32 {
    let output = Command::new(find_program(name)).arg("--version").output();
    let output = output.unwrap_or_else(|error| panic!("start {name}: {error}"));
    let output = String::from_utf8_lossy(&output.stdout);
    let minor = output
        .split('.')
        .nth(1)
        .and_then(|minor| minor.parse().ok());
    minor.unwrap_or_else(|| panic!("no version in the output of {name}: {output}"))
}
