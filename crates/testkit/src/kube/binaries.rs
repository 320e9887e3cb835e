//! Where the programs of Kubernetes are on this machine.

use std::path::PathBuf;
use std::process::Command;

use crate::place::{cache_dir, env_path};

/// A program of Kubernetes: of the directory `MAINSTAY_KUBERNETES` or
/// `KUBEBUILDER_ASSETS` names, or of the cache.
///
/// # Panics
/// When none holds it; the sentence says what to run.
pub(super) fn find_program(name: &str) -> PathBuf {
    let places = [
        env_path("MAINSTAY_KUBERNETES"),
        env_path("KUBEBUILDER_ASSETS"),
        cache_dir().map(|cache| cache.join("kubernetes/current/bin")),
    ];
    let mut programs = places
        .into_iter()
        .flatten()
        .map(|directory| directory.join(name));
    programs
        .find(|program| program.exists())
        .unwrap_or_else(|| {
            panic!(
                "no {name} on this machine: run `make test` (or `make setup`) once, \
             or point MAINSTAY_KUBERNETES at a directory with the programs of Kubernetes"
            )
        })
}

/// The 20 of `Kubernetes v1.20.2`: flags come and go.
pub(super) fn minor_version(name: &str) -> u32 {
    let answer = Command::new(find_program(name)).arg("--version").output();
    let answer = answer.unwrap_or_else(|error| panic!("start {name}: {error}"));
    let answer = String::from_utf8_lossy(&answer.stdout);
    let minor = answer
        .split('.')
        .nth(1)
        .and_then(|minor| minor.parse().ok());
    minor.unwrap_or_else(|| panic!("{name} tells no version: {answer}"))
}
