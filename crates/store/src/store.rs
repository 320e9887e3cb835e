//! An open store: client, prefix and timeouts.
//!
//! Keys are complete keys inside the container; [`SnapStore::key`] prepends the prefix.

use std::fmt;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use futures::TryStreamExt;
use jiff::Timestamp;

use crate::backend::{Backend, WriteMode};
use crate::config::{DOWNLOAD_BUDGET_BYTES, StorageProvider, StoreConfig, TransferConfig};
use crate::credentials::{self, CredentialFingerprint};
use crate::download::Download;
use crate::environment::Environment;
use crate::error::{AttemptError, ErrorClass, ObjectLocation, StoreError, StoreOperation};
use crate::provider::{self, StoreOpenError};
use crate::retry::{RetryPolicy, RetryState};
use crate::upload::{Upload, UploadOptions};

/// Metadata of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectInfo {
    /// Complete key inside the container.
    pub key: String,
    /// Size in bytes.
    pub size: u64,
    /// Last modification time according to the store.
    pub last_modified: Timestamp,
    /// Version of the content; `None` if the store reports none.
    pub etag: Option<String>,
}

/// An open store. Cheap to clone; clones share connections.
///
/// Every operation has a deadline and retries transient failures. Dropping a future at any await point
/// leaves no partial object visible.
#[derive(Clone)]
pub struct SnapStore(pub(crate) Arc<StoreInner>);

pub(crate) struct StoreInner {
    pub(crate) backend: Backend,
    pub(crate) transfer: TransferConfig,
    pub(crate) retry_policy: RetryPolicy,
    provider: StorageProvider,
    container: Arc<str>,
    prefix: String,
    config: StoreConfig,
    env: Environment,
    credential_fingerprint: CredentialFingerprint,
}

impl SnapStore {
    /// Reads credentials and builds the client; sends no request.
    ///
    /// Blocks on reading a few small files: call it on the blocking pool in async code.
    pub fn open(config: &StoreConfig, env: &Environment) -> Result<Self, StoreOpenError> {
        // Taken before the files are read: a file replaced during the read then counts as changed.
        let credential_fingerprint =
            credentials::fingerprint_credentials(env, config.role, config.provider);
        let backend = provider::open_backend(config, env)?;
        Ok(Self(Arc::new(StoreInner {
            backend,
            transfer: config.transfer.clone(),
            retry_policy: RetryPolicy::from(&config.transfer),
            provider: config.provider,
            container: config.container.as_str().into(),
            prefix: config.prefix.clone(),
            config: config.clone(),
            env: env.clone(),
            credential_fingerprint,
        })))
    }

    /// Storage provider.
    pub fn provider(&self) -> StorageProvider {
        self.0.provider
    }

    /// Bucket, blob container or directory.
    pub fn container(&self) -> &str {
        &self.0.container
    }

    /// Folder of the backups, without leading or trailing slash.
    pub fn prefix(&self) -> &str {
        &self.0.prefix
    }

    /// The complete key of `name` below the prefix.
    pub fn key(&self, name: &str) -> String {
        if self.0.prefix.is_empty() {
            name.to_owned()
        } else {
            format!("{}/{name}", self.0.prefix)
        }
    }

    /// Fingerprint of the credential files when the store was opened.
    pub fn credential_fingerprint(&self) -> &CredentialFingerprint {
        &self.0.credential_fingerprint
    }

    /// Whether a credential file changed since the store was opened; call [`SnapStore::reopen`] then.
    pub fn has_changed_credentials(&self) -> bool {
        let now =
            credentials::fingerprint_credentials(&self.0.env, self.0.config.role, self.0.provider);
        now != self.0.credential_fingerprint
    }

    /// Opens the store again with the current credentials. Running transfers keep the old ones.
    pub fn reopen(&self) -> Result<Self, StoreOpenError> {
        Self::open(&self.0.config, &self.0.env)
    }

