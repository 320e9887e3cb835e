//! `mainstay-sidecar`: runs next to each etcd member and backs up the cluster.
//!
//! ```text
//! member     ─status, linearizable read─► election ─leader─► session
//!                                                            ├─ tail:  watch ─► gapless batch ─► delta object
//!                                                            ├─ full:  Snapshot RPC ─► hash ─► compress ─► full object
//!                                                            ├─ retention: deletes old snapshots
//!                                                            └─ maintenance: defragment, alarms
//! every member:  heartbeat lease, learner promotion, peer URL, HTTP, metrics
//! ```
//!
//! **Input**: the flags or the configuration file of etcd-backup-restore. **Output**: objects in the layout of
//! etcd-backup-restore, Leases, metrics, HTTP responses.
//!
//! **Invariants**: etcd's revisions are dense, so a missing event is detected, counted, and triggers a full snapshot; an
//! object is created, never replaced; memory is bounded regardless of the write rate and the speed of the store; a failing
//! backup never makes etcd unready.
//!
//! **After a crash** the store holds a complete chain; the next leader continues at its end.

#![expect(
    missing_docs,
    reason = "a program: only its own tests use what is public"
)]

mod adapters;
pub mod args;
mod assembly;
pub(crate) mod backoff;
pub(crate) mod backup_store;
pub(crate) mod clean_stop;
pub(crate) mod config_file;
pub(crate) mod election;
pub mod etcd;
pub(crate) mod full;
pub mod http;
pub mod kubernetes;
pub mod maintenance;
pub mod metrics;
pub(crate) mod own_member;
pub mod retention;
pub mod run;
pub(crate) mod schedule;
pub(crate) mod session;
pub mod snapshotter;
pub mod state;
pub mod tail;
