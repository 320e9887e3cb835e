use super::*;

const TEMPLATE: &str = "\
name: etcd-config
data-dir: /var/etcd/data/new.etcd
quota-backend-bytes: 8589934592
initial-cluster-token: etcd-cluster
initial-cluster-state: new
initial-cluster: eu-a-0=http://a-0:2380,eu-a-1=http://a-1:2380,eu-a-1=http://x:2380
member-name-prefix: eu
initial-advertise-peer-urls:
  eu-a-0: [http://a-0:2380]
  eu-a-1: [http://a-1:2380, http://x:2380]
  eu-a-2: [http://a-2:2380]
advertise-client-urls:
  eu-a-0: [http://a-0:2379]
  eu-a-1: [http://a-1:2379]
  eu-a-2: [http://a-2:2379]
peer-transport-security: {cert-file: /tls.crt, auto-tls: false}
";

fn template() -> Template {
    Template(serde_norway::from_str(TEMPLATE).unwrap())
}

fn parsed(text: &str) -> Mapping {
    serde_norway::from_str(text).unwrap()
}

#[test]
fn a_member_of_a_new_cluster_gets_its_own_addresses_and_everything_else() {
    let template = template();
    let member = template.member("a-1");
    assert_eq!(member, "eu-a-1");
    let roster = Roster::Configured(ClusterState::New);
    let file = parsed(&template.file_of(&member, &roster).unwrap());
    let text = |key: &str| file.get(key).and_then(Value::as_str).unwrap();
    assert_eq!(text(NAME), "eu-a-1");
    assert_eq!(text(PEER_URLS), "http://a-1:2380,http://x:2380");
    assert_eq!(text(CLIENT_URLS), "http://a-1:2379");
    assert_eq!(text(STATE), "new");
    assert!(text(MEMBERS).starts_with("eu-a-0=http://a-0:2380,eu-a-1="));
    assert!(!file.contains_key(PREFIX));
    for key in [
        "quota-backend-bytes",
        "initial-cluster-token",
        "peer-transport-security",
        DATA_DIR,
    ] {
        assert_eq!(file.get(key), template.0.get(key), "{key}");
    }
}

#[test]
fn a_member_that_joins_takes_the_list_of_the_running_cluster() {
    let roster = Roster::Running {
        members: "eu-a-0=http://old:1,eu-a-2=http://told:2".into(),
        own_peer_urls: vec!["http://told:2".into()],
    };
    let file = parsed(&template().file_of("eu-a-2", &roster).unwrap());
    let text = |key: &str| file.get(key).and_then(Value::as_str).unwrap();
    assert_eq!(text(MEMBERS), "eu-a-0=http://old:1,eu-a-2=http://told:2");
    assert_eq!(
        (text(PEER_URLS), text(STATE)),
        ("http://told:2", "existing")
    );
}

#[test]
fn a_member_that_was_never_listed_is_in_its_own_file() {
    let roster = Roster::Configured(ClusterState::Existing);
    let file = parsed(&template().file_of("eu-a-2", &roster).unwrap());
    let members = file.get(MEMBERS).and_then(Value::as_str);
    assert_eq!(members, Some("eu-a-2=http://a-2:2380"));
}

#[test]
fn whether_a_member_is_alone_and_listed_follows_from_the_members_of_the_cluster() {
    let template = template();
    let listed = template.configured("eu-a-0").unwrap();
    assert!(listed.is_listed && !listed.is_alone);
    let unlisted = template.configured("eu-a-2").unwrap();
    assert!(!unlisted.is_listed && !unlisted.is_alone);
    let mut alone = template.clone();
    alone
        .0
        .insert(MEMBERS.into(), "eu-a-0=http://a-0:2380".into());
    assert!(alone.configured("eu-a-0").unwrap().is_alone);
    assert!(!alone.configured("eu-a-1").unwrap().is_alone);
    alone.0.insert(MEMBERS.into(), "".into());
    assert!(!alone.configured("eu-a-0").unwrap().is_alone);
    assert_eq!(
        template.other_client_urls("eu-a-1").unwrap(),
        ["http://a-0:2379", "http://a-2:2379"]
    );
}

#[test]
fn what_is_missing_is_named() {
    let template = template();
    let roster = Roster::Configured(ClusterState::New);
    let error = template.file_of("eu-a-9", &roster).unwrap_err();
    assert!(
        error
            .to_string()
            .ends_with("advertise-client-urls for the member eu-a-9"),
        "{error}"
    );
    for (key, value) in [(STATE, "maybe"), (MEMBERS, "nonsense")] {
        let mut broken = template.clone();
        broken.0.insert(key.into(), value.into());
        assert!(
            broken
                .configured("eu-a-0")
                .unwrap_err()
                .to_string()
                .contains(key),
            "{key}"
        );
    }
    let mut plain = template;
    plain.0.insert(CLIENT_URLS.into(), "http://plain".into());
    let error = plain.other_client_urls("eu-a-0").unwrap_err();
    assert!(error.to_string().contains(CLIENT_URLS), "{error}");
}

#[test]
fn a_file_is_replaced_as_a_whole_and_is_for_its_owner_only() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("etcd.conf.yaml");
    put(&path, "a: 1").unwrap();
    put(&path, "b: 2").unwrap();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "b: 2");
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    let error = put(Path::new("/nowhere/at/all"), "").unwrap_err();
    assert!(matches!(error, TemplateError::Write { .. }), "{error}");
}
