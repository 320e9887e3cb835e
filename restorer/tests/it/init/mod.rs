//! `init` before real etcd servers: every decision, and that etcd does what was decided.

mod hostile;
mod live;
mod stage;
