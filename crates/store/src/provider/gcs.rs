//! Google Cloud Storage.

use std::sync::Arc;

use object_store::StaticCredentialProvider;
use object_store::gcp::{GcpCredential, GoogleCloudStorageBuilder};
use url::Url;

use super::external_account::ExternalAccount;
use super::{
    Remote, StoreOpenError, build_client_options, client_error, credential_error, resolve_endpoint,
};
use crate::config::StoreConfig;
use crate::connector::{Connector, disable_client_retries};
use crate::credentials::{GoogleAccount, GoogleKind};
use crate::environment::Environment;

pub(super) fn open(config: &StoreConfig, env: &Environment) -> Result<Remote, StoreOpenError> {
    let account =
        GoogleAccount::find(env, config.role).map_err(|error| credential_error(config, error))?;
    let from_file = account
        .as_ref()
        .and_then(|account| account.endpoint.as_deref());
    let address = resolve_endpoint(config, from_file)?;
    let is_emulator = address.as_ref().is_some_and(|url| url.scheme() == "http");

    let mut builder = GoogleCloudStorageBuilder::new();
    if let Some(url) = &address {
        builder = builder.with_base_url(&url_origin(url));
    }
    builder = match &account {
        // The client requests a token even with signing disabled, so it gets an empty one.
        _ if is_emulator => builder.with_skip_signature(true).with_credentials(Arc::new(
            StaticCredentialProvider::new(GcpCredential {
                bearer: String::new(),
            }),
        )),
        Some(GoogleAccount {
            kind: GoogleKind::Key,
            file,
            ..
        }) => builder.with_application_credentials(file.to_string_lossy()),
        Some(GoogleAccount {
            kind: GoogleKind::External,
            file,
            ..
        }) => {
            let external = ExternalAccount::from_file(file, config.transfer.request_timeout)
                .map_err(|source| StoreOpenError::ExternalAccount {
                    container: config.container.clone(),
                    source,
                })?;
            builder.with_credentials(Arc::new(external))
        }
        None => builder,
    };
    let client = builder
        .with_bucket_name(&config.container)
        .with_http_connector(Connector)
        .with_retry(disable_client_retries())
        .with_client_options(build_client_options(&config.transfer).with_allow_http(is_emulator))
        .build()
        .map_err(|error| client_error(config, error))?;
    Ok(Remote::new(
        Arc::new(client.clone()),
        Some(Arc::new(client)),
        false,
    ))
}

/// Drops the path: endpoints often include that of the JSON API, and the client appends its own paths.
fn url_origin(url: &Url) -> String {
    url.origin().ascii_serialization()
}
