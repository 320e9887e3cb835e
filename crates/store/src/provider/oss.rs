//! Alibaba Cloud OSS, through its native API.
//!
//! Create-only writes use the OSS header `forbid-overwrite`. The client retries parts of a multipart
//! upload itself, a fixed number of times, because its writer cannot resend a part.

use std::sync::Arc;

use object_store_opendal::OpendalStore;
use opendal::Operator;
use opendal::layers::{RetryLayer, TimeoutLayer};
use opendal::services::Oss;

use super::{Remote, StoreOpenError, credential_error, resolve_endpoint, trim_base_url};
use crate::config::StoreConfig;
use crate::credentials::OssAccount;
use crate::environment::Environment;

/// About one minute with the client's exponential backoff.
const PART_RETRIES: usize = 6;

pub(super) fn open(config: &StoreConfig, env: &Environment) -> Result<Remote, StoreOpenError> {
    let account =
        OssAccount::find(env, config.role).map_err(|error| credential_error(config, error))?;
    let address = resolve_endpoint(config, Some(&account.endpoint))?;
    let address = address
        .as_ref()
        .map_or(account.endpoint.clone(), trim_base_url);
    let service = Oss::default()
        .bucket(&config.container)
        .endpoint(&address)
        .access_key_id(account.access_key_id.expose())
        .access_key_secret(account.access_key_secret.expose());
    let operator = Operator::new(service)
        .map_err(|source| StoreOpenError::Oss {
            container: config.container.clone(),
            source,
        })?
        .layer(
            TimeoutLayer::new()
                .with_timeout(config.transfer.request_timeout)
                .with_io_timeout(config.transfer.request_timeout),
        )
        .layer(RetryLayer::new().with_jitter().with_max_times(PART_RETRIES));
    Ok(Remote::new(
        Arc::new(OpendalStore::new(operator)),
        None,
        false,
    ))
}
