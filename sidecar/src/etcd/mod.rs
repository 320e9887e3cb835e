//! The etcd beside this sidecar: connecting, asking, confirming.
//!
//! ```text
//! flags, certificate files ─► Etcd ─┬─ sight: what the own member says about itself
//!                                   ├─ confirm: does a quorum agree? (linearizable read)
//!                                   └─ own, to, cluster: clients for everything else
//! ```
//!
//! **Holds**: every question has a deadline, since a paused etcd keeps its connections open and never answers;
//! certificate files are read again when they change. **Does not do**: decide who leads (see `election`).

mod args;
mod connect;
mod error;
mod sight;

pub use args::{EtcdArgs, EtcdArgsError};
pub(crate) use connect::with_timeout;
pub use connect::{EtcdClient, EtcdClientConfig, Password, ClientTlsFiles};
pub use error::{EtcdError, EtcdCall};
