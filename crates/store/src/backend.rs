//! A single attempt of each operation, on a remote store or a local directory.
//!
//! Every function is one request or one blocking file operation. Retries, timeouts and splitting into
//! parts belong to [`crate::store`], [`crate::download`] and [`crate::upload`].

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::{self, BoxStream};
use futures::{FutureExt, StreamExt, TryFutureExt, TryStreamExt};
use jiff::Timestamp;
use object_store::multipart::{MultipartStore, PartId};
use object_store::path::Path;
use object_store::{
    GetOptions, GetRange, MultipartUpload, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode,
    PutPayload,
};

use crate::error::{AttemptError, ErrorClass};
use crate::local::{Directory, UnfinishedFile};
use crate::store::ObjectInfo;

/// How a write treats an existing object with the same key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WriteMode {
    Create,
    Overwrite,
}

/// A remote or local store.
#[derive(Debug, Clone)]
pub(crate) enum Backend {
    Remote(Remote),
    Local(Directory),
}

/// A store accessed through the `object_store` library.
#[derive(Clone)]
pub(crate) struct Remote {
    store: Arc<dyn ObjectStore>,
    multipart: Option<Arc<dyn MultipartStore>>,
    checks_before_write: bool,
}

impl Remote {
    /// `parts` is `Some` if the client can resend a part; `checks_before_write` marks servers that may
    /// ignore the condition of a conditional write.
    pub(crate) fn new(
        store: Arc<dyn ObjectStore>,
        multipart: Option<Arc<dyn MultipartStore>>,
        checks_before_write: bool,
    ) -> Self {
        Self {
            store,
            multipart,
            checks_before_write,
        }
    }

    async fn put(&self, key: &str, bytes: Bytes, mode: PutMode) -> Result<(), AttemptError> {
        self.store
            .put_opts(&parse_path(key)?, PutPayload::from(bytes), mode.into())
            .await?;
        Ok(())
    }
}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The client's Debug output may contain its configuration, secrets included.
        write!(f, "Remote({})", self.store)
    }
}

/// A response body and the object version it belongs to.
pub(crate) struct ObjectBody {
    pub(crate) object: ObjectInfo,
    pub(crate) chunks: BoxStream<'static, Result<Bytes, AttemptError>>,
}

