//! Directories of the binaries that `make setup` installs, as `tests/env/setup.sh` defines them.

use std::path::PathBuf;

/// Cache directory of all binaries.
pub fn cache_dir() -> Option<PathBuf> {
    env_path("MAINSTAY_CACHE").or_else(|| {
        let caches = env_path("XDG_CACHE_HOME")
            .or_else(|| env_path("HOME").map(|home| home.join(".cache")))?;
        Some(caches.join("etcd-mainstay"))
    })
}

/// Path in an environment variable; `None` if it is unset or empty.
pub fn env_path(variable: &str) -> Option<PathBuf> {
    std::env::var_os(variable)
        .filter(|value| !value.is_empty())
        .map(PathBuf::from)
}
