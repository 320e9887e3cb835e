use super::*;

const FULL: &str = "Full-00000000-00000695-1794795243.gz";

fn snapshot_layout(prefix: &str, key: &str) -> Option<LayoutVersion> {
    match classify_key(prefix, key) {
        KeyKind::Snapshot { name, layout } => {
            assert_eq!(name.to_string(), FULL);
            Some(layout)
        }
        _ => None,
    }
}

#[test]
fn generated_key_is_classified_as_its_snapshot() {
    let name: SnapshotName = FULL.parse().unwrap();
    for prefix in [
        "",
        "/",
        "etcd-main",
        "a/b/c",
        "/a//b/./",
        "v1",
        "team-v1/v2",
    ] {
        let key = object_key(prefix, &name);
        assert_eq!(
            snapshot_layout(prefix, &key),
            Some(LayoutVersion::V2),
            "{key}"
        );
        assert!(key.starts_with(&list_prefixes(prefix)[0]));
    }
    assert_eq!(object_key("", &name), format!("v2/{FULL}"));
    assert_eq!(object_key("/a//b/./", &name), format!("a/b/v2/{FULL}"));
    assert_eq!(list_prefixes("a"), ["a/v2/", "a/v1/"]);
}

#[test]
fn prefixes_with_a_common_start_never_mix() {
    let events = format!("a/etcd-events/v2/{FULL}");
    assert_eq!(
        classify_key("a/etcd", &events),
        KeyKind::Foreign(ForeignReason::OutsidePrefix)
    );
    assert_eq!(
        snapshot_layout("a/etcd-events", &events),
        Some(LayoutVersion::V2)
    );
    for listed in list_prefixes("a/etcd") {
        assert!(!events.starts_with(&listed));
    }
    let inner = format!("a/etcd/v2/v2/{FULL}");
    assert_eq!(
        classify_key("a/etcd", &inner),
        KeyKind::Foreign(ForeignReason::UnknownFolder)
    );
}

#[test]
fn v1_in_a_prefix_does_not_select_the_v1_layout() {
    let key = format!("team-v1/etcd/v2/{FULL}");
    assert_eq!(
        snapshot_layout("team-v1/etcd", &key),
        Some(LayoutVersion::V2)
    );
    let key = format!("v1/v1/Backup-1565021494/{FULL}");
    assert_eq!(snapshot_layout("v1", &key), Some(LayoutVersion::V1));
}

#[test]
fn v1_layout_requires_its_backup_folder() {
    let inside = |folder: &str| classify_key("p", &format!("p/v1/{folder}{FULL}"));
    assert!(matches!(
        inside("Backup-12/"),
        KeyKind::Snapshot {
            layout: LayoutVersion::V1,
            ..
        }
    ));
    for folder in ["", "Backup-/", "Backup-x/", "backup-1/"] {
        assert_eq!(
            inside(folder),
            KeyKind::Foreign(ForeignReason::UnknownFolder),
            "{folder}"
        );
    }
}

#[test]
fn upload_part_is_a_chunk_in_both_layouts() {
    for (key, expected) in [
        (format!("p/v2/{FULL}/0000000007"), LayoutVersion::V2),
        (
            format!("p/v1/Backup-12/{FULL}/0000000007"),
            LayoutVersion::V1,
        ),
    ] {
        let found = classify_key("p", &key);
        let KeyKind::Chunk {
            name,
            part: 7,
            layout,
        } = found
        else {
            panic!("{found:?}")
        };
        assert_eq!((name.to_string().as_str(), layout), (FULL, expected));
    }
    for part in [
        "7",
        "00000000001",
        "000000000x",
        "0000000001/0000000001",
        "",
    ] {
        let key = format!("p/v2/{FULL}/{part}");
        assert_eq!(
            classify_key("p", &key),
            KeyKind::Foreign(ForeignReason::UnknownFolder),
            "{key}"
        );
    }
}

#[test]
fn foreign_object_carries_the_reason() {
    let KeyKind::Foreign(reason) = classify_key("p", "p/v2/readme.txt") else {
        panic!()
    };
    assert_eq!(
        reason.to_string(),
        "invalid snapshot name \"readme.txt\": expected 4 fields separated by '-', found 1"
    );
    assert!(matches!(
        classify_key("p", "p/v2/"),
        KeyKind::Foreign(ForeignReason::InvalidName(_))
    ));
}
