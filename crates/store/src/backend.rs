//! One attempt at each operation, on a remote store or on a directory.
//!
//! Nothing here retries, waits or splits: [`crate::store`], [`crate::download`] and
//! [`crate::upload`] do. Every function is a single request, or a single blocking file operation.

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

use crate::error::{Class, Fault};
use crate::local::{Directory, Unfinished};
use crate::store::Object;

/// What to do when an object of that name exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Create,
    Overwrite,
}

/// A client, whatever is behind it.
#[derive(Debug, Clone)]
pub(crate) enum Backend {
    Remote(Remote),
    Local(Directory),
}

/// A client of the object store library.
#[derive(Clone)]
pub(crate) struct Remote {
    store: Arc<dyn ObjectStore>,
    parts: Option<Arc<dyn MultipartStore>>,
    asks_first: bool,
}

impl Remote {
    /// `parts` is the interface that can repeat a part; `asks_first` marks servers whose conditional
    /// writes are not to be relied on.
    pub(crate) fn new(
        store: Arc<dyn ObjectStore>,
        parts: Option<Arc<dyn MultipartStore>>,
        asks_first: bool,
    ) -> Self {
        Self {
            store,
            parts,
            asks_first,
        }
    }

    async fn put(&self, key: &str, bytes: Bytes, mode: PutMode) -> Result<(), Fault> {
        self.store
            .put_opts(&path(key)?, PutPayload::from(bytes), mode.into())
            .await?;
        Ok(())
    }
}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The client's own Debug output may hold its configuration, secrets included.
        write!(f, "Remote({})", self.store)
    }
}

/// The body of an answer and the version it belongs to.
pub(crate) struct Body {
    pub(crate) object: Object,
    pub(crate) chunks: BoxStream<'static, Result<Bytes, Fault>>,
}

impl Backend {
    /// Objects below `folder` whose keys come after `after`.
    pub(crate) fn list(
        &self,
        folder: &str,
        after: Option<&str>,
    ) -> BoxStream<'static, Result<Object, Fault>> {
        match self {
            Self::Remote(remote) => {
                let found = match (path(folder), after.map(path).transpose()) {
                    (Ok(folder), Ok(None)) => remote.store.list(Some(&folder)),
                    (Ok(folder), Ok(Some(after))) => {
                        remote.store.list_with_offset(Some(&folder), &after)
                    }
                    (Err(fault), _) | (_, Err(fault)) => return stream::iter([Err(fault)]).boxed(),
                };
                found.map_ok(Object::from).map_err(Fault::Remote).boxed()
            }
            Self::Local(directory) => {
                let (directory, folder) = (directory.clone(), folder.to_owned());
                let all = blocking(move || directory.list(&folder));
                all.map_ok(|found| stream::iter(found.into_iter().map(Ok)))
                    .try_flatten_stream()
                    .boxed()
            }
        }
    }

    /// Size and version of an object.
    pub(crate) async fn head(&self, key: &str) -> Result<Object, Fault> {
        match self {
            Self::Remote(remote) => Ok(remote.store.head(&path(key)?).await?.into()),
            Self::Local(directory) => {
                let (directory, key) = (directory.clone(), key.to_owned());
                blocking(move || directory.head(&key)).await
            }
        }
    }

    /// Starts reading `range` of the version `etag` of an object.
    pub(crate) async fn read(
        &self,
        key: &str,
        range: Range<u64>,
        etag: Option<&str>,
    ) -> Result<Body, Fault> {
        match self {
            Self::Remote(remote) => {
                let options = GetOptions {
                    range: Some(GetRange::Bounded(range)),
                    if_match: etag.map(str::to_owned),
                    ..GetOptions::default()
                };
                let answer = remote.store.get_opts(&path(key)?, options).await?;
                let object = answer.meta.clone().into();
                let chunks = answer.into_stream().map_err(Fault::Remote).boxed();
                Ok(Body { object, chunks })
            }
            Self::Local(directory) => {
                let (directory, key) = (directory.clone(), key.to_owned());
                let (object, bytes) = blocking(move || directory.read(&key, range)).await?;
                Ok(Body {
                    object,
                    chunks: stream::iter([Ok(bytes)]).boxed(),
                })
            }
        }
    }

    /// Writes an object in one request.
    pub(crate) async fn put(&self, key: &str, bytes: Bytes, mode: Mode) -> Result<(), Fault> {
        match self {
            Self::Remote(remote) => {
                if mode == Mode::Overwrite {
                    return remote.put(key, bytes, PutMode::Overwrite).await;
                }
                if remote.asks_first {
                    self.refuse_existing(key).await?;
                }
                match remote.put(key, bytes.clone(), PutMode::Create).await {
                    // The server has no conditional writes: asking first is the next best thing.
                    Err(fault) if fault.is_unimplemented() => {
                        self.refuse_existing(key).await?;
                        remote.put(key, bytes, PutMode::Overwrite).await
                    }
                    outcome => outcome,
                }
            }
            Self::Local(directory) => {
                let (directory, key) = (directory.clone(), key.to_owned());
                blocking(move || {
                    let file = directory.begin(&key)?;
                    file.write_at(&bytes, 0)?;
                    file.publish(mode)
                })
                .await
            }
        }
    }

    async fn refuse_existing(&self, key: &str) -> Result<(), Fault> {
        match self.head(key).await {
            Ok(_) => Err(Fault::Remote(object_store::Error::AlreadyExists {
                path: key.to_owned(),
                source: "found before writing".into(),
            })),
            Err(fault) if fault.class() == Class::NotFound => Ok(()),
            Err(fault) => Err(fault),
        }
    }

    /// Deletes an object; an absent one is fine.
    pub(crate) async fn delete(&self, key: &str) -> Result<(), Fault> {
        match self {
            Self::Remote(remote) => absent_is_fine(remote.store.delete(&path(key)?).await),
            Self::Local(directory) => {
                let (directory, key) = (directory.clone(), key.to_owned());
                blocking(move || directory.delete(&key)).await
            }
        }
    }

    /// Starts an upload in parts.
    pub(crate) async fn begin(&self, key: &str) -> Result<Session, Fault> {
        match self {
            Self::Remote(Remote {
                parts: Some(store), ..
            }) => {
                let path = path(key)?;
                let id = store.create_multipart(&path).await?;
                Ok(Session::Parts {
                    store: Arc::clone(store),
                    path,
                    id,
                })
            }
            Self::Remote(Remote {
                store, parts: None, ..
            }) => {
                let upload = store.put_multipart(&path(key)?).await?;
                Ok(Session::Ordered(Mutex::new(Some(upload))))
            }
            Self::Local(directory) => {
                let (directory, key) = (directory.clone(), key.to_owned());
                let file = blocking(move || directory.begin(&key)).await?;
                Ok(Session::File(Mutex::new(Some(Arc::new(file)))))
            }
        }
    }
}

