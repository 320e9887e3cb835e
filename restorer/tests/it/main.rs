//! Tests of the restorer as a library and as a program, on buckets written by real etcd servers and etcd-backup-restore.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a failed step fails the test"
)]

mod bump;
mod copy;
mod data_dir_restore;
mod fence;
mod history;
mod home;
mod init;
mod inspect;
mod list;
mod man_page;
mod program;
mod rebuild;
mod support;
mod synthetic;
mod verify;
