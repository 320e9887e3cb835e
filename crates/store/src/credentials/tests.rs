use std::fs;
use std::path::Path;

use tempfile::TempDir;

use super::*;
use crate::config::{StorageProvider, StoreRole};
use crate::environment::Environment;
use crate::secret::Secret;

/// A directory with credential files.
struct CredentialMount {
    directory: TempDir,
}

impl CredentialMount {
    fn new(files: &[(&str, &str)]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        for (name, content) in files {
            fs::write(directory.path().join(name), content).unwrap();
        }
        Self { directory }
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    fn file_path(&self, name: &str) -> String {
        self.path().join(name).to_str().unwrap().to_owned()
    }

    /// An environment whose variable names the directory.
    fn env_for_directory(&self, variable: &str) -> Environment {
        Environment::from_iter([(variable, self.path().to_str().unwrap())])
    }

    /// An environment whose variable names one file.
    fn env_for_file(&self, variable: &str, name: &str) -> Environment {
        Environment::from_iter([(variable, self.file_path(name))])
    }
}

const KEY_FIELDS: [(&str, &str); 3] = [
    ("region", "eu-1\n"),
    ("accessKeyID", "id\n"),
    ("secretAccessKey", "secret\r\n"),
];

fn expected_keys() -> S3Identity {
    S3Identity::Keys {
        id: Secret::new("id"),
        secret: Secret::new("secret"),
    }
}

#[test]
fn credential_directory_has_one_file_per_field_without_line_breaks() {
    let mount = CredentialMount::new(&KEY_FIELDS);
    let access = S3Credentials::find(
        &mount.env_for_directory("AWS_APPLICATION_CREDENTIALS"),
        StoreRole::Primary,
    );
    let access = access.unwrap();
    assert_eq!(
        (access.identity, access.region.as_deref()),
        (expected_keys(), Some("eu-1"))
    );
    assert!(!access.path_style && !access.insecure_skip_verify);
}

#[test]
fn json_file_in_the_directory_overrides_the_other_files() {
    let mount = CredentialMount::new(&KEY_FIELDS);
    let json = r#"{"region": "us-1", "accessKeyID": "id", "secretAccessKey": "secret",
        "s3ForcePathStyle": true, "insecureSkipVerify": false, "endpoint": "https://s3.local"}"#;
    fs::write(mount.path().join("all.json"), json).unwrap();
    let access = S3Credentials::find(
        &mount.env_for_directory("AWS_APPLICATION_CREDENTIALS"),
        StoreRole::Primary,
    );
    let access = access.unwrap();
    assert_eq!(access.region.as_deref(), Some("us-1"));
    assert_eq!(access.endpoint.as_deref(), Some("https://s3.local"));
    assert!(access.path_style && !access.insecure_skip_verify);
}

#[test]
fn json_variable_overrides_the_directory_variable() {
    let (directory, file) = (
        CredentialMount::new(&KEY_FIELDS),
        CredentialMount::new(&[(
            "c.json",
            r#"{"region": "json", "accessKeyID": "id", "secretAccessKey": "secret"}"#,
        )]),
    );
    let env = Environment::from_iter([
        (
            "AWS_APPLICATION_CREDENTIALS",
            directory.path().to_str().unwrap().to_owned(),
        ),
        ("AWS_APPLICATION_CREDENTIALS_JSON", file.file_path("c.json")),
    ]);
    let access = S3Credentials::find(&env, StoreRole::Primary).unwrap();
    assert_eq!(access.region.as_deref(), Some("json"));
}