    /// Lists all objects below `folder`, sorted by key. Excludes siblings whose names start with `folder`.
    ///
    /// An interrupted listing resumes after the last key received.
    pub async fn list(&self, folder: &str) -> Result<Vec<ObjectInfo>, StoreError> {
        let folder = folder.trim_matches('/');
        if !folder.is_empty() {
            self.0.validate_key(folder)?;
        }
        let mut found: Vec<ObjectInfo> = Vec::new();
        let mut attempts = RetryState::new(self.0.retry_policy);
        loop {
            let after = found.last().map(|object| object.key.clone());
            match self
                .0
                .continue_list(folder, after.as_deref(), &mut found, &mut attempts)
                .await
            {
                Ok(()) => break,
                Err(fault) => attempts
                    .wait_before_retry(fault)
                    .await
                    .map_err(|exhausted| {
                        exhausted.into_store_error(StoreOperation::List, self.0.location(folder))
                    })?,
            }
        }
        found.sort_by(|a, b| a.key.cmp(&b.key));
        found.dedup_by(|a, b| a.key == b.key);
        // Some stores list a folder as an empty object with the folder's name.
        found.retain(|object| object.key != folder);
        Ok(found)
    }

    /// Size and version of an object.
    pub async fn head(&self, key: &str) -> Result<ObjectInfo, StoreError> {
        self.0.validate_key(key)?;
        self.0.head(key).await
    }

    /// Deletes an object; succeeds if it does not exist.
    pub async fn delete(&self, key: &str) -> Result<(), StoreError> {
        self.0.validate_key(key)?;
        let outcome = self
            .0
            .retry_policy
            .run(|_| self.0.backend.delete(key))
            .await;
        outcome.map_err(|exhausted| {
            exhausted.into_store_error(StoreOperation::Delete, self.0.location(key))
        })
    }

    /// Reads a complete object into memory; fails if it is larger than `limit_bytes`.
    pub async fn get_bytes(&self, key: &str, limit_bytes: u64) -> Result<Bytes, StoreError> {
        let mut download = self.download(key, None).await?;
        let found = download.size();
        if found > limit_bytes {
            let place = self.0.location(key);
            return Err(StoreError::TooLarge {
                place,
                found,
                limit: limit_bytes,
            });
        }
        let mut bytes = BytesMut::new();
        while let Some(part) = download.next_part().await {
            bytes.extend_from_slice(&part?);
        }
        Ok(bytes.freeze())
    }

    /// Starts the download of an object; range requests are already running on return.
    ///
    /// `size` is the expected size in bytes, if known; another size in the store is an error.
    pub async fn download(&self, key: &str, size: Option<u64>) -> Result<Download, StoreError> {
        self.download_with_budget(key, size, DOWNLOAD_BUDGET_BYTES)
            .await
    }

    /// Like [`Self::download`], with at most about `budget_bytes` in memory, for callers that read several
    /// objects in parallel.
    pub async fn download_with_budget(
        &self,
        key: &str,
        size: Option<u64>,
        budget_bytes: u64,
    ) -> Result<Download, StoreError> {
        self.0.validate_key(key)?;
        let object = self.0.head(key).await?;
        if let Some(expected) = size.filter(|size| *size != object.size) {
            let place = self.0.location(key);
            return Err(StoreError::SizeMismatch {
                place,
                expected,
                found: object.size,
            });
        }
        Ok(Download::start(Arc::clone(&self.0), object, budget_bytes))
    }

    /// Starts an upload. The first request is sent when a part is full or the upload finishes.
    ///
    /// Must be called inside a Tokio runtime, which [`Upload`] keeps using.
    pub fn upload(&self, key: &str, options: UploadOptions) -> Result<Upload, StoreError> {
        self.0.validate_key(key)?;
        Ok(Upload::new(Arc::clone(&self.0), key.to_owned(), options))
    }
}

impl fmt::Debug for SnapStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SnapStore")
            .field("provider", &self.0.provider)
            .field("container", &self.0.container)
            .field("prefix", &self.0.prefix)
            .finish_non_exhaustive()
    }
}

impl StoreInner {
    pub(crate) fn location(&self, key: &str) -> ObjectLocation {
        ObjectLocation {
            provider: self.provider,
            container: Arc::clone(&self.container),
            key: key.to_owned(),
        }
    }

