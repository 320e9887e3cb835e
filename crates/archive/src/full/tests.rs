use super::*;

fn encode(sectors: usize) -> Vec<u8> {
    let database: Vec<u8> = (0..sectors * 512)
        .map(|at| u8::try_from(at % 251).unwrap())
        .collect();
    let mut writer = FullWriter::new(Vec::new());
    writer.write_all(&database).unwrap();
    writer.finish().unwrap()
}

/// Scans in pieces of `piece` bytes; returns the result and the database bytes released.
fn scan(
    bytes: &[u8],
    piece: usize,
    check: HashCheck,
) -> (Result<ScannedFull, FullDamage>, Vec<u8>) {
    let mut scanner = FullScanner::default();
    let mut database = Vec::new();
    for chunk in bytes.chunks(piece) {
        database.extend(scanner.push(chunk).concat());
    }
    assert_eq!(scanner.received(), bytes.len() as u64);
    (scanner.finish(check), database)
}

#[test]
fn database_and_hash_are_separated_in_pieces_of_any_size() {
    let bytes = encode(5);
    for piece in [1, 7, 31, 32, 33, 512, 544, 1000, 10_000] {
        let (scanned, database) = scan(&bytes, piece, HashCheck::Required);
        let layout = FullLayout {
            database_bytes: 5 * 512,
            is_hashed: true,
        };
        let rest = Vec::new();
        assert_eq!(scanned, Ok(ScannedFull { layout, rest }), "{piece}");
        assert_eq!(database, bytes[..5 * 512], "{piece}");
    }
}

#[test]
fn single_wrong_byte_is_detected_at_any_position() {
    let bytes = encode(2);
    for at in [0, 500, 1023, 1024, bytes.len() - 1] {
        let mut wrong = bytes.clone();
        wrong[at] ^= 1;
        let (scanned, _) = scan(&wrong, 100, HashCheck::Skipped);
        let is_found = matches!(scanned, Err(FullDamage::Hash { bytes: 1024, .. }));
        assert!(is_found, "byte {at}: {scanned:?}");
    }
}

#[test]
fn truncated_snapshot_has_an_invalid_length_or_hash() {
    let bytes = encode(2);
    for length in [0, 1, 32, 511, 513, 1023, 1055] {
        let (scanned, _) = scan(&bytes[..length], 100, HashCheck::Skipped);
        let expected = FullDamage::Length {
            bytes: length as u64,
        };
        assert_eq!(scanned, Err(expected), "{length} bytes");
    }
    let (scanned, _) = scan(&bytes[..544], 100, HashCheck::Required);
    assert!(matches!(scanned, Err(FullDamage::Hash { .. })));
}

#[test]
fn database_without_a_hash_is_complete_only_if_none_is_required() {
    let bytes = &encode(3)[..3 * 512];
    let (scanned, _) = scan(bytes, 700, HashCheck::Required);
    assert_eq!(scanned, Err(FullDamage::Unhashed { bytes: 1536 }));
    let (scanned, mut database) = scan(bytes, 700, HashCheck::Skipped);
    let scanned = scanned.unwrap();
    database.extend(&scanned.rest);
    assert_eq!(database, bytes);
    assert!(!scanned.layout.is_hashed && scanned.layout.database_bytes == 1536);
}
