//! Kubernetes: renews the Leases of this sidecar and reads the pins of snapshots.
//!
//! ```text
//! View ─► wanted (pure) ─► keeper of one lease ─► change (pure) ─► patch with resourceVersion ─► API server
//!          member    <member>:<cluster>:<role>   at once when it changes, otherwise each heartbeat
//!          full      revision of the latest full   at once, until it succeeds; never lower; a newer one goes to the session
//!          delta     revision of the latest delta  with each delta period; never lower
//!
//! coordination ConfigMap ─► PinReader ─► objects that retention keeps
//! ```
//!
//! **Invariants**: a slow, unavailable or misbehaving API server neither stops nor delays a backup: everything here runs
//! in its own task, reads a `StateReceiver`, has deadlines, and queues nothing. The connection is made on first
//! use and retried after a failure. Without Kubernetes nothing here runs.
//!
//! Leases are not used for leader election: etcd alone decides who leads.

pub(crate) mod args;
mod connection;
mod heartbeat;
pub(crate) mod lease;
mod pins;
mod renewer;

pub(crate) use args::{KubernetesArgs, KubernetesSettings};
pub use connection::{KubeAccess, KubeConnectError, KubeConnection};
pub use heartbeat::{Heartbeat, LeaseConfig, LeaseMetrics, NewestFullSender, PeerTlsReceiver};
pub use lease::LeaseKind;
pub use pins::{PinReadError, PinReader};
