//! `init` with real etcd servers: every decision, and that etcd acts accordingly.

mod hostile;
mod live;
mod stage;
