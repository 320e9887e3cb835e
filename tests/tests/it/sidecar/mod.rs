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

mod acks;
mod chain;
mod deltas;
mod election;
mod farewell;
mod foreign;
mod fulls;
mod interop;
mod login;
mod outages;
mod partition;
mod place;
mod stage;
mod writer;

pub(crate) use acks::AckedWrites;
pub(crate) use place::SidecarStore;
pub(crate) use stage::SidecarHarness;
pub(crate) use writer::WriterPool;
