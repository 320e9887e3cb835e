//! Builds the client of a store from configuration and credentials.

mod azure;
mod external_account;
mod gcs;
mod oss;
mod s3;

use object_store::{Certificate, ClientOptions};
use url::Url;

use crate::backend::{Backend, Remote};
use crate::config::{StorageProvider, StoreConfig, TransferConfig};
use crate::credentials::CredentialError;
use crate::environment::Environment;
use crate::local::Directory;

/// Timeout for establishing a connection, in seconds.
const CONNECT_TIMEOUT_SECONDS: u64 = 10;

/// The store cannot be opened. No request has been sent.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreOpenError {
    /// Credentials are missing or malformed.
    #[error("load credentials of store {provider} {container}")]
    Credentials {
        /// The store's provider.
        provider: StorageProvider,
        /// The store's container.
        container: String,
        /// The cause.
        source: CredentialError,
    },
    /// The client library rejected the configuration.
    #[error("configure client of store {provider} {container}")]
    Client {
        /// The store's provider.
        provider: StorageProvider,
        /// The store's container.
        container: String,
        /// The client library's error.
        source: object_store::Error,
    },
    /// The OSS client rejected the configuration.
    #[error("configure client of store {} {container}", StorageProvider::Oss)]
    Oss {
        /// The store's container.
        container: String,
        /// The client library's error.
        source: opendal::Error,
    },
    /// The endpoint is not an HTTP URL.
    #[error("invalid endpoint `{endpoint}` of store {provider}: {reason}")]
    InvalidEndpoint {
        /// The store's provider.
        provider: StorageProvider,
        /// The endpoint as given.
        endpoint: String,
        /// The rule that the endpoint breaks.
        reason: &'static str,
    },
    /// The external account configuration is invalid.
    #[error("load external account of store {} {container}", StorageProvider::Gcs)]
    ExternalAccount {
        /// The store's container.
        container: String,
        /// The cause.
        source: ExternalAccountError,
    },
    /// Provider `Local` requires the variable `HOME`.
    #[error("provider Local stores backups below $HOME, but HOME is not set")]
    HomeUnset,
    /// The container name is empty or leaves the home directory.
    #[error("invalid container `{container}` of provider Local: must be a directory below $HOME")]
    InvalidContainer {
        /// The name as given.
        container: String,
    },
    /// The provider is not supported.
    #[error("provider {provider} is not supported: {instead}")]
    Unsupported {
        /// The store's provider.
        provider: StorageProvider,
        /// The alternative to use.
        instead: &'static str,
    },
}

pub use external_account::ExternalAccountError;

/// Builds the client of a store without contacting it.
pub(crate) fn open_backend(
    config: &StoreConfig,
    env: &Environment,
) -> Result<Backend, StoreOpenError> {
    let remote = match config.provider {
        StorageProvider::Local => return open_local(config, env),
        StorageProvider::S3 | StorageProvider::Ecs | StorageProvider::Ocs => s3::open(config, env)?,
        StorageProvider::Abs => azure::open(config, env)?,
        StorageProvider::Gcs => gcs::open(config, env)?,
        StorageProvider::Oss => oss::open(config, env)?,
        // The library has no Swift client.
        StorageProvider::Swift => {
            return Err(StoreOpenError::Unsupported {
                provider: StorageProvider::Swift,
                instead: "use the S3 API of the Swift cluster with --storage-provider S3, \
                          --store-endpoint-override and EC2 credentials",
            });
        }
    };
    Ok(Backend::Remote(remote))
}

fn open_local(config: &StoreConfig, env: &Environment) -> Result<Backend, StoreOpenError> {
    let home = env.get("HOME").ok_or(StoreOpenError::HomeUnset)?;
    let root = Directory::new_below(home.as_ref(), &config.container).ok_or_else(|| {
        StoreOpenError::InvalidContainer {
            container: config.container.clone(),
        }
    })?;
    Ok(Backend::Local(root))
}

/// Options common to all HTTP clients.
fn build_client_options(effort: &TransferConfig) -> ClientOptions {
    let connect = std::time::Duration::from_secs(CONNECT_TIMEOUT_SECONDS);
    ClientOptions::new()
        .with_timeout(effort.request_timeout)
        .with_read_timeout(effort.request_timeout)
        .with_connect_timeout(connect.min(effort.request_timeout))
}

/// Trusts the certificates of `bundle` in addition to the system's.
fn add_root_certificates(
    config: &StoreConfig,
    options: ClientOptions,
    bundle: Option<&str>,
) -> Result<ClientOptions, StoreOpenError> {
    let Some(bundle) = bundle else {
        return Ok(options);
    };
    let certificates = Certificate::from_pem_bundle(bundle.as_bytes())
        .map_err(|source| client_error(config, source))?;
    Ok(certificates
        .into_iter()
        .fold(options, ClientOptions::with_root_certificate))
}

fn credential_error(config: &StoreConfig, source: CredentialError) -> StoreOpenError {
    StoreOpenError::Credentials {
        provider: config.provider,
        container: config.container.clone(),
        source,
    }
}

fn client_error(config: &StoreConfig, source: object_store::Error) -> StoreOpenError {
    StoreOpenError::Client {
        provider: config.provider,
        container: config.container.clone(),
        source,
    }
}

/// The endpoint to use; the flag has precedence over the credential file.
fn resolve_endpoint(
    config: &StoreConfig,
    from_file: Option<&str>,
) -> Result<Option<Url>, StoreOpenError> {
    let invalid = |endpoint: &str, reason| StoreOpenError::InvalidEndpoint {
        provider: config.provider,
        endpoint: endpoint.to_owned(),
        reason,
    };
    let url = match (&config.endpoint, from_file) {
        (Some(url), _) => url.clone(),
        (None, None) => return Ok(None),
        (None, Some(text)) => {
            Url::parse(text).map_err(|_| invalid(text, "must be a URL with a scheme"))?
        }
    };
    match url.scheme() {
        "http" | "https" if url.has_host() => Ok(Some(url)),
        _ => Err(invalid(url.as_str(), "must start with http:// or https://")),
    }
}

/// The URL without trailing slash, as the clients expect it.
fn trim_base_url(url: &Url) -> String {
    url.as_str().trim_end_matches('/').to_owned()
}

#[cfg(test)]
mod tests;
