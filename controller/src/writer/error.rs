//! Errors of writes, and what a rejection by the API server means.

use std::fmt;

use super::LeadershipLost;

/// What a write does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteVerb {
    Apply,
    Create,
    Delete,
    Patch,
    PatchStatus,
    PatchFinalizers,
    RemoveAnnotations,
    /// Transfers field ownership from etcd-druid.
    TakeOver,
}

impl fmt::Display for WriteVerb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Apply => "apply",
            Self::Create => "create",
            Self::Delete => "delete",
            Self::Patch => "patch",
            Self::PatchStatus => "patch the status of",
            Self::PatchFinalizers => "patch the finalizers of",
            Self::RemoveAnnotations => "remove handled annotations from",
            Self::TakeOver => "take over field ownership from etcd-druid of",
        })
    }
}

/// Errors of a write to the API server.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum WriteError {
    #[error("not leader: write refused")]
    Fenced { source: LeadershipLost },
    #[error("failed to {verb} {kind} {name}")]
    Request {
        verb: WriteVerb,
        kind: String,
        name: String,
        source: Box<kube::Error>,
    },
}

/// Why the API server rejected a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rejection {
    /// The object does not exist any more.
    Gone,
    /// An object of this name exists.
    Exists,
    /// The object was changed, or replaced by another one of this name.
    Conflict,
    /// The request cannot be parsed.
    Malformed,
    /// A role, a quota, a storage class or an admission webhook forbids it.
    Forbidden,
    /// The content is invalid, or the test of a JSON patch failed.
    Invalid,
}

impl WriteError {
    /// Why the API server rejected the write; `None` for any other error.
    pub(crate) fn rejection(&self) -> Option<Rejection> {
        let Self::Request { source, .. } = self else {
            return None;
        };
        let kube::Error::Api(status) = &**source else {
            return None;
        };
        match status.code {
            404 | 410 => Some(Rejection::Gone),
            409 if status.reason == "AlreadyExists" => Some(Rejection::Exists),
            409 => Some(Rejection::Conflict),
            400 => Some(Rejection::Malformed),
            403 => Some(Rejection::Forbidden),
            422 => Some(Rejection::Invalid),
            _ => None,
        }
    }

    /// The message of the API server.
    pub(crate) fn server_message(&self) -> Option<&str> {
        match self {
            Self::Request { source, .. } => match &**source {
                kube::Error::Api(status) => Some(&status.message),
                _ => None,
            },
            Self::Fenced { .. } => None,
        }
    }

    /// Whether the object changed since it was observed. The next reconcile observes the newer version.
    pub(crate) fn is_conflict(&self) -> bool {
        let rejection = self.rejection();
        matches!(rejection, Some(Rejection::Conflict | Rejection::Exists))
    }

    /// Whether a retry cannot succeed until the object to write changes.
    pub(crate) fn is_permanent(&self) -> bool {
        let is_whole_object = matches!(
            self,
            Self::Request {
                verb: WriteVerb::Apply | WriteVerb::Create,
                ..
            }
        );
        let rejection = self.rejection();
        is_whole_object
            && matches!(
                rejection,
                Some(Rejection::Malformed | Rejection::Forbidden | Rejection::Invalid)
            )
    }
}

/// Writes that may be rejected.
pub(crate) trait WriteResultExt<T> {
    /// `None` when the write was rejected for one of these reasons.
    fn unless(self, expected: &[Rejection]) -> Result<Option<T>, WriteError>;
}

impl<T> WriteResultExt<T> for Result<T, WriteError> {
    fn unless(self, expected: &[Rejection]) -> Result<Option<T>, WriteError> {
        match self {
            Ok(written) => Ok(Some(written)),
            Err(error) if error.rejection().is_some_and(|one| expected.contains(&one)) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rejected(verb: WriteVerb, code: u16, reason: &str) -> WriteError {
        WriteError::Request {
            verb,
            kind: "Service".to_owned(),
            name: "main-client".to_owned(),
            source: Box::new(kube::Error::Api(Box::new(kube::core::Status {
                code,
                reason: reason.to_owned(),
                ..kube::core::Status::default()
            }))),
        }
    }

    #[test]
    fn permanent_api_errors_are_distinguished_from_transient_ones() {
        for (code, is_permanent) in [
            (422, true),
            (403, true),
            (409, false),
            (500, false),
            (429, false),
        ] {
            let error = rejected(WriteVerb::Apply, code, "");
            assert_eq!(error.is_permanent(), is_permanent, "{code}");
        }
        let patch = rejected(WriteVerb::Patch, 422, "");
        assert!(
            !patch.is_permanent(),
            "a patch depends on the observed object"
        );
    }

    #[test]
    fn expected_rejections_are_no_errors() {
        let written = |code, reason| Err::<(), _>(rejected(WriteVerb::Delete, code, reason));
        let gone_or_changed = [Rejection::Gone, Rejection::Conflict];
        for code in [404, 409, 410] {
            assert!(matches!(
                written(code, "").unless(&gone_or_changed),
                Ok(None)
            ));
        }
        assert!(written(422, "").unless(&gone_or_changed).is_err());
        assert!(written(500, "").unless(&gone_or_changed).is_err());
        let exists = written(409, "AlreadyExists");
        assert!(exists.unless(&[Rejection::Conflict]).is_err());
    }
}
