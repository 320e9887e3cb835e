//! Azure Blob Storage.

use std::sync::Arc;

use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};

use super::{
    Remote, StoreOpenError, build_client_options, client_error, credential_error, resolve_endpoint,
    trim_base_url,
};
use crate::config::StoreConfig;
use crate::connector::{Connector, disable_client_retries};
use crate::credentials::AzureAccount;
use crate::environment::Environment;

/// Blob domain of the Azure public cloud.
const PUBLIC_DOMAIN: &str = "blob.core.windows.net";

pub(super) fn open(config: &StoreConfig, env: &Environment) -> Result<Remote, StoreOpenError> {
    let account =
        AzureAccount::find(env, config.role).map_err(|error| credential_error(config, error))?;
    let own_address = account.as_ref().map(|account| {
        let domain = account.domain.as_deref().unwrap_or(PUBLIC_DOMAIN);
        format!("https://{}.{domain}", account.account)
    });
    let address = resolve_endpoint(config, own_address.as_deref())?;

    let mut builder = match &account {
        Some(account) => MicrosoftAzureBuilder::new()
            .with_account(&account.account)
            .with_access_key(account.key.expose()),
        None => builder_from_env(env),
    };
    let mut options = build_client_options(&config.transfer);
    if let Some(url) = address {
        options = options.with_allow_http(url.scheme() == "http");
        builder = builder.with_endpoint(trim_base_url(&url));
    }
    let client = builder
        .with_container_name(&config.container)
        .with_http_connector(Connector)
        .with_retry(disable_client_retries())
        .with_client_options(options)
        .build()
        .map_err(|error| client_error(config, error))?;
    Ok(Remote::new(
        Arc::new(client.clone()),
        Some(Arc::new(client)),
        false,
    ))
}

/// Ambient identity: workload identity, managed identity or Azure's standard variables.
fn builder_from_env(env: &Environment) -> MicrosoftAzureBuilder {
    let builder = env.vars_with_prefix("AZURE_").fold(
        MicrosoftAzureBuilder::new(),
        |builder, (name, value)| match name.to_ascii_lowercase().parse::<AzureConfigKey>() {
            Ok(key) => builder.with_config(key, value),
            Err(_) => builder,
        },
    );
    match env.get("IDENTITY_ENDPOINT") {
        Some(endpoint) => builder.with_msi_endpoint(endpoint),
        None => builder,
    }
}
