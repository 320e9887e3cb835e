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
#![expect(
    missing_docs,
    reason = "a program: only its own tests use what is public"
)]

pub(crate) mod act;
pub mod args;
pub(crate) mod caches;
pub mod config;
pub(crate) mod context;
pub(crate) mod decide;
mod discovery;
mod fingerprint;
pub mod http;
pub(crate) mod intervals;
pub(crate) mod leader;
pub(crate) mod messages;
pub mod metrics;
pub(crate) mod model;
pub(crate) mod observe;
pub mod probe;
mod publish;
pub(crate) mod quantity;
pub(crate) mod reconcile;
pub mod run;
pub(crate) mod status;
pub(crate) mod tasks;
mod trim;
pub(crate) mod validate;
pub(crate) mod write_scheduler;
pub(crate) mod writer;

#[cfg(test)]
mod module_graph;
