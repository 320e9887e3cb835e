use super::*;

fn parse_name(name: &str) -> SnapshotName {
    name.parse().unwrap()
}

#[test]
fn upstream_names_round_trip_exactly() {
    for name in [
        "Full-00000000-00000695-1794795243.gz",
        "Incr-00000696-00001113-1794795247.gz",
        "Full-00000000-00000684-1794795267.zlib",
        "Incr-00000688-00001119-1794795295.Z",
        "Full-00000000-00000689-1794795325",
        "Full-00000000-00009002-1565021494.gz.final",
        "Full-00000000-00009002-1565021494.final",
        "Incr-123456789-9223372036854775807-1794795247.zst",
        "Full-00000000-00000001-0.xz",
    ] {
        assert_eq!(parse_name(name).to_string(), name);
    }
}

#[test]
fn every_field_of_a_name_is_parsed() {
    let name = parse_name("Full-00000000-00009002-1565021494.gz.final");
    let expected = SnapshotName {
        is_final: true,
        ..SnapshotName::full(Revision(9002), 1_565_021_494, Compression::Gzip)
    };
    assert_eq!(name, expected);
    assert_eq!(name.created_at().to_string(), "2019-08-05T16:11:34Z");
    let delta = parse_name("Incr-00000688-00001119-1794795295.Z");
    assert_eq!(
        delta,
        SnapshotName::delta(
            Revision(688),
            Revision(1119),
            1_794_795_295,
            Compression::Lzw
        )
    );
}

#[test]
fn name_with_unknown_compression_is_still_a_snapshot() {
    let name = parse_name("Incr-00000001-00000002-3.bz2.final");
    assert_eq!(name.compression, Compression::Unknown("bz2".to_owned()));
    assert!(name.is_final);
}

#[test]
fn invalid_name_error_names_the_wrong_field() {
    let refused = |name: &str| name.parse::<SnapshotName>().unwrap_err();
    assert!(matches!(
        refused("Full-1-2"),
        SnapshotNameError::FieldCount { found: 3, .. }
    ));
    assert!(matches!(
        refused("Full-00000000--5-1"),
        SnapshotNameError::FieldCount { found: 5, .. }
    ));
    assert!(matches!(
        refused("full-0-2-3"),
        SnapshotNameError::Kind { .. }
    ));
    assert!(matches!(
        refused("Full-+0-2-3"),
        SnapshotNameError::Number {
            what: "first revision",
            ..
        }
    ));
    assert!(matches!(
        refused("Full-0-9223372036854775808-3"),
        SnapshotNameError::Number {
            what: "last revision",
            ..
        }
    ));
    assert!(matches!(
        refused("Full-0-2-253402300800"),
        SnapshotNameError::Number {
            what: "creation time",
            ..
        }
    ));
    assert!(matches!(
        refused("Full-0-2-"),
        SnapshotNameError::Number { .. }
    ));
    assert!(matches!(
        refused("Incr-3-2-1"),
        SnapshotNameError::RevisionOrder { .. }
    ));
    for suffix in [
        ".gz.tmp",
        ".gz.final.gz",
        ".final.final",
        "..final",
        ".",
        ".g z",
        ".gz#1",
    ] {
        let name = format!("Full-0-2-3{suffix}");
        assert!(
            matches!(refused(&name), SnapshotNameError::Suffix { .. }),
            "{name}"
        );
    }
}

#[test]
fn creation_time_out_of_range_is_clamped() {
    let mut name = parse_name("Full-0-2-3");
    name.created = i64::MAX;
    assert_eq!(name.created_at(), Timestamp::MAX);
    name.created = i64::MIN;
    assert_eq!(name.created_at(), Timestamp::MIN);
}
