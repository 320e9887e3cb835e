//! The v2 store inside a raft snapshot, in which etcd 3.4 and 3.5 keep the membership.
//!
//! [`build_bootstrap_store`] builds the store of a restored cluster with the same bytes as `etcdutl snapshot restore`.
//! [`V2Store::parse`] extracts the membership from any store. Parsing keeps only the fields it needs, so memory
//! depends on the membership, not on the length of the JSON.

mod build;
mod parse;
#[cfg(test)]
mod tests;

pub use self::build::{V2BootstrapMember, build_bootstrap_store};
pub use self::parse::{V2Member, V2Store, V2StoreError};
