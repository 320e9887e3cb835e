//! The etcd versions that the product supports, and the location of their binaries.

use std::fmt;
use std::path::PathBuf;

use crate::paths::{cache_dir, env_path};

/// An etcd release line for which `make setup` installs binaries, oldest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EtcdRelease {
    /// 3.4, the oldest supported.
    V3_4,
    /// 3.5 before its late storage fixes.
    V3_5,
    /// The newest available 3.5.
    V3_5New,
    /// 3.6, the first with a storage version and with v3 membership only.
    V3_6,
    /// 3.7, the newest supported.
    V3_7,
}

impl EtcdRelease {
    /// The newest version: what a test uses that does not depend on the version.
    pub const NEWEST: Self = Self::V3_7;

    /// All versions, oldest first.
    pub const fn all() -> [Self; 5] {
        [
            Self::V3_4,
            Self::V3_5,
            Self::V3_5New,
            Self::V3_6,
            Self::V3_7,
        ]
    }

    /// This version and every newer one: the versions that must accept data of this one.
    pub fn newer_or_equal(self) -> impl Iterator<Item = Self> {
        Self::all()
            .into_iter()
            .filter(move |version| *version >= self)
    }

    /// Directory with `etcd` and `etcdctl`: from its environment variable, or from the cache.
    ///
    /// # Panics
    /// If neither contains `etcd`; the message says what to run.
    pub fn directory(self) -> PathBuf {
        let (variable, link) = match self {
            Self::V3_4 => ("MAINSTAY_ETCD_3_4", "3.4"),
            Self::V3_5 => ("MAINSTAY_ETCD_3_5", "3.5"),
            Self::V3_5New => ("MAINSTAY_ETCD_3_5_NEW", "3.5-new"),
            Self::V3_6 => ("MAINSTAY_ETCD_3_6", "3.6"),
            Self::V3_7 => ("MAINSTAY_ETCD_3_7", "3.7"),
        };
        let found = env_path(variable).or_else(|| Some(cache_dir()?.join("etcd").join(link)));
        match found {
            Some(directory) if directory.join("etcd").exists() => directory,
            _ => panic!(
                "etcd {self} not found: run `make test` (or `make setup`) once, \
                 or set {variable} to a directory with etcd and etcdctl"
            ),
        }
    }

    /// Path of a program of this version: `etcd`, `etcdctl` or `etcdutl`.
    pub(crate) fn program_path(self, name: &str) -> PathBuf {
        self.directory().join(name)
    }
}

impl fmt::Display for EtcdRelease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V3_4 => "3.4",
            Self::V3_5 => "3.5",
            Self::V3_5New => "3.5-new",
            Self::V3_6 => "3.6",
            Self::V3_7 => "3.7",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newer_or_equal_lists_the_release_and_later_ones() {
        let versions: Vec<_> = EtcdRelease::V3_6.newer_or_equal().collect();
        assert_eq!(versions, [EtcdRelease::V3_6, EtcdRelease::V3_7]);
    }
}
