//! Typed credentials of each provider.

use std::path::PathBuf;

use super::fields::{CredentialError, CredentialFields, parse_flag};
use crate::config::{StorageProvider, StoreRole};
use crate::environment::Environment;
use crate::secret::Secret;

/// Region in ECS request signatures; ECS has no regions but S3 signatures require one.
const ECS_REGION: &str = "US-Standard";

/// Identity of an S3 client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum S3Identity {
    Keys {
        id: Secret,
        secret: Secret,
    },
    /// A role assumed with a web identity token; the file is read again for each exchange.
    WebIdentity {
        role_arn: String,
        token_file: PathBuf,
    },
    /// Identity of the machine or pod: variables, web identity, pod identity or instance metadata.
    Ambient,
}

/// Settings of an S3 client from credential files or variables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct S3Credentials {
    pub(crate) identity: S3Identity,
    pub(crate) region: Option<String>,
    pub(crate) endpoint: Option<String>,
    pub(crate) path_style: bool,
    pub(crate) insecure_skip_verify: bool,
    pub(crate) ca_bundle: Option<String>,
    /// Key for server-side encryption (SSE-C): base64 of 32 bytes.
    pub(crate) sse_customer_key: Option<Secret>,
}

impl S3Credentials {
    /// Credentials of `S3`; ambient if no variable is set.
    pub(crate) fn find(env: &Environment, role: StoreRole) -> Result<Self, CredentialError> {
        let Some(fields) = CredentialFields::find(env, role, StorageProvider::S3)? else {
            return Ok(Self::ambient());
        };
        // Static keys have precedence over a role.
        let identity = if fields.contains("accessKeyID") {
            let id = fields.get_required("accessKeyID")?;
            S3Identity::Keys {
                id,
                secret: fields.get_required("secretAccessKey")?,
            }
        } else if fields.contains("roleARN") {
            let role_arn = fields.get_required("roleARN")?.expose().to_owned();
            S3Identity::WebIdentity {
                role_arn,
                token_file: find_token_file(&fields)?,
            }
        } else {
            return Err(fields
                .get_required("accessKeyID")
                .expect_err("the field was just absent"));
        };
        Ok(Self {
            identity,
            region: Some(fields.get_required("region")?.expose().to_owned()),
            endpoint: get_plain(&fields, "endpoint"),
            path_style: fields.get_flag("s3ForcePathStyle")?,
            insecure_skip_verify: fields.get_flag("insecureSkipVerify")?,
            ca_bundle: get_ca_bundle(&fields)?,
            sse_customer_key: parse_customer_key(&fields)?,
        })
    }

    fn ambient() -> Self {
        Self {
            identity: S3Identity::Ambient,
            region: None,
            endpoint: None,
            path_style: false,
            insecure_skip_verify: false,
            ca_bundle: None,
            sse_customer_key: None,
        }
    }

    /// Credentials of `OCS`; endpoint, region and keys are required.
    pub(crate) fn find_ocs(env: &Environment, role: StoreRole) -> Result<Self, CredentialError> {
        let fields = CredentialFields::find(env, role, StorageProvider::Ocs)?.ok_or_else(|| {
            unset_variable(
                role,
                StorageProvider::Ocs,
                "OPENSHIFT_APPLICATION_CREDENTIALS",
            )
        })?;
        let endpoint = fields.get_required("endpoint")?;
        let scheme = if fields.get_flag("disableSSL")? {
            "http"
        } else {
            "https"
        };
        Ok(Self {
            identity: S3Identity::Keys {
                id: fields.get_required("accessKeyID")?,
                secret: fields.get_required("secretAccessKey")?,
            },
            region: Some(fields.get_required("region")?.expose().to_owned()),
            // The endpoint may be a host name without scheme.
            endpoint: Some(add_scheme(endpoint.expose(), scheme)),
            path_style: true,
            insecure_skip_verify: fields.get_flag("insecureSkipVerify")?,
            ca_bundle: None,
            sse_customer_key: None,
        })
    }

    /// Credentials of `ECS`, from variables; those with the role prefix have precedence.
    pub(crate) fn find_ecs(env: &Environment, role: StoreRole) -> Result<Self, CredentialError> {
        let own = |name: &str| format!("{}{name}", role.variable_prefix());
        let find = |name: &str| env.get(&own(name)).or_else(|| env.get(name));
        let need = |name: &'static str| {
            find(name).ok_or_else(|| unset_variable(role, StorageProvider::Ecs, name))
        };
        let flag = |name: &str| match find(name) {
            None => Ok(false),
            Some(text) => parse_flag(text).ok_or_else(|| CredentialError::InvalidVariable {
                variable: name.to_owned(),
                expected: "`true` or `false`",
            }),
        };
        let scheme = if flag("ECS_DISABLE_SSL")? {
            "http"
        } else {
            "https"
        };
        Ok(Self {
            identity: S3Identity::Keys {
                id: Secret::new(need("ECS_ACCESS_KEY_ID")?),
                secret: Secret::new(need("ECS_SECRET_ACCESS_KEY")?),
            },
            region: Some(ECS_REGION.to_owned()),
            endpoint: Some(add_scheme(need("ECS_ENDPOINT")?, scheme)),
            path_style: true,
            insecure_skip_verify: flag("ECS_INSECURE_SKIP_VERIFY")?,
            ca_bundle: None,
            sse_customer_key: None,
        })
    }
}

