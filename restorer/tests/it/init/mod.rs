//! `init` with real etcd servers: every decision, and that etcd acts accordingly.

mod invalid_files;
mod live;
mod testbed;
