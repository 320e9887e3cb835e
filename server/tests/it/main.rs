//! The program, with real clients and beside a real etcd.

mod live;
mod manual;