#[test]
fn each_role_reads_its_own_variables_only() {
    let mount = CredentialMount::new(&KEY_FIELDS);
    for (role, variable) in [
        (StoreRole::Primary, "AWS_APPLICATION_CREDENTIALS"),
        (StoreRole::Source, "SOURCE_AWS_APPLICATION_CREDENTIALS"),
        (
            StoreRole::Secondary,
            "SECONDARY_AWS_APPLICATION_CREDENTIALS",
        ),
    ] {
        let env = mount.env_for_directory(variable);
        for requested in [StoreRole::Primary, StoreRole::Source, StoreRole::Secondary] {
            let identity = S3Credentials::find(&env, requested).unwrap().identity;
            let expected = if requested == role {
                expected_keys()
            } else {
                S3Identity::Ambient
            };
            assert_eq!(identity, expected, "{requested:?} with {variable}");
        }
    }
}

#[test]
fn missing_field_is_named_with_file_and_variable() {
    let mount = CredentialMount::new(&[("region", "eu-1"), ("accessKeyID", "id")]);
    let env = mount.env_for_directory("SOURCE_AWS_APPLICATION_CREDENTIALS");
    let error = S3Credentials::find(&env, StoreRole::Source).unwrap_err();
    let text = error.to_string();
    for part in [
        "secretAccessKey",
        "SOURCE_AWS_APPLICATION_CREDENTIALS",
        mount.path().to_str().unwrap(),
    ] {
        assert!(text.contains(part), "{text} lacks {part}");
    }
}

#[test]
fn missing_credential_path_is_named() {
    let env = Environment::from_iter([("AWS_APPLICATION_CREDENTIALS", "/no/such/directory")]);
    let error = S3Credentials::find(&env, StoreRole::Primary).unwrap_err();
    assert!(
        matches!(error, CredentialError::ListDirectory { .. }),
        "{error:?}"
    );
    let env = Environment::from_iter([("AWS_APPLICATION_CREDENTIALS_JSON", "/no/such.json")]);
    let error = S3Credentials::find(&env, StoreRole::Primary).unwrap_err();
    assert!(
        matches!(error, CredentialError::ReadFile { .. }),
        "{error:?}"
    );
}

#[test]
fn invalid_credential_files_are_refused() {
    let mount = CredentialMount::new(&[("huge", &"x".repeat((1 << 20) + 1)), ("list.json", "[]")]);
    let env = mount.env_for_file("AWS_APPLICATION_CREDENTIALS_JSON", "huge");
    assert!(matches!(
        S3Credentials::find(&env, StoreRole::Primary),
        Err(CredentialError::TooLarge { .. })
    ));
    let env = mount.env_for_file("AWS_APPLICATION_CREDENTIALS_JSON", "list.json");
    assert!(matches!(
        S3Credentials::find(&env, StoreRole::Primary),
        Err(CredentialError::InvalidJson { .. })
    ));
    fs::write(mount.path().join("binary"), [0xff, 0xfe]).unwrap();
    let env = mount.env_for_file("AWS_APPLICATION_CREDENTIALS_JSON", "binary");
    assert!(matches!(
        S3Credentials::find(&env, StoreRole::Primary),
        Err(CredentialError::NotUtf8 { .. })
    ));
}

#[test]
fn role_is_assumed_with_the_token_file_beside_it() {
    let mount = CredentialMount::new(&[
        ("region", "r"),
        ("roleARN", "arn:aws:iam::1:role/x"),
        ("token", "t"),
    ]);
    let access = S3Credentials::find(
        &mount.env_for_directory("AWS_APPLICATION_CREDENTIALS"),
        StoreRole::Primary,
    );
    let expected = S3Identity::WebIdentity {
        role_arn: "arn:aws:iam::1:role/x".to_owned(),
        token_file: mount.path().join("token"),
    };
    assert_eq!(access.unwrap().identity, expected);

    let json = r#"{"region": "r", "roleARN": "arn", "tokenPath": "/var/run/token"}"#;
    let mount = CredentialMount::new(&[("c.json", json)]);
    let env = mount.env_for_file("AWS_APPLICATION_CREDENTIALS_JSON", "c.json");
    let expected = S3Identity::WebIdentity {
        role_arn: "arn".to_owned(),
        token_file: "/var/run/token".into(),
    };
    assert_eq!(
        S3Credentials::find(&env, StoreRole::Primary)
            .unwrap()
            .identity,
        expected
    );
}