impl Backend {
    /// Lists objects below `folder` whose keys sort after `after`.
    pub(crate) fn list(
        &self,
        folder: &str,
        after: Option<&str>,
    ) -> BoxStream<'static, Result<ObjectInfo, AttemptError>> {
        match self {
            Self::Remote(remote) => {
                let found = match (parse_path(folder), after.map(parse_path).transpose()) {
                    (Ok(folder), Ok(None)) => remote.store.list(Some(&folder)),
                    (Ok(folder), Ok(Some(after))) => {
                        remote.store.list_with_offset(Some(&folder), &after)
                    }
                    (Err(fault), _) | (_, Err(fault)) => return stream::iter([Err(fault)]).boxed(),
                };
                found
                    .map_ok(ObjectInfo::from)
                    .map_err(AttemptError::Remote)
                    .boxed()
            }
            Self::Local(directory) => {
                let (directory, folder) = (directory.clone(), folder.to_owned());
                let all = run_blocking(move || directory.list(&folder));
                all.map_ok(|found| stream::iter(found.into_iter().map(Ok)))
                    .try_flatten_stream()
                    .boxed()
            }
        }
    }

    /// Size and version of an object.
    pub(crate) async fn head(&self, key: &str) -> Result<ObjectInfo, AttemptError> {
        match self {
            Self::Remote(remote) => Ok(remote.store.head(&parse_path(key)?).await?.into()),
            Self::Local(directory) => {
                let (directory, key) = (directory.clone(), key.to_owned());
                run_blocking(move || directory.head(&key)).await
            }
        }
    }

    /// Starts reading `range` of an object, conditional on version `etag`.
    pub(crate) async fn read(
        &self,
        key: &str,
        range: Range<u64>,
        etag: Option<&str>,
    ) -> Result<ObjectBody, AttemptError> {
        match self {
            Self::Remote(remote) => {
                let options = GetOptions {
                    range: Some(GetRange::Bounded(range)),
                    if_match: etag.map(str::to_owned),
                    ..GetOptions::default()
                };
                let answer = remote.store.get_opts(&parse_path(key)?, options).await?;
                let object = answer.meta.clone().into();
                let chunks = answer.into_stream().map_err(AttemptError::Remote).boxed();
                Ok(ObjectBody { object, chunks })
            }
            Self::Local(directory) => {
                let (directory, key) = (directory.clone(), key.to_owned());
                let (object, bytes) = run_blocking(move || directory.read(&key, range)).await?;
                Ok(ObjectBody {
                    object,
                    chunks: stream::iter([Ok(bytes)]).boxed(),
                })
            }
        }
    }

    /// Writes an object in one request.
    pub(crate) async fn put(
        &self,
        key: &str,
        bytes: Bytes,
        mode: WriteMode,
    ) -> Result<(), AttemptError> {
        match self {
            Self::Remote(remote) => {
                if mode == WriteMode::Overwrite {
                    return remote.put(key, bytes, PutMode::Overwrite).await;
                }
                // The server may accept a conditional write although the object exists.
                if remote.checks_before_write {
                    self.ensure_absent(key).await?;
                }
                match remote.put(key, bytes.clone(), PutMode::Create).await {
                    // Without conditional writes, check first; a concurrent writer can still win.
                    Err(fault) if fault.is_unimplemented() => {
                        self.ensure_absent(key).await?;
                        remote.put(key, bytes, PutMode::Overwrite).await
                    }
                    outcome => outcome,
                }
            }
            Self::Local(directory) => {
                let (directory, key) = (directory.clone(), key.to_owned());
                run_blocking(move || {
                    let file = directory.create_unfinished(&key)?;
                    file.write_at(&bytes, 0)?;
                    file.publish(mode)
                })
                .await
            }
        }
    }

    async fn ensure_absent(&self, key: &str) -> Result<(), AttemptError> {
        match self.head(key).await {
            Ok(_) => Err(AttemptError::Remote(object_store::Error::AlreadyExists {
                path: key.to_owned(),
                source: "object found before the write".into(),
            })),
            Err(fault) if fault.class() == ErrorClass::NotFound => Ok(()),
            Err(fault) => Err(fault),
        }
    }

    /// Deletes an object; succeeds if it does not exist.
    pub(crate) async fn delete(&self, key: &str) -> Result<(), AttemptError> {
        match self {
            Self::Remote(remote) => ignore_not_found(remote.store.delete(&parse_path(key)?).await),
            Self::Local(directory) => {
                let (directory, key) = (directory.clone(), key.to_owned());
                run_blocking(move || directory.delete(&key)).await
            }
        }
    }

    /// Starts a multipart upload.
    pub(crate) async fn begin_upload(&self, key: &str) -> Result<UploadSession, AttemptError> {
        match self {
            Self::Remote(Remote {
                multipart: Some(store),
                ..
            }) => {
                let path = parse_path(key)?;
                let id = store.create_multipart(&path).await?;
                Ok(UploadSession::Parts {
                    store: Arc::clone(store),
                    path,
                    id,
                })
            }
            Self::Remote(Remote {
                store,
                multipart: None,
                ..
            }) => {
                let upload = store.put_multipart(&parse_path(key)?).await?;
                Ok(UploadSession::Ordered(Mutex::new(Some(upload))))
            }
            Self::Local(directory) => {
                let (directory, key) = (directory.clone(), key.to_owned());
                let file = run_blocking(move || directory.create_unfinished(&key)).await?;
                Ok(UploadSession::File(Mutex::new(Some(Arc::new(file)))))
            }
        }
    }
}

/// A started multipart upload.
pub(crate) enum UploadSession {
    /// Parts are addressed by index and can be resent.
    Parts {
        store: Arc<dyn MultipartStore>,
        path: Path,
        id: String,
    },
    /// The client numbers parts in call order and retries them itself; a part cannot be resent.
    Ordered(Mutex<Option<Box<dyn MultipartUpload>>>),
    /// A local file that is not yet published under its key.
    File(Mutex<Option<Arc<UnfinishedFile>>>),
}

/// Position of a part in the object.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PartPosition {
    pub(crate) index: usize,
    pub(crate) offset: u64,
}

impl UploadSession {
    /// Whether the upload writes a local file.
    pub(crate) fn is_file(&self) -> bool {
        matches!(self, Self::File(_))
    }

    /// Whether a failed part may be resent.
    pub(crate) fn can_retry_parts(&self) -> bool {
        !matches!(self, Self::Ordered(_))
    }

