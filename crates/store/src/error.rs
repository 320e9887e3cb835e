//! Errors of store operations, classified by what the caller should do.

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use object_store::client::HttpError;

use crate::config::StorageProvider;
use crate::connector::HttpStatusError;

/// How a caller should handle an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorClass {
    /// The request is valid; retry it later.
    Transient,
    /// The object, container or folder does not exist.
    NotFound,
    /// The credentials do not permit the operation.
    Denied,
    /// A create-only write found an existing object.
    Exists,
    /// The store returned inconsistent data. Stop; an operator must investigate.
    Corrupt,
    /// The request or configuration is invalid; a retry fails the same way.
    Invalid,
}

impl ErrorClass {
    /// The value used in metric labels and reports.
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

/// The location of an object or folder: provider, container and key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectLocation {
    /// Storage provider.
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

/// The store operation that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreOperation {
    /// Listing a folder.
    List,
    /// Reading size and version of an object.
    Head,
    /// Reading bytes of an object.
    Read,
    /// Writing an object in one request.
    Put,
    /// Starting a multipart upload.
    BeginUpload,
    /// Sending one part.
    UploadPart,
    /// Combining the uploaded parts into an object.
    CompleteUpload,
    /// Discarding the uploaded parts.
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
            Self::BeginUpload => "start upload of",
            Self::UploadPart => "upload part of",
            Self::CompleteUpload => "complete upload of",
            Self::AbortUpload => "abort upload of",
            Self::Delete => "delete",
        })
    }
}

/// A failed store operation. Names the object; [`StoreError::class`] determines how to handle it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The store rejected the request, or it kept failing until the retry timeout.
    #[error("{step} {place}: failed after {attempts} attempt(s) in {elapsed:.1?}")]
    Request {
        /// The operation.
        step: StoreOperation,
        /// The object or folder.
        place: ObjectLocation,
        /// Number of attempts, at least 1.
        attempts: u32,
        /// Time from the first attempt to the last failure.
        elapsed: Duration,
        /// The failure of the last attempt.
        source: Box<AttemptError>,
    },
    /// A create-only write found an object with the same key and other content.
    #[error("create {place}: object already exists")]
    AlreadyExists {
        /// The existing object.
        place: ObjectLocation,
    },
    /// The object was replaced while it was read.
    #[error("read {place}: object changed during the read: expected {expected}, found {found}")]
    Changed {
        /// The object.
        place: ObjectLocation,
        /// Version and size at the start of the read.
        expected: String,
        /// Version and size observed later.
        found: String,
    },
    /// The size of the object differs from the catalogue or from the bytes uploaded.
    #[error("{place}: size mismatch: expected {expected} bytes, store reports {found}")]
    SizeMismatch {
        /// The object.
        place: ObjectLocation,
        /// Expected size in bytes.
        expected: u64,
        /// Size in bytes that the store reports.
        found: u64,
    },
    /// The object exceeds the caller's limit for reading into memory.
    #[error("read {place}: {found} bytes exceed the limit of {limit} bytes")]
    TooLarge {
        /// The object.
        place: ObjectLocation,
        /// Size in bytes that the store reports.
        found: u64,
        /// Limit in bytes.
        limit: u64,
    },
    /// The key is not portable across stores or leaves the container.
    #[error("{place}: invalid key: {reason}")]
    InvalidKey {
        /// The key as given.
        place: ObjectLocation,
        /// The rule that the key breaks.
        reason: &'static str,
    },
    /// The upload failed or was dropped earlier; it can only be aborted.
    #[error("upload {place}: upload is closed after an earlier failure")]
    Closed {
        /// The object being uploaded.
        place: ObjectLocation,
    },
    /// A background task was cancelled or panicked.
    #[error("transfer {place}: background task was cancelled or panicked")]
    TaskFailed {
        /// The object being transferred.
        place: ObjectLocation,
        /// Cancellation or panic of the task.
        source: tokio::task::JoinError,
    },
}

impl StoreError {
    /// How the caller should handle the error.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Request { source, .. } => source.class(),
            Self::AlreadyExists { .. } => ErrorClass::Exists,
            Self::Changed { .. } | Self::SizeMismatch { .. } => ErrorClass::Corrupt,
            Self::TooLarge { .. }
            | Self::InvalidKey { .. }
            | Self::Closed { .. }
            | Self::TaskFailed { .. } => ErrorClass::Invalid,
        }
    }

    /// The object or folder of the failed operation.
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

    /// Wraps the error for code that uses `std::io`; `downcast` returns the [`StoreError`].
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

/// Returns whether `error` or one of its causes is a [`StoreError`]: what was being read is then not known to be damaged.
pub fn is_store_failure(error: &(dyn StdError + 'static)) -> bool {
    if error.is::<StoreError>() {
        return true;
    }
    // `io::Error::source` skips the error it wraps and returns that error's source.
    let carried = error
        .downcast_ref::<io::Error>()
        .and_then(io::Error::get_ref);
    match carried {
        Some(carried) => is_store_failure(carried),
        None => error.source().is_some_and(is_store_failure),
    }
}

/// The failure of one attempt.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AttemptError {
    /// The client library or the server returned an error.
    #[error(transparent)]
    Remote(#[from] object_store::Error),
    /// A local file operation failed.
    #[error("access file {}", path.display())]
    File {
        /// The file or directory.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// No response, or no further bytes of a body, within the timeout.
    #[error("no data received for {after:.1?}")]
    Stalled {
        /// The timeout that expired.
        after: Duration,
    },
    /// The response body is shorter than the requested range.
    #[error("response body ended after {found} of {expected} bytes")]
    BodyTooShort {
        /// Bytes requested.
        expected: u64,
        /// Bytes received.
        found: u64,
    },
    /// The response body is longer than the requested range.
    #[error("response body is longer than the requested {expected} bytes")]
    BodyTooLong {
        /// Bytes requested.
        expected: u64,
    },
    /// The response is of another version of the object than the pinned one.
    #[error("object was replaced by {found}")]
    Replaced {
        /// Version and size in the response.
        found: String,
    },
    /// The background thread of a file operation was cancelled or panicked.
    #[error("file operation was cancelled")]
    Cancelled,
}

impl AttemptError {
    pub(crate) fn file(path: impl Into<PathBuf>, source: io::Error) -> Self {
        Self::File {
            path: path.into(),
            source,
        }
    }

    /// Whether the server answered 501 Not Implemented.
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

    /// How the caller should handle the failure.
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
        // ESTALE: an NFS server restarted; the next open gets a new handle.
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

/// Searches the source chain: `object_store` wraps every HTTP failure in `Error::Generic`.
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
        // Retrying does not make a certificate trusted; without this check it counts as a connection failure.
        if is_untrusted_certificate(cause) {
            return ErrorClass::Invalid;
        }
        if cause.is::<HttpError>() {
            // A connection failure is retryable unless a deeper cause is permanent.
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

/// Unwraps I/O errors first: `source()` of an I/O error skips the error it wraps.
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
