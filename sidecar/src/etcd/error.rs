//! Errors of requests to etcd.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// The operation that failed; its `Display` is the start of the error text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EtcdCall {
    /// Connecting and logging in.
    Connect,
    Status,
    /// Range request.
    Read,
    Watch,
    /// Starting or reading a stream of the Snapshot RPC.
    Snapshot,
    /// Reading the TTL of a lease.
    Lease,
    Members,
}

impl fmt::Display for EtcdCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Connect => "failed to connect to etcd",
            Self::Status => "failed to read etcd status",
            Self::Read => "failed to read from etcd",
            Self::Watch => "failed to watch etcd",
            Self::Snapshot => "failed to stream a snapshot from etcd",
            Self::Lease => "failed to read the TTL of an etcd lease",
            Self::Members => "failed to list etcd members",
        })
    }
}

/// Message of etcd's `ErrCompacted`; its gRPC code `OutOfRange` is shared with other errors.
const COMPACTED: &str = "required revision has been compacted";

/// A failed request to etcd.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EtcdError {
    /// etcd returned an error, or the connection broke.
    #[error("{call}")]
    RequestFailed {
        call: EtcdCall,
        source: Box<etcd_client::Error>,
    },
    /// No response within the deadline.
    #[error("{call}: no response within {} ms", limit.as_millis())]
    Timeout { call: EtcdCall, limit: Duration },
    #[error("failed to read {}", path.display())]
    File {
        path: PathBuf,
        source: std::io::Error,
    },
    /// The response lacks a field that etcd always sets.
    #[error("{call}: response without {what}")]
    MissingField { call: EtcdCall, what: &'static str },
}

impl EtcdError {
    /// Whether etcd returned an error or the connection broke.
    pub(crate) fn is_request_failure(&self) -> bool {
        matches!(self, Self::RequestFailed { .. })
    }

    /// Whether etcd has compacted the requested revision.
    pub(crate) fn is_compacted(&self) -> bool {
        let Self::RequestFailed { source, .. } = self else {
            return false;
        };
        matches!(&**source, etcd_client::Error::GRpcStatus(status) if status.message().contains(COMPACTED))
    }

    /// Wraps an error of the client.
    pub(crate) fn request_failed(call: EtcdCall) -> impl FnOnce(etcd_client::Error) -> Self {
        move |source| Self::RequestFailed {
            call,
            source: Box::new(source),
        }
    }
}
