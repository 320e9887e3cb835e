//! Connection to this sidecar's etcd member.
//!
//! ```text
//! flags, certificate files ─► Etcd ─┬─ sight: status of this sidecar's member
//!                                   ├─ quorum revision: linearizable read, needs a quorum
//!                                   └─ own, to, cluster: clients for everything else
//! ```
//!
//! **Invariants**: every request has a deadline, because a paused etcd keeps its connections open and never responds;
//! certificate files are reloaded when they change. The decision who leads is in `election`.

mod args;
mod client;
mod error;
mod status;

pub(crate) use args::EtcdArgs;
pub(crate) use client::with_timeout;
pub use client::{EtcdClient, EtcdClientConfig, Password};
pub(crate) use error::{EtcdCall, EtcdError};
