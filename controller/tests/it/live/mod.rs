//! Runs the controller against an API server with the Kubernetes controllers and a fake kubelet. Tests set the status of
//! pods; pod addresses lead to real etcd servers where a test needs members.

mod adopt;
mod between;
mod cluster;
mod diagnosis;
mod events;
mod faults;
mod fencing;
mod folding;
mod gates;
mod hands;
mod idle;
mod joining;
mod kubelet;
mod lead;
mod leaving;
mod lifecycle;
mod outage;
mod pins;
mod protection;
mod readiness;
mod recovery;
mod rest;
mod rolling;
mod signals;
mod soak;
mod stage;
mod tasks;
mod thwarted;
mod tls;
mod unwatched;
mod volumes;
mod watching;
mod wire;
mod witness;
