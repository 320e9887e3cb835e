//! What can go wrong between the sidecar and etcd.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// The question that was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EtcdCall {
    /// Connecting, or logging in.
    Connect,
    /// Status of a member.
    Status,
    /// A linearizable read.
    Read,
    /// Opening a watch.
    Watch,
    /// Starting or reading a snapshot stream.
    Snapshot,
    /// How long a lease was granted for.
    Lease,
    /// The list of members.
    Members,
}

impl fmt::Display for EtcdCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Connect => "connect to etcd",
            Self::Status => "ask etcd for its status",
            Self::Read => "read from a quorum of etcd",
            Self::Watch => "watch etcd",
            Self::Snapshot => "stream a snapshot from etcd",
            Self::Lease => "ask etcd about a lease",
            Self::Members => "ask etcd for its members",
        })
    }
}

/// What etcd says about a revision that is gone.
const COMPACTED: &str = "required revision has been compacted";

/// Why etcd gave no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EtcdError {
    /// It said no, or the connection broke.
    #[error("{call}")]
    RequestFailed {
        /// The question.
        call: EtcdCall,
        /// What the client said.
        source: Box<etcd_client::Error>,
    },
    /// It said nothing.
    #[error("{call}: no answer within {} ms", limit.as_millis())]
    Timeout {
        /// The question.
        call: EtcdCall,
        /// How long was waited.
        limit: Duration,
    },
    /// A certificate, key or password file cannot be read.
    #[error("read {}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The answer lacks what every answer has.
    #[error("{call}: the answer has no {what}")]
    MissingField {
        /// The question.
        call: EtcdCall,
        /// What is missing.
        what: &'static str,
    },
}

impl EtcdError {
    /// Whether etcd, or the way to it, said no.
    pub fn is_request_failure(&self) -> bool {
        matches!(self, Self::RequestFailed { .. })
    }

    /// Whether etcd no longer has what was asked for.
    pub fn is_compacted(&self) -> bool {
        let Self::RequestFailed { source, .. } = self else {
            return false;
        };
        matches!(&**source, etcd_client::Error::GRpcStatus(status) if status.message().contains(COMPACTED))
    }

    /// Wraps what the client says about a question.
    pub fn request_failed(step: EtcdCall) -> impl FnOnce(etcd_client::Error) -> Self {
        move |source| Self::RequestFailed {
            call: step,
            source: Box::new(source),
        }
    }
}
