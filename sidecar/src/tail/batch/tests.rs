use std::io::Cursor;

use etcd_client::proto::PbEvent;
use mainstay_archive::compression::open_decoder;
use mainstay_archive::delta::DeltaReader;

use super::*;

/// An event as etcd sends it.
fn put_event(key: &str, revision: i64, lease: i64) -> etcd_client::Event {
    let mut event = etcd_client::Event(PbEvent::default());
    let mut kv = event.0.kv.take().unwrap_or_default();
    kv.key = key.into();
    kv.value = b"value".to_vec();
    kv.create_revision = revision;
    kv.mod_revision = revision;
    kv.version = 1;
    kv.lease = lease;
    event.0.kv = Some(kv);
    event
}

fn batch_after(revision: i64) -> DeltaBatch {
    DeltaBatch::starting_after(Revision(revision), Compression::Gzip)
}

fn push_event(batch: &mut DeltaBatch, event: etcd_client::Event) -> Result<(), BatchError> {
    batch.push(event, Timestamp::UNIX_EPOCH, &LeaseTtls::default())
}

fn finish_revision(batch: &mut DeltaBatch) {
    batch.finish_revision(&LeaseTtls::default()).unwrap();
}

/// Revisions, keys and lease TTLs of a delta, read as a restore reads it.
fn read_delta(sealed: &SealedDelta) -> Vec<(i64, String, Option<i64>)> {
    let stored = Cursor::new(sealed.bytes.to_vec());
    let plain = open_decoder(
        &sealed.name.compression,
        stored,
        std::num::NonZeroUsize::MIN,
    )
    .unwrap();
    let mut reader = DeltaReader::new(plain);
    let mut found = Vec::new();
    while let Some(event) = reader.next_event().unwrap() {
        let key = String::from_utf8_lossy(event.key).into_owned();
        found.push((event.mod_revision.0, key, event.lease_ttl));
    }
    found
}

#[test]
fn delta_starts_after_the_previous_delta() {
    let mut batch = batch_after(4);
    push_event(&mut batch, put_event("a", 5, 0)).unwrap();
    push_event(&mut batch, put_event("b", 6, 0)).unwrap();
    finish_revision(&mut batch);
    let first = batch.seal(Timestamp::UNIX_EPOCH).unwrap().unwrap();
    assert_eq!(
        (first.name.start, first.name.last),
        (Revision(5), Revision(6))
    );
    push_event(&mut batch, put_event("c", 7, 0)).unwrap();
    finish_revision(&mut batch);
    let second = batch.seal(Timestamp::UNIX_EPOCH).unwrap().unwrap();
    assert_eq!(
        (second.name.start, second.name.last),
        (Revision(7), Revision(7))
    );
    assert_eq!(read_delta(&first).len() + read_delta(&second).len(), 3);
}

#[test]
fn incomplete_revision_is_not_sealed() {
    let mut batch = batch_after(4);
    push_event(&mut batch, put_event("a", 5, 0)).unwrap();
    push_event(&mut batch, put_event("b", 6, 0)).unwrap();
    push_event(&mut batch, put_event("c", 6, 0)).unwrap();
    let sealed = batch.seal(Timestamp::UNIX_EPOCH).unwrap().unwrap();
    assert_eq!(sealed.name.last, Revision(5));
    finish_revision(&mut batch);
    let rest = batch.seal(Timestamp::UNIX_EPOCH).unwrap().unwrap();
    let keys: Vec<_> = read_delta(&rest)
        .into_iter()
        .map(|(_, key, _)| key)
        .collect();
    assert_eq!(keys, ["b", "c"]);
}

#[test]
fn events_repeated_after_a_reconnect_are_stored_once() {
    let mut batch = batch_after(4);
    push_event(&mut batch, put_event("a", 5, 0)).unwrap();
    push_event(&mut batch, put_event("b", 6, 0)).unwrap();
    batch.discard_partial(); // revision 6 was incomplete
    push_event(&mut batch, put_event("a", 5, 0)).unwrap();
    push_event(&mut batch, put_event("b", 6, 0)).unwrap();
    push_event(&mut batch, put_event("c", 6, 0)).unwrap();
    finish_revision(&mut batch);
    let sealed = batch.seal(Timestamp::UNIX_EPOCH).unwrap().unwrap();
    let found: Vec<_> = read_delta(&sealed)
        .into_iter()
        .map(|(r, key, _)| (r, key))
        .collect();
    assert_eq!(found, [(5, "a".into()), (6, "b".into()), (6, "c".into())]);
}

#[test]
fn skipped_revision_is_a_gap_and_earlier_events_are_kept() {
    let mut batch = batch_after(4);
    push_event(&mut batch, put_event("a", 5, 0)).unwrap();
    let error = push_event(&mut batch, put_event("b", 8, 0)).unwrap_err();
    let BatchError::Gap(gap) = error else {
        panic!("{error}")
    };
    assert_eq!((gap.from, gap.to), (Revision(6), Revision(7)));
    let sealed = batch.seal(Timestamp::UNIX_EPOCH).unwrap().unwrap();
    assert_eq!(sealed.name.last, Revision(5));
}

#[test]
fn empty_batch_produces_no_delta() {
    let mut batch = batch_after(4);
    push_event(&mut batch, put_event("a", 3, 0)).unwrap();
    finish_revision(&mut batch);
    assert!(batch.is_empty());
    assert!(batch.seal(Timestamp::UNIX_EPOCH).unwrap().is_none());
}

#[test]
fn lease_ttl_is_stored_with_the_event() {
    let mut leases = LeaseTtls::default();
    leases.insert(LeaseId(7), Some(30));
    let mut batch = batch_after(1);
    batch
        .push(put_event("a", 2, 7), Timestamp::UNIX_EPOCH, &leases)
        .unwrap();
    batch.finish_revision(&leases).unwrap();
    let sealed = batch.seal(Timestamp::UNIX_EPOCH).unwrap().unwrap();
    assert_eq!(read_delta(&sealed), [(2, "a".into(), Some(30))]);
}

#[test]
fn length_includes_the_incomplete_revision() {
    let mut batch = batch_after(1);
    push_event(&mut batch, put_event("a", 2, 0)).unwrap();
    let partial = batch.raw_len();
    assert!(partial > 0);
    finish_revision(&mut batch);
    assert!(batch.raw_len() > 0);
    batch.seal(Timestamp::UNIX_EPOCH).unwrap();
    assert_eq!(batch.raw_len(), 0);
}

#[test]
fn batch_that_is_due_grows_within_its_memory_and_size_limits() {
    let mut batch = batch_after(0);
    let limit = 2 << 20;
    let mut revision = 0;
    while batch.raw_len() < 2 * limit {
        revision += 1;
        push_event(
            &mut batch,
            put_event("the-same-again-and-again", revision, 0),
        )
        .unwrap();
        finish_revision(&mut batch);
    }
    assert!(
        batch.memory_bytes() < limit / 4,
        "{} bytes are held",
        batch.memory_bytes()
    );
    assert!(batch.has_room(limit));
    assert!(!batch.has_room(batch.memory_bytes()), "limited by memory");
    assert!(
        !batch.has_room(limit / MAX_GROWTH_FACTOR),
        "limited by uncompressed size"
    );
    let sealed = batch.seal(Timestamp::UNIX_EPOCH).unwrap().unwrap();
    assert_eq!(i64::try_from(read_delta(&sealed).len()), Ok(revision));
}
