//! Connections to etcd, and requests with deadlines.
//!
//! ```text
//! TlsFiles or Secrets ─► TlsMaterial ┐
//! name and password ─────────────────┴► ConnectOptions ─► Client ─┬─ fetch_status: answered without a quorum
//!                                                                 ├─ list_members: answered without a quorum
//!                                                                 └─ read_linearizably: needs a quorum
//! ```
//!
//! **Invariants**: every request has a deadline ([`with_deadline`]), because a paused etcd keeps its connections open and
//! never responds. Certificates are always verified.
//!
//! **Out of scope**: which member to call, whom to trust, and the text of an error for a user: a [`RequestError`] does not
//! name the operation, its caller does.

mod connect;
mod request;

pub use connect::{
    ConnectSettings, CredentialFileError, KeepAlive, Login, TlsFiles, TlsMaterial, connect,
};
pub use request::{
    ListedMember, MemberStatus, RequestError, fetch_status, list_members, read_linearizably,
    with_deadline,
};
