use super::*;

fn written(created: i64, modified: i64, version: i64, value: &[u8]) -> Written {
    Written {
        created: Revision(created),
        modified: Revision(modified),
        version,
        value: Sha256::digest(value).into(),
    }
}

/// The key was put for the third time, at revision 50.
fn put() -> Witness {
    Witness {
        key: b"k".to_vec(),
        revision: Revision(50),
        put: Some(written(10, 50, 3, b"v")),
    }
}

/// The key was deleted at revision 50.
fn delete() -> Witness {
    Witness { put: None, ..put() }
}

fn then(before: Found, at: Option<Written>) -> Testimony {
    Testimony::Then { before, at }
}

#[test]
fn a_put_that_etcd_has_at_its_revision_is_of_the_own_history() {
    let at = then(Found::Untold, Some(written(10, 50, 3, b"v")));
    assert_eq!(judge(&put(), &at), Kinship::Own);
}

#[test]
fn a_put_that_differs_in_anything_is_of_another_history() {
    let others = [
        None,
        Some(written(10, 50, 3, b"w")),
        Some(written(10, 50, 4, b"v")),
        Some(written(11, 50, 3, b"v")),
        Some(written(10, 49, 3, b"v")),
    ];
    for other in others {
        assert_eq!(
            judge(&put(), &then(Found::Untold, other.clone())),
            Kinship::Foreign,
            "{other:?}"
        );
    }
}

#[test]
fn a_delete_needs_a_key_that_was_there_and_is_gone() {
    let was = Found::There(written(10, 40, 2, b"v"));
    assert_eq!(judge(&delete(), &then(was.clone(), None)), Kinship::Own);
    // An etcd that never had the key lacks it, too.
    assert_eq!(
        judge(&delete(), &then(Found::Nothing, None)),
        Kinship::Foreign
    );
    assert_eq!(
        judge(&delete(), &then(was, Some(written(10, 40, 2, b"v")))),
        Kinship::Foreign
    );
    assert_eq!(
        judge(&delete(), &then(Found::Untold, None)),
        Kinship::Unknown
    );
}

#[test]
fn behind_a_compaction_a_key_may_only_have_grown() {
    let now = |state| judge(&put(), &Testimony::Now(Some(state)));
    assert_eq!(now(written(10, 50, 3, b"v")), Kinship::Own);
    assert_eq!(now(written(10, 90, 4, b"x")), Kinship::Own);
    for other in [
        written(10, 50, 3, b"w"),
        written(10, 40, 2, b"u"),
        written(10, 90, 3, b"x"),
        written(12, 90, 9, b"x"),
    ] {
        assert_eq!(now(other.clone()), Kinship::Parted, "{other:?}");
    }
    let survivor = Testimony::Now(Some(written(10, 40, 2, b"v")));
    assert_eq!(judge(&delete(), &survivor), Kinship::Parted);
}

#[test]
fn a_key_that_is_gone_or_made_anew_behind_a_compaction_tells_nothing() {
    for witness in [put(), delete()] {
        for now in [None, Some(written(60, 70, 2, b"x"))] {
            assert_eq!(judge(&witness, &Testimony::Now(now)), Kinship::Unknown);
        }
    }
}
