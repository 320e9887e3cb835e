//! Store configuration: provider, container, prefix, endpoint, parallelism and timeouts.

use std::time::Duration;

pub use mainstay_ids::StorageProvider;
use url::Url;

/// Default container of provider `Local`.
pub const DEFAULT_LOCAL_CONTAINER: &str = "default.bkp";
/// Minimum multipart part size that every provider accepts: S3 rejects smaller parts.
pub const MIN_PART_BYTES: u64 = 5 * 1024 * 1024;
/// Memory limit for all parts of one download together.
pub const DOWNLOAD_BUDGET_BYTES: u64 = 32 * 1024 * 1024;
/// Maximum size of a download part; more parallel parts make each part smaller.
pub const MAX_DOWNLOAD_PART_BYTES: u64 = 8 * 1024 * 1024;
/// Minimum size of a download part; below it the request overhead dominates.
const MIN_RANGE_BYTES: u64 = 512 * 1024;
/// Maximum parallel requests per object; more gain no throughput and trigger rate limits.
pub const MAX_PARALLEL_PARTS: u16 = 64;

/// Role of a store in this process; selects the prefix of the credential variables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum StoreRole {
    /// Store for backup and restore: variables have no prefix.
    #[default]
    Primary,
    /// Source of a copy: variables start with `SOURCE_`.
    Source,
    /// Second backup destination: variables start with `SECONDARY_`.
    Secondary,
}

impl StoreRole {
    /// Prefix of the credential variables.
    pub fn variable_prefix(self) -> &'static str {
        match self {
            Self::Primary => "",
            Self::Source => "SOURCE_",
            Self::Secondary => "SECONDARY_",
        }
    }
}

/// Parallelism and timeouts. The defaults use at most 32 MiB per upload and per download.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TransferConfig {
    /// Parallel parts of one upload.
    pub parallel_uploads: u16,
    /// Size of an upload part in bytes, at least [`MIN_PART_BYTES`].
    pub upload_part_bytes: u64,
    /// Parallel parts of one download.
    pub parallel_downloads: u16,
    /// Timeout of one request with a body; requests without one and stalled bodies time out earlier.
    pub request_timeout: Duration,
    /// Time without progress after which a retried operation fails.
    pub retry_timeout: Duration,
}

impl Default for TransferConfig {
    fn default() -> Self {
        Self {
            parallel_uploads: 5,
            upload_part_bytes: MIN_PART_BYTES,
            parallel_downloads: 4,
            request_timeout: Duration::from_mins(3),
            retry_timeout: Duration::from_mins(10),
        }
    }
}

impl TransferConfig {
    /// Size of a download part in bytes, such that all parallel parts fit [`DOWNLOAD_BUDGET_BYTES`].
    pub fn download_part_bytes(&self) -> u64 {
        self.part_bytes_within(DOWNLOAD_BUDGET_BYTES)
    }

    /// Like [`Self::download_part_bytes`], for another memory limit.
    pub(crate) fn part_bytes_within(&self, budget_bytes: u64) -> u64 {
        // Clamped: tiny ranges waste requests, huge ones gain nothing.
        let share = budget_bytes / u64::from(self.parallel_downloads.max(1));
        share.clamp(MIN_RANGE_BYTES, MAX_DOWNLOAD_PART_BYTES)
    }
}

/// Everything needed to open a store except credentials.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreConfig {
    /// Selects the credential variables.
    pub role: StoreRole,
    /// Storage provider.
    pub provider: StorageProvider,
    /// Bucket, blob container, or directory below the home directory.
    pub container: String,
    /// Folder of the backups inside the container, without leading or trailing slash.
    pub prefix: String,
    /// Endpoint override; `None` uses the provider's own endpoint.
    pub endpoint: Option<Url>,
    /// Parallelism and timeouts.
    pub transfer: TransferConfig,
}

impl StoreConfig {
    /// A primary store with default parallelism and timeouts, no prefix and the provider's own endpoint.
    pub fn new(provider: StorageProvider, container: impl Into<String>) -> Self {
        Self {
            role: StoreRole::Primary,
            provider,
            container: container.into(),
            prefix: String::new(),
            endpoint: None,
            transfer: TransferConfig::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_in_flight_never_exceed_the_download_budget() {
        for parallel_downloads in 1..=MAX_PARALLEL_PARTS {
            let effort = TransferConfig {
                parallel_downloads,
                ..TransferConfig::default()
            };
            let held = effort.download_part_bytes() * u64::from(parallel_downloads);
            assert!(
                held <= DOWNLOAD_BUDGET_BYTES,
                "{parallel_downloads} parts hold {held}"
            );
            assert!(effort.download_part_bytes() >= 512 * 1024);
        }
    }
}
