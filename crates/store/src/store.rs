//! The store: a client, a prefix, deadlines.
//!
//! Keys are complete keys inside the container; [`SnapStore::key`] puts the prefix in front.

use std::fmt;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use futures::TryStreamExt;
use jiff::Timestamp;

use crate::backend::{Backend, Mode};
use crate::config::{DOWNLOAD_BUDGET_BYTES, Effort, Provider, StoreConfig};
use crate::credentials::{self, Fingerprint};
use crate::download::Download;
use crate::environment::Environment;
use crate::error::{Class, Fault, Place, Step, StoreError};
use crate::provider::{self, OpenError};
use crate::retry::{Attempts, Patience};
use crate::upload::{Upload, UploadOptions};

/// An object as a listing shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Object {
    /// Complete key inside the container.
    pub key: String,
    /// Size in bytes.
    pub size: u64,
    /// When the store received it.
    pub modified: Timestamp,
    /// The store's name for this version of the content, when it has one.
    pub etag: Option<String>,
}

/// A store that is open. Cheap to clone; clones share connections.
///
/// Every operation has a deadline, is retried while that makes sense, and may be dropped at any
/// await: nothing half-done becomes visible.
#[derive(Clone)]
pub struct SnapStore(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) backend: Backend,
    pub(crate) effort: Effort,
    pub(crate) patience: Patience,
    provider: Provider,
    container: Arc<str>,
    prefix: String,
    config: StoreConfig,
    env: Environment,
    opened_with: Fingerprint,
}

impl SnapStore {
    /// Reads credentials and builds the client; nothing is sent yet.
    ///
    /// Reads a few small files, so long-running programs call it on the blocking pool.
    pub fn open(config: &StoreConfig, env: &Environment) -> Result<Self, OpenError> {
        // Taken first: files replaced while they are read count as changed afterwards.
        let opened_with = credentials::fingerprint(env, config.role, config.provider);
        let backend = provider::open(config, env)?;
        Ok(Self(Arc::new(Inner {
            backend,
            effort: config.effort.clone(),
            patience: Patience::from(&config.effort),
            provider: config.provider,
            container: config.container.as_str().into(),
            prefix: config.prefix.clone(),
            config: config.clone(),
            env: env.clone(),
            opened_with,
        })))
    }

