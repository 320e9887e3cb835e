//! Tests with real servers and clients.

mod differential;
mod etcdctl;
mod kill;
mod process;
mod rights;
mod watches;
