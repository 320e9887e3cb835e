//! What can go wrong while talking to a store, and what to do about it.

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use object_store::client::HttpError;

use crate::config::StorageProvider;
use crate::connector::HttpStatusError;

/// What a caller should do about an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorClass {
    /// Try again later; nothing is wrong with the request.
    Transient,
    /// The object, container or folder is not there.
    NotFound,
    /// The credentials do not allow it.
    Denied,
    /// Something is there already and must not be overwritten.
    Exists,
    /// The store answered something that contradicts itself: stop and look.
    Corrupt,
    /// The request or configuration is wrong; trying again gives the same answer.
    Invalid,
}

impl ErrorClass {
    /// The name used in metric labels and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Transient => "transient",
            Self::NotFound => "not-found",
            Self::Denied => "denied",
            Self::Exists => "exists",
            Self::Corrupt => "corrupt",
            Self::Invalid => "invalid",
        }
    }
}

/// An object or folder, as a person would look it up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectLocation {
    /// Who keeps it.
    pub provider: StorageProvider,
    /// Bucket, blob container or directory.
    pub container: Arc<str>,
    /// Key inside the container.
    pub key: String,
}

impl fmt::Display for ObjectLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}/{}", self.provider, self.container, self.key)
    }
}

/// The operation that was under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreOperation {
    /// Listing a folder.
    List,
    /// Asking for size and version of an object.
    Head,
    /// Reading bytes of an object.
    Read,
    /// Writing an object in one request.
    Put,
    /// Starting a multipart upload.
    BeginUpload,
    /// Sending one part.
    UploadPart,
    /// Turning parts into an object.
    CompleteUpload,
    /// Throwing parts away.
    AbortUpload,
    /// Deleting an object.
    Delete,
}

impl fmt::Display for StoreOperation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::List => "list",
            Self::Head => "look up",
            Self::Read => "read",
            Self::Put => "write",
            Self::BeginUpload => "begin the upload of",
            Self::UploadPart => "upload a part of",
            Self::CompleteUpload => "complete the upload of",
            Self::AbortUpload => "abort the upload of",
            Self::Delete => "delete",
        })
    }
}

/// An operation on a store that did not succeed. Names the object; answers [`StoreError::class`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The store refused, did not answer, or kept failing until the retry deadline.
    #[error("{step} {place}: gave up after {attempts} attempts in {elapsed:.1?}")]
    Request {
        /// What was attempted.
        step: StoreOperation,
        /// On what.
        place: ObjectLocation,
        /// How many times.
        attempts: u32,
        /// For how long.
        elapsed: Duration,
        /// The last failure.
        source: Box<AttemptError>,
    },
    /// Create-only: an object of that name is there, and it is not ours.
    #[error("{place} exists already")]
    AlreadyExists {
        /// The object in the way.
        place: ObjectLocation,
    },
    /// The object was replaced while it was read.
    #[error("{place} changed while it was read: began with {expected}, now {found}")]
    Changed {
        /// The object.
        place: ObjectLocation,
        /// Version and size at the beginning.
        expected: String,
        /// Version and size seen later.
        found: String,
    },
    /// The object has another size than the catalogue or the upload says.
    #[error("{place} holds {found} bytes, expected {expected}")]
    SizeMismatch {
        /// The object.
        place: ObjectLocation,
        /// Bytes expected.
        expected: u64,
        /// Bytes the store reports.
        found: u64,
    },
    /// The object is too large to be held in memory.
    #[error("{place} holds {found} bytes, more than the {limit} allowed here")]
    TooLarge {
        /// The object.
        place: ObjectLocation,
        /// Bytes the store reports.
        found: u64,
        /// Bytes allowed.
        limit: u64,
    },
    /// The key cannot name an object.
    #[error("{place} is not a usable key: {reason}")]
    InvalidKey {
        /// The key as given.
        place: ObjectLocation,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The upload failed or was abandoned before; it can only be aborted.
    #[error("the upload of {place} failed before and takes no more data")]
    Closed {
        /// The object being uploaded.
        place: ObjectLocation,
    },
    /// A background task was cancelled or panicked.
    #[error("a transfer task of {place} ended early")]
    TaskFailed {
        /// The object being transferred.
        place: ObjectLocation,
        /// How the task ended.
        source: tokio::task::JoinError,
    },
}

impl StoreError {
    /// What to do about it.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Request { source, .. } => source.class(),
            Self::AlreadyExists { .. } => ErrorClass::Exists,
            Self::Changed { .. } | Self::SizeMismatch { .. } => ErrorClass::Corrupt,
            Self::TooLarge { .. } | Self::InvalidKey { .. } | Self::Closed { .. } | Self::TaskFailed { .. } => {
                ErrorClass::Invalid
            }
        }
    }

    /// The object or folder concerned.
    pub fn location(&self) -> &ObjectLocation {
        match self {
            Self::Request { place, .. }
            | Self::AlreadyExists { place }
            | Self::Changed { place, .. }
            | Self::SizeMismatch { place, .. }
            | Self::TooLarge { place, .. }
            | Self::InvalidKey { place, .. }
            | Self::Closed { place }
            | Self::TaskFailed { place, .. } => place,
        }
    }

    /// The same error for code that reads and writes through `std::io`; `downcast` gets it back.
    pub fn into_io_error(self) -> io::Error {
        let kind = match self.class() {
            ErrorClass::Transient => io::ErrorKind::TimedOut,
            ErrorClass::NotFound => io::ErrorKind::NotFound,
            ErrorClass::Denied => io::ErrorKind::PermissionDenied,
            ErrorClass::Exists => io::ErrorKind::AlreadyExists,
            ErrorClass::Corrupt => io::ErrorKind::InvalidData,
            ErrorClass::Invalid => io::ErrorKind::InvalidInput,
        };
        io::Error::new(kind, self)
    }
}

