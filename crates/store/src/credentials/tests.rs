use std::fs;
use std::path::Path;

use tempfile::TempDir;

use super::*;
use crate::config::{Provider, Role};
use crate::environment::Environment;
use crate::secret::Secret;

/// A directory with files, and the variables that point there.
struct Mount {
    directory: TempDir,
}

impl Mount {
    fn with(files: &[(&str, &str)]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        for (name, content) in files {
            fs::write(directory.path().join(name), content).unwrap();
        }
        Self { directory }
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    fn text(&self, name: &str) -> String {
        self.path().join(name).to_str().unwrap().to_owned()
    }

    /// The variable points at the directory.
    fn as_directory(&self, variable: &str) -> Environment {
        Environment::from_iter([(variable, self.path().to_str().unwrap())])
    }

    /// The variable points at one file.
    fn as_file(&self, variable: &str, name: &str) -> Environment {
        Environment::from_iter([(variable, self.text(name))])
    }
}

const KEYS: [(&str, &str); 3] = [
    ("region", "eu-1\n"),
    ("accessKeyID", "id\n"),
    ("secretAccessKey", "secret\r\n"),
];

fn keys() -> S3Identity {
    S3Identity::Keys {
        id: Secret::new("id"),
        secret: Secret::new("secret"),
    }
}

#[test]
fn a_directory_holds_one_file_per_field_and_line_breaks_do_not_count() {
    let mount = Mount::with(&KEYS);
    let access = S3Access::find(
        &mount.as_directory("AWS_APPLICATION_CREDENTIALS"),
        Role::Primary,
    );
    let access = access.unwrap();
    assert_eq!(
        (access.identity, access.region.as_deref()),
        (keys(), Some("eu-1"))
    );
    assert!(!access.path_style && !access.insecure);
}

#[test]
fn a_json_file_in_the_directory_wins_over_the_other_files() {
    let mount = Mount::with(&KEYS);
    let json = r#"{"region": "us-1", "accessKeyID": "id", "secretAccessKey": "secret",
        "s3ForcePathStyle": true, "insecureSkipVerify": false, "endpoint": "https://s3.local"}"#;
    fs::write(mount.path().join("all.json"), json).unwrap();
    let access = S3Access::find(
        &mount.as_directory("AWS_APPLICATION_CREDENTIALS"),
        Role::Primary,
    );
    let access = access.unwrap();
    assert_eq!(access.region.as_deref(), Some("us-1"));
    assert_eq!(access.endpoint.as_deref(), Some("https://s3.local"));
    assert!(access.path_style && !access.insecure);
}

#[test]
fn the_json_variable_wins_over_the_directory_variable() {
    let (directory, file) = (
        Mount::with(&KEYS),
        Mount::with(&[(
            "c.json",
            r#"{"region": "json", "accessKeyID": "id", "secretAccessKey": "secret"}"#,
        )]),
    );
    let env = Environment::from_iter([
        (
            "AWS_APPLICATION_CREDENTIALS",
            directory.path().to_str().unwrap().to_owned(),
        ),
        ("AWS_APPLICATION_CREDENTIALS_JSON", file.text("c.json")),
    ]);
    let access = S3Access::find(&env, Role::Primary).unwrap();
    assert_eq!(access.region.as_deref(), Some("json"));
}

#[test]
fn each_role_reads_its_own_variables_only() {
    let mount = Mount::with(&KEYS);
    for (role, variable) in [
        (Role::Primary, "AWS_APPLICATION_CREDENTIALS"),
        (Role::Source, "SOURCE_AWS_APPLICATION_CREDENTIALS"),
        (Role::Secondary, "SECONDARY_AWS_APPLICATION_CREDENTIALS"),
    ] {
        let env = mount.as_directory(variable);
        for asked in [Role::Primary, Role::Source, Role::Secondary] {
            let identity = S3Access::find(&env, asked).unwrap().identity;
            let expected = if asked == role {
                keys()
            } else {
                S3Identity::Ambient
            };
            assert_eq!(identity, expected, "{asked:?} with {variable}");
        }
    }
}

