//! Verifies, restores, compacts and copies etcd backups without an etcd.

pub mod rebuild;
