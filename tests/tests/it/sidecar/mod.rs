//! Runs the sidecar as users do, next to real members, and verifies what its bucket restores.
//!
//! ```text
//! Writer ─► etcd, 3 members ◄── faults: kill, pause, move, cut off, compact
//!              │ one sidecar each
//!              ▼
//!           bucket (Local, or S3 behind a proxy) ─► mainstay-restorer ─► etcd ── equal at that revision?
//! ```
//!
//! After every fault: one sidecar takes over soon, every object in the bucket verifies, the newest stored state has the
//! hash of the live cluster, and no write acknowledged before it is missing.

mod acked_writes;
mod authentication;
mod chaos;
mod deltas;
mod election;
mod foreign_history;
mod full_snapshots;
mod harness;
mod interop;
mod outages;
mod partition;
mod shutdown;
mod sidecar_store;
mod writer;

pub(crate) use acked_writes::AckedWrites;
pub(crate) use harness::SidecarHarness;
pub(crate) use sidecar_store::SidecarStore;
pub(crate) use writer::WriterPool;
