//! Tests on a real Kubernetes cluster: start one with `make cluster-up`, or set `KUBECONFIG`.
//!
//! Every test has its own namespace and deletes it. Tests that need access to the node, for example to drop packets, are
//! in `node`, and run only on the cluster of this machine.
//!
//! `soak` checks the same claims at more moments and with more members; `make test` skips it.
//!
//! Most tests kill controllers. Tests that measure undisturbed recovery times run first, because all tests share the
//! controllers: `.config/nextest.toml` has the order.

mod adoption;
mod availability;
mod backups;
mod bucket;
mod controller_kills;
mod druid;
mod encryption;
mod harness;
mod interruptions;
mod joining;
mod lifecycle;
mod losses;
mod node;
mod plain_etcd;
mod recoveries;
mod smoke;
mod soak;
