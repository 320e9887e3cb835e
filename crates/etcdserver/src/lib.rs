//! The gRPC front of the etcd v3 API, over any [`mainstay_engine::Engine`].
//!
//! ```text
//! connection (TLS) → metrics → guard: principal → rights → limit → KV, Watch, Lease, Maintenance, Cluster, Auth → engine
//! ```
//!
//! **Input**: requests of etcd clients: kube-apiserver, etcdctl, etcd-client. **Output**: responses, error codes and
//! error texts of etcd 3.6, because clients compare the texts.
//!
//! **Invariants**: a request is checked completely before it reaches the engine. A response header never carries a
//! revision that the data of the response is not the truth of. A progress revision is sent after every event of its
//! stream up to it. A slow stream holds a bounded number of messages and delays no other.
//!
//! **Out of scope**: storage (see `engine`), command line and files (see the program `mainstay-server`).
//!
//! Clients of etcd 3.5.0 (Kubernetes 1.22 and 1.23) cannot connect: they send an invalid `:authority` (etcd#13192),
//! which the HTTP/2 implementation refuses.

mod cluster;
mod error;
mod front;
mod guard;
mod kv;
mod lease;
mod maintenance;
mod metrics;
mod proto;
mod server;
mod watch;

pub use front::{FrontOptions, MAX_REQUEST_BYTES, MAX_TXN_OPS, SERVED_VERSION};
pub use guard::{Access, ParseGrantError, PrincipalGrant, Right, Rights};
pub use metrics::ServerMetrics;
pub use server::{EtcdApi, ServeError, TlsFiles};
