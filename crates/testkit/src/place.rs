//! Where `make setup` put things, by the rule of `tests/env/setup.sh`.

use std::path::PathBuf;

/// The cache all servers are kept in.
pub fn cache_dir() -> Option<PathBuf> {
    env_path("MAINSTAY_CACHE").or_else(|| {
        let caches = env_path("XDG_CACHE_HOME")
            .or_else(|| env_path("HOME").map(|home| home.join(".cache")))?;
        Some(caches.join("etcd-mainstay"))
    })
}

/// A path a variable names; an empty one names none.
pub fn env_path(variable: &str) -> Option<PathBuf> {
    std::env::var_os(variable)
        .filter(|value| !value.is_empty())
        .map(PathBuf::from)
}
