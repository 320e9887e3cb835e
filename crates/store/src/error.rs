//! What can go wrong while talking to a store, and what to do about it.

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use object_store::client::HttpError;

use crate::config::Provider;
use crate::connector::RemoteStatus;

/// What a caller should do about an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Class {
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

impl Class {
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
pub struct Place {
    /// Who keeps it.
    pub provider: Provider,
    /// Bucket, blob container or directory.
    pub container: Arc<str>,
    /// Key inside the container.
    pub key: String,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}/{}", self.provider, self.container, self.key)
    }
}

/// The operation that was under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Step {
    /// Listing a folder.
    List,
    /// Asking for size and version of an object.
    Head,
    /// Reading bytes of an object.
    Read,
    /// Writing an object in one request.
    Put,
    /// Starting a multipart upload.
    Begin,
    /// Sending one part.
    Part,
    /// Turning parts into an object.
    Complete,
    /// Throwing parts away.
    Abort,
    /// Deleting an object.
    Delete,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::List => "list",
            Self::Head => "look up",
            Self::Read => "read",
            Self::Put => "write",
            Self::Begin => "begin the upload of",
            Self::Part => "upload a part of",
            Self::Complete => "complete the upload of",
            Self::Abort => "abort the upload of",
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
        step: Step,
        /// On what.
        place: Place,
        /// How many times.
        attempts: u32,
        /// For how long.
        elapsed: Duration,
        /// The last failure.
        source: Box<Fault>,
    },
    /// Create-only: an object of that name is there, and it is not ours.
    #[error("{place} exists already")]
    Exists {
        /// The object in the way.
        place: Place,
    },
    /// The object was replaced while it was read.
    #[error("{place} changed while it was read: began with {expected}, now {found}")]
    Changed {
        /// The object.
        place: Place,
        /// Version and size at the beginning.
        expected: String,
        /// Version and size seen later.
        found: String,
    },
    /// The object has another size than the catalogue or the upload says.
    #[error("{place} holds {found} bytes, expected {expected}")]
    Size {
        /// The object.
        place: Place,
        /// Bytes expected.
        expected: u64,
        /// Bytes the store reports.
        found: u64,
    },
    /// The object is too large to be held in memory.
    #[error("{place} holds {found} bytes, more than the {limit} allowed here")]
    TooLarge {
        /// The object.
        place: Place,
        /// Bytes the store reports.
        found: u64,
        /// Bytes allowed.
        limit: u64,
    },
    /// The key cannot name an object.
    #[error("{place} is not a usable key: {reason}")]
    Key {
        /// The key as given.
        place: Place,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The upload failed or was abandoned before; it can only be aborted.
    #[error("the upload of {place} failed before and takes no more data")]
    Closed {
        /// The object being uploaded.
        place: Place,
    },
    /// A background task was cancelled or panicked.
    #[error("a transfer task of {place} ended early")]
    Task {
        /// The object being transferred.
        place: Place,
        /// How the task ended.
        source: tokio::task::JoinError,
    },
}

impl StoreError {
    /// What to do about it.
    pub fn class(&self) -> Class {
        match self {
            Self::Request { source, .. } => source.class(),
            Self::Exists { .. } => Class::Exists,
            Self::Changed { .. } | Self::Size { .. } => Class::Corrupt,
            Self::TooLarge { .. } | Self::Key { .. } | Self::Closed { .. } | Self::Task { .. } => {
                Class::Invalid
            }
        }
    }

    /// The object or folder concerned.
    pub fn place(&self) -> &Place {
        match self {
            Self::Request { place, .. }
            | Self::Exists { place }
            | Self::Changed { place, .. }
            | Self::Size { place, .. }
            | Self::TooLarge { place, .. }
            | Self::Key { place, .. }
            | Self::Closed { place }
            | Self::Task { place, .. } => place,
        }
    }

    /// The same error for code that reads and writes through `std::io`; `downcast` gets it back.
    pub fn into_io(self) -> io::Error {
        let kind = match self.class() {
            Class::Transient => io::ErrorKind::TimedOut,
            Class::NotFound => io::ErrorKind::NotFound,
            Class::Denied => io::ErrorKind::PermissionDenied,
            Class::Exists => io::ErrorKind::AlreadyExists,
            Class::Corrupt => io::ErrorKind::InvalidData,
            Class::Invalid => io::ErrorKind::InvalidInput,
        };
        io::Error::new(kind, self)
    }
}

/// One failed attempt.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
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
    Short {
        /// Bytes asked for.
        expected: u64,
        /// Bytes received.
        found: u64,
    },
    /// The body went on too long.
    #[error("the body is longer than the {expected} bytes asked for")]
    Long {
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

impl Fault {
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
            if let Some(status) = cause.downcast_ref::<RemoteStatus>() {
                return status.status == 501;
            }
            next = cause.source();
        }
        false
    }

    /// What to do about it.
    pub fn class(&self) -> Class {
        match self {
            Self::Remote(error) => remote_class(error),
            Self::File { source, .. } => file_class(source),
            Self::Stalled { .. } | Self::Short { .. } => Class::Transient,
            Self::Long { .. } | Self::Replaced { .. } => Class::Corrupt,
            Self::Cancelled => Class::Invalid,
        }
    }
}

fn file_class(error: &io::Error) -> Class {
    match error.kind() {
        io::ErrorKind::NotFound => Class::NotFound,
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => Class::Denied,
        io::ErrorKind::AlreadyExists => Class::Exists,
        io::ErrorKind::Interrupted
        | io::ErrorKind::TimedOut
        | io::ErrorKind::StaleNetworkFileHandle => Class::Transient,
        _ => Class::Invalid,
    }
}

fn remote_class(error: &object_store::Error) -> Class {
    use object_store::Error;
    match error {
        Error::NotFound { .. } => Class::NotFound,
        Error::AlreadyExists { .. } => Class::Exists,
        Error::Precondition { .. } | Error::NotModified { .. } => Class::Corrupt,
        Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => Class::Denied,
        Error::Generic { source, .. } => generic_class(source.as_ref()),
        _ => Class::Invalid,
    }
}

/// Looks for the reason at the bottom of a chain that its wrappers do not reveal.
fn generic_class(error: &(dyn StdError + 'static)) -> Class {
    let mut class = Class::Invalid;
    let mut next = Some(error);
    while let Some(cause) = next {
        if let Some(status) = cause.downcast_ref::<RemoteStatus>() {
            return status.class();
        }
        if let Some(error) = cause.downcast_ref::<opendal::Error>() {
            return oss_class(error);
        }
        if is_untrusted_certificate(cause) {
            return Class::Invalid;
        }
        if cause.is::<HttpError>() {
            // The connection failed; unless something below explains it, it may work next time.
            class = Class::Transient;
        }
        next = cause.source();
    }
    class
}

fn oss_class(error: &opendal::Error) -> Class {
    match error.kind() {
        opendal::ErrorKind::PermissionDenied => Class::Denied,
        _ if error.is_temporary() => Class::Transient,
        _ => Class::Invalid,
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
