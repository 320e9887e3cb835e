//! `mainstay-sidecar`: backs up one etcd cluster from beside its members.
//!
//! ```text
//! own member ─status, linearizable read─► election ─leads─► session
//!                                                            ├─ tail:  watch ─► gapless batch ─► delta object
//!                                                            ├─ full:  Snapshot RPC ─► hash ─► compress ─► full object
//!                                                            ├─ retention: what may go, what must stay
//!                                                            └─ maintenance: defragment, alarms
//! every member:  heartbeat lease, learner promotion, peer URL, HTTP, metrics
//! ```
//!
//! **Comes in**: the flags of the peer this replaces, or its configuration file. **Goes out**: objects in the
//! peer's layout, leases, metrics, answers over HTTP.
//!
//! **Holds**: revisions are dense, so a missing event is seen, counted, and answered with a full snapshot; an object
//! is created, never replaced; memory is bounded whatever the write rate and however slow the store; a backup that
//! fails never makes etcd unready.
//!
//! **After a crash**: whatever is in the store is a chain; the next leader goes on behind its end.

pub mod args;
pub mod ask;
mod assemble;
pub mod backoff;
pub mod bucket;
pub mod care;
pub mod config_file;
pub mod election;
pub mod etcd;
pub mod farewell;
pub mod full;
pub mod http;
pub mod kubernetes;
pub mod maintenance;
pub mod metrics;
pub mod retention;
pub mod run;
pub mod schedule;
pub mod session;
pub mod state;
pub mod tail;
mod wiring;