    /// Sends one part. The order of *calls* is the order of parts for [`UploadSession::Ordered`]; the
    /// futures may run in any order.
    pub(crate) fn send_part(
        &self,
        slot: PartPosition,
        bytes: Bytes,
    ) -> BoxFuture<'static, Result<PartId, AttemptError>> {
        let unnumbered = || PartId {
            content_id: String::new(),
        };
        match self {
            Self::Parts { store, path, id } => {
                let (store, path, id) = (Arc::clone(store), path.clone(), id.clone());
                async move { Ok(store.put_part(&path, &id, slot.index, bytes.into()).await?) }
                    .boxed()
            }
            Self::Ordered(upload) => {
                let mut upload = upload.lock().unwrap_or_else(PoisonError::into_inner);
                let Some(upload) = upload.as_mut() else {
                    return async { Err(AttemptError::Cancelled) }.boxed();
                };
                upload
                    .put_part(bytes.into())
                    .map_ok(move |()| unnumbered())
                    .err_into()
                    .boxed()
            }
            Self::File(file) => {
                let file = file.lock().unwrap_or_else(PoisonError::into_inner).clone();
                let Some(file) = file else {
                    return async { Err(AttemptError::Cancelled) }.boxed();
                };
                let write = run_blocking(move || file.write_at(&bytes, slot.offset));
                write.map_ok(move |()| unnumbered()).boxed()
            }
        }
    }

    /// Combines the parts into the object.
    pub(crate) async fn complete(
        &self,
        parts: Vec<PartId>,
        mode: WriteMode,
    ) -> Result<(), AttemptError> {
        match self {
            Self::Parts { store, path, id } => {
                store.complete_multipart(path, id, parts).await?;
            }
            Self::Ordered(upload) => {
                let mut upload = take_locked(upload).ok_or(AttemptError::Cancelled)?;
                upload.complete().await?;
            }
            Self::File(file) => {
                // A part task that still holds the file could write to it after it is published.
                let file = take_locked(file)
                    .and_then(Arc::into_inner)
                    .ok_or(AttemptError::Cancelled)?;
                run_blocking(move || file.publish(mode)).await?;
            }
        }
        Ok(())
    }

    /// Discards the parts; no object becomes visible.
    pub(crate) async fn abort(&self) -> Result<(), AttemptError> {
        match self {
            Self::Parts { store, path, id } => {
                ignore_not_found(store.abort_multipart(path, id).await)
            }
            Self::Ordered(upload) => match take_locked(upload) {
                Some(mut upload) => Ok(upload.abort().await?),
                None => Ok(()),
            },
            Self::File(file) => {
                // Dropping the temporary file deletes it, which is a blocking call.
                let file = take_locked(file);
                run_blocking(move || {
                    drop(file);
                    Ok(())
                })
                .await
            }
        }
    }
}

/// Parses the key without percent-encoding, so that a listed key can be read back unchanged.
fn parse_path(key: &str) -> Result<Path, AttemptError> {
    Path::parse(key)
        .map_err(|source| AttemptError::Remote(object_store::Error::InvalidPath { source }))
}

/// Treats "not found" as success, for deletes and aborts.
fn ignore_not_found(outcome: object_store::Result<()>) -> Result<(), AttemptError> {
    match outcome.map_err(AttemptError::Remote) {
        Err(fault) if fault.class() == ErrorClass::NotFound => Ok(()),
        outcome => outcome,
    }
}

fn take_locked<T>(slot: &Mutex<Option<T>>) -> Option<T> {
    slot.lock().unwrap_or_else(PoisonError::into_inner).take()
}

/// Runs a file operation on the blocking pool.
async fn run_blocking<T, F>(operation: F) -> Result<T, AttemptError>
where
    T: Send + 'static,
    F: FnOnce() -> Result<T, AttemptError> + Send + 'static,
{
    tokio::task::spawn_blocking(operation)
        .await
        .unwrap_or(Err(AttemptError::Cancelled))
}

impl From<ObjectMeta> for ObjectInfo {
    fn from(meta: ObjectMeta) -> Self {
        let (seconds, nanos) = (
            meta.last_modified.timestamp(),
            meta.last_modified.timestamp_subsec_nanos(),
        );
        let modified = i32::try_from(nanos)
            .ok()
            .and_then(|nanos| Timestamp::new(seconds, nanos).ok());
        Self {
            key: meta.location.to_string(),
            size: meta.size,
            last_modified: modified.unwrap_or(Timestamp::UNIX_EPOCH),
            etag: meta.e_tag,
        }
    }
}
