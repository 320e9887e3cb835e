use super::general::Extent;
use super::*;

const TIME: &str = "2026-11-16T02:14:06.050388376Z";

fn put<'a>(key: &'a [u8], value: &'a [u8], revision: i64) -> Event<'a> {
    Event {
        kind: EventKind::Put,
        key,
        value,
        create_revision: Revision(revision),
        mod_revision: Revision(revision),
        version: 1,
        lease: LeaseId::NONE,
        lease_ttl: None,
        time: TIME,
    }
}

fn delete(key: &[u8], revision: i64) -> Event<'_> {
    Event {
        kind: EventKind::Delete,
        create_revision: Revision(0),
        version: 0,
        ..put(key, b"", revision)
    }
}

fn write_delta(events: &[Event<'_>]) -> Vec<u8> {
    let mut writer = DeltaWriter::new(Vec::new());
    for event in events {
        writer.write_event(event).unwrap();
    }
    assert_eq!(writer.event_count(), events.len() as u64);
    writer.finish().unwrap()
}

/// A delta with any text and a matching hash.
fn with_hash(text: &str) -> Vec<u8> {
    use sha2::Digest;
    let mut delta = text.as_bytes().to_vec();
    delta.extend_from_slice(&sha2::Sha256::digest(text));
    delta
}

/// Reads to the end: the events in debug form, or the error.
fn read_events(delta: &[u8]) -> Result<Vec<String>, DeltaError> {
    let mut reader = DeltaReader::new(delta);
    let mut seen = Vec::new();
    while let Some(event) = reader.next_event()? {
        seen.push(format!("{event:?}"));
    }
    assert!(matches!(reader.next_event(), Ok(None)));
    assert_eq!(reader.event_count(), seen.len() as u64);
    Ok(seen)
}

fn read_error(text: &str) -> DeltaError {
    read_events(&with_hash(text)).unwrap_err()
}

fn element(kv: &str) -> String {
    format!("{{\"etcdEvent\":{{\"kv\":{{{kv}}}}},\"time\":\"{TIME}\"}}")
}

#[test]
fn written_delta_is_byte_identical_to_upstream() {
    let lease = LeaseId(1_516_765_167_142_982_503);
    let leased = Event {
        lease,
        version: 3,
        create_revision: Revision(690),
        ..put(b"a", b"", 691)
    };
    let delta = write_delta(&[put(b"/k", b"v?", 690), leased, delete(b"/k", 692)]);
    let text = "[{\"etcdEvent\":{\"kv\":{\"key\":\"L2s=\",\"create_revision\":690,\
        \"mod_revision\":690,\"version\":1,\"value\":\"dj8=\"}},\"time\":\"TIME\"},\
        {\"etcdEvent\":{\"kv\":{\"key\":\"YQ==\",\"create_revision\":690,\"mod_revision\":691,\
        \"version\":3,\"lease\":1516765167142982503}},\"time\":\"TIME\"},\
        {\"etcdEvent\":{\"type\":1,\"kv\":{\"key\":\"L2s=\",\"mod_revision\":692}},\
        \"time\":\"TIME\"}]"
        .replace("TIME", TIME);
    let (body, hash) = delta.split_at(delta.len() - TRAILER_LEN);
    assert_eq!(std::str::from_utf8(body).unwrap(), text);
    assert_eq!(delta, with_hash(&text));
    assert_eq!(hash.len(), 32);
}

#[test]
fn events_round_trip() {
    let binary: Vec<u8> = (0..=255).collect();
    let large = vec![7_u8; 1_300_000];
    let ttl = Event {
        lease: LeaseId(5),
        lease_ttl: Some(60),
        ..put(b"l", b"x", 9)
    };
    let far = put(b"far", b"", i64::MAX);
    let events = [
        put(&binary, &binary, 5),
        delete(b"\0", 5),
        put(b"large", &large, 6),
        ttl,
        far,
    ];
    let back = read_events(&write_delta(&events)).unwrap();
    let expected: Vec<String> = events.iter().map(|e| format!("{e:?}")).collect();
    assert_eq!(back, expected);
}

#[test]
fn stream_delivered_byte_by_byte_reads_the_same() {
    struct OneByteReader<'a>(&'a [u8]);
    impl io::Read for OneByteReader<'_> {
        fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
            let count = 1.min(out.len());
            io::Read::read(&mut self.0, &mut out[..count])
        }
    }
    let delta = write_delta(&[put(b"a", b"1", 2), put(b"b", b"2", 3)]);
    let mut reader = DeltaReader::new(OneByteReader(&delta));
    let mut keys = Vec::new();
    while let Some(event) = reader.next_event().unwrap() {
        keys.push(event.key.to_vec());
    }
    assert_eq!(keys, [b"a", b"b"]);
}

