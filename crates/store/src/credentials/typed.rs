//! The credentials of each provider, as types.

use std::path::PathBuf;

use super::fields::{CredentialError, Fields, parse_flag};
use crate::config::{Provider, Role};
use crate::environment::Environment;
use crate::secret::Secret;

/// The region ECS clients sign for; the appliance has no regions.
const ECS_REGION: &str = "US-Standard";

/// Who an S3 client acts as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum S3Identity {
    /// A key pair.
    Keys { id: Secret, secret: Secret },
    /// A role taken on with a token from a file, which is read again whenever it is exchanged.
    WebIdentity {
        role_arn: String,
        token_file: PathBuf,
    },
    /// Whatever the machine or pod gives: variables, web identity, pod identity, instance metadata.
    Ambient,
}

/// Everything an S3 client is told by credential files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct S3Access {
    pub(crate) identity: S3Identity,
    pub(crate) region: Option<String>,
    pub(crate) endpoint: Option<String>,
    pub(crate) path_style: bool,
    pub(crate) insecure: bool,
    pub(crate) ca_bundle: Option<String>,
    /// Customer key for server side encryption, base64 of 32 bytes.
    pub(crate) customer_key: Option<Secret>,
}

impl S3Access {
    /// Credentials of `S3`; ambient when no variable is set.
    pub(crate) fn find(env: &Environment, role: Role) -> Result<Self, CredentialError> {
        let Some(fields) = Fields::find(env, role, Provider::S3)? else {
            return Ok(Self::ambient());
        };
        let identity = if fields.has("accessKeyID") {
            let id = fields.required("accessKeyID")?;
            S3Identity::Keys {
                id,
                secret: fields.required("secretAccessKey")?,
            }
        } else if fields.has("roleARN") {
            let role_arn = fields.required("roleARN")?.expose().to_owned();
            S3Identity::WebIdentity {
                role_arn,
                token_file: token_file(&fields)?,
            }
        } else {
            return Err(fields
                .required("accessKeyID")
                .expect_err("the field was just absent"));
        };
        Ok(Self {
            identity,
            region: Some(fields.required("region")?.expose().to_owned()),
            endpoint: plain(&fields, "endpoint"),
            path_style: fields.flag("s3ForcePathStyle")?,
            insecure: fields.flag("insecureSkipVerify")?,
            ca_bundle: ca_bundle(&fields)?,
            customer_key: customer_key(&fields)?,
        })
    }

    fn ambient() -> Self {
        Self {
            identity: S3Identity::Ambient,
            region: None,
            endpoint: None,
            path_style: false,
            insecure: false,
            ca_bundle: None,
            customer_key: None,
        }
    }

    /// Credentials of `OCS`: all of endpoint, region and keys are needed.
    pub(crate) fn find_ocs(env: &Environment, role: Role) -> Result<Self, CredentialError> {
        let fields = Fields::find(env, role, Provider::Ocs)?
            .ok_or_else(|| unset(role, Provider::Ocs, "OPENSHIFT_APPLICATION_CREDENTIALS"))?;
        let endpoint = fields.required("endpoint")?;
        let scheme = if fields.flag("disableSSL")? {
            "http"
        } else {
            "https"
        };
        Ok(Self {
            identity: S3Identity::Keys {
                id: fields.required("accessKeyID")?,
                secret: fields.required("secretAccessKey")?,
            },
            region: Some(fields.required("region")?.expose().to_owned()),
            endpoint: Some(with_scheme(endpoint.expose(), scheme)),
            path_style: true,
            insecure: fields.flag("insecureSkipVerify")?,
            ca_bundle: None,
            customer_key: None,
        })
    }