/// One failed attempt.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AttemptError {
    /// The client library or the server said no.
    #[error(transparent)]
    Remote(#[from] object_store::Error),
    /// The local file system said no.
    #[error("file {}", path.display())]
    File {
        /// The file or directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// No answer, or no further byte, in time.
    #[error("nothing happened for {after:.1?}")]
    Stalled {
        /// How long was waited.
        after: Duration,
    },
    /// The body ended early.
    #[error("the body ended after {found} of {expected} bytes")]
    BodyTooShort {
        /// Bytes asked for.
        expected: u64,
        /// Bytes received.
        found: u64,
    },
    /// The body went on too long.
    #[error("the body is longer than the {expected} bytes asked for")]
    BodyTooLong {
        /// Bytes asked for.
        expected: u64,
    },
    /// The answer describes another version of the object than the one being read.
    #[error("the object is now {found}")]
    Replaced {
        /// Version and size in the answer.
        found: String,
    },
    /// The background thread of a file operation ended early.
    #[error("a file operation was cancelled")]
    Cancelled,
}

impl AttemptError {
    pub(crate) fn file(path: impl Into<PathBuf>, source: io::Error) -> Self {
        Self::File {
            path: path.into(),
            source,
        }
    }

    /// Whether the server says that it does not know this kind of request.
    pub(crate) fn is_unimplemented(&self) -> bool {
        let mut next: Option<&(dyn StdError + 'static)> = Some(self);
        while let Some(cause) = next {
            if let Some(status) = cause.downcast_ref::<HttpStatusError>() {
                return status.status == 501;
            }
            next = cause.source();
        }
        false
    }

    /// What to do about it.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Remote(error) => classify_remote_error(error),
            Self::File { source, .. } => classify_io_error(source),
            Self::Stalled { .. } | Self::BodyTooShort { .. } => ErrorClass::Transient,
            Self::BodyTooLong { .. } | Self::Replaced { .. } => ErrorClass::Corrupt,
            Self::Cancelled => ErrorClass::Invalid,
        }
    }
}

fn classify_io_error(error: &io::Error) -> ErrorClass {
    match error.kind() {
        io::ErrorKind::NotFound => ErrorClass::NotFound,
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => ErrorClass::Denied,
        io::ErrorKind::AlreadyExists => ErrorClass::Exists,
        io::ErrorKind::Interrupted
        | io::ErrorKind::TimedOut
        | io::ErrorKind::StaleNetworkFileHandle => ErrorClass::Transient,
        _ => ErrorClass::Invalid,
    }
}

fn classify_remote_error(error: &object_store::Error) -> ErrorClass {
    use object_store::Error;
    match error {
        Error::NotFound { .. } => ErrorClass::NotFound,
        Error::AlreadyExists { .. } => ErrorClass::Exists,
        Error::Precondition { .. } | Error::NotModified { .. } => ErrorClass::Corrupt,
        Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => ErrorClass::Denied,
        Error::Generic { source, .. } => classify_generic_error(source.as_ref()),
        _ => ErrorClass::Invalid,
    }
}

/// Looks for the reason at the bottom of a chain that its wrappers do not reveal.
fn classify_generic_error(error: &(dyn StdError + 'static)) -> ErrorClass {
    let mut class = ErrorClass::Invalid;
    let mut next = Some(error);
    while let Some(cause) = next {
        if let Some(status) = cause.downcast_ref::<HttpStatusError>() {
            return status.class();
        }
        if let Some(error) = cause.downcast_ref::<opendal::Error>() {
            return classify_oss_error(error);
        }
        if is_untrusted_certificate(cause) {
            return ErrorClass::Invalid;
        }
        if cause.is::<HttpError>() {
            // The connection failed; unless something below explains it, it may work next time.
            class = ErrorClass::Transient;
        }
        next = cause.source();
    }
    class
}

fn classify_oss_error(error: &opendal::Error) -> ErrorClass {
    match error.kind() {
        opendal::ErrorKind::PermissionDenied => ErrorClass::Denied,
        _ if error.is_temporary() => ErrorClass::Transient,
        _ => ErrorClass::Invalid,
    }
}

/// Looks through errors wrapped in I/O errors, which hide them from the chain.
fn is_untrusted_certificate(cause: &(dyn StdError + 'static)) -> bool {
    if let Some(inner) = cause
        .downcast_ref::<io::Error>()
        .and_then(io::Error::get_ref)
    {
        return is_untrusted_certificate(inner);
    }
    matches!(
        cause.downcast_ref(),
        Some(rustls::Error::InvalidCertificate(_))
    )
}

#[cfg(test)]
mod tests;
