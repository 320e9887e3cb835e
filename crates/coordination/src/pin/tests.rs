use super::*;

fn test_pin(first: i64, last: Option<i64>) -> Pin {
    let request = PinRequest {
        name: "compactor".to_owned(),
        holder: "job-1".to_owned(),
        purpose: Purpose::Compact,
        keys: BTreeSet::from(["etcd/v2/notes".to_owned()]),
        revisions: Some(RevisionRange {
            first: Revision(first),
            last: last.map(Revision),
        }),
        ttl: Duration::from_mins(1),
    };
    request.to_pin(Timestamp::constant(1_800_000_000, 0))
}

#[test]
fn revision_range_covers_its_base_and_deltas() {
    let pin = test_pin(100, Some(300));
    for covered in [
        "Full-00000000-00000100-1800000000.gz",
        "Incr-00000101-00000200-1800000000.gz",
        "Incr-00000250-00000400-1800000000.gz",
        "Incr-00000300-00000300-1800000000.gz",
    ] {
        assert!(pin.covers(&format!("etcd/v2/{covered}")), "{covered}");
    }
    for other in [
        "Full-00000000-00000099-1800000000.gz",
        "Full-00000000-00000301-1800000000.gz",
        "Incr-00000050-00000099-1800000000.gz",
        "Incr-00000301-00000400-1800000000.gz",
        "Chunk-1",
    ] {
        assert!(!pin.covers(&format!("etcd/v2/{other}")), "{other}");
    }
}

#[test]
fn open_range_covers_future_deltas() {
    assert!(test_pin(100, None).covers("v2/Incr-99999999-100000000-1800000000"));
}

#[test]
fn key_is_covered_only_on_exact_match() {
    assert!(test_pin(1, Some(1)).covers("etcd/v2/notes"));
    assert!(!test_pin(1, Some(1)).covers("other/v2/notes"));
}

#[test]
fn pin_json_format_is_stable() {
    let text = concat!(
        r#"{"holder":"job-1","purpose":"compact","keys":["etcd/v2/notes"],"revisions":{"first":100,"last":300},"#,
        r#""since":"2027-01-15T08:00:00Z","renewed":"2027-01-15T08:00:00Z","ttl":"1m"}"#
    );
    assert_eq!(
        serde_json::to_string(&test_pin(100, Some(300))).unwrap(),
        text
    );
    assert_eq!(
        serde_json::from_str::<Pin>(text).unwrap(),
        test_pin(100, Some(300))
    );
    let open: RevisionRange = serde_json::from_str(r#"{"first":5}"#).unwrap();
    assert_eq!(
        open,
        RevisionRange {
            first: Revision(5),
            last: None
        }
    );
}