    /// Credentials of `ECS`, which are plain variables; a role's own win over the common ones.
    pub(crate) fn find_ecs(env: &Environment, role: Role) -> Result<Self, CredentialError> {
        let own = |name: &str| format!("{}{name}", role.variable_prefix());
        let find = |name: &str| env.get(&own(name)).or_else(|| env.get(name));
        let need = |name: &'static str| find(name).ok_or_else(|| unset(role, Provider::Ecs, name));
        let flag = |name: &str| match find(name) {
            None => Ok(false),
            Some(text) => parse_flag(text).ok_or_else(|| CredentialError::Variable {
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
            endpoint: Some(with_scheme(need("ECS_ENDPOINT")?, scheme)),
            path_style: true,
            insecure: flag("ECS_INSECURE_SKIP_VERIFY")?,
            ca_bundle: None,
            customer_key: None,
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
    /// `None` when no variable is set: the identity is ambient.
    pub(crate) fn find(env: &Environment, role: Role) -> Result<Option<Self>, CredentialError> {
        let Some(fields) = Fields::find(env, role, Provider::Abs)? else {
            return Ok(None);
        };
        Ok(Some(Self {
            account: fields.required("storageAccount")?.expose().to_owned(),
            key: fields.required("storageKey")?,
            domain: plain(&fields, "domain"),
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
    /// A key of a service account, or a user's own credentials.
    Key,
    /// A configuration that trades a foreign token for a Google one.
    External,
}

impl GoogleAccount {
    /// `None` when no variable is set: the identity is ambient.
    pub(crate) fn find(env: &Environment, role: Role) -> Result<Option<Self>, CredentialError> {
        let Some(fields) = Fields::find(env, role, Provider::Gcs)? else {
            return Ok(None);
        };
        let kind = match fields.required("type")?.expose() {
            "service_account" | "authorized_user" => GoogleKind::Key,
            "external_account" => GoogleKind::External,
            _ => {
                let expected = "`service_account`, `authorized_user` or `external_account`";
                return Err(fields.invalid("type", expected));
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
    pub(crate) id: Secret,
    pub(crate) secret: Secret,
    pub(crate) endpoint: String,
}

impl OssAccount {
    pub(crate) fn find(env: &Environment, role: Role) -> Result<Self, CredentialError> {
        let fields = Fields::find(env, role, Provider::Oss)?
            .ok_or_else(|| unset(role, Provider::Oss, "ALICLOUD_APPLICATION_CREDENTIALS"))?;
        Ok(Self {
            id: fields.required("accessKeyID")?,
            secret: fields.required("accessKeySecret")?,
            endpoint: with_scheme(fields.required("storageEndpoint")?.expose(), "https"),
        })
    }
}

fn plain(fields: &Fields, name: &str) -> Option<String> {
    fields.optional(name).map(|value| value.expose().to_owned())
}

fn unset(role: Role, provider: Provider, name: &str) -> CredentialError {
    CredentialError::Unset {
        provider,
        variable: format!("{}{name}", role.variable_prefix()),
    }
}

/// `tokenPath` in a JSON file, the file `token` in a directory.
fn token_file(fields: &Fields) -> Result<PathBuf, CredentialError> {
    if fields.has("token") {
        return Ok(fields.sibling("token"));
    }
    Ok(PathBuf::from(fields.required("tokenPath")?.expose()))
}

fn ca_bundle(fields: &Fields) -> Result<Option<String>, CredentialError> {
    match plain(fields, "trustedCaCert") {
        // A parser finds no certificate in anything else, and says that all is well.
        Some(bundle) if !bundle.contains("-----BEGIN CERTIFICATE-----") => {
            Err(fields.invalid("trustedCaCert", "certificates in PEM"))
        }
        bundle => Ok(bundle),
    }
}

/// The key may be given as 32 characters or as base64 of 32 bytes; the client wants the latter.
fn customer_key(fields: &Fields) -> Result<Option<Secret>, CredentialError> {
    let (key, algorithm) = (
        fields.optional("sseCustomerKey"),
        fields.optional("sseCustomerAlgorithm"),
    );
    let Some(key) = key else {
        return match algorithm {
            Some(_) => Err(fields
                .required("sseCustomerKey")
                .expect_err("the field was absent")),
            None => Ok(None),
        };
    };
    if algorithm.is_some_and(|algorithm| algorithm.expose() != "AES256") {
        return Err(fields.invalid("sseCustomerAlgorithm", "`AES256`"));
    }
    let base64 = base64_simd::STANDARD;
    if key.expose().len() == 32 {
        return Ok(Some(Secret::new(base64.encode_to_string(key.expose()))));
    }
    match base64.decode_to_vec(key.expose()) {
        Ok(bytes) if bytes.len() == 32 => Ok(Some(key)),
        _ => Err(fields.invalid("sseCustomerKey", "32 characters, or base64 of 32 bytes")),
    }
}

fn with_scheme(endpoint: &str, scheme: &str) -> String {
    if endpoint.contains("://") {
        endpoint.to_owned()
    } else {
        format!("{scheme}://{endpoint}")
    }
}
