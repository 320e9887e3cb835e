//! On a real Kubernetes cluster: `make cluster-up` brings one up, `KUBECONFIG` names another.
//!
//! Every test has a namespace of its own and leaves it empty. What needs a hand on the node, such as cutting
//! wires, is in `node`, and runs on the machine's own cluster only.
//!
//! `soak` has the same claims at more moments and with more members; `make test` leaves it out.
//!
//! Controllers are killed in the middle of most of it. Tests that measure how long a recovery takes without that come first,
//! since everybody shares the controllers: `.config/nextest.toml` has the order.

mod adoption;
mod backups;
mod bucket;
mod druid;
mod encryption;
mod joining;
mod killed;
mod lifecycle;
mod losses;
mod members;
mod midway;
mod node;
mod plain;
mod recoveries;
mod served;
mod soak;
mod stage;
