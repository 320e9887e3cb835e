//! Identities of a cluster and its members.

use std::fmt;

/// Ordinal of a pod of the StatefulSet: the number at the end of its name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Ordinal(pub(crate) u32);

impl fmt::Display for Ordinal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Namespace and name of an Etcd.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct EtcdKey {
    pub(crate) namespace: String,
    pub(crate) name: String,
}

impl fmt::Display for EtcdKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}
