//! Object stores for backups: one interface over a local directory, S3, Azure, Google Cloud and Alibaba OSS.
//!
//! ```text
//! flags ──► StoreConfig ─┐                     ┌─ list, head, delete
//!  (args)                ├─► SnapStore::open ──┼─ download: parallel ranges, in order
//! variables, files ──────┘   (provider)        └─ upload: parallel parts, create-only
//!  (credentials)
//! ```
//!
//! **Input**: command line flags ([`StoreArgs`], [`SourceStoreArgs`]) and the [`Environment`], which is
//! captured once. **Output**: [`ObjectInfo`]s, bytes, and [`StoreError`]s that name the object and carry a
//! [`StoreError::class`].
//!
//! **Invariants**: every operation has a deadline; transient failures are retried with backoff; a
//! download resumes at the byte it reached; bytes of two versions of an object never mix; the size is
//! verified after every upload; memory is bounded by configuration, not by object size; transfers use
//! no temporary files; secrets never appear in `Debug` or `Display` output.
//!
//! **Out of scope**: snapshot names, chains and retention; see the archive crate.
//!
//! **After a crash**: an object is either complete or absent.

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

pub use args::{SourceStoreArgs, StoreArgs, StoreArgsError};
pub use config::{StorageProvider, StoreConfig, StoreRole, TransferConfig};
pub use credentials::{CredentialError, CredentialFingerprint};
pub use download::{CancellableReader, Download, DownloadReader};
pub use environment::Environment;
pub use error::{
    AttemptError, ErrorClass, ObjectLocation, StoreError, StoreOperation, is_store_failure,
};
pub use provider::{ExternalAccountError, StoreOpenError};
pub use secret::Secret;
pub use store::{ObjectInfo, SnapStore};
pub use upload::{Upload, UploadOptions, UploadWriter};
