//! A Kubernetes cluster on this machine, run by the real programs, that can be removed without a trace.
//!
//! ```text
//! cluster up ─ files (keys, configuration) ─► unshare ─► namespaces::init, process 1 in new namespaces
//!     │                                                    ├ etcd, kube-apiserver, controllers, scheduler
//!     ├ link: a veth pair into those namespaces            ├ containerd, kubelet, kube-proxy ─► pods
//!     └ image: archives of programs, imported              ├ an S3 server
//!                                                          └ attend: DNS and volumes
//! tests ─► Cluster { client, Node } ─► stop a component, drop packets, damage a volume
//! cluster down ─ kills process 1 by its ID
//! ```
//!
//! It needs the programs of `make setup` and a directory. The cluster has one node and a kubeconfig; this machine can
//! reach the addresses of pods and Services.
//!
//! **Invariants**: processes, mounts, network devices, firewall rules and kernel settings exist only inside one set of
//! namespaces, so the kernel removes them when the first process ends. A directory and empty cgroups remain, which the
//! next `up` or `down` removes. The cluster has no route out of the machine: it cannot pull images. It needs root.
//!
//! If `KUBECONFIG` points to an external cluster, that one is used: it has a client and no [`Node`].

pub mod addresses;
pub mod node_services;
mod certificates;
mod components;
mod configuration;
mod diagnose;
mod down;
mod discovery;
mod home;
mod tls_identity;
pub mod image;
mod install;
mod write_load;
pub mod managed_etcd;
pub mod member;
mod node;
mod programs;
mod process_record;
mod run;
pub mod timeline;
mod up;
mod wait;
pub mod namespaces;

pub use components::ClusterComponent;
pub use configuration::{S3_KEY_ID, S3_SECRET};
pub use diagnose::diagnose;
pub use down::{DownError, down};
pub use discovery::{TestCluster, FindError, ClusterSource, cluster_source};
pub use home::{ClusterHome, HomeError};
pub use tls_identity::{EncryptedConnections, TlsIdentity};
pub use install::{ELECTION_LEASE, InstallError, CONTROLLER_NAMESPACE, install};
pub use write_load::{AcknowledgedWrites, WriteLoad};
pub use node::{NetworkCut, LocalNode, NodeError};
pub use programs::{Programs, ProgramsError};
pub use run::RunError;
pub use up::{BUCKET, UpError, import, up};
pub use wait::{WaitTimeout, WAIT_TIMEOUT, eventually};
