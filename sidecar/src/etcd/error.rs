//! Errors of requests to etcd.

use std::fmt;

use mainstay_etcd::{CredentialFileError, RequestError};

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

/// A failed request to etcd.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EtcdError {
    #[error("{call}")]
    Request {
        call: EtcdCall,
        source: RequestError,
    },
    #[error(transparent)]
    File(#[from] CredentialFileError),
}

impl EtcdError {
    /// Whether etcd returned an error or the connection broke.
    pub(crate) fn is_request_failure(&self) -> bool {
        let Self::Request { source, .. } = self else {
            return false;
        };
        matches!(source, RequestError::Failed(_))
    }

    /// Whether etcd has compacted the requested revision.
    pub(crate) fn is_compacted(&self) -> bool {
        matches!(self, Self::Request { source, .. } if source.is_compacted())
    }

    /// Names the call that failed.
    pub(crate) fn request_failed<E: Into<RequestError>>(call: EtcdCall) -> impl FnOnce(E) -> Self {
        move |source| Self::Request {
            call,
            source: source.into(),
        }
    }
}
