//! S3 and S3-compatible appliances.

use std::sync::Arc;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use url::{Host, Url};

use super::{
    Remote, StoreOpenError, add_root_certificates, build_client_options, client_error,
    credential_error, resolve_endpoint, trim_base_url,
};
use crate::config::{StorageProvider, StoreConfig};
use crate::connector::{Connector, disable_client_retries};
use crate::credentials::{S3Credentials, S3Identity};
use crate::environment::Environment;

pub(super) fn open(config: &StoreConfig, env: &Environment) -> Result<Remote, StoreOpenError> {
    let access = match config.provider {
        StorageProvider::Ecs => S3Credentials::find_ecs(env, config.role),
        StorageProvider::Ocs => S3Credentials::find_ocs(env, config.role),
        _ => S3Credentials::find(env, config.role),
    }
    .map_err(|error| credential_error(config, error))?;

    let mut builder = builder_with_identity(&access, env)
        .with_bucket_name(&config.container)
        .with_http_connector(Connector)
        // Not every S3-compatible server implements DeleteObjects.
        .with_disable_bulk_delete(true)
        .with_retry(disable_client_retries());
    if let Some(region) = &access.region {
        builder = builder.with_region(region);
    }
    if let Some(key) = &access.sse_customer_key {
        builder = builder.with_ssec_encryption(key.expose());
    }

    let mut options = add_root_certificates(
        config,
        build_client_options(&config.transfer),
        access.ca_bundle.as_deref(),
    )?
    .with_allow_invalid_certificates(access.insecure_skip_verify);
    let address = resolve_endpoint(config, access.endpoint.as_deref())?;
    builder = if let Some(url) = address {
        options = options.with_allow_http(url.scheme() == "http");
        with_bucket_endpoint(builder, &url, &config.container, access.path_style)
    } else {
        // A bucket name with dots does not match the wildcard certificate *.s3.amazonaws.com.
        let virtual_hosted = !access.path_style && !config.container.contains('.');
        builder.with_virtual_hosted_style_request(virtual_hosted)
    };

    let client = builder
        .with_client_options(options)
        .build()
        .map_err(|error| client_error(config, error))?;
    // ECS and OCS may ignore the condition of a conditional write, so existence is checked first.
    let checks_before_write =
        matches!(config.provider, StorageProvider::Ecs | StorageProvider::Ocs);
    Ok(Remote::new(
        Arc::new(client.clone()),
        Some(Arc::new(client)),
        checks_before_write,
    ))
}

/// Sets the identity. Standard AWS variables apply only if no credential file is configured.
fn builder_with_identity(access: &S3Credentials, env: &Environment) -> AmazonS3Builder {
    let builder = AmazonS3Builder::new();
    match &access.identity {
        S3Identity::Keys { id, secret } => builder
            .with_access_key_id(id.expose())
            .with_secret_access_key(secret.expose()),
        S3Identity::WebIdentity {
            role_arn,
            token_file,
        } => builder
            .with_config(AmazonS3ConfigKey::RoleArn, role_arn)
            .with_config(
                AmazonS3ConfigKey::WebIdentityTokenFile,
                token_file.to_string_lossy().into_owned(),
            ),
        S3Identity::Ambient => {
            env.vars_with_prefix("AWS_")
                .fold(builder, |builder, (name, value)| {
                    match name.to_ascii_lowercase().parse::<AmazonS3ConfigKey>() {
                        Ok(key) => builder.with_config(key, value),
                        Err(_) => builder,
                    }
                })
        }
    }
}

/// Puts the bucket into the path, or into the host name where DNS and TLS allow it.
pub(super) fn with_bucket_endpoint(
    builder: AmazonS3Builder,
    url: &Url,
    bucket: &str,
    path_style: bool,
) -> AmazonS3Builder {
    let has_subdomains = matches!(url.host(), Some(Host::Domain(name)) if name != "localhost");
    let mut hosted = url.clone();
    let host = format!("{bucket}.{}", url.host_str().unwrap_or_default());
    let can_host = has_subdomains && !bucket.contains('.') && hosted.set_host(Some(&host)).is_ok();
    if path_style || !can_host {
        return builder
            .with_endpoint(trim_base_url(url))
            .with_virtual_hosted_style_request(false);
    }
    builder
        .with_endpoint(trim_base_url(&hosted))
        .with_virtual_hosted_style_request(true)
}