#[test]
fn events_across_chunk_boundaries_are_complete() {
    let value = vec![b'x'; 700];
    let keys: Vec<String> = (0..3000).map(|n| format!("key-{n}")).collect();
    let events: Vec<Event<'_>> = keys
        .iter()
        .zip(2..)
        .map(|(k, r)| put(k.as_bytes(), &value, r))
        .collect();
    let back = read_events(&write_delta(&events)).unwrap();
    assert_eq!(back.len(), 3000);
    assert!(back[2999].contains("mod_revision: Revision(3001)"));
}

#[test]
fn any_valid_json_formatting_is_read() {
    let text = " [ {\"time\":\"2026-11-16T02:14:06\\u002e05Z\" , \"etcdEvent\":\n{\"extra\":[{\"a\":\"}\\\"]\"}],\
        \"kv\" :{\"value\":\"\\/\\/8=\",\"version\":2,\"mod_revision\":9007199254740993,\"lease\":null,\
        \"create_revision\":3,\"key\":\"YQ==\"},\"prev_kv\":null}} ,\
        {\"etcdEvent\":{\"type\":1,\"kv\":{\"mod_revision\":9007199254740993,\"key\":\"YQ==\"}}} ]\r\n";
    let events = read_events(&with_hash(text)).unwrap();
    assert_eq!(events.len(), 2);
    for part in [
        "value: [255, 255]",
        "Revision(9007199254740993)",
        "LeaseId(0)",
        "06.05Z",
    ] {
        assert!(events[0].contains(part), "{part} in {}", events[0]);
    }
    assert!(events[1].contains("kind: Delete") && events[1].contains("time: \"\""));
    assert!(read_events(&with_hash("[]")).unwrap().is_empty());
}

#[test]
fn wrong_hash_is_an_error_at_the_end() {
    let mut delta = write_delta(&[put(b"a", b"1", 2)]);
    let length = delta.len();
    delta[length - 1] ^= 1;
    let mut reader = DeltaReader::new(delta.as_slice());
    assert!(reader.next_event().unwrap().is_some());
    let error = reader.next_event().unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "hash mismatch after {} bytes and 1 events",
            length - TRAILER_LEN
        )
    );
    assert!(matches!(
        reader.next_event(),
        Err(DeltaError::AlreadyFailed { .. })
    ));
}

#[test]
fn every_truncation_and_every_flipped_bit_of_a_delta_is_an_error() {
    let delta = write_delta(&[put(b"a", b"12345", 2), delete(b"a", 3)]);
    for length in 0..delta.len() {
        assert!(read_events(&delta[..length]).is_err(), "cut to {length}");
    }
    for bit in 0..delta.len() * 8 {
        let mut flipped = delta.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        assert!(read_events(&flipped).is_err(), "bit {bit}");
    }
}

#[test]
fn structure_error_names_byte_and_event() {
    let one = element("\"key\":\"YQ==\",\"create_revision\":2,\"mod_revision\":2,\"version\":1");
    let at = 1 + one.len();
    assert_eq!(
        read_error(&format!("[{one};{one}]")).to_string(),
        format!("event 1 at byte {at}: expected ',' or ']', found byte 0x3b")
    );
    assert!(matches!(
        read_error("{}"),
        DeltaError::UnexpectedByte {
            expected: "'['",
            ..
        }
    ));
    assert!(matches!(
        read_error("[5]"),
        DeltaError::UnexpectedByte { found: b'5', .. }
    ));
    assert!(matches!(
        read_error(&format!("[{one},]")),
        DeltaError::UnexpectedByte { .. }
    ));
    assert!(matches!(
        read_error(&format!("[{one}")),
        DeltaError::Truncated { .. }
    ));
    assert!(matches!(
        read_error(&format!("[{one}]{one}")),
        DeltaError::UnexpectedByte { .. }
    ));
    assert!(matches!(
        read_error("[{\"etcdEvent\":{}}"),
        DeltaError::InvalidEvent { .. }
    ));
    assert!(matches!(
        read_error("[{\"etcdEvent\""),
        DeltaError::Truncated { .. }
    ));
    assert!(matches!(read_error(""), DeltaError::Truncated { .. }));
    assert!(matches!(
        read_events(&[0; 31]),
        Err(DeltaError::TooShort { length: 31 })
    ));
    let deep = format!("[{{\"a\":{}", "[".repeat(100_000));
    assert!(matches!(
        read_error(&deep),
        DeltaError::UnexpectedByte { .. }
    ));
}

