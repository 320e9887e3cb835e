use std::fs;
use std::os::unix::fs::symlink;

use mainstay_datadir::MemberFacts;

use super::*;

/// Facts of a data directory of member `name` at `url`.
fn facts(name: &str, url: &str) -> DirFacts {
    let member = |id, name: &str, url: &str| MemberFacts {
        id: MemberId(id),
        name: name.to_owned(),
        peer_urls: vec![url.to_owned()],
        client_urls: Vec::new(),
        is_learner: false,
    };
    let mut facts = DirFacts::default();
    facts.member_id = Some(MemberId(7));
    facts.members = vec![
        member(6, "etcd-main-0", "http://etcd-main-0.etcd-main-peer:2380"),
        member(7, name, url),
    ];
    facts
}

/// Returns the mismatch reported to `etcd-main-1`.
fn describe_for_member_1(facts: &DirFacts) -> Option<String> {
    let peer_urls = ["https://etcd-main-1.etcd-main-peer:2380".to_owned()];
    let owner = ExpectedOwner {
        namespace: None,
        member: "etcd-main-1",
        peer_urls: &peer_urls,
    };
    describe_other_owner(facts, owner)
}

#[test]
fn data_of_another_member_is_reported_with_name_and_url() {
    let other = facts("etcd-main-2", "http://etcd-main-2.etcd-main-peer:2380");
    let message = describe_for_member_1(&other).unwrap();
    for part in [
        "etcd-main-2",
        "http://etcd-main-2.etcd-main-peer:2380",
        "etcd-main-1",
    ] {
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn renamed_moved_or_nameless_member_keeps_its_data() {
    for (name, url) in [
        ("etcd-main-1", "http://etcd-main-1.etcd-main-peer:2380"),
        ("etcd-main-1", "http://10.0.0.7:2380"),
        ("eu-etcd-main-1", "http://etcd-main-1.etcd-main-peer:2380"),
        ("", "http://10.0.0.7:2380"),
        ("default", "http://localhost:2380"),
    ] {
        assert_eq!(
            describe_for_member_1(&facts(name, url)),
            None,
            "{name} at {url}"
        );
    }
}

#[test]
fn data_without_a_known_member_is_not_foreign() {
    let mut unknown = facts("etcd-main-2", "http://etcd-main-2:2380");
    unknown.member_id = None;
    assert_eq!(describe_for_member_1(&unknown), None);
    unknown.member_id = Some(MemberId(9));
    assert_eq!(describe_for_member_1(&unknown), None);
}

#[test]
fn dangling_symlink_is_not_missing_data() {
    let volume = tempfile::tempdir().unwrap();
    let data_dir = volume.path().join("new.etcd");
    check_links(&data_dir).unwrap();
    symlink("elsewhere", &data_dir).unwrap();
    let error = check_links(&data_dir).unwrap_err();
    assert!(
        matches!(&error, DataError::DanglingLink { path, .. } if *path == data_dir),
        "{error}"
    );
    fs::create_dir(volume.path().join("elsewhere")).unwrap();
    check_links(&data_dir).unwrap();
    symlink("/nowhere/wal", data_dir.join("member")).unwrap();
    let message = check_links(&data_dir).unwrap_err().to_string();
    assert!(
        message
            .ends_with("new.etcd/member is a symbolic link to /nowhere/wal, which does not exist"),
        "{message}"
    );
}

#[test]
fn symlink_loop_is_an_error_with_its_path() {
    let volume = tempfile::tempdir().unwrap();
    let data_dir = volume.path().join("new.etcd");
    symlink(&data_dir, &data_dir).unwrap();
    let error = check_links(&data_dir).unwrap_err();
    assert!(matches!(error, DataError::Metadata { .. }), "{error}");
}
