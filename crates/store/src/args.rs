//! Command line flags of a store, and of the source store of a copy.
//!
//! Flags up to `--snapstore-temp-directory` keep the names and defaults of etcd-backup-restore, so that
//! existing command lines work unchanged. The other flags are specific to this project.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use jiff::SignedDuration;
use url::Url;

use crate::config::{
    DEFAULT_LOCAL_CONTAINER, MAX_PARALLEL_PARTS, MIN_PART_BYTES, StorageProvider, StoreConfig,
    StoreRole, TransferConfig,
};

/// A combination of store flags that is not valid.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreArgsError {
    /// Every provider except `Local` needs a container.
    #[error("storage provider {provider} requires a bucket: set --{flag} or {variable}")]
    MissingContainer {
        /// The configured provider.
        provider: StorageProvider,
        /// The flag that sets the container.
        flag: &'static str,
        /// The environment variable that sets the container.
        variable: &'static str,
    },
}

/// Defines one group of store flags. The groups differ only in the prefixes of flags and variables; a
/// macro is needed because clap's derive cannot add a prefix to a flattened group.
macro_rules! store_args {
    ($(#[$doc:meta])* $name:ident, $role:expr, $flag:literal, $variable:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Args)]
        pub struct $name {
            /// Storage provider: Local, S3, ABS, GCS, Swift, OSS, ECS or OCS; empty means Local
            #[arg(id = concat!($flag, "storage-provider"), long = concat!($flag, "storage-provider"),
                env = concat!("MAINSTAY_", $variable, "STORAGE_PROVIDER"),
                value_name = "PROVIDER", default_value = "")]
            pub provider: StorageProvider,

            /// Bucket or container of the backups; for Local, a directory below $HOME [default for Local:
            /// default.bkp]
            #[arg(id = concat!($flag, "store-container"), long = concat!($flag, "store-container"),
                env = concat!($variable, "STORAGE_CONTAINER"), value_name = "NAME")]
            pub container: Option<String>,

            /// Folder inside the container for the backups of this etcd cluster
            #[arg(id = concat!($flag, "store-prefix"), long = concat!($flag, "store-prefix"),
                env = concat!("MAINSTAY_", $variable, "STORE_PREFIX"),
                value_name = "PREFIX", default_value = "")]
            pub prefix: String,

            /// Endpoint URL of the store, instead of the provider's own. For GCS, an http:// URL selects an
            /// emulator, which is used without credentials
            #[arg(id = concat!($flag, "store-endpoint-override"),
                long = concat!($flag, "store-endpoint-override"),
                env = concat!("MAINSTAY_", $variable, "STORE_ENDPOINT_OVERRIDE"),
                value_name = "URL")]
            pub endpoint: Option<Url>,

            /// Maximum parallel part uploads per object
            #[arg(id = concat!($flag, "max-parallel-chunk-uploads"),
                long = concat!($flag, "max-parallel-chunk-uploads"),
                env = concat!("MAINSTAY_", $variable, "MAX_PARALLEL_CHUNK_UPLOADS"),
                value_name = "COUNT", default_value_t = 5,
                value_parser = clap::value_parser!(u16).range(1..=i64::from(MAX_PARALLEL_PARTS)))]
            pub parallel_uploads: u16,

            /// Upload part size in bytes, at least 5242880; larger parts use more memory
            #[arg(id = concat!($flag, "min-chunk-size"), long = concat!($flag, "min-chunk-size"),
                env = concat!("MAINSTAY_", $variable, "MIN_CHUNK_SIZE"),
                value_name = "BYTES", default_value_t = MIN_PART_BYTES,
                value_parser = clap::value_parser!(u64).range(MIN_PART_BYTES..=1 << 32))]
            pub upload_part_bytes: u64,

            /// Ignored; accepted for compatibility with etcd-backup-restore. Transfers use no temporary files
            #[arg(id = concat!($flag, "snapstore-temp-directory"),
                long = concat!($flag, "snapstore-temp-directory"),
                env = concat!("MAINSTAY_", $variable, "SNAPSTORE_TEMP_DIRECTORY"),
                value_name = "DIR", hide = true)]
            pub temp_directory: Option<PathBuf>,

            /// Maximum parallel range requests per downloaded object
            #[arg(id = concat!($flag, "max-parallel-downloads"),
                long = concat!($flag, "max-parallel-downloads"),
                env = concat!("MAINSTAY_", $variable, "MAX_PARALLEL_DOWNLOADS"),
                value_name = "COUNT", default_value_t = 4,
                value_parser = clap::value_parser!(u16).range(1..=i64::from(MAX_PARALLEL_PARTS)))]
            pub parallel_downloads: u16,

            /// Timeout of one request to the store, for example 30s or 2m. Raise it on slow links, where
            /// uploading a part takes longer
            #[arg(id = concat!($flag, "store-request-timeout"),
                long = concat!($flag, "store-request-timeout"),
                env = concat!("MAINSTAY_", $variable, "STORE_REQUEST_TIMEOUT"),
                value_name = "DURATION", default_value = "3m", value_parser = parse_positive_duration)]
            pub request_timeout: Duration,

            /// Time without progress after which a retried store operation fails, for example 10m
            #[arg(id = concat!($flag, "store-retry-timeout"),
                long = concat!($flag, "store-retry-timeout"),
                env = concat!("MAINSTAY_", $variable, "STORE_RETRY_TIMEOUT"),
                value_name = "DURATION", default_value = "10m", value_parser = parse_positive_duration)]
            pub retry_timeout: Duration,
        }

        impl $name {
            /// Validates the combination of flags and fills in defaults that depend on the provider.
            pub fn into_config(self) -> Result<StoreConfig, StoreArgsError> {
                let Self {
                    provider,
                    container,
                    prefix,
                    endpoint,
                    parallel_uploads,
                    upload_part_bytes,
                    temp_directory: _,
                    parallel_downloads,
                    request_timeout,
                    retry_timeout,
                } = self;
                let container = match container.filter(|name| !name.is_empty()) {
                    Some(container) => container,
                    None if provider == StorageProvider::Local => DEFAULT_LOCAL_CONTAINER.to_owned(),
                    None => {
                        return Err(StoreArgsError::MissingContainer {
                            provider,
                            flag: concat!($flag, "store-container"),
                            variable: concat!($variable, "STORAGE_CONTAINER"),
                        });
                    }
                };
                let transfer = TransferConfig {
                    parallel_uploads,
                    upload_part_bytes,
                    parallel_downloads,
                    request_timeout,
                    retry_timeout,
                };
                // Object keys never start with a slash; operators often write one.
                let prefix = prefix.trim_matches('/').to_owned();
                Ok(StoreConfig { role: $role, provider, container, prefix, endpoint, transfer })
            }
        }
    };
}

store_args!(
    /// The store for backup and restore.
    StoreArgs, StoreRole::Primary, "", ""
);
store_args!(
    /// The source store of a copy; every flag starts with `source-`.
    SourceStoreArgs, StoreRole::Source, "source-", "SOURCE_"
);

/// Parses `90s`, `2m` or `1h30m`; rejects zero and negative durations.
fn parse_positive_duration(text: &str) -> Result<Duration, String> {
    let span: SignedDuration = text
        .parse()
        .map_err(|error: jiff::Error| error.to_string())?;
    match Duration::try_from(span) {
        Ok(duration) if !duration.is_zero() => Ok(duration),
        _ => Err("must be greater than zero".to_owned()),
    }
}

#[cfg(test)]
mod tests;