    /// Who keeps the objects.
    pub fn provider(&self) -> Provider {
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
    pub fn fingerprint(&self) -> &Fingerprint {
        &self.0.opened_with
    }

    /// Whether a credential file was replaced since; then [`SnapStore::reopen`] is due.
    pub fn credentials_changed(&self) -> bool {
        let now = credentials::fingerprint(&self.0.env, self.0.config.role, self.0.provider);
        now != self.0.opened_with
    }

    /// The same store with credentials as they are now. Transfers under way keep the old ones.
    pub fn reopen(&self) -> Result<Self, OpenError> {
        Self::open(&self.0.config, &self.0.env)
    }

    /// All objects below `folder`, by key; exactly that folder, never a sibling it is a prefix of.
    ///
    /// A listing that breaks off is taken up after the last key received.
    pub async fn list(&self, folder: &str) -> Result<Vec<Object>, StoreError> {
        let folder = folder.trim_matches('/');
        if !folder.is_empty() {
            self.0.check(folder)?;
        }
        let mut found: Vec<Object> = Vec::new();
        let mut attempts = Attempts::new(self.0.patience);
        loop {
            let after = found.last().map(|object| object.key.clone());
            match self
                .0
                .list_on(folder, after.as_deref(), &mut found, &mut attempts)
                .await
            {
                Ok(()) => break,
                Err(fault) => attempts
                    .pause(fault)
                    .await
                    .map_err(|gave_up| gave_up.at(Step::List, self.0.place(folder)))?,
            }
        }
        found.sort_by(|a, b| a.key.cmp(&b.key));
        found.dedup_by(|a, b| a.key == b.key);
        // Some stores show a folder as an empty object of its own name.
        found.retain(|object| object.key != folder);
        Ok(found)
    }

    /// Size and version of an object.
    pub async fn head(&self, key: &str) -> Result<Object, StoreError> {
        self.0.check(key)?;
        self.0.head(key).await
    }

    /// Deletes an object; one that is not there counts as deleted.
    pub async fn delete(&self, key: &str) -> Result<(), StoreError> {
        self.0.check(key)?;
        let outcome = self.0.patience.run(|_| self.0.backend.delete(key)).await;
        outcome.map_err(|gave_up| gave_up.at(Step::Delete, self.0.place(key)))
    }

    /// A whole object in memory, if it is no larger than `limit_bytes`.
    pub async fn get_bytes(&self, key: &str, limit_bytes: u64) -> Result<Bytes, StoreError> {
        let mut download = self.download(key, None).await?;
        let found = download.size();
        if found > limit_bytes {
            let place = self.0.place(key);
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
        self.download_within(key, size, DOWNLOAD_BUDGET_BYTES).await
    }

    /// As [`Self::download`], holding no more than about `budget_bytes` in memory: for callers that
    /// read several objects at once.
    pub async fn download_within(
        &self,
        key: &str,
        size: Option<u64>,
        budget_bytes: u64,
    ) -> Result<Download, StoreError> {
        self.0.check(key)?;
        let object = self.0.head(key).await?;
        if let Some(expected) = size.filter(|size| *size != object.size) {
            let place = self.0.place(key);
            return Err(StoreError::Size {
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
        self.0.check(key)?;
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

impl Inner {
    pub(crate) fn place(&self, key: &str) -> Place {
        Place {
            provider: self.provider,
            container: Arc::clone(&self.container),
            key: key.to_owned(),
        }
    }

    /// Refuses keys that mean different things to different stores, or leave the container.
    fn check(&self, key: &str) -> Result<(), StoreError> {
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
        Err(StoreError::Key {
            place: self.place(key),
            reason,
        })
    }

    pub(crate) async fn head(&self, key: &str) -> Result<Object, StoreError> {
        let outcome = self.patience.run(|_| self.backend.head(key)).await;
        outcome.map_err(|gave_up| gave_up.at(Step::Head, self.place(key)))
    }

    /// Appends to `found` until the listing ends or breaks off.
    async fn list_on(
        &self,
        folder: &str,
        after: Option<&str>,
        found: &mut Vec<Object>,
        attempts: &mut Attempts,
    ) -> Result<(), Fault> {
        let mut page = self.backend.list(folder, after);
        while let Some(object) = attempts.briefly(page.try_next()).await? {
            found.push(object);
            attempts.progress();
        }
        Ok(())
    }

    /// Writes a small object in one request.
    ///
    /// When an answer is lost, the next attempt may find the object we wrote ourselves: with
    /// create-only, an object in the way is compared with ours before it is called an obstacle.
    pub(crate) async fn put(&self, key: &str, bytes: Bytes, mode: Mode) -> Result<(), StoreError> {
        let mut attempts = Attempts::new(self.patience);
        let mut is_repeat = false;
        loop {
            let put = self.backend.put(key, bytes.clone(), mode);
            let fault = match attempts.within(put).await {
                Ok(()) => return Ok(()),
                Err(fault) => fault,
            };
            let fault = match (mode, fault.class()) {
                (Mode::Create, Class::Exists) => match self.obstacle(key, &bytes).await? {
                    Obstacle::Equal if is_repeat => return Ok(()),
                    Obstacle::Gone => Fault::Short {
                        expected: 1,
                        found: 0,
                    },
                    _ => {
                        return Err(StoreError::Exists {
                            place: self.place(key),
                        });
                    }
                },
                _ => fault,
            };
            is_repeat = true;
            attempts
                .pause(fault)
                .await
                .map_err(|gave_up| gave_up.at(Step::Put, self.place(key)))?;
        }
    }

    /// What is in the way of a create-only write.
    async fn obstacle(&self, key: &str, ours: &[u8]) -> Result<Obstacle, StoreError> {
        let object = match self.head(key).await {
            Ok(object) => object,
            // A conflict with a writer that failed, or a delete: nothing is there now.
            Err(error) if error.class() == Class::NotFound => return Ok(Obstacle::Gone),
            Err(error) => return Err(error),
        };
        if object.size != ours.len() as u64 {
            return Ok(Obstacle::Foreign);
        }
        let read = self.patience.run(|_| async {
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
            Ok(theirs) if theirs == ours => Ok(Obstacle::Equal),
            Ok(_) => Ok(Obstacle::Foreign),
            Err(gave_up) => Err(gave_up.at(Step::Read, self.place(key))),
        }
    }
}

/// See [`Inner::obstacle`].
enum Obstacle {
    Gone,
    Equal,
    Foreign,
}
