//! Alibaba Cloud OSS, by its native API.
//!
//! Create-only writes are the store's own `forbid-overwrite`. Parts of a multipart upload are
//! retried by the client itself, a fixed number of times, because its writer cannot repeat one.

use std::sync::Arc;

use object_store_opendal::OpendalStore;
use opendal::Operator;
use opendal::layers::{RetryLayer, TimeoutLayer};
use opendal::services::Oss;

use super::{OpenError, Remote, base, credential_error, endpoint};
use crate::config::StoreConfig;
use crate::credentials::OssAccount;
use crate::environment::Environment;

/// About a minute of trying with the client's doubling pauses.
const PART_RETRIES: usize = 6;

pub(super) fn open(config: &StoreConfig, env: &Environment) -> Result<Remote, OpenError> {
    let account =
        OssAccount::find(env, config.role).map_err(|error| credential_error(config, error))?;
    let address = endpoint(config, Some(&account.endpoint))?;
    let address = address.as_ref().map_or(account.endpoint.clone(), base);
    let service = Oss::default()
        .bucket(&config.container)
        .endpoint(&address)
        .access_key_id(account.id.expose())
        .access_key_secret(account.secret.expose());
    let operator = Operator::new(service)
        .map_err(|source| OpenError::Oss {
            container: config.container.clone(),
            source,
        })?
        .layer(
            TimeoutLayer::new()
                .with_timeout(config.effort.request_timeout)
                .with_io_timeout(config.effort.request_timeout),
        )
        .layer(RetryLayer::new().with_jitter().with_max_times(PART_RETRIES));
    Ok(Remote::new(
        Arc::new(OpendalStore::new(operator)),
        None,
        false,
    ))
}
