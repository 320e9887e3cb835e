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
//! If `KUBECONFIG` points to an external cluster, that one is used: it has a client and no node of ours.

pub mod addresses;
mod certificates;
mod components;
mod configuration;
mod diagnose;
mod discovery;
mod down;
mod home;
pub mod image;
mod install;
pub mod managed_etcd;
pub mod member;
pub mod namespaces;
mod node;
pub mod node_services;
mod process_record;
mod programs;
pub(crate) mod run;
pub mod timeline;
mod tls_identity;
mod up;
mod wait;
mod write_load;

pub use components::ClusterComponent;
pub use configuration::{S3_KEY_ID, S3_SECRET};
pub use diagnose::diagnose;
pub use discovery::{ClusterSource, FindError, TestCluster, cluster_source};
pub use down::{DownError, down};
pub use home::{ClusterHome, HomeError};
pub use install::{CONTROLLER_NAMESPACE, ELECTION_LEASE, InstallError, install};
pub use node::{LocalNode, NetworkCut, NodeError};
pub use programs::{Programs, ProgramsError};
pub use run::RunError;
pub use tls_identity::{EncryptedConnections, TlsIdentity};
pub use up::{BUCKET, UpError, import, up};
pub use wait::{WAIT_TIMEOUT, WaitTimeout, eventually};
pub use write_load::{AcknowledgedWrites, WriteLoad};
