//! Command line groups for one store, and for the store a copy reads from.
//!
//! Names and defaults of the flags up to `--snapstore-temp-directory` are those of the backup tool
//! this one replaces, so that existing command lines keep working. The rest is ours.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use jiff::SignedDuration;
use url::Url;

use crate::config::{
    DEFAULT_LOCAL_CONTAINER, TransferConfig, MAX_PARALLEL_PARTS, StorageProvider, StoreRole, MIN_PART_BYTES,
    StoreConfig,
};

/// Why flags that parsed one by one do not make a store.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreArgsError {
    /// Every provider except `Local` needs a container.
    #[error("storage provider {provider} needs a bucket: set --{flag} or {variable}")]
    MissingContainer {
        /// The provider asked for.
        provider: StorageProvider,
        /// The flag that names the container.
        flag: &'static str,
        /// The variable that names the container.
        variable: &'static str,
    },
}

/// Defines one group of store flags. All groups are alike except for the prefixes of flags and
/// variables, and clap's derive cannot add a prefix to a flattened group.
macro_rules! store_args {
    ($(#[$doc:meta])* $name:ident, $role:expr, $flag:literal, $variable:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Args)]
        pub struct $name {
            /// Where backups are kept: Local, S3, ABS, GCS, Swift, OSS, ECS or OCS; empty means Local
            #[arg(id = concat!($flag, "storage-provider"), long = concat!($flag, "storage-provider"),
                env = concat!("MAINSTAY_", $variable, "STORAGE_PROVIDER"),
                value_name = "PROVIDER", default_value = "")]
            pub provider: StorageProvider,

            /// Bucket or container of the backups; for Local a directory below the home directory
            /// [default for Local: default.bkp]
            #[arg(id = concat!($flag, "store-container"), long = concat!($flag, "store-container"),
                env = concat!($variable, "STORAGE_CONTAINER"), value_name = "NAME")]
            pub container: Option<String>,

            /// Folder inside the container that holds the backups of this one etcd
            #[arg(id = concat!($flag, "store-prefix"), long = concat!($flag, "store-prefix"),
                env = concat!("MAINSTAY_", $variable, "STORE_PREFIX"),
                value_name = "PREFIX", default_value = "")]
            pub prefix: String,

            /// Address of the store when it is not the provider's own; http:// is taken as a test
            /// server for GCS, which is then used without credentials
            #[arg(id = concat!($flag, "store-endpoint-override"),
                long = concat!($flag, "store-endpoint-override"),
                env = concat!("MAINSTAY_", $variable, "STORE_ENDPOINT_OVERRIDE"),
                value_name = "URL")]
            pub endpoint: Option<Url>,

            /// Parts of one upload that are sent at the same time
            #[arg(id = concat!($flag, "max-parallel-chunk-uploads"),
                long = concat!($flag, "max-parallel-chunk-uploads"),
                env = concat!("MAINSTAY_", $variable, "MAX_PARALLEL_CHUNK_UPLOADS"),
                value_name = "COUNT", default_value_t = 5,
                value_parser = clap::value_parser!(u16).range(1..=i64::from(MAX_PARALLEL_PARTS)))]
            pub parallel_uploads: u16,

            /// Size in bytes of an upload part, at least 5242880; larger parts use more memory
            #[arg(id = concat!($flag, "min-chunk-size"), long = concat!($flag, "min-chunk-size"),
                env = concat!("MAINSTAY_", $variable, "MIN_CHUNK_SIZE"),
                value_name = "BYTES", default_value_t = MIN_PART_BYTES,
                value_parser = clap::value_parser!(u64).range(MIN_PART_BYTES..=1 << 32))]
            pub upload_part_bytes: u64,

            /// Accepted for compatibility and without effect: transfers never spool to disk
            #[arg(id = concat!($flag, "snapstore-temp-directory"),
                long = concat!($flag, "snapstore-temp-directory"),
                env = concat!("MAINSTAY_", $variable, "SNAPSTORE_TEMP_DIRECTORY"),
                value_name = "DIR", hide = true)]
            pub temp_directory: Option<PathBuf>,

            /// Parts of one download that are fetched at the same time
            #[arg(id = concat!($flag, "max-parallel-downloads"),
                long = concat!($flag, "max-parallel-downloads"),
                env = concat!("MAINSTAY_", $variable, "MAX_PARALLEL_DOWNLOADS"),
                value_name = "COUNT", default_value_t = 4,
                value_parser = clap::value_parser!(u16).range(1..=i64::from(MAX_PARALLEL_PARTS)))]
            pub parallel_downloads: u16,

            /// How long one request to the store may take, for example 30s or 2m; parts of uploads need
            /// longer on slow links
            #[arg(id = concat!($flag, "store-request-timeout"),
                long = concat!($flag, "store-request-timeout"),
                env = concat!("MAINSTAY_", $variable, "STORE_REQUEST_TIMEOUT"),
                value_name = "DURATION", default_value = "3m", value_parser = parse_positive_duration)]
            pub request_timeout: Duration,

            /// How long a failing operation is retried without progress before it is given up
            #[arg(id = concat!($flag, "store-retry-timeout"),
                long = concat!($flag, "store-retry-timeout"),
                env = concat!("MAINSTAY_", $variable, "STORE_RETRY_TIMEOUT"),
                value_name = "DURATION", default_value = "10m", value_parser = parse_positive_duration)]
            pub retry_timeout: Duration,
        }

        impl $name {
            /// Checks the flags against each other and fills what depends on the provider.
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
                let prefix = prefix.trim_matches('/').to_owned();
                Ok(StoreConfig { role: $role, provider, container, prefix, endpoint, transfer })
            }
        }
    };
}

store_args!(
    /// The store that backups are written to and restored from.
    StoreArgs, StoreRole::Primary, "", ""
);
store_args!(
    /// The store a copy reads from; every flag starts with `source-`.
    SourceStoreArgs, StoreRole::Source, "source-", "SOURCE_"
);

/// Reads `90s`, `2m`, `1h30m`; zero and negative spans are refused.
fn parse_positive_duration(text: &str) -> Result<Duration, String> {
    let span: SignedDuration = text
        .parse()
        .map_err(|error: jiff::Error| error.to_string())?;
    match Duration::try_from(span) {
        Ok(duration) if !duration.is_zero() => Ok(duration),
        _ => Err("must be longer than zero".to_owned()),
    }
}

#[cfg(test)]
mod tests;
