//! Errors with the codes and texts of etcd. Clients compare the texts, so they are exact.

use mainstay_engine::EngineError;
use tonic::{Code, Status};

/// An error of etcd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EtcdError(Code, &'static str);

impl EtcdError {
    pub(crate) const EMPTY_KEY: Self =
        Self(Code::InvalidArgument, "etcdserver: key is not provided");
    pub(crate) const KEY_NOT_FOUND: Self = Self(Code::InvalidArgument, "etcdserver: key not found");
    pub(crate) const VALUE_PROVIDED: Self =
        Self(Code::InvalidArgument, "etcdserver: value is provided");
    pub(crate) const LEASE_PROVIDED: Self =
        Self(Code::InvalidArgument, "etcdserver: lease is provided");
    pub(crate) const INVALID_SORT: Self =
        Self(Code::InvalidArgument, "etcdserver: invalid sort option");
    pub(crate) const TOO_MANY_OPS: Self = Self(
        Code::InvalidArgument,
        "etcdserver: too many operations in txn request",
    );
    pub(crate) const DUPLICATE_KEY: Self = Self(
        Code::InvalidArgument,
        "etcdserver: duplicate key given in txn request",
    );
    pub(crate) const TOO_LARGE: Self =
        Self(Code::InvalidArgument, "etcdserver: request is too large");
    pub(crate) const COMPACTED: Self = Self(
        Code::OutOfRange,
        "etcdserver: mvcc: required revision has been compacted",
    );
    pub(crate) const FUTURE: Self = Self(
        Code::OutOfRange,
        "etcdserver: mvcc: required revision is a future revision",
    );
    pub(crate) const NO_SPACE: Self = Self(
        Code::ResourceExhausted,
        "etcdserver: mvcc: database space exceeded",
    );
    pub(crate) const LEASE_NOT_FOUND: Self =
        Self(Code::NotFound, "etcdserver: requested lease not found");
    pub(crate) const LEASE_EXISTS: Self =
        Self(Code::FailedPrecondition, "etcdserver: lease already exists");
    pub(crate) const LEASE_TTL_TOO_LARGE: Self =
        Self(Code::OutOfRange, "etcdserver: too large lease TTL");
    pub(crate) const PERMISSION_DENIED: Self =
        Self(Code::PermissionDenied, "etcdserver: permission denied");
    pub(crate) const TOO_MANY_REQUESTS: Self =
        Self(Code::ResourceExhausted, "etcdserver: too many requests");
    pub(crate) const TIMEOUT: Self = Self(Code::Unavailable, "etcdserver: request timed out");
    pub(crate) const NO_LEADER: Self = Self(Code::Unavailable, "etcdserver: no leader");
    pub(crate) const STOPPED: Self = Self(Code::Unavailable, "etcdserver: server stopped");

    pub(crate) fn status(self) -> Status {
        Status::new(self.0, self.1)
    }
}

impl From<EtcdError> for Status {
    fn from(error: EtcdError) -> Self {
        error.status()
    }
}

/// The etcd error for an error of an engine.
pub(crate) fn engine_error(error: &EngineError) -> Status {
    let known = match error {
        EngineError::Compacted { .. } => EtcdError::COMPACTED,
        EngineError::FutureRevision { .. } => EtcdError::FUTURE,
        EngineError::LeaseNotFound => EtcdError::LEASE_NOT_FOUND,
        EngineError::LeaseExists => EtcdError::LEASE_EXISTS,
        EngineError::LeaseTtlTooLarge => EtcdError::LEASE_TTL_TOO_LARGE,
        EngineError::KeyNotFound => EtcdError::KEY_NOT_FOUND,
        EngineError::NoSpace { .. } => EtcdError::NO_SPACE,
        EngineError::ReadOnly => EtcdError::PERMISSION_DENIED,
        EngineError::Unsupported { what } => {
            return Status::unimplemented(format!(
                "etcdserver: this engine does not support {what}"
            ));
        }
        // A timeout of etcd: of a write, the outcome is unknown. Clients do not repeat it by themselves.
        EngineError::Storage(source) => {
            tracing::error!(error = %source, cause = %source.source, "a request failed in the store");
            EtcdError::TIMEOUT
        }
        EngineError::OutcomeUnknown => EtcdError::TIMEOUT,
        EngineError::Poisoned => EtcdError::NO_LEADER,
        _ => EtcdError::STOPPED,
    };
    known.status()
}
