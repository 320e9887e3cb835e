//! Google workload identity federation: exchanges an external token, read from a file, for an access token.
//!
//! ```text
//! token file ─► token exchange ─► federated token ─► (impersonation) ─► access token, cached
//! ```
//!
//! **Invariants**: tokens are sent over TLS only, except to loopback addresses; the file is read for each
//! exchange, because the platform rotates it. **Not supported**: tokens from a URL, a command or AWS.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use object_store::CredentialProvider;
use object_store::client::{HttpError, HttpErrorKind};
use object_store::gcp::GcpCredential;
use serde::Deserialize;
use tokio::sync::Mutex;
use tokio::time::Instant;
use url::Url;

use crate::secret::Secret;

const SCOPE: &str = "https://www.googleapis.com/auth/cloud-platform";
const TOKEN_EXCHANGE_GRANT: &str = "urn:ietf:params:oauth:grant-type:token-exchange";
const ACCESS_TOKEN_TYPE: &str = "urn:ietf:params:oauth:token-type:access_token";
/// A token is renewed this long before it expires, so that no request is sent with an expired token.
const RENEW_BEFORE_EXPIRY: Duration = Duration::from_mins(5);
/// Lifetime assumed if the service reports none; impersonated tokens are valid for one hour.
const DEFAULT_TOKEN_LIFETIME: Duration = Duration::from_hours(1);

/// The external account file is invalid.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExternalAccountError {
    /// The file cannot be read.
    #[error("read external account file {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// The file lacks a field or has one of the wrong type.
    #[error(
        "external account file {} requires audience, subject_token_type, token_url and \
         credential_source.file (line {line}, column {column})",
        path.display()
    )]
    InvalidFile {
        /// The file.
        path: PathBuf,
        /// Line at which parsing failed, from 1.
        line: usize,
        /// Column at which parsing failed, from 1.
        column: usize,
    },
    /// The token would be sent without TLS.
    #[error("invalid {field} in {}: must be an https:// URL", path.display())]
    InsecureUrl {
        /// The file.
        path: PathBuf,
        /// The JSON field.
        field: &'static str,
    },
    /// The HTTP client cannot be built.
    #[error("build HTTP client for the token exchange")]
    Client {
        /// The client library's error.
        source: reqwest::Error,
    },
}

/// A failed exchange; becomes a source of the error of the request that needed the token.
#[derive(Debug, thiserror::Error)]
enum ExchangeError {
    #[error("read subject token {}", path.display())]
    ReadSubjectToken {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("{step} failed with HTTP status {status}")]
    Refused { step: &'static str, status: u16 },
    #[error("{step} returned no token")]
    MissingToken { step: &'static str },
}

#[derive(Deserialize)]
struct ExternalAccountConfig {
    audience: String,
    subject_token_type: String,
    token_url: Url,
    service_account_impersonation_url: Option<Url>,
    credential_source: CredentialSource,
}

#[derive(Deserialize)]
struct CredentialSource {
    file: PathBuf,
    #[serde(default)]
    format: SubjectTokenFormat,
}

#[derive(Default, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum SubjectTokenFormat {
    #[default]
    Text,
    Json {
        subject_token_field_name: String,
    },
}

struct CachedToken {
    credential: Arc<GcpCredential>,
    renew_at: Instant,
}

/// Provides access tokens for an external account.
pub(super) struct ExternalAccount {
    config: ExternalAccountConfig,
    client: reqwest::Client,
    cached: Mutex<Option<CachedToken>>,
}

impl std::fmt::Debug for ExternalAccount {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ExternalAccount")
            .field("audience", &self.config.audience)
            .finish_non_exhaustive()
    }
}

#[derive(Deserialize)]
struct FederatedTokenResponse {
    access_token: String,
    expires_in: Option<u64>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ImpersonatedTokenResponse {
    access_token: String,
}

impl ExternalAccount {
    pub(super) fn from_file(path: &Path, timeout: Duration) -> Result<Self, ExternalAccountError> {
        let text = std::fs::read_to_string(path).map_err(|source| ExternalAccountError::Read {
            path: path.to_owned(),
            source,
        })?;
        let config: ExternalAccountConfig = serde_json::from_str(&text).map_err(|error| {
            let (line, column) = (error.line(), error.column());
            ExternalAccountError::InvalidFile {
                path: path.to_owned(),
                line,
                column,
            }
        })?;
        let addresses = [
            ("token_url", Some(&config.token_url)),
            (
                "service_account_impersonation_url",
                config.service_account_impersonation_url.as_ref(),
            ),
        ];
        for (field, url) in addresses {
            // The subject token is a credential; it must not be sent in clear text.
            if url.is_some_and(|url| !is_secure_url(url)) {
                return Err(ExternalAccountError::InsecureUrl {
                    path: path.to_owned(),
                    field,
                });
            }
        }
        let client = reqwest::Client::builder()
            .timeout(timeout)
            .build()
            .map_err(|source| ExternalAccountError::Client { source })?;
        Ok(Self {
            config,
            client,
            cached: Mutex::new(None),
        })
    }