#[test]
fn events_etcd_never_sends_are_refused() {
    let fault = |text: String| match read_error(&format!("[{text}]")) {
        DeltaError::InvalidEvent { fault, .. } => fault,
        other => panic!("{other}"),
    };
    let put = |key: &str, create: i64, revision: i64, version: i64| {
        fault(element(&format!(
            "\"key\":\"{key}\",\"create_revision\":{create},\"mod_revision\":{revision},\
             \"version\":{version}"
        )))
    };
    assert_eq!(put("", 2, 2, 1), EventFault::EmptyKey);
    assert_eq!(put("Y", 2, 2, 1), EventFault::Base64("key"));
    assert_eq!(put("YQ==", 2, 0, 1), EventFault::InvalidRevision(0));
    assert_eq!(put("YQ==", 2, -3, 1), EventFault::InvalidRevision(-3));
    assert_eq!(
        put("YQ==", 3, 2, 1),
        EventFault::InvalidHistory {
            create_revision: 3,
            version: 1
        }
    );
    assert_eq!(
        put("YQ==", 2, 2, 0),
        EventFault::InvalidHistory {
            create_revision: 2,
            version: 0
        }
    );
    assert_eq!(
        fault("{\"etcdEvent\":{\"kv\":null}}".to_owned()),
        EventFault::NoKeyValue
    );
    assert_eq!(
        fault("{\"etcdEvent\":null}".to_owned()),
        EventFault::NoKeyValue
    );
    let typed = "{\"etcdEvent\":{\"type\":2,\"kv\":{\"key\":\"YQ==\",\"mod_revision\":1}}}";
    assert_eq!(fault(typed.to_owned()), EventFault::UnknownKind(2));
    let new = element("\"key\":\"YQ==\",\"create_revision\":3,\"mod_revision\":3,\"version\":1");
    let old = element("\"key\":\"YQ==\",\"create_revision\":2,\"mod_revision\":2,\"version\":1");
    let descending = EventFault::Descending {
        previous: Revision(3),
        found: Revision(2),
    };
    assert_eq!(fault(format!("{new},{old}")), descending);
}

#[test]
fn integers_are_exact_or_refused() {
    let kv = |n: &str| {
        element(&format!(
            "\"key\":\"YQ==\",\"create_revision\":1,\"mod_revision\":{n},\"version\":1"
        ))
    };
    assert!(read_events(&with_hash(&format!("[{}]", kv("9223372036854775807")))).is_ok());
    for bad in [
        "9223372036854775808",
        "1.5",
        "1e3",
        "01",
        "\"2\"",
        "-",
        "+1",
        "",
    ] {
        let error = read_error(&format!("[{}]", kv(bad)));
        assert!(
            matches!(error, DeltaError::InvalidElement { .. }),
            "{bad}: {error}"
        );
    }
}

#[test]
fn writer_refuses_events_the_reader_refuses() {
    let mut writer = DeltaWriter::new(Vec::new());
    assert!(writer.write_event(&put(b"", b"", 2)).is_err());
    assert!(
        writer
            .write_event(&Event {
                version: 0,
                ..put(b"a", b"", 2)
            })
            .is_err()
    );
    assert!(
        writer
            .write_event(&Event {
                time: "\"",
                ..put(b"a", b"", 2)
            })
            .is_err()
    );
    writer.write_event(&put(b"a", b"", 3)).unwrap();
    let error = writer.write_event(&put(b"a", b"", 2)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "write event 1: revision 2 follows revision 3: revisions must not decrease"
    );
    let length = writer.text_len();
    assert_eq!(
        writer.finish().unwrap().len() as u64,
        length + 1 + TRAILER_LEN as u64
    );
}

