//! A Kubernetes cluster on this machine, made of the real programs, that leaves nothing behind.
//!
//! ```text
//! cluster up ─ files (keys, configuration) ─► unshare ─► world::init, process 1 of a world of its own
//!     │                                                    ├ etcd, kube-apiserver, controllers, scheduler
//!     ├ link: a pair of devices into that world            ├ containerd, kubelet, kube-proxy ─► pods
//!     └ image: archives of programs, imported              ├ an S3 server
//!                                                          └ attend: names and volumes
//! tests ─► Cluster { client, Node } ─► stop a component, cut a wire, damage a volume
//! cluster down ─ ends process 1 by its id
//! ```
//!
//! **Comes in**: the programs `make setup` provides, and a directory. **Goes out**: a cluster of one node with
//! a kubeconfig; pods and services have addresses this machine reaches.
//!
//! **Holds**: processes, mounts, network devices, firewall rules and kernel settings exist inside one set of
//! namespaces only, so they end when its first process ends, however that happens; what remains are a
//! directory and empty control groups, which the next `up` or `down` removes. The world has no route out of
//! the machine. **Does not do**: pull images, reach the internet, run without root.
//!
//! Where `KUBECONFIG` names a cluster of somebody else, that one is used: it has a client and no [`Node`].

pub mod addresses;
pub mod attend;
mod certificates;
mod components;
mod configuration;
mod diagnose;
mod down;
mod find;
mod home;
mod identity;
pub mod image;
mod install;
mod load;
pub mod managed;
pub mod member;
mod node;
mod programs;
mod record;
mod run;
pub mod timeline;
mod up;
mod wait;
pub mod world;

pub use components::ClusterComponent;
pub use configuration::{S3_KEY_ID, S3_SECRET};
pub use diagnose::diagnose;
pub use down::{DownError, down};
pub use find::{TestCluster, FindError, ClusterSource, cluster_source};
pub use home::{ClusterHome, HomeError};
pub use identity::{EncryptedConnections, TlsIdentity};
pub use install::{ELECTION_LEASE, InstallError, CONTROLLER_NAMESPACE, install};
pub use load::{AcknowledgedWrites, WriteLoad};
pub use node::{NetworkCut, LocalNode, NodeError};
pub use programs::{Programs, ProgramsError};
pub use run::RunError;
pub use up::{BUCKET, UpError, import, up};
pub use wait::{WaitTimeout, WAIT_TIMEOUT, eventually};
