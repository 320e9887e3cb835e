//! Turns `Etcd` resources into healthy etcd clusters, and keeps them so.
//!
//! ```text
//! run ── leads? ── caches ─► reconcile: validate ─► observe ─► decide ─► act ─► status, publish
//!  │                                     pure        reads      pure     writes   pure, writes
//!  └─ http: /healthz /readyz /metrics
//! ```
//!
//! **Comes in**: `Etcd` resources, the objects made for them, what etcd says of itself. **Goes out**: those objects, one
//! careful step at a time; the status of the resource, Events, metrics.
//!
//! **Holds**: no step costs a quorum that was there; at most one step is under way; a cluster at rest is not written to.
//! Only one process writes, and none after it may have lost its lease. **After a crash** at any point the next pass sees
//! what is done and goes on: nothing is remembered that matters.

#![forbid(unsafe_code)]

pub mod act;
pub mod args;
pub mod caches;
pub mod cadence;
pub mod config;
pub mod context;
pub mod decide;
mod fingerprint;
pub mod http;
pub mod insight;
pub mod leader;
pub mod metrics;
pub mod observe;
mod publish;
pub mod quantity;
pub mod reconcile;
mod resources;
pub mod run;
pub mod status;
pub mod tasks;
mod trim;
pub mod turns;
pub mod validate;