#[test]
fn customer_key_is_plain_or_base64_and_must_be_32_bytes() {
    let plain = "0123456789abcdef0123456789abcdef";
    let encoded = "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=";
    let find = |key: &str, algorithm: &str| {
        let extra = [("sseCustomerKey", key), ("sseCustomerAlgorithm", algorithm)];
        let mount = CredentialMount::new(&[&KEY_FIELDS[..], &extra].concat());
        S3Credentials::find(
            &mount.env_for_directory("AWS_APPLICATION_CREDENTIALS"),
            StoreRole::Primary,
        )
    };
    for key in [plain, encoded] {
        let found = find(key, "AES256").unwrap().sse_customer_key.unwrap();
        assert_eq!(found.expose(), encoded);
    }
    assert!(find("too short", "AES256").is_err());
    assert!(find(plain, "DES").is_err());
    assert!(find("", "AES256").is_err());
}

#[test]
fn ecs_reads_plain_variables_and_source_variables_override_them() {
    let common = [
        ("ECS_ENDPOINT", "ecs.local:9021"),
        ("ECS_ACCESS_KEY_ID", "id"),
        ("ECS_SECRET_ACCESS_KEY", "secret"),
    ];
    let access =
        S3Credentials::find_ecs(&Environment::from_iter(common), StoreRole::Source).unwrap();
    assert_eq!(access.identity, expected_keys());
    assert_eq!(access.endpoint.as_deref(), Some("https://ecs.local:9021"));
    assert!(access.path_style);

    let own = [
        ("SOURCE_ECS_ENDPOINT", "other:1"),
        ("ECS_DISABLE_SSL", "true"),
    ];
    let env: Environment = common.into_iter().chain(own).collect();
    let access = S3Credentials::find_ecs(&env, StoreRole::Source).unwrap();
    assert_eq!(access.endpoint.as_deref(), Some("http://other:1"));

    let error = S3Credentials::find_ecs(&Environment::default(), StoreRole::Source).unwrap_err();
    assert!(
        matches!(error, CredentialError::UnsetVariable { .. }),
        "{error:?}"
    );
}

#[test]
fn ocs_azure_and_oss_need_all_their_fields() {
    let ocs = CredentialMount::new(
        &[
            &KEY_FIELDS[..],
            &[("endpoint", "https://ocs"), ("disableSSL", "no")],
        ]
        .concat(),
    );
    let env = ocs.env_for_directory("OPENSHIFT_APPLICATION_CREDENTIALS");
    assert!(matches!(
        S3Credentials::find_ocs(&env, StoreRole::Primary),
        Err(CredentialError::InvalidField { .. })
    ));
    fs::write(ocs.path().join("disableSSL"), "false").unwrap();
    assert_eq!(
        S3Credentials::find_ocs(&env, StoreRole::Primary)
            .unwrap()
            .endpoint
            .unwrap(),
        "https://ocs"
    );

    let azure = CredentialMount::new(&[
        ("storageAccount", "a"),
        ("domain", "blob.core.chinacloudapi.cn"),
    ]);
    let env = azure.env_for_directory("AZURE_APPLICATION_CREDENTIALS");
    assert!(AzureAccount::find(&env, StoreRole::Primary).is_err());
    fs::write(azure.path().join("storageKey"), "a2V5").unwrap();
    let account = AzureAccount::find(&env, StoreRole::Primary)
        .unwrap()
        .unwrap();
    assert_eq!(
        account.domain.as_deref(),
        Some("blob.core.chinacloudapi.cn")
    );
    assert_eq!(
        AzureAccount::find(&Environment::default(), StoreRole::Primary).unwrap(),
        None
    );

    let oss = CredentialMount::new(&[("accessKeyID", "id"), ("accessKeySecret", "s")]);
    let env = oss.env_for_directory("ALICLOUD_APPLICATION_CREDENTIALS");
    assert!(OssAccount::find(&env, StoreRole::Primary).is_err());
    fs::write(
        oss.path().join("storageEndpoint"),
        "oss-eu-central-1.aliyuncs.com\n",
    )
    .unwrap();
    let account = OssAccount::find(&env, StoreRole::Primary).unwrap();
    assert_eq!(account.endpoint, "https://oss-eu-central-1.aliyuncs.com");
}

