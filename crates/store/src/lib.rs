//! Stores of backups: one interface over a directory, S3, Azure, Google and Alibaba.
//!
//! ```text
//! flags ──► StoreConfig ─┐                     ┌─ list, head, delete
//!  (args)                ├─► SnapStore::open ──┼─ download: parallel ranges, in order
//! variables, files ──────┘   (provider)        └─ upload: parallel parts, create-only
//!  (credentials)
//! ```
//!
//! **Comes in**: command line groups ([`StoreArgs`], [`SourceStoreArgs`]) and the [`Environment`], which
//! is read once and handed over. **Goes out**: [`Object`]s, bytes, and [`StoreError`]s that name the
//! object and answer [`StoreError::class`].
//!
//! **Holds**: every operation has a deadline and is retried with backoff while it makes sense; a
//! transfer goes on from the byte it reached; bytes of two versions of an object never mix; sizes are
//! verified after every upload; memory is bounded by configuration, never by the size of an object;
//! nothing is spooled to disk; secrets never appear in `Debug` or `Display` output.
//!
//! **Does not do**: know what a snapshot is. Names, chains and retention are the archive's.
//!
//! **After a crash**: an object is there whole or not at all.

pub mod args;
mod backend;
pub mod config;
mod connector;
pub mod credentials;
mod download;
mod environment;
pub mod error;
mod local;
mod provider;
mod retry;
mod secret;
mod store;
mod upload;

pub use args::{StoreArgsError, SourceStoreArgs, StoreArgs};
pub use config::{TransferConfig, StorageProvider, StoreRole, StoreConfig};
pub use credentials::{CredentialError, CredentialFingerprint};
pub use download::{Download, DownloadReader};
pub use environment::Environment;
pub use error::{ErrorClass, AttemptError, ObjectLocation, StoreOperation, StoreError};
pub use provider::{ExternalAccountError, StoreOpenError};
pub use secret::Secret;
pub use store::{ObjectInfo, SnapStore};
pub use upload::{Upload, UploadOptions, UploadWriter};
