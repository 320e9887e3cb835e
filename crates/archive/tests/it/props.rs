//! Random names, random deltas, random damage.

use std::io::{Cursor, Read, Write};
use std::num::NonZeroUsize;

use mainstay_archive::compression::{
    Compression, CompressionEffort, EncoderOptions, StreamEncoder, open_decoder,
};
use mainstay_archive::delta::{DeltaReader, DeltaWriter, Event, EventKind};
use mainstay_archive::layout::{KeyKind, classify_key, object_key};
use mainstay_archive::name::{SnapshotKind, SnapshotName};
use mainstay_ids::{LeaseId, Revision};
use proptest::prelude::*;

fn compressions() -> impl Strategy<Value = Compression> {
    prop_oneof![
        Just(Compression::None),
        Just(Compression::Gzip),
        Just(Compression::Zlib),
        Just(Compression::Lzw),
        Just(Compression::Zstd),
    ]
}

fn names() -> impl Strategy<Value = SnapshotName> {
    let revisions = (0..=i64::MAX, 0..=i64::MAX);
    let created = 0..=253_402_300_799_i64;
    let compression = prop_oneof![
        compressions(),
        "[a-z0-9]{1,6}"
            .prop_filter("not the final suffix", |s| s != "final")
            .prop_map(|s| Compression::from_suffix(&s)),
    ];
    (
        any::<bool>(),
        revisions,
        created,
        compression,
        any::<bool>(),
    )
        .prop_map(
            |(is_full, (a, b), created, compression, is_final)| SnapshotName {
                kind: if is_full {
                    SnapshotKind::Full
                } else {
                    SnapshotKind::Delta
                },
                start: Revision(if is_full { 0 } else { a.min(b) }),
                last: Revision(a.max(b)),
                created,
                compression,
                is_final,
            },
        )
}

#[derive(Clone, Debug, PartialEq)]
struct OwnedEvent {
    is_put: bool,
    key: Vec<u8>,
    value: Vec<u8>,
    revision: i64,
    version: i64,
    lease: i64,
    lease_ttl: Option<i64>,
}

impl OwnedEvent {
    fn as_event(&self) -> Event<'_> {
        Event {
            kind: if self.is_put {
                EventKind::Put
            } else {
                EventKind::Delete
            },
            key: &self.key,
            value: if self.is_put { &self.value } else { &[] },
            create_revision: Revision(if self.is_put { self.revision } else { 0 }),
            mod_revision: Revision(self.revision),
            version: if self.is_put { self.version } else { 0 },
            lease: LeaseId::from_signed(self.lease),
            lease_ttl: self.lease_ttl,
            time: "2026-11-16T02:14:06.050388376+05:30",
        }
    }
}

prop_compose! {
    fn owned_event()(
        is_put in any::<bool>(),
        key in prop::collection::vec(any::<u8>(), 1..30),
        value in prop::collection::vec(any::<u8>(), 0..400),
        revision in 1..=i64::MAX,
        version in 1..=i64::MAX,
        lease in any::<i64>(),
        lease_ttl in prop::option::of(any::<i64>()),
    ) -> OwnedEvent {
        OwnedEvent { is_put, key, value, revision, version, lease, lease_ttl }
    }
}

fn events() -> impl Strategy<Value = Vec<OwnedEvent>> {
    prop::collection::vec(owned_event(), 0..40).prop_map(|mut events| {
        events.sort_by_key(|e| e.revision);
        events
    })
}

fn write_delta(events: &[OwnedEvent]) -> Vec<u8> {
    let mut writer = DeltaWriter::new(Vec::new());
    for event in events {
        writer.write_event(&event.as_event()).unwrap();
    }
    writer.finish().unwrap()
}

/// Returns true when the stream reads to the end and its hash matches; compares each event.
fn reads_exactly(stream: impl Read, wanted: &[OwnedEvent]) -> bool {
    let mut reader = DeltaReader::new(stream);
    let mut wanted = wanted.iter();
    loop {
        match reader.next_event() {
            Ok(Some(event)) if wanted.next().map(OwnedEvent::as_event) == Some(event) => {}
            Ok(None) => return wanted.next().is_none(),
            Ok(Some(_)) | Err(_) => return false,
        }
    }
}

