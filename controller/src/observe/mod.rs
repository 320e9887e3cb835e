//! Collects the observed state of one cluster as plain data.
//!
//! ```text
//! caches of the watches ─► objects ─┐
//! member Leases ───────────────────┼─► Observation ─► decide, status
//! etcd, while a change is pending ─► members ─┘
//! ```
//!
//! **Invariants**: a member that does not answer is data, not an error. This module makes no decisions.

mod ca;
pub(crate) mod dial;
mod init_verdict;
pub(crate) mod jobs;
mod local_store;
mod members;
pub(crate) mod objects;
pub(crate) mod progress;
pub(crate) mod recovery;
mod termination;
pub(crate) mod upkeep;

pub(crate) use ca::{CaFingerprint, observe_ca};
pub(crate) use dial::{DialError, Dialer, EtcdEndpoint};
pub(crate) use local_store::read_local_store_root;
pub(crate) use members::{MemberTarget, list_targets, query_members};
pub(crate) use objects::{Objects, confirm_missing_pvcs, confirm_pvcs, observe_objects};
