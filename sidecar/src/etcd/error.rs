//! What can go wrong between the sidecar and etcd.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// The question that was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Step {
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

impl fmt::Display for Step {
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
    #[error("{step}")]
    Refused {
        /// The question.
        step: Step,
        /// What the client said.
        source: Box<etcd_client::Error>,
    },
    /// It said nothing.
    #[error("{step}: no answer within {} ms", limit.as_millis())]
    Silent {
        /// The question.
        step: Step,
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
    #[error("{step}: the answer has no {what}")]
    Answer {
        /// The question.
        step: Step,
        /// What is missing.
        what: &'static str,
    },
}

impl EtcdError {
    /// Whether etcd, or the way to it, said no.
    pub fn is_refusal(&self) -> bool {
        matches!(self, Self::Refused { .. })
    }

    /// Whether etcd no longer has what was asked for.
    pub fn is_compacted(&self) -> bool {
        let Self::Refused { source, .. } = self else {
            return false;
        };
        matches!(&**source, etcd_client::Error::GRpcStatus(status) if status.message().contains(COMPACTED))
    }

    /// Wraps what the client says about a question.
    pub fn refused(step: Step) -> impl FnOnce(etcd_client::Error) -> Self {
        move |source| Self::Refused {
            step,
            source: Box::new(source),
        }
    }
}
