//! The controller: reconciles `Etcd` resources into running etcd clusters.
//!
//! ```text
//! run ── leader? ─ caches ─► reconcile: validate ─► observe ─► decide ─► act ─► status, publish
//!  │                                     pure        reads      pure     writes   pure, writes
//!  └─ http: /healthz /readyz /metrics
//! ```
//!
//! Input: `Etcd` resources, the objects created for them, the responses of etcd. Output: those objects, one step at a time;
//! the status of the resource, Events, metrics.
//!
//! Invariants:
//!
//! * No step breaks an existing quorum, and at most one disruptive step is in progress.
//! * An idle cluster is not written to.
//! * Only the leader writes, and it stops before another replica may take the Lease.
//! * After a crash at any point the next reconcile continues from the observed state: no decision depends on memory.

#![forbid(unsafe_code)]

pub mod act;
pub mod args;
pub mod caches;
pub mod intervals;
pub mod config;
pub mod context;
pub mod decide;
mod fingerprint;
pub mod http;
pub mod probe;
pub mod leader;
pub mod metrics;
pub mod observe;
mod publish;
pub mod quantity;
pub mod reconcile;
mod discovery;
pub mod run;
pub mod status;
pub mod tasks;
mod trim;
pub mod write_scheduler;
pub mod validate;
