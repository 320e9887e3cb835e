//! From configuration and credentials to a client.

mod azure;
mod external_account;
mod gcs;
mod oss;
mod s3;

use object_store::{Certificate, ClientOptions};
use url::Url;

use crate::backend::{Backend, Remote};
use crate::config::{TransferConfig, StorageProvider, StoreConfig};
use crate::credentials::CredentialError;
use crate::environment::Environment;
use crate::local::Directory;

/// Connecting takes one round trip or it does not work.
const CONNECT_TIMEOUT_SECONDS: u64 = 10;

/// Why a store cannot be opened. Nothing was sent to it yet.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreOpenError {
    /// Credentials are missing or malformed.
    #[error("credentials of store {provider} {container}")]
    Credentials {
        /// The provider.
        provider: StorageProvider,
        /// The container.
        container: String,
        /// What is wrong.
        source: CredentialError,
    },
    /// The client library refused the configuration.
    #[error("configure the client of store {provider} {container}")]
    Client {
        /// The provider.
        provider: StorageProvider,
        /// The container.
        container: String,
        /// What it said.
        source: object_store::Error,
    },
    /// The OSS client refused the configuration.
    #[error("configure the client of store {} {container}", StorageProvider::Oss)]
    Oss {
        /// The container.
        container: String,
        /// What it said.
        source: opendal::Error,
    },
    /// The endpoint is not an address.
    #[error("`{endpoint}` is not a usable endpoint of store {provider}: {reason}")]
    InvalidEndpoint {
        /// The provider.
        provider: StorageProvider,
        /// The endpoint as given.
        endpoint: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The external account configuration cannot be used.
    #[error("external account file of store {} {container}", StorageProvider::Gcs)]
    ExternalAccount {
        /// The container.
        container: String,
        /// What is wrong.
        source: ExternalAccountError,
    },
    /// Local stores live below the home directory.
    #[error("provider Local keeps backups below the home directory, but HOME is not set")]
    HomeUnset,
    /// The container name would leave the home directory.
    #[error("`{container}` is not a usable directory name for provider Local")]
    InvalidContainer {
        /// The name as given.
        container: String,
    },
    /// There is no client for this provider.
    #[error("provider {provider} is not supported: {instead}")]
    Unsupported {
        /// The provider.
        provider: StorageProvider,
        /// What to use in its place.
        instead: &'static str,
    },
}

pub use external_account::ExternalAccountError;

/// Builds the client of a store without contacting it.
pub(crate) fn open_backend(config: &StoreConfig, env: &Environment) -> Result<Backend, StoreOpenError> {
    let remote = match config.provider {
        StorageProvider::Local => return open_local(config, env),
        StorageProvider::S3 | StorageProvider::Ecs | StorageProvider::Ocs => s3::open(config, env)?,
        StorageProvider::Abs => azure::open(config, env)?,
        StorageProvider::Gcs => gcs::open(config, env)?,
        StorageProvider::Oss => oss::open(config, env)?,
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
    let root =
        Directory::new_below(home.as_ref(), &config.container).ok_or_else(|| StoreOpenError::InvalidContainer {
            container: config.container.clone(),
        })?;
    Ok(Backend::Local(root))
}

/// What all HTTP clients have in common.
fn build_client_options(effort: &TransferConfig) -> ClientOptions {
    let connect = std::time::Duration::from_secs(CONNECT_TIMEOUT_SECONDS);
    ClientOptions::new()
        .with_timeout(effort.request_timeout)
        .with_read_timeout(effort.request_timeout)
        .with_connect_timeout(connect.min(effort.request_timeout))
}

/// Trusts the certificates of `bundle` beside those of the system.
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

/// The endpoint to use: the flag wins over what a credential file says.
fn resolve_endpoint(config: &StoreConfig, from_file: Option<&str>) -> Result<Option<Url>, StoreOpenError> {
    let refuse = |endpoint: &str, reason| StoreOpenError::InvalidEndpoint {
        provider: config.provider,
        endpoint: endpoint.to_owned(),
        reason,
    };
    let url = match (&config.endpoint, from_file) {
        (Some(url), _) => url.clone(),
        (None, None) => return Ok(None),
        (None, Some(text)) => {
            Url::parse(text).map_err(|_| refuse(text, "it is not a URL with a scheme"))?
        }
    };
    match url.scheme() {
        "http" | "https" if url.has_host() => Ok(Some(url)),
        _ => Err(refuse(
            url.as_str(),
            "it must start with http:// or https://",
        )),
    }
}

/// A URL as clients want it: without the slash at its end.
fn trim_base_url(url: &Url) -> String {
    url.as_str().trim_end_matches('/').to_owned()
}

#[cfg(test)]
mod tests;