/// An Azure storage account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AzureAccount {
    pub(crate) account: String,
    pub(crate) key: Secret,
    pub(crate) domain: Option<String>,
}

impl AzureAccount {
    /// `None` if no variable is set: the identity is ambient.
    pub(crate) fn find(
        env: &Environment,
        role: StoreRole,
    ) -> Result<Option<Self>, CredentialError> {
        let Some(fields) = CredentialFields::find(env, role, StorageProvider::Abs)? else {
            return Ok(None);
        };
        Ok(Some(Self {
            account: fields.get_required("storageAccount")?.expose().to_owned(),
            key: fields.get_required("storageKey")?,
            domain: get_plain(&fields, "domain"),
        }))
    }
}

/// A Google credential file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GoogleAccount {
    pub(crate) kind: GoogleKind,
    pub(crate) file: PathBuf,
    pub(crate) endpoint: Option<String>,
}

/// The kinds of Google credential files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GoogleKind {
    /// A service account key or user credentials.
    Key,
    /// Workload identity federation: exchanges an external token for a Google token.
    External,
}

impl GoogleAccount {
    /// `None` if no variable is set: the identity is ambient.
    pub(crate) fn find(
        env: &Environment,
        role: StoreRole,
    ) -> Result<Option<Self>, CredentialError> {
        let Some(fields) = CredentialFields::find(env, role, StorageProvider::Gcs)? else {
            return Ok(None);
        };
        let kind = match fields.get_required("type")?.expose() {
            "service_account" | "authorized_user" => GoogleKind::Key,
            "external_account" => GoogleKind::External,
            _ => {
                let expected = "`service_account`, `authorized_user` or `external_account`";
                return Err(fields.invalid_field("type", expected));
            }
        };
        let endpoint = fields.read_sibling("storageAPIEndpoint")?;
        Ok(Some(Self {
            kind,
            file: fields.path().to_owned(),
            endpoint: endpoint.map(|value| value.expose().trim().to_owned()),
        }))
    }
}

/// An Alibaba Cloud access key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OssAccount {
    pub(crate) access_key_id: Secret,
    pub(crate) access_key_secret: Secret,
    pub(crate) endpoint: String,
}

impl OssAccount {
    pub(crate) fn find(env: &Environment, role: StoreRole) -> Result<Self, CredentialError> {
        let fields = CredentialFields::find(env, role, StorageProvider::Oss)?.ok_or_else(|| {
            unset_variable(
                role,
                StorageProvider::Oss,
                "ALICLOUD_APPLICATION_CREDENTIALS",
            )
        })?;
        Ok(Self {
            access_key_id: fields.get_required("accessKeyID")?,
            access_key_secret: fields.get_required("accessKeySecret")?,
            endpoint: add_scheme(fields.get_required("storageEndpoint")?.expose(), "https"),
        })
    }
}

fn get_plain(fields: &CredentialFields, name: &str) -> Option<String> {
    fields
        .get_optional(name)
        .map(|value| value.expose().to_owned())
}

fn unset_variable(role: StoreRole, provider: StorageProvider, name: &str) -> CredentialError {
    CredentialError::UnsetVariable {
        provider,
        variable: format!("{}{name}", role.variable_prefix()),
    }
}

/// `tokenPath` in a JSON file, the file `token` in a directory.
fn find_token_file(fields: &CredentialFields) -> Result<PathBuf, CredentialError> {
    if fields.contains("token") {
        return Ok(fields.sibling_path("token"));
    }
    Ok(PathBuf::from(fields.get_required("tokenPath")?.expose()))
}

fn get_ca_bundle(fields: &CredentialFields) -> Result<Option<String>, CredentialError> {
    match get_plain(fields, "trustedCaCert") {
        // The PEM parser accepts text without a certificate and returns an empty bundle.
        Some(bundle) if !bundle.contains("-----BEGIN CERTIFICATE-----") => {
            Err(fields.invalid_field("trustedCaCert", "PEM-encoded certificates"))
        }
        bundle => Ok(bundle),
    }
}

/// Accepts 32 characters or base64 of 32 bytes; the client requires base64.
fn parse_customer_key(fields: &CredentialFields) -> Result<Option<Secret>, CredentialError> {
    let (key, algorithm) = (
        fields.get_optional("sseCustomerKey"),
        fields.get_optional("sseCustomerAlgorithm"),
    );
    let Some(key) = key else {
        return match algorithm {
            Some(_) => Err(fields
                .get_required("sseCustomerKey")
                .expect_err("the field was absent")),
            None => Ok(None),
        };
    };
    if algorithm.is_some_and(|algorithm| algorithm.expose() != "AES256") {
        return Err(fields.invalid_field("sseCustomerAlgorithm", "`AES256`"));
    }
    let base64 = base64_simd::STANDARD;
    if key.expose().len() == 32 {
        return Ok(Some(Secret::new(base64.encode_to_string(key.expose()))));
    }
    match base64.decode_to_vec(key.expose()) {
        Ok(bytes) if bytes.len() == 32 => Ok(Some(key)),
        _ => Err(fields.invalid_field("sseCustomerKey", "32 characters, or base64 of 32 bytes")),
    }
}

fn add_scheme(endpoint: &str, scheme: &str) -> String {
    if endpoint.contains("://") {
        endpoint.to_owned()
    } else {
        format!("{scheme}://{endpoint}")
    }
}