#[test]
fn google_account_type_is_detected_and_endpoint_file_is_read() {
    let mount = CredentialMount::new(&[
        ("key.json", r#"{"type": "service_account"}"#),
        ("external.json", r#"{"type": "external_account"}"#),
        ("odd.json", r#"{"type": "api_key"}"#),
        (
            "storageAPIEndpoint",
            "https://storage.example/storage/v1/\n",
        ),
    ]);
    let find = |name| {
        GoogleAccount::find(
            &mount.env_for_file("GOOGLE_APPLICATION_CREDENTIALS", name),
            StoreRole::Primary,
        )
    };
    let key = find("key.json").unwrap().unwrap();
    assert_eq!(key.kind, GoogleKind::Key);
    assert_eq!(
        key.endpoint.as_deref(),
        Some("https://storage.example/storage/v1/")
    );
    assert_eq!(
        find("external.json").unwrap().unwrap().kind,
        GoogleKind::External
    );
    assert!(find("odd.json").is_err());
}

#[test]
fn fingerprint_changes_only_when_the_files_change() {
    let mount = CredentialMount::new(&KEY_FIELDS);
    let env = mount.env_for_directory("AWS_APPLICATION_CREDENTIALS");
    let now = || fingerprint_credentials(&env, StoreRole::Primary, StorageProvider::S3);
    let first = now();
    assert_eq!(first.file_count(), 3);
    assert_eq!(first, now());
    fs::write(mount.path().join("accessKeyID"), "another").unwrap();
    let second = now();
    assert_ne!(first, second);
    fs::write(mount.path().join("endpoint"), "https://new").unwrap();
    assert_ne!(second, now());
    assert_eq!(
        fingerprint_credentials(
            &Environment::default(),
            StoreRole::Primary,
            StorageProvider::S3
        )
        .file_count(),
        0
    );
}

#[test]
fn mounted_secret_replaced_by_symlink_is_detected() {
    let mount = CredentialMount::new(&[]);
    for (version, secret) in [("..v1", "old"), ("..v2", "newer")] {
        let directory = mount.path().join(version);
        fs::create_dir(&directory).unwrap();
        for (name, content) in [
            ("region", "r"),
            ("accessKeyID", "id"),
            ("secretAccessKey", secret),
        ] {
            fs::write(directory.join(name), content).unwrap();
        }
    }
    let data = mount.path().join("..data");
    std::os::unix::fs::symlink("..v1", &data).unwrap();
    for name in ["region", "accessKeyID", "secretAccessKey"] {
        let target = Path::new("..data").join(name);
        std::os::unix::fs::symlink(target, mount.path().join(name)).unwrap();
    }
    let env = mount.env_for_directory("AWS_APPLICATION_CREDENTIALS");
    let before = fingerprint_credentials(&env, StoreRole::Primary, StorageProvider::S3);
    assert_eq!(before.file_count(), 3);
    fs::remove_file(&data).unwrap();
    std::os::unix::fs::symlink("..v2", &data).unwrap();
    assert_ne!(
        before,
        fingerprint_credentials(&env, StoreRole::Primary, StorageProvider::S3)
    );
    let access = S3Credentials::find(&env, StoreRole::Primary).unwrap();
    let expected = S3Identity::Keys {
        id: Secret::new("id"),
        secret: Secret::new("newer"),
    };
    assert_eq!(access.identity, expected);
}