#[test]
fn a_missing_field_is_named_with_file_and_variable() {
    let mount = Mount::with(&[("region", "eu-1"), ("accessKeyID", "id")]);
    let env = mount.as_directory("SOURCE_AWS_APPLICATION_CREDENTIALS");
    let error = S3Access::find(&env, Role::Source).unwrap_err();
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
fn a_path_that_leads_nowhere_is_named() {
    let env = Environment::from_iter([("AWS_APPLICATION_CREDENTIALS", "/no/such/directory")]);
    let error = S3Access::find(&env, Role::Primary).unwrap_err();
    assert!(
        matches!(error, CredentialError::Directory { .. }),
        "{error:?}"
    );
    let env = Environment::from_iter([("AWS_APPLICATION_CREDENTIALS_JSON", "/no/such.json")]);
    let error = S3Access::find(&env, Role::Primary).unwrap_err();
    assert!(matches!(error, CredentialError::Read { .. }), "{error:?}");
}

#[test]
fn files_that_cannot_be_credentials_are_refused() {
    let mount = Mount::with(&[("huge", &"x".repeat((1 << 20) + 1)), ("list.json", "[]")]);
    let env = mount.as_file("AWS_APPLICATION_CREDENTIALS_JSON", "huge");
    assert!(matches!(
        S3Access::find(&env, Role::Primary),
        Err(CredentialError::TooLarge { .. })
    ));
    let env = mount.as_file("AWS_APPLICATION_CREDENTIALS_JSON", "list.json");
    assert!(matches!(
        S3Access::find(&env, Role::Primary),
        Err(CredentialError::Json { .. })
    ));
    fs::write(mount.path().join("binary"), [0xff, 0xfe]).unwrap();
    let env = mount.as_file("AWS_APPLICATION_CREDENTIALS_JSON", "binary");
    assert!(matches!(
        S3Access::find(&env, Role::Primary),
        Err(CredentialError::Text { .. })
    ));
}

#[test]
fn a_role_is_taken_on_with_the_token_beside_it() {
    let mount = Mount::with(&[
        ("region", "r"),
        ("roleARN", "arn:aws:iam::1:role/x"),
        ("token", "t"),
    ]);
    let access = S3Access::find(
        &mount.as_directory("AWS_APPLICATION_CREDENTIALS"),
        Role::Primary,
    );
    let expected = S3Identity::WebIdentity {
        role_arn: "arn:aws:iam::1:role/x".to_owned(),
        token_file: mount.path().join("token"),
    };
    assert_eq!(access.unwrap().identity, expected);

    let json = r#"{"region": "r", "roleARN": "arn", "tokenPath": "/var/run/token"}"#;
    let mount = Mount::with(&[("c.json", json)]);
    let env = mount.as_file("AWS_APPLICATION_CREDENTIALS_JSON", "c.json");
    let expected = S3Identity::WebIdentity {
        role_arn: "arn".to_owned(),
        token_file: "/var/run/token".into(),
    };
    assert_eq!(
        S3Access::find(&env, Role::Primary).unwrap().identity,
        expected
    );
}

#[test]
fn a_customer_key_may_be_plain_or_base64_and_must_be_32_bytes() {
    let plain = "0123456789abcdef0123456789abcdef";
    let encoded = "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=";
    let find = |key: &str, algorithm: &str| {
        let extra = [("sseCustomerKey", key), ("sseCustomerAlgorithm", algorithm)];
        let mount = Mount::with(&[&KEYS[..], &extra].concat());
        S3Access::find(
            &mount.as_directory("AWS_APPLICATION_CREDENTIALS"),
            Role::Primary,
        )
    };
    for key in [plain, encoded] {
        let found = find(key, "AES256").unwrap().customer_key.unwrap();
        assert_eq!(found.expose(), encoded);
    }
    assert!(find("too short", "AES256").is_err());
    assert!(find(plain, "DES").is_err());
    assert!(find("", "AES256").is_err());
}

#[test]
fn ecs_reads_plain_variables_and_a_role_may_have_its_own() {
    let common = [
        ("ECS_ENDPOINT", "ecs.local:9021"),
        ("ECS_ACCESS_KEY_ID", "id"),
        ("ECS_SECRET_ACCESS_KEY", "secret"),
    ];
    let access = S3Access::find_ecs(&Environment::from_iter(common), Role::Source).unwrap();
    assert_eq!(access.identity, keys());
    assert_eq!(access.endpoint.as_deref(), Some("https://ecs.local:9021"));
    assert!(access.path_style);

    let own = [
        ("SOURCE_ECS_ENDPOINT", "other:1"),
        ("ECS_DISABLE_SSL", "true"),
    ];
    let env: Environment = common.into_iter().chain(own).collect();
    let access = S3Access::find_ecs(&env, Role::Source).unwrap();
    assert_eq!(access.endpoint.as_deref(), Some("http://other:1"));

    let error = S3Access::find_ecs(&Environment::default(), Role::Source).unwrap_err();
    assert!(matches!(error, CredentialError::Unset { .. }), "{error:?}");
}

#[test]
fn ocs_azure_and_oss_need_all_their_fields() {
    let ocs = Mount::with(
        &[
            &KEYS[..],
            &[("endpoint", "https://ocs"), ("disableSSL", "no")],
        ]
        .concat(),
    );
    let env = ocs.as_directory("OPENSHIFT_APPLICATION_CREDENTIALS");
    assert!(matches!(
        S3Access::find_ocs(&env, Role::Primary),
        Err(CredentialError::Invalid { .. })
    ));
    fs::write(ocs.path().join("disableSSL"), "false").unwrap();
    assert_eq!(
        S3Access::find_ocs(&env, Role::Primary)
            .unwrap()
            .endpoint
            .unwrap(),
        "https://ocs"
    );

    let azure = Mount::with(&[
        ("storageAccount", "a"),
        ("domain", "blob.core.chinacloudapi.cn"),
    ]);
    let env = azure.as_directory("AZURE_APPLICATION_CREDENTIALS");
    assert!(AzureAccount::find(&env, Role::Primary).is_err());
    fs::write(azure.path().join("storageKey"), "a2V5").unwrap();
    let account = AzureAccount::find(&env, Role::Primary).unwrap().unwrap();
    assert_eq!(
        account.domain.as_deref(),
        Some("blob.core.chinacloudapi.cn")
    );
    assert_eq!(
        AzureAccount::find(&Environment::default(), Role::Primary).unwrap(),
        None
    );

    let oss = Mount::with(&[("accessKeyID", "id"), ("accessKeySecret", "s")]);
    let env = oss.as_directory("ALICLOUD_APPLICATION_CREDENTIALS");
    assert!(OssAccount::find(&env, Role::Primary).is_err());
    fs::write(
        oss.path().join("storageEndpoint"),
        "oss-eu-central-1.aliyuncs.com\n",
    )
    .unwrap();
    let account = OssAccount::find(&env, Role::Primary).unwrap();
    assert_eq!(account.endpoint, "https://oss-eu-central-1.aliyuncs.com");
}

#[test]
fn google_files_are_told_apart_and_the_endpoint_lies_beside_them() {
    let mount = Mount::with(&[
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
            &mount.as_file("GOOGLE_APPLICATION_CREDENTIALS", name),
            Role::Primary,
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
fn a_fingerprint_changes_with_the_files_and_only_then() {
    let mount = Mount::with(&KEYS);
    let env = mount.as_directory("AWS_APPLICATION_CREDENTIALS");
    let now = || fingerprint(&env, Role::Primary, Provider::S3);
    let first = now();
    assert_eq!(first.file_count(), 3);
    assert_eq!(first, now());
    fs::write(mount.path().join("accessKeyID"), "another").unwrap();
    let second = now();
    assert_ne!(first, second);
    fs::write(mount.path().join("endpoint"), "https://new").unwrap();
    assert_ne!(second, now());
    assert_eq!(
        fingerprint(&Environment::default(), Role::Primary, Provider::S3).file_count(),
        0
    );
}

#[test]
fn a_mounted_secret_that_is_swapped_by_its_link_is_noticed() {
    let mount = Mount::with(&[]);
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
    let env = mount.as_directory("AWS_APPLICATION_CREDENTIALS");
    let before = fingerprint(&env, Role::Primary, Provider::S3);
    assert_eq!(before.file_count(), 3);
    fs::remove_file(&data).unwrap();
    std::os::unix::fs::symlink("..v2", &data).unwrap();
    assert_ne!(before, fingerprint(&env, Role::Primary, Provider::S3));
    let access = S3Access::find(&env, Role::Primary).unwrap();
    let expected = S3Identity::Keys {
        id: Secret::new("id"),
        secret: Secret::new("newer"),
    };
    assert_eq!(access.identity, expected);
}
