//! Backs up a live etcd like etcd-backup-restore: one full snapshot, then deltas from a watch.
//!
//! ```text
//! Snapshot call ──────────────────────────→ Full-00000000-<last>-<unix>.gz
//! watch of the whole key space → pending → cut → Incr-<start>-<last>-<unix>.gz
//! ```
//!
//! The writer is independent of the crates under test: `encode` implements the format itself. It reproduces a quirk of
//! etcd-backup-restore: a full snapshot is named after the revision read *before* the snapshot call, so its content can
//! be newer than its name.

mod encode;

use std::collections::VecDeque;
use std::fs;
use std::path::{Path, PathBuf};

use etcd_client::WatchOptions;
use jiff::Timestamp;
use mainstay_ids::Revision;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinHandle;

use encode::DeltaEvent;
pub use encode::RecorderCompression;

use crate::etcd::EtcdServer;

/// Writes the backup chain of one etcd into a bucket.
#[derive(Debug)]
pub struct Recorder {
    folder: PathBuf,
    compression: RecorderCompression,
    last_revision: Revision,
    pending: VecDeque<DeltaEvent>,
    // Unbounded: a bound would stall the watch, and a compaction could then remove events before they arrive.
    incoming: UnboundedReceiver<Result<Vec<DeltaEvent>, String>>,
    watcher: JoinHandle<()>,
}

/// An object that the recorder wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedObject {
    /// Path of the file.
    pub path: PathBuf,
    /// First revision in its name; zero for a full snapshot.
    pub start_revision: Revision,
    /// Last revision in its name.
    pub last_revision: Revision,
    /// Number of events; zero for a full snapshot.
    pub events: usize,
}

impl RecordedObject {
    /// Object name.
    pub fn name(&self) -> &str {
        self.path
            .file_name()
            .and_then(|name| name.to_str())
            .expect("the name is ASCII")
    }
}

impl Recorder {
    /// Takes a full snapshot into `<bucket>/<prefix>/v2` and watches from there on.
    pub async fn start(
        etcd: &EtcdServer,
        bucket: &Path,
        prefix: &str,
        compression: RecorderCompression,
    ) -> Self {
        let folder = bucket.join(prefix).join("v2");
        fs::create_dir_all(&folder).expect("create the directory of the backup");
        let full = take_full_snapshot(etcd, &folder, compression).await;
        let (sender, incoming) = unbounded_channel();
        let watcher = spawn_watch(etcd, full.last_revision.next(), sender).await;
        let pending = VecDeque::new();
        Self {
            folder,
            compression,
            last_revision: full.last_revision,
            pending,
            incoming,
            watcher,
        }
    }

    /// Directory of the objects.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Last revision of the chain.
    pub fn last_revision(&self) -> Revision {
        self.last_revision
    }

    /// Compression of the following objects.
    pub fn set_compression(&mut self, compression: RecorderCompression) {
        self.compression = compression;
    }

    /// Takes another full snapshot; the next delta starts after it.
    pub async fn write_full(&mut self, etcd: &EtcdServer) -> RecordedObject {
        let full = take_full_snapshot(etcd, &self.folder, self.compression).await;
        self.last_revision = full.last_revision;
        full
    }

    /// Writes a delta up to the current revision; `None` if there is nothing new.
    pub async fn write_delta(&mut self, etcd: &EtcdServer) -> Option<RecordedObject> {
        self.write_delta_to(etcd.revision().await).await
    }

    /// Writes a delta that ends with this revision, which etcd must have reached or will reach. Later events go
    /// into the next delta.
    ///
    /// # Panics
    /// If the watch ended or skipped a revision.
    pub async fn write_delta_to(&mut self, end: Revision) -> Option<RecordedObject> {
        if end <= self.last_revision {
            return None;
        }
        self.receive_until(end).await;
        let after = self
            .pending
            .partition_point(|event| event.revision() <= end);
        let mut events: Vec<DeltaEvent> = self.pending.drain(..after).collect();
        // A full snapshot since then covers the older events.
        events.retain(|event| event.revision() > self.last_revision);
        assert_contiguous(self.last_revision, &events);
        let start_revision = self.last_revision.next();
        let name = format!(
            "Incr-{:08}-{:08}-{}",
            start_revision.0,
            end.0,
            now().as_second()
        );
        let path = self.write_object(&name, &encode::encode_delta(&events));
        self.last_revision = end;
        Some(RecordedObject {
            path,
            start_revision,
            last_revision: end,
            events: events.len(),
        })
    }