#[test]
fn stream_read_error_carries_its_offset() {
    struct FailingReader;
    impl io::Read for FailingReader {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::Error::other("gone"))
        }
    }
    let delta = write_delta(&[put(b"a", b"1", 2)]);
    let stream = io::Read::chain(&delta[..100], FailingReader);
    let error = DeltaReader::new(stream).next_event().unwrap_err();
    assert!(
        matches!(error, DeltaError::Read { offset: 100, .. }),
        "{error}"
    );
}

#[test]
fn times_are_parsed_with_nanoseconds_and_offset() {
    assert_eq!(parse_time(TIME).unwrap().subsec_nanosecond(), 50_388_376);
    let east = parse_time("2026-11-16T04:14:06.050388376+02:00").unwrap();
    assert_eq!(east, parse_time(TIME).unwrap());
    assert_eq!(
        parse_time("").unwrap_err().to_string(),
        "invalid RFC 3339 time \"\""
    );
}

#[test]
fn element_extent_respects_strings_and_nesting_depth() {
    assert_eq!(
        general::find_extent(b"{\"a\":\"}\\\"}\"}x"),
        Extent::Complete(12)
    );
    assert_eq!(general::find_extent(b"{\"a\":\"\\"), Extent::Partial);
    assert_eq!(general::find_extent(b"{\"a\":[{}"), Extent::Partial);
    assert_eq!(general::find_extent(b""), Extent::Partial);
    assert_eq!(general::find_extent(b"x"), Extent::Invalid(0));
    assert_eq!(
        general::find_extent("{".repeat(65).as_bytes()),
        Extent::Invalid(64)
    );
}

mod parser_agreement {
    //! The fast parser and the general one must agree on every element the fast one accepts.

    use std::borrow::Cow;

    use proptest::prelude::*;

    use super::*;

    /// Result of both parsers, compared before base64 is decoded.
    fn check_agreement(text: &[u8]) -> Result<bool, TestCaseError> {
        let Some(parts) = fast::scan_element(text) else {
            return Ok(false);
        };
        prop_assert_eq!(general::find_extent(text), Extent::Complete(parts.length));
        let slice = |range: std::ops::Range<usize>| Cow::Borrowed(&text[range]);
        let Ok(Ok(general)) = general::parse_element(&text[..parts.length]) else {
            // The fast parser does not validate strings; base64 decoding must then reject them.
            let key_or_value = [parts.key, parts.value]
                .into_iter()
                .any(|range| base64_simd::STANDARD.check(&text[range]).is_err());
            prop_assert!(key_or_value, "only the fast parser accepts");
            return Ok(true);
        };
        let bytes = |text: &Cow<'_, str>| text.as_bytes().to_vec();
        prop_assert_eq!(parts.numbers, general.numbers);
        prop_assert_eq!(slice(parts.time).to_vec(), bytes(&general.time));
        for (fast, general) in [(parts.key, &general.key), (parts.value, &general.value)] {
            let fast = slice(fast).to_vec();
            let decodes = base64_simd::STANDARD.check(&fast).is_ok();
            prop_assert!(!decodes || fast == bytes(general));
        }
        Ok(true)
    }

    prop_compose! {
        fn any_event_text()(
            key in prop::collection::vec(any::<u8>(), 1..40),
            value in prop::collection::vec(any::<u8>(), 0..80),
            revision in 1..=i64::MAX,
            version in 1..=i64::MAX,
            lease in any::<i64>(),
            lease_ttl in prop::option::of(0..100_000_i64),
            is_delete in any::<bool>(),
        ) -> (Vec<u8>, bool) {
            let event = if is_delete {
                delete(&key, revision)
            } else {
                Event { version, lease: LeaseId::from_signed(lease), lease_ttl, ..put(&key, &value, revision) }
            };
            let delta = write_delta(&[event]);
            let fast = is_delete || lease >= 0;
            (delta[1..delta.len() - TRAILER_LEN - 1].to_vec(), fast)
        }
    }

    proptest! {
        #[test]
        fn fast_and_general_parser_agree_on_written_events((text, is_fast) in any_event_text()) {
            prop_assert_eq!(check_agreement(&text)?, is_fast);
        }

        #[test]
        fn fast_and_general_parser_agree_on_damaged_events(
            (mut text, _) in any_event_text(),
            hits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        ) {
            for (position, byte) in hits {
                let position = position.index(text.len());
                text[position] = byte;
            }
            check_agreement(&text)?;
        }
    }
}
