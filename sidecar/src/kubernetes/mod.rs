//! What the sidecar tells Kubernetes, and what it asks: leases out, pins in.
//!
//! ```text
//! View ─► wanted (pure) ─► keeper of one lease ─► change (pure) ─► patch with resourceVersion ─► API server
//!          member    <member>:<cluster>:<role>   at once when it changes, otherwise each heartbeat
//!          full      revision of the newest full   at once, until it succeeds; never lower; a newer one is told the session
//!          delta     revision of the newest delta  with each delta period; never lower
//!
//! coordination ConfigMap ─► PinReader ─► what retention leaves alone
//! ```
//!
//! **Holds**: an API server that is slow, away or hostile neither stops nor delays a backup: everything here runs in a task of
//! its own, reads a [`View`](crate::state::View), has deadlines, and queues nothing. The connection is made when it is first
//! needed and again after it failed. Without Kubernetes nothing here runs.
//!
//! **Does not do**: elect. Who leads is etcd's decision alone.

pub mod args;
mod connection;
mod heartbeat;
mod keeper;
pub mod lease;
mod pins;

pub use args::{KubernetesArgs, KubernetesSettings};
pub use connection::{KubeAccess, KubeConnectError, KubeConnection};
pub use heartbeat::{NewestFullSender, Heartbeat, LeaseMetrics, LeaseConfig, PeerTlsReceiver};
pub use lease::LeaseKind;
pub use pins::{PinReadError, PinReader};