/// Returns true when the stream reads to the end and its hash matches.
fn reads_to_end(stream: impl Read) -> bool {
    let mut reader = DeltaReader::new(stream);
    loop {
        match reader.next_event() {
            Ok(Some(_)) => {}
            Ok(None) => return true,
            Err(_) => return false,
        }
    }
}

fn compress(compression: &Compression, content: &[u8], threads: usize) -> Vec<u8> {
    let threads = NonZeroUsize::new(threads).unwrap();
    let options = EncoderOptions {
        threads,
        effort: CompressionEffort::Fast,
    };
    let mut encoder = StreamEncoder::new(compression, Vec::new(), options).unwrap();
    encoder.write_all(content).unwrap();
    encoder.finish().unwrap()
}

proptest! {
    #[test]
    fn snapshot_name_round_trips(name in names()) {
        let text = name.to_string();
        prop_assert_eq!(text.parse::<SnapshotName>().unwrap(), name.clone());
        let key = object_key("some/prefix", &name);
        let found = classify_key("some/prefix", &key);
        let is_it = matches!(found, KeyKind::Snapshot { name: n, .. } if n == name);
        prop_assert!(is_it);
    }

    #[test]
    fn name_parser_never_panics(text in "\\PC{0,60}", key in "[Finulcr0-9./-]{0,60}") {
        let _ = text.parse::<SnapshotName>();
        if let Ok(name) = key.parse::<SnapshotName>() {
            let again: SnapshotName = name.to_string().parse().unwrap();
            prop_assert_eq!(again, name);
        }
        let _ = classify_key(&text, &key);
    }

    #[test]
    fn compressed_delta_round_trips(
        events in events(),
        compression in compressions(),
        threads in 1..4_usize,
    ) {
        let object = Cursor::new(compress(&compression, &write_delta(&events), threads));
        let threads = NonZeroUsize::new(threads).unwrap();
        let stream = open_decoder(&compression, object, threads).unwrap();
        prop_assert!(reads_exactly(stream, &events));
    }

    #[test]
    fn altered_delta_never_reads_to_its_end(
        events in events(),
        position in any::<prop::sample::Index>(),
        change in 1..=255_u8,
    ) {
        let mut bytes = write_delta(&events);
        let position = position.index(bytes.len());
        bytes[position] ^= change;
        prop_assert!(!reads_to_end(bytes.as_slice()));
    }

    #[test]
    fn truncated_delta_never_reads_to_its_end(
        events in events(),
        position in any::<prop::sample::Index>(),
    ) {
        let bytes = write_delta(&events);
        prop_assert!(!reads_to_end(&bytes[..position.index(bytes.len())]));
    }

    #[test]
    fn random_bytes_never_read_as_a_delta(
        bytes in prop::collection::vec(any::<u8>(), 0..2000),
        text in "[\\[\\]{}\",:a-z0-9\\\\ ]{0,300}",
    ) {
        prop_assert!(!reads_to_end(bytes.as_slice()));
        prop_assert!(!reads_to_end(text.as_bytes()));
    }

    #[test]
    fn truncated_compressed_object_never_reads_to_its_end(
        events in events(),
        compression in compressions(),
        position in any::<prop::sample::Index>(),
        threads in 1..3_usize,
    ) {
        let mut object = compress(&compression, &write_delta(&events), 1);
        object.truncate(position.index(object.len()));
        let threads = NonZeroUsize::new(threads).unwrap();
        prop_assert!(!reads_to_end(open_decoder(&compression, Cursor::new(object), threads).unwrap()));
    }

    #[test]
    fn random_bytes_never_make_a_decoder_panic_or_grow(
        compression in compressions(),
        bytes in prop::collection::vec(any::<u8>(), 0..500),
        position in any::<prop::sample::Index>(),
        use_real_start in any::<bool>(),
    ) {
        let mut object = compress(&compression, &[7; 3000], 1);
        if use_real_start {
            object.truncate(position.index(object.len()));
        } else {
            object.clear();
        }
        object.extend_from_slice(&bytes);
        let threads = NonZeroUsize::new(2).unwrap();
        let stream = open_decoder(&compression, Cursor::new(object), threads).unwrap();
        let mut content = Vec::new();
        let _ = stream.take(64 << 20).read_to_end(&mut content);
        prop_assert!(content.len() < 64 << 20);
    }
}