    /// Rejects keys that stores interpret differently, or that leave the container.
    fn validate_key(&self, key: &str) -> Result<(), StoreError> {
        let reason = if key.is_empty() {
            "must not be empty"
        } else if key.len() > 1024 {
            "must be at most 1024 bytes long"
        } else if key.chars().any(char::is_control) {
            "must not contain control characters"
        } else if key.split('/').any(|part| matches!(part, "" | "." | "..")) {
            "must not contain an empty, `.` or `..` segment"
        } else {
            return Ok(());
        };
        Err(StoreError::InvalidKey {
            place: self.location(key),
            reason,
        })
    }

    pub(crate) async fn head(&self, key: &str) -> Result<ObjectInfo, StoreError> {
        let outcome = self.retry_policy.run(|_| self.backend.head(key)).await;
        outcome.map_err(|exhausted| {
            exhausted.into_store_error(StoreOperation::Head, self.location(key))
        })
    }

    /// Appends to `found` until the listing ends or fails.
    async fn continue_list(
        &self,
        folder: &str,
        after: Option<&str>,
        found: &mut Vec<ObjectInfo>,
        attempts: &mut RetryState,
    ) -> Result<(), AttemptError> {
        let mut page = self.backend.list(folder, after);
        while let Some(object) = attempts.with_stall_timeout(page.try_next()).await? {
            found.push(object);
            attempts.record_progress();
        }
        Ok(())
    }

    /// Writes a small object in one request.
    ///
    /// If a response is lost, a create-only retry finds the object that the first attempt wrote. An existing
    /// object is therefore compared with `bytes` before it counts as a conflict.
    pub(crate) async fn put_object(
        &self,
        key: &str,
        bytes: Bytes,
        mode: WriteMode,
    ) -> Result<(), StoreError> {
        let mut attempts = RetryState::new(self.retry_policy);
        let mut is_repeat = false;
        loop {
            let put = self.backend.put(key, bytes.clone(), mode);
            let fault = match attempts.with_request_timeout(put).await {
                Ok(()) => return Ok(()),
                Err(fault) => fault,
            };
            let fault = match (mode, fault.class()) {
                (WriteMode::Create, ErrorClass::Exists) => {
                    match self.inspect_existing(key, &bytes).await? {
                        ExistingObject::Identical if is_repeat => return Ok(()),
                        // A transient fault, so that the write is retried.
                        ExistingObject::Gone => AttemptError::BodyTooShort {
                            expected: 1,
                            found: 0,
                        },
                        _ => {
                            return Err(StoreError::AlreadyExists {
                                place: self.location(key),
                            });
                        }
                    }
                }
                _ => fault,
            };
            is_repeat = true;
            attempts
                .wait_before_retry(fault)
                .await
                .map_err(|exhausted| {
                    exhausted.into_store_error(StoreOperation::Put, self.location(key))
                })?;
        }
    }

    /// Compares the object that blocks a create-only write with `ours`.
    async fn inspect_existing(&self, key: &str, ours: &[u8]) -> Result<ExistingObject, StoreError> {
        let object = match self.head(key).await {
            Ok(object) => object,
            // The conflicting writer failed, or the object was deleted since.
            Err(error) if error.class() == ErrorClass::NotFound => return Ok(ExistingObject::Gone),
            Err(error) => return Err(error),
        };
        if object.size != ours.len() as u64 {
            return Ok(ExistingObject::Different);
        }
        let read = self.retry_policy.run(|_| async {
            let body = self
                .backend
                .read(key, 0..object.size, object.etag.as_deref())
                .await?;
            body.chunks
                .map_ok(|chunk| chunk.to_vec())
                .try_concat()
                .await
        });
        let theirs = if ours.is_empty() {
            Ok(Vec::new())
        } else {
            read.await
        };
        match theirs {
            Ok(theirs) if theirs == ours => Ok(ExistingObject::Identical),
            Ok(_) => Ok(ExistingObject::Different),
            Err(exhausted) => {
                Err(exhausted.into_store_error(StoreOperation::Read, self.location(key)))
            }
        }
    }
}

/// The object found by [`StoreInner::inspect_existing`].
enum ExistingObject {
    Gone,
    Identical,
    Different,
}
