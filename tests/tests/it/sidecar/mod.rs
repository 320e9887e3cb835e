//! The sidecar as people run it: the real program beside real members, judged by what its bucket gives back.
//!
//! ```text
//! Writer ─► etcd, 3 members ◄── faults: kill, pause, move, cut off, compact
//!              │ one sidecar each
//!              ▼
//!           bucket (Local, or S3 behind a gate) ─► mainstay-restorer ─► etcd ── equal at that revision?
//! ```
//!
//! What is claimed of every fault: one sidecar takes over soon, every object in the bucket is sound, the newest
//! stored state has the hash of the live cluster, and no write that was acknowledged before it is missing.

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
