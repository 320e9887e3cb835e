//! The controller against a real API server, and real etcd servers where members matter.

mod live;
mod manual;
