//! The store: a client, a prefix, deadlines.
//!
//! Keys are complete keys inside the container; [`SnapStore::key`] puts the prefix in front.

use std::fmt;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use futures::TryStreamExt;
use jiff::Timestamp;

use crate::backend::{Backend, WriteMode};
use crate::config::{DOWNLOAD_BUDGET_BYTES, TransferConfig, StorageProvider, StoreConfig};
use crate::credentials::{self, CredentialFingerprint};
use crate::download::Download;
use crate::environment::Environment;
use crate::error::{ErrorClass, AttemptError, ObjectLocation, StoreOperation, StoreError};
use crate::provider::{self, StoreOpenError};
use crate::retry::{RetryState, RetryPolicy};
use crate::upload::{Upload, UploadOptions};

/// An object as a listing shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectInfo {
    /// Complete key inside the container.
    pub key: String,
    /// Size in bytes.
    pub size: u64,
    /// When the store received it.
    pub last_modified: Timestamp,
    /// The store's name for this version of the content, when it has one.
    pub etag: Option<String>,
}

/// A store that is open. Cheap to clone; clones share connections.
///
/// Every operation has a deadline, is retried while that makes sense, and may be dropped at any
/// await: nothing half-done becomes visible.
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
    /// Reads credentials and builds the client; nothing is sent yet.
    ///
    /// Reads a few small files, so long-running programs call it on the blocking pool.
    pub fn open(config: &StoreConfig, env: &Environment) -> Result<Self, StoreOpenError> {
        // Taken first: files replaced while they are read count as changed afterwards.
        let credential_fingerprint = credentials::fingerprint_credentials(env, config.role, config.provider);
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

    /// Who keeps the objects.
    pub fn provider(&self) -> StorageProvider {
        self.0.provider
    }

    /// Bucket, blob container or directory.
    pub fn container(&self) -> &str {
        &self.0.container
    }

    /// The folder of the backups, without slashes at its ends.
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

    /// State of the credential files when the store was opened.
    pub fn credential_fingerprint(&self) -> &CredentialFingerprint {
        &self.0.credential_fingerprint
    }

    /// Whether a credential file was replaced since; then [`SnapStore::reopen`] is due.
    pub fn has_changed_credentials(&self) -> bool {
        let now = credentials::fingerprint_credentials(&self.0.env, self.0.config.role, self.0.provider);
        now != self.0.credential_fingerprint
    }

    /// The same store with credentials as they are now. Transfers under way keep the old ones.
    pub fn reopen(&self) -> Result<Self, StoreOpenError> {
        Self::open(&self.0.config, &self.0.env)
    }

    /// All objects below `folder`, by key; exactly that folder, never a sibling it is a prefix of.
    ///
    /// A listing that breaks off is taken up after the last key received.
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
                    .map_err(|gave_up| gave_up.into_store_error(StoreOperation::List, self.0.location(folder)))?,
            }
        }
        found.sort_by(|a, b| a.key.cmp(&b.key));
        found.dedup_by(|a, b| a.key == b.key);
        // Some stores show a folder as an empty object of its own name.
        found.retain(|object| object.key != folder);
        Ok(found)
    }

    /// Size and version of an object.
    pub async fn head(&self, key: &str) -> Result<ObjectInfo, StoreError> {
        self.0.validate_key(key)?;
        self.0.head(key).await
    }

    /// Deletes an object; one that is not there counts as deleted.
    pub async fn delete(&self, key: &str) -> Result<(), StoreError> {
        self.0.validate_key(key)?;
        let outcome = self.0.retry_policy.run(|_| self.0.backend.delete(key)).await;
        outcome.map_err(|gave_up| gave_up.into_store_error(StoreOperation::Delete, self.0.location(key)))
    }

    /// A whole object in memory, if it is no larger than `limit_bytes`.
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

    /// Starts downloading an object; parts are on their way when this returns.
    ///
    /// `size` is what a catalogue says; a store that says otherwise is an error.
    pub async fn download(&self, key: &str, size: Option<u64>) -> Result<Download, StoreError> {
        self.download_with_budget(key, size, DOWNLOAD_BUDGET_BYTES).await
    }

    /// As [`Self::download`], holding no more than about `budget_bytes` in memory: for callers that
    /// read several objects at once.
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

    /// Starts an upload. Nothing is sent before there is a part to send.
    ///
    /// Must be called inside a runtime, which [`Upload`] keeps using.
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

    /// Refuses keys that mean different things to different stores, or leave the container.
    fn validate_key(&self, key: &str) -> Result<(), StoreError> {
        let reason = if key.is_empty() {
            "it is empty"
        } else if key.len() > 1024 {
            "it is longer than 1024 bytes"
        } else if key.chars().any(char::is_control) {
            "it contains a control character"
        } else if key.split('/').any(|part| matches!(part, "" | "." | "..")) {
            "it has an empty, `.` or `..` segment"
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
        outcome.map_err(|gave_up| gave_up.into_store_error(StoreOperation::Head, self.location(key)))
    }

    /// Appends to `found` until the listing ends or breaks off.
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
    /// When an answer is lost, the next attempt may find the object we wrote ourselves: with
    /// create-only, an object in the way is compared with ours before it is called an obstacle.
    pub(crate) async fn put_object(&self, key: &str, bytes: Bytes, mode: WriteMode) -> Result<(), StoreError> {
        let mut attempts = RetryState::new(self.retry_policy);
        let mut is_repeat = false;
        loop {
            let put = self.backend.put(key, bytes.clone(), mode);
            let fault = match attempts.with_request_timeout(put).await {
                Ok(()) => return Ok(()),
                Err(fault) => fault,
            };
            let fault = match (mode, fault.class()) {
                (WriteMode::Create, ErrorClass::Exists) => match self.inspect_existing(key, &bytes).await? {
                    ExistingObject::Identical if is_repeat => return Ok(()),
                    ExistingObject::Gone => AttemptError::BodyTooShort {
                        expected: 1,
                        found: 0,
                    },
                    _ => {
                        return Err(StoreError::AlreadyExists {
                            place: self.location(key),
                        });
                    }
                },
                _ => fault,
            };
            is_repeat = true;
            attempts
                .wait_before_retry(fault)
                .await
                .map_err(|gave_up| gave_up.into_store_error(StoreOperation::Put, self.location(key)))?;
        }
    }

    /// What is in the way of a create-only write.
    async fn inspect_existing(&self, key: &str, ours: &[u8]) -> Result<ExistingObject, StoreError> {
        let object = match self.head(key).await {
            Ok(object) => object,
            // A conflict with a writer that failed, or a delete: nothing is there now.
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
            Err(gave_up) => Err(gave_up.into_store_error(StoreOperation::Read, self.location(key))),
        }
    }
}

/// See [`Inner::inspect_existing`].
enum ExistingObject {
    Gone,
    Identical,
    Different,
}
