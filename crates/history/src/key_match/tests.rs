use super::*;

fn written_key(created: i64, modified: i64, version: i64, value: &[u8]) -> WrittenKey {
    WrittenKey::new(Revision(created), Revision(modified), version, value)
}

/// The third put of the key, at revision 50.
fn put_event() -> BackupEvent {
    BackupEvent {
        key: b"k".to_vec(),
        revision: Revision(50),
        put: Some(written_key(10, 50, 3, b"v")),
    }
}

/// The deletion of the key at revision 50.
fn delete_event() -> BackupEvent {
    BackupEvent {
        put: None,
        ..put_event()
    }
}

fn at_revision(before: KeyLookup, at: Option<WrittenKey>) -> KeyHistory {
    KeyHistory::AtRevision { before, at }
}

#[test]
fn put_found_at_its_revision_is_of_the_same_history() {
    let at = at_revision(KeyLookup::Unavailable, Some(written_key(10, 50, 3, b"v")));
    assert_eq!(match_history(&put_event(), &at), HistoryMatch::Same);
}

#[test]
fn put_that_differs_in_any_field_is_foreign() {
    let others = [
        None,
        Some(written_key(10, 50, 3, b"w")),
        Some(written_key(10, 50, 4, b"v")),
        Some(written_key(11, 50, 3, b"v")),
        Some(written_key(10, 49, 3, b"v")),
    ];
    for other in others {
        assert_eq!(
            match_history(
                &put_event(),
                &at_revision(KeyLookup::Unavailable, other.clone())
            ),
            HistoryMatch::Foreign,
            "{other:?}"
        );
    }
}

#[test]
fn delete_matches_only_a_key_that_existed_and_is_deleted() {
    let was = KeyLookup::Present(written_key(10, 40, 2, b"v"));
    assert_eq!(
        match_history(&delete_event(), &at_revision(was.clone(), None)),
        HistoryMatch::Same
    );
    // The key is missing as well in an etcd that never had it.
    assert_eq!(
        match_history(&delete_event(), &at_revision(KeyLookup::Absent, None)),
        HistoryMatch::Foreign
    );
    assert_eq!(
        match_history(
            &delete_event(),
            &at_revision(was, Some(written_key(10, 40, 2, b"v")))
        ),
        HistoryMatch::Foreign
    );
    assert_eq!(
        match_history(&delete_event(), &at_revision(KeyLookup::Unavailable, None)),
        HistoryMatch::Unknown
    );
}

#[test]
fn compacted_key_matches_only_with_consistent_later_versions() {
    let now = |state| match_history(&put_event(), &KeyHistory::Current(Some(state)));
    assert_eq!(now(written_key(10, 50, 3, b"v")), HistoryMatch::Same);
    assert_eq!(now(written_key(10, 90, 4, b"x")), HistoryMatch::Same);
    for other in [
        written_key(10, 50, 3, b"w"),
        written_key(10, 40, 2, b"u"),
        written_key(10, 90, 3, b"x"),
        written_key(12, 90, 9, b"x"),
    ] {
        assert_eq!(now(other.clone()), HistoryMatch::Diverged, "{other:?}");
    }
    let survivor = KeyHistory::Current(Some(written_key(10, 40, 2, b"v")));
    assert_eq!(
        match_history(&delete_event(), &survivor),
        HistoryMatch::Diverged
    );
}

#[test]
fn compacted_key_that_is_deleted_or_recreated_is_inconclusive() {
    for witness in [put_event(), delete_event()] {
        for now in [None, Some(written_key(60, 70, 2, b"x"))] {
            assert_eq!(
                match_history(&witness, &KeyHistory::Current(now)),
                HistoryMatch::Unknown
            );
        }
    }
}