    async fn renew_token(&self) -> object_store::Result<CachedToken> {
        let subject = self
            .read_subject_token()
            .await
            .map_err(unauthenticated_error)?;
        let form = [
            ("audience", self.config.audience.as_str()),
            ("grant_type", TOKEN_EXCHANGE_GRANT),
            ("requested_token_type", ACCESS_TOKEN_TYPE),
            ("scope", SCOPE),
            ("subject_token", subject.expose()),
            (
                "subject_token_type",
                self.config.subject_token_type.as_str(),
            ),
        ];
        let request = self.client.post(self.config.token_url.clone()).form(&form);
        let federated: FederatedTokenResponse =
            send_token_request("token exchange", request).await?;
        let lifetime = federated
            .expires_in
            .map_or(DEFAULT_TOKEN_LIFETIME, Duration::from_secs);
        // Without impersonation the federated token itself grants access.
        let Some(url) = &self.config.service_account_impersonation_url else {
            return Ok(CachedToken::new(federated.access_token, lifetime));
        };
        let request = self
            .client
            .post(url.clone())
            .bearer_auth(federated.access_token)
            .json(&serde_json::json!({ "scope": [SCOPE] }));
        let impersonated: ImpersonatedTokenResponse =
            send_token_request("service account impersonation", request).await?;
        Ok(CachedToken::new(
            impersonated.access_token,
            DEFAULT_TOKEN_LIFETIME.min(lifetime),
        ))
    }

    async fn read_subject_token(&self) -> Result<Secret, ExchangeError> {
        let CredentialSource { file, format } = &self.config.credential_source;
        let text = tokio::fs::read_to_string(file).await.map_err(|source| {
            ExchangeError::ReadSubjectToken {
                path: file.clone(),
                source,
            }
        })?;
        match format {
            SubjectTokenFormat::Text => Ok(Secret::new(text.trim())),
            SubjectTokenFormat::Json {
                subject_token_field_name,
            } => {
                let parsed: Option<serde_json::Value> = serde_json::from_str(&text).ok();
                parsed
                    .as_ref()
                    .and_then(|value| value.get(subject_token_field_name)?.as_str())
                    .map(Secret::new)
                    .ok_or(ExchangeError::MissingToken {
                        step: "subject token file",
                    })
            }
        }
    }
}

impl CachedToken {
    fn new(bearer: String, lifetime: Duration) -> Self {
        let renew_at = Instant::now() + lifetime.saturating_sub(RENEW_BEFORE_EXPIRY);
        Self {
            credential: Arc::new(GcpCredential { bearer }),
            renew_at,
        }
    }
}

#[async_trait]
impl CredentialProvider for ExternalAccount {
    type Credential = GcpCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<GcpCredential>> {
        // The lock is held during the exchange so that concurrent requests share one exchange.
        let mut cached = self.cached.lock().await;
        if let Some(token) = cached
            .as_ref()
            .filter(|token| Instant::now() < token.renew_at)
        {
            return Ok(Arc::clone(&token.credential));
        }
        let token = self.renew_token().await?;
        Ok(Arc::clone(&cached.insert(token).credential))
    }
}

/// Whether the URL uses TLS or a loopback address.
fn is_secure_url(url: &Url) -> bool {
    let is_loopback = match url.host() {
        Some(url::Host::Ipv4(address)) => address.is_loopback(),
        Some(url::Host::Ipv6(address)) => address.is_loopback(),
        _ => false,
    };
    url.scheme() == "https" || is_loopback
}

async fn send_token_request<T: serde::de::DeserializeOwned>(
    step: &'static str,
    request: reqwest::RequestBuilder,
) -> object_store::Result<T> {
    let response = request.send().await.map_err(transient_error)?;
    let status = response.status();
    // 5xx is retryable; any other error status means that the token or the configuration is rejected.
    if status.is_server_error() {
        return Err(transient_error(ExchangeError::Refused {
            step,
            status: status.as_u16(),
        }));
    }
    if !status.is_success() {
        return Err(unauthenticated_error(ExchangeError::Refused {
            step,
            status: status.as_u16(),
        }));
    }
    response
        .json()
        .await
        .map_err(|_| unauthenticated_error(ExchangeError::MissingToken { step }))
}

/// Wraps the error as a connection failure, which [`crate::retry`] retries.
fn transient_error(source: impl std::error::Error + Send + Sync + 'static) -> object_store::Error {
    let source = Box::new(HttpError::new(HttpErrorKind::Unknown, source));
    object_store::Error::Generic {
        store: "GCS",
        source,
    }
}

fn unauthenticated_error(source: ExchangeError) -> object_store::Error {
    object_store::Error::Unauthenticated {
        path: String::new(),
        source: Box::new(source),
    }
}
