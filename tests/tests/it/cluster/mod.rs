//! On a real Kubernetes cluster: `make cluster-up` brings one up, `KUBECONFIG` names another.
//!
//! Every test has a namespace of its own and leaves it empty. What needs a hand on the node, such as cutting
//! wires, runs on the machine's own cluster only.

mod adoption;
mod alone;
mod backups;
mod damage;
mod encryption;
mod joining;
mod lifecycle;
mod losses;
mod members;
mod plain;
mod recoveries;
mod stage;
