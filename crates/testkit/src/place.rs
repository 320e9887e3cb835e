//! Where `make setup` put things, by the rule of `tests/env/setup.sh`.

use std::path::PathBuf;

/// The cache all servers are kept in.
pub fn cache() -> Option<PathBuf> {
    setting("MAINSTAY_CACHE").or_else(|| {
        let caches = setting("XDG_CACHE_HOME")
            .or_else(|| setting("HOME").map(|home| home.join(".cache")))?;
        Some(caches.join("etcd-mainstay"))
    })
}

/// A path a variable names; an empty one names none.
pub fn setting(variable: &str) -> Option<PathBuf> {
    std::env::var_os(variable)
        .filter(|value| !value.is_empty())
        .map(PathBuf::from)
}
