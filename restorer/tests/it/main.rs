//! The restorer as a library and as a program, on buckets real etcd servers and the peer wrote.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot go on fails"
)]

mod bump;
mod copy;
mod fence;
mod home;
mod init;
mod inspect;
mod list;
mod manual;
mod program;
mod rebuild;
mod reseat;
mod support;
mod synthetic;
mod verify;
