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

fn template() -> ConfigTemplate {
    ConfigTemplate(serde_norway::from_str(TEMPLATE).unwrap())
}

fn parse_yaml(text: &str) -> Mapping {
    serde_norway::from_str(text).unwrap()
}

#[test]
fn new_cluster_member_config_has_its_own_urls_and_all_other_keys() {
    let template = template();
    let member = template.member_name("a-1");
    assert_eq!(member, "eu-a-1");
    let roster = InitialClusterConfig::FromTemplate(InitialClusterState::New);
    let file = parse_yaml(&template.render_member_config(&member, &roster).unwrap());
    let text = |key: &str| file.get(key).and_then(Value::as_str).unwrap();
    assert_eq!(text(NAME_KEY), "eu-a-1");
    assert_eq!(text(PEER_URLS_KEY), "http://a-1:2380,http://x:2380");
    assert_eq!(text(CLIENT_URLS_KEY), "http://a-1:2379");
    assert_eq!(text(CLUSTER_STATE_KEY), "new");
    assert!(text(INITIAL_CLUSTER_KEY).starts_with("eu-a-0=http://a-0:2380,eu-a-1="));
    assert!(!file.contains_key(NAME_PREFIX_KEY));
    for key in [
        "quota-backend-bytes",
        "initial-cluster-token",
        "peer-transport-security",
        DATA_DIR_KEY,
    ] {
        assert_eq!(file.get(key), template.0.get(key), "{key}");
    }
}

#[test]
fn joining_member_uses_the_member_list_of_the_running_cluster() {
    let roster = InitialClusterConfig::FromRunningCluster {
        members: "eu-a-0=http://old:1,eu-a-2=http://told:2".into(),
        own_peer_urls: vec!["http://told:2".into()],
    };
    let file = parse_yaml(&template().render_member_config("eu-a-2", &roster).unwrap());
    let text = |key: &str| file.get(key).and_then(Value::as_str).unwrap();
    assert_eq!(
        text(INITIAL_CLUSTER_KEY),
        "eu-a-0=http://old:1,eu-a-2=http://told:2"
    );
    assert_eq!(
        (text(PEER_URLS_KEY), text(CLUSTER_STATE_KEY)),
        ("http://told:2", "existing")
    );
}

#[test]
fn unlisted_member_is_listed_in_its_own_config() {
    let roster = InitialClusterConfig::FromTemplate(InitialClusterState::Existing);
    let file = parse_yaml(&template().render_member_config("eu-a-2", &roster).unwrap());
    let members = file.get(INITIAL_CLUSTER_KEY).and_then(Value::as_str);
    assert_eq!(members, Some("eu-a-2=http://a-2:2380"));
}

#[test]
fn single_member_and_listed_follow_from_initial_cluster() {
    let template = template();
    let listed = template.configured_cluster("eu-a-0").unwrap();
    assert!(listed.is_listed && !listed.is_single_member);
    let unlisted = template.configured_cluster("eu-a-2").unwrap();
    assert!(!unlisted.is_listed && !unlisted.is_single_member);
    let mut alone = template.clone();
    alone
        .0
        .insert(INITIAL_CLUSTER_KEY.into(), "eu-a-0=http://a-0:2380".into());
    assert!(alone.configured_cluster("eu-a-0").unwrap().is_single_member);
    assert!(!alone.configured_cluster("eu-a-1").unwrap().is_single_member);
    alone.0.insert(INITIAL_CLUSTER_KEY.into(), "".into());
    assert!(!alone.configured_cluster("eu-a-0").unwrap().is_single_member);
    assert_eq!(
        template.other_client_urls("eu-a-1").unwrap(),
        ["http://a-0:2379", "http://a-2:2379"]
    );
}

#[test]
fn missing_or_invalid_template_key_is_named() {
    let template = template();
    let roster = InitialClusterConfig::FromTemplate(InitialClusterState::New);
    let error = template
        .render_member_config("eu-a-9", &roster)
        .unwrap_err();
    assert!(
        error
            .to_string()
            .ends_with("advertise-client-urls has no entry for member eu-a-9"),
        "{error}"
    );
    for (key, value) in [
        (CLUSTER_STATE_KEY, "maybe"),
        (INITIAL_CLUSTER_KEY, "nonsense"),
    ] {
        let mut broken = template.clone();
        broken.0.insert(key.into(), value.into());
        assert!(
            broken
                .configured_cluster("eu-a-0")
                .unwrap_err()
                .to_string()
                .contains(key),
            "{key}"
        );
    }
    let mut plain = template;
    plain
        .0
        .insert(CLIENT_URLS_KEY.into(), "http://plain".into());
    let error = plain.other_client_urls("eu-a-0").unwrap_err();
    assert!(error.to_string().contains(CLIENT_URLS_KEY), "{error}");
}

#[test]
fn config_file_is_replaced_atomically_and_readable_by_owner_only() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("etcd.conf.yaml");
    write_atomically(&path, "a: 1").unwrap();
    write_atomically(&path, "b: 2").unwrap();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "b: 2");
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    let error = write_atomically(Path::new("/nowhere/at/all"), "").unwrap_err();
    assert!(matches!(error, TemplateError::Write { .. }), "{error}");
}
