use mainstay_crds::tls::SecretReference;

use super::*;

fn store_spec(provider: &str) -> StoreSpec {
    StoreSpec {
        container: Some("bucket".into()),
        prefix: "shoot/etcd".into(),
        provider: Some(provider.into()),
        secret_ref: Some(SecretReference {
            name: Some("credentials".into()),
            namespace: Some("ignored".into()),
        }),
        ..StoreSpec::default()
    }
}

fn store_context(side: StoreSide) -> StoreContext {
    StoreContext {
        side,
        field: "spec.backup.store",
        local_store_root: "/buckets/".into(),
    }
}

fn build_access(store: &StoreSpec, side: StoreSide) -> StoreAccess {
    StoreAccess::from_spec(store, &store_context(side))
        .unwrap()
        .unwrap()
}

#[test]
fn every_alias_maps_to_a_supported_provider() {
    for (alias, provider) in PROVIDER_ALIASES {
        let access = build_access(&store_spec(alias), StoreSide::Primary);
        let expected = format!("--storage-provider={}", provider.name());
        assert_eq!(access.flags.first(), Some(&expected), "{alias}");
    }
}

#[test]
fn unknown_provider_is_an_error_and_missing_provider_is_no_store() {
    let error =
        StoreAccess::from_spec(&store_spec("ftp"), &store_context(StoreSide::Primary)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "spec.backup.store: unknown store provider \"ftp\""
    );
    let absent = StoreSpec {
        provider: None,
        ..store_spec("")
    };
    assert_eq!(
        StoreAccess::from_spec(&absent, &store_context(StoreSide::Primary)).unwrap(),
        None
    );
    assert_eq!(
        StoreAccess::from_spec(&store_spec(""), &store_context(StoreSide::Primary)).unwrap(),
        None
    );
}

#[test]
fn credentials_are_mounted_from_the_secret_and_named_by_a_variable() {
    for (alias, variable, dir) in [
        ("aws", "AWS_APPLICATION_CREDENTIALS", "/var/etcd-backup"),
        ("azure", "AZURE_APPLICATION_CREDENTIALS", "/var/etcd-backup"),
        (
            "openstack",
            "OPENSTACK_APPLICATION_CREDENTIALS",
            "/var/etcd-backup",
        ),
        (
            "alicloud",
            "ALICLOUD_APPLICATION_CREDENTIALS",
            "/var/etcd-backup",
        ),
        (
            "openshift",
            "OPENSHIFT_APPLICATION_CREDENTIALS",
            "/var/etcd-backup",
        ),
        ("gcp", "GOOGLE_APPLICATION_CREDENTIALS", "/var/.gcp"),
    ] {
        let access = build_access(&store_spec(alias), StoreSide::Primary);
        let value = access.env[0].value.as_deref().unwrap();
        assert_eq!(
            (access.env.len(), access.env[0].name.as_str()),
            (1, variable)
        );
        assert!(value.starts_with(dir), "{alias}: {value}");
        assert_eq!(access.mounts[0].mount_path, dir);
        let secret = access.volumes[0].secret.as_ref().unwrap();
        assert_eq!(secret.secret_name.as_deref(), Some("credentials"));
        assert_eq!(secret.default_mode, Some(0o640));
        let source = build_access(&store_spec(alias), StoreSide::Source);
        assert_eq!(source.env[0].name, format!("SOURCE_{variable}"));
        assert_ne!(source.mounts[0].mount_path, dir);
        assert_ne!(source.volumes[0].name, access.volumes[0].name);
    }
}

#[test]
fn ecs_reads_its_credentials_from_secret_keys() {
    let access = build_access(&store_spec("dell"), StoreSide::Primary);
    let keys: Vec<&str> = access
        .env
        .iter()
        .map(|env| {
            env.value_from
                .as_ref()
                .unwrap()
                .secret_key_ref
                .as_ref()
                .unwrap()
        })
        .map(|selector| selector.key.as_str())
        .collect();
    assert_eq!(keys, ["endpoint", "accessKeyID", "secretAccessKey"]);
    assert!(access.volumes.is_empty() && access.mounts.is_empty());
}

#[test]
fn store_without_secret_uses_the_pod_identity() {
    for provider in ["aws", "gcp", "azure", "dell"] {
        let ambient = StoreSpec {
            secret_ref: None,
            ..store_spec(provider)
        };
        let access = build_access(&ambient, StoreSide::Primary);
        assert!(
            access.env.is_empty() && access.volumes.is_empty(),
            "{provider}"
        );
        assert_eq!(access.flags.len(), 3);
    }
}

#[test]
fn local_store_is_a_host_path_mounted_below_the_home_directory() {
    let access = build_access(&store_spec("Local"), StoreSide::Primary);
    let path = &access.volumes[0].host_path.as_ref().unwrap().path;
    assert_eq!(path, "/buckets/bucket");
    assert_eq!(access.mounts[0].mount_path, "/var/mainstay/bucket");
    assert_eq!(access.env, [env_var("HOME", "/var/mainstay")]);
    let unnamed = StoreSpec {
        container: None,
        ..store_spec("Local")
    };
    let access = build_access(&unnamed, StoreSide::Primary);
    assert_eq!(
        access.local_dir.as_deref(),
        Some("/var/mainstay/default.bkp")
    );
    let cloud = StoreSpec {
        container: None,
        ..store_spec("aws")
    };
    let error = StoreAccess::from_spec(&cloud, &store_context(StoreSide::Primary)).unwrap_err();
    assert!(
        error.to_string().contains("requires a container"),
        "{error}"
    );
}

#[test]
fn variable_reference_in_a_prefix_is_escaped() {
    let odd = StoreSpec {
        prefix: "a/$(POD_NAME)/$".into(),
        ..store_spec("aws")
    };
    let access = build_access(&odd, StoreSide::Primary);
    assert!(
        access
            .flags
            .contains(&"--store-prefix=a/$$(POD_NAME)/$$".to_owned())
    );
}
