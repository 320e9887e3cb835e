//! The v2 store inside a raft snapshot: the tree in which etcd 3.4 and 3.5 keep the membership.
//!
//! [`bootstrap`] builds the tree of a restored cluster with the bytes of `etcdutl snapshot restore`;
//! [`V2Store::parse`] takes the membership out of any tree. Parsing keeps only what it looks for, so
//! memory follows the membership and not the length of the JSON.

mod build;
mod parse;
#[cfg(test)]
mod tests;

pub use self::build::{V2BootstrapMember, build_bootstrap_store};
pub use self::parse::{V2Member, V2Store, V2StoreError};
