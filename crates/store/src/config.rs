//! What a store is: provider, container, prefix, endpoint, and how hard to work on it.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use url::Url;

/// The container used with `Local` when none is named.
pub const DEFAULT_LOCAL_CONTAINER: &str = "default.bkp";
/// The smallest multipart part that every store accepts.
pub const MIN_PART_BYTES: u64 = 5 * 1024 * 1024;
/// What all parts of one download may hold in memory together.
pub const DOWNLOAD_BUDGET_BYTES: u64 = 32 * 1024 * 1024;
/// The largest part of a download; smaller ones are used when more of them are in flight.
pub const MAX_DOWNLOAD_PART_BYTES: u64 = 8 * 1024 * 1024;
/// Smaller ranges would be all overhead.
const MIN_RANGE_BYTES: u64 = 512 * 1024;
/// More parallel requests than this per object gain nothing and trip rate limits.
pub const MAX_PARALLEL_PARTS: u16 = 64;

/// Who keeps the objects. The names are those of the storage provider flag, in its exact case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StorageProvider {
    /// A directory below the home directory.
    Local,
    /// Amazon S3 and everything that speaks its API.
    S3,
    /// Azure Blob Storage.
    Abs,
    /// Google Cloud Storage.
    Gcs,
    /// `OpenStack` Swift.
    Swift,
    /// Alibaba Cloud OSS.
    Oss,
    /// Dell EMC ECS, by its S3 API.
    Ecs,
    /// `OpenShift` Container Storage, by its S3 API.
    Ocs,
}

impl StorageProvider {
    /// Every provider, in the order shown to users.
    pub const ALL: [Self; 8] = [
        Self::Local,
        Self::S3,
        Self::Abs,
        Self::Gcs,
        Self::Swift,
        Self::Oss,
        Self::Ecs,
        Self::Ocs,
    ];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Local => "Local",
            Self::S3 => "S3",
            Self::Abs => "ABS",
            Self::Gcs => "GCS",
            Self::Swift => "Swift",
            Self::Oss => "OSS",
            Self::Ecs => "ECS",
            Self::Ocs => "OCS",
        }
    }
}

impl fmt::Display for StorageProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A provider name that is not one of [`Provider::ALL`].
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "`{0}` is not a storage provider; the providers are Local, S3, ABS, GCS, Swift, OSS, ECS, OCS"
)]
pub struct UnknownProvider(String);

impl FromStr for StorageProvider {
    type Err = UnknownProvider;

    /// Reads the exact name; the empty string is `Local`, as for every one-shot command.
    fn from_str(name: &str) -> Result<Self, UnknownProvider> {
        if name.is_empty() {
            return Ok(Self::Local);
        }
        Self::ALL
            .into_iter()
            .find(|provider| provider.name() == name)
            .ok_or_else(|| UnknownProvider(name.to_owned()))
    }
}

/// Which of the stores of a process this one is; it decides which credential variables are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum StoreRole {
    /// The store that is backed up to and restored from: variables without a prefix.
    #[default]
    Primary,
    /// The store a copy reads from: variables start with `SOURCE_`.
    Source,
    /// A second destination: variables start with `SECONDARY_`.
    Secondary,
}

impl StoreRole {
    /// What credential variables of this store start with.
    pub fn variable_prefix(self) -> &'static str {
        match self {
            Self::Primary => "",
            Self::Source => "SOURCE_",
            Self::Secondary => "SECONDARY_",
        }
    }
}

/// How much is in flight and how long to wait. Defaults fit a 32 MiB budget each way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TransferConfig {
    /// Parts of one upload in flight.
    pub parallel_uploads: u16,
    /// Size of an upload part, at least [`MIN_PART_BYTES`].
    pub upload_part_bytes: u64,
    /// Parts of one download in flight.
    pub parallel_downloads: u16,
    /// How long one request with a body may take; small ones and stalled bodies end sooner.
    pub request_timeout: Duration,
    /// How long one operation is retried without any progress before it is an error.
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
    /// Size of a download part: as large as useful while all in flight fit the budget.
    pub fn download_part_bytes(&self) -> u64 {
        self.part_bytes_within(DOWNLOAD_BUDGET_BYTES)
    }

    /// As [`Self::download_part_bytes`], within another budget.
    pub(crate) fn part_bytes_within(&self, budget_bytes: u64) -> u64 {
        let share = budget_bytes / u64::from(self.parallel_downloads.max(1));
        share.clamp(MIN_RANGE_BYTES, MAX_DOWNLOAD_PART_BYTES)
    }
}

/// Everything needed to open a store, except secrets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreConfig {
    /// Which credential variables apply.
    pub role: StoreRole,
    /// Who keeps the objects.
    pub provider: StorageProvider,
    /// Bucket, blob container, or directory below the home directory.
    pub container: String,
    /// Folder of the backups inside the container, without slashes at its ends.
    pub prefix: String,
    /// Address used instead of the provider's own.
    pub endpoint: Option<Url>,
    /// Parallelism and deadlines.
    pub transfer: TransferConfig,
}

impl StoreConfig {
    /// A primary store with default effort, no prefix and the provider's own address.
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
    fn every_provider_reads_back_from_its_name() {
        for provider in StorageProvider::ALL {
            assert_eq!(provider.name().parse(), Ok(provider));
        }
        assert_eq!("".parse(), Ok(StorageProvider::Local));
    }

    #[test]
    fn provider_names_are_case_sensitive() {
        assert!("s3".parse::<StorageProvider>().is_err());
        assert!("FAILED".parse::<StorageProvider>().is_err());
    }

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