/// An upload in parts that has begun.
pub(crate) enum Session {
    /// Parts are addressed by index and can be repeated.
    Parts {
        store: Arc<dyn MultipartStore>,
        path: Path,
        id: String,
    },
    /// Parts are numbered by the client in the order they are handed over; it retries them itself.
    Ordered(Mutex<Option<Box<dyn MultipartUpload>>>),
    /// A file that is not yet visible.
    File(Mutex<Option<Arc<Unfinished>>>),
}

/// Where a part belongs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Slot {
    pub(crate) index: usize,
    pub(crate) offset: u64,
}

impl Session {
    /// Whether the parts are in a local file.
    pub(crate) fn is_file(&self) -> bool {
        matches!(self, Self::File(_))
    }

    /// Whether a failed part may be sent again.
    pub(crate) fn repeats_parts(&self) -> bool {
        !matches!(self, Self::Ordered(_))
    }

    /// Sends one part. The order of *calls* is the order of parts for [`Session::Ordered`]; the
    /// futures may run in any order.
    pub(crate) fn send(
        &self,
        slot: Slot,
        bytes: Bytes,
    ) -> BoxFuture<'static, Result<PartId, Fault>> {
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
                    return async { Err(Fault::Cancelled) }.boxed();
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
                    return async { Err(Fault::Cancelled) }.boxed();
                };
                let write = blocking(move || file.write_at(&bytes, slot.offset));
                write.map_ok(move |()| unnumbered()).boxed()
            }
        }
    }

    /// Makes an object of the parts.
    pub(crate) async fn complete(&self, parts: Vec<PartId>, mode: Mode) -> Result<(), Fault> {
        match self {
            Self::Parts { store, path, id } => {
                store.complete_multipart(path, id, parts).await?;
            }
            Self::Ordered(upload) => {
                let mut upload = take(upload).ok_or(Fault::Cancelled)?;
                upload.complete().await?;
            }
            Self::File(file) => {
                let file = take(file)
                    .and_then(Arc::into_inner)
                    .ok_or(Fault::Cancelled)?;
                blocking(move || file.publish(mode)).await?;
            }
        }
        Ok(())
    }

    /// Throws the parts away. No object appears.
    pub(crate) async fn abort(&self) -> Result<(), Fault> {
        match self {
            Self::Parts { store, path, id } => {
                absent_is_fine(store.abort_multipart(path, id).await)
            }
            Self::Ordered(upload) => match take(upload) {
                Some(mut upload) => Ok(upload.abort().await?),
                None => Ok(()),
            },
            Self::File(file) => {
                let file = take(file);
                blocking(move || {
                    drop(file);
                    Ok(())
                })
                .await
            }
        }
    }
}

/// Keys are taken literally: what a listing shows can be read back as it is.
fn path(key: &str) -> Result<Path, Fault> {
    Path::parse(key).map_err(|source| Fault::Remote(object_store::Error::InvalidPath { source }))
}

/// What should be gone, and is.
fn absent_is_fine(outcome: object_store::Result<()>) -> Result<(), Fault> {
    match outcome.map_err(Fault::Remote) {
        Err(fault) if fault.class() == Class::NotFound => Ok(()),
        outcome => outcome,
    }
}

fn take<T>(slot: &Mutex<Option<T>>) -> Option<T> {
    slot.lock().unwrap_or_else(PoisonError::into_inner).take()
}

/// Runs a file operation on the blocking pool.
async fn blocking<T, F>(operation: F) -> Result<T, Fault>
where
    T: Send + 'static,
    F: FnOnce() -> Result<T, Fault> + Send + 'static,
{
    tokio::task::spawn_blocking(operation)
        .await
        .unwrap_or(Err(Fault::Cancelled))
}

impl From<ObjectMeta> for Object {
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
            modified: modified.unwrap_or(Timestamp::UNIX_EPOCH),
            etag: meta.e_tag,
        }
    }
}
