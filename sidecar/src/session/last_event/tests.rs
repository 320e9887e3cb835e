use std::io::{self, Read};

use jiff::Timestamp;
use mainstay_archive::catalogue::{Catalogue, ListedObject};
use mainstay_archive::compression::Compression;
use mainstay_archive::delta::{DeltaWriter, Event, EventKind};
use mainstay_history::ObjectStream;
use mainstay_ids::{LeaseId, Revision};
use mainstay_store::{Environment, StorageProvider, StoreConfig, StoreError};

use super::*;

fn event(kind: EventKind, key: &'static [u8], revision: i64) -> Event<'static> {
    let is_put = kind == EventKind::Put;
    Event {
        kind,
        key,
        value: if is_put { b"v" } else { b"" },
        create_revision: Revision(if is_put { revision } else { 0 }),
        mod_revision: Revision(revision),
        version: i64::from(is_put),
        lease: LeaseId::NONE,
        lease_ttl: None,
        time: "2026-11-16T02:14:06Z",
    }
}

/// Revision 6 put one key; revision 7, a transaction, put another and deleted the first.
fn sample_delta() -> (SnapshotObject, Vec<u8>) {
    let mut writer = DeltaWriter::new(Vec::new());
    for event in [
        event(EventKind::Put, b"a", 6),
        event(EventKind::Put, b"b", 7),
        event(EventKind::Delete, b"a", 7),
    ] {
        writer.write_event(&event).unwrap();
    }
    let bytes = writer.finish().unwrap();
    let listed = ListedObject {
        key: "v2/Incr-00000006-00000007-1".into(),
        size: bytes.len() as u64,
        modified: Timestamp::UNIX_EPOCH,
    };
    let mut catalogue = Catalogue::from_listing("", vec![listed]);
    let object = catalogue.deltas.remove(0);
    assert_eq!(object.name.compression, Compression::None);
    (object, bytes)
}

/// Reads the last event of a delta from its bytes.
fn read_delta(
    delta: &SnapshotObject,
    stored: ObjectStream,
) -> Result<Option<BackupEvent>, LastEventError> {
    mainstay_history::read_last_event(delta, stored).map_err(LastEventError::Object)
}

fn object_stream(bytes: Vec<u8>) -> ObjectStream {
    Box::new(io::Cursor::new(bytes))
}

#[test]
fn last_event_of_the_delta_is_returned() {
    let (object, bytes) = sample_delta();
    let witness = read_delta(&object, object_stream(bytes)).unwrap().unwrap();
    assert_eq!((witness.key.as_slice(), witness.revision.0), (&b"a"[..], 7));
    assert_eq!(witness.put, None, "it was deleted");
}

#[test]
fn altered_or_truncated_delta_is_damaged() {
    let (object, mut bytes) = sample_delta();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    assert!(
        read_delta(&object, object_stream(bytes.clone()))
            .unwrap_err()
            .is_damage()
    );
    bytes.truncate(60);
    assert!(
        read_delta(&object, object_stream(bytes))
            .unwrap_err()
            .is_damage()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn delta_that_cannot_be_downloaded_is_not_damaged() {
    let directory = tempfile::tempdir().unwrap();
    let home = [("HOME", directory.path().to_str().unwrap())];
    let config = StoreConfig::new(StorageProvider::Local, "bucket");
    let store = SnapStore::open(&config, &Environment::from_iter(home)).unwrap();
    let object = sample_delta().0;
    let error = read_last_event(&store, &object).await.unwrap_err();
    let LastEventError::Unread(ReadObjectError::Open { source, .. }) = error else {
        panic!("{error:?}")
    };
    // A download that breaks off is not damage either.
    let broken = read_delta(&object, Box::new(FailingDownload(Some(source)))).unwrap_err();
    assert!(!broken.is_damage(), "{broken:?}");
}

/// A download that ends with an error of the store.
struct FailingDownload(Option<StoreError>);

impl Read for FailingDownload {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        Err(self
            .0
            .take()
            .map_or_else(|| io::ErrorKind::BrokenPipe.into(), io::Error::other))
    }
}