    /// Waits until all events up to the current revision have arrived. An event has the time of its arrival, so later
    /// changes get a later time.
    ///
    /// # Panics
    /// If the watch ended.
    pub async fn catch_up(&mut self, etcd: &EtcdServer) {
        let end = etcd.revision().await;
        if end > self.last_revision {
            self.receive_until(end).await;
        }
    }

    async fn receive_until(&mut self, end: Revision) {
        while self
            .pending
            .back()
            .is_none_or(|event| event.revision() < end)
        {
            let arrived = self.incoming.recv().await.expect("the watch is running");
            let arrived = arrived.unwrap_or_else(|reason| panic!("the watch ended: {reason}"));
            self.pending.extend(arrived);
        }
    }

    fn write_object(&self, name: &str, content: &[u8]) -> PathBuf {
        write_object(&self.folder, name, self.compression, content)
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.watcher.abort();
    }
}

async fn take_full_snapshot(
    etcd: &EtcdServer,
    folder: &Path,
    compression: RecorderCompression,
) -> RecordedObject {
    let last_revision = etcd.revision().await;
    let scratch = tempfile::NamedTempFile::new().expect("a temporary file");
    etcd.snapshot_to(scratch.path()).await;
    let content = fs::read(scratch.path()).expect("read the snapshot");
    let name = format!("Full-{:08}-{:08}-{}", 0, last_revision.0, now().as_second());
    let path = write_object(folder, &name, compression, &content);
    RecordedObject {
        path,
        start_revision: Revision(0),
        last_revision,
        events: 0,
    }
}

/// Writes the object atomically, like an object store.
fn write_object(
    folder: &Path,
    name: &str,
    compression: RecorderCompression,
    content: &[u8],
) -> PathBuf {
    let path = folder.join(format!("{name}{}", compression.suffix()));
    let mut file = tempfile::NamedTempFile::new_in(folder).expect("a temporary file");
    compression.compress(content, file.as_file_mut());
    file.persist(&path).expect("rename the object");
    path
}

/// Receives every event from a revision on, until the receiver is dropped or the server ends the watch.
async fn spawn_watch(
    etcd: &EtcdServer,
    start: Revision,
    sender: UnboundedSender<Result<Vec<DeltaEvent>, String>>,
) -> JoinHandle<()> {
    let client = etcd.client().await.watch_client();
    let options = WatchOptions::new()
        .with_all_keys()
        .with_start_revision(start.0);
    let mut stream = client
        // A huge transaction is one message, larger than the default limit of 4 MiB.
        .max_decoding_message_size(usize::MAX)
        .watch("", Some(options))
        .await
        .unwrap_or_else(|error| panic!("watch from {start}: {error}"));
    tokio::spawn(async move {
        loop {
            let arrived = match stream.message().await {
                Ok(Some(response)) if response.canceled() => Err(format!(
                    "canceled at compaction {}: {}",
                    response.compact_revision(),
                    response.cancel_reason()
                )),
                Ok(Some(response)) => {
                    let time = now();
                    Ok(response
                        .events()
                        .iter()
                        .map(|event| DeltaEvent::new(event, time))
                        .collect())
                }
                Ok(None) => Err("the server closed the stream".to_owned()),
                Err(error) => Err(error.to_string()),
            };
            let ended = arrived.is_err();
            if sender.send(arrived).is_err() || ended {
                return;
            }
        }
    })
}

/// A gap in the backup is a broken fixture, not a test result.
fn assert_contiguous(last: Revision, events: &[DeltaEvent]) {
    let mut reached = last;
    for event in events {
        let revision = event.revision();
        assert!(
            revision == reached || revision == reached.next(),
            "the watch skipped from revision {reached} to {revision}"
        );
        reached = revision;
    }
}

fn now() -> Timestamp {
    Timestamp::now()
}
