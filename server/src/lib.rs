//! Serves the etcd v3 API over a storage engine.
//!
//! ```text
//! arguments → engine → EtcdApi (gRPC, TLS) ── until SIGTERM ──► drain
//!                 └──► HTTP: /metrics, /healthz
//! ```
//!
//! **Input**: the command line. **Output**: a server for etcd clients, and metrics. **Invariants**: the program stops
//! accepting requests before it closes the engine; when a listener fails, the program ends.
//!
//! **Out of scope**: the API (see `etcdserver`) and storage (see `engine`).

pub mod args;
mod http;
pub mod run;
