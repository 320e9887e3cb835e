//! The providers of object stores, with the names that etcd-backup-restore uses.

use std::fmt;
use std::str::FromStr;

/// Storage provider. Names are the case-sensitive values of `--storage-provider`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StorageProvider {
    /// A directory below the home directory.
    Local,
    /// Amazon S3 and compatible stores.
    S3,
    /// Azure Blob Storage.
    Abs,
    /// Google Cloud Storage.
    Gcs,
    /// `OpenStack` Swift.
    Swift,
    /// Alibaba Cloud OSS.
    Oss,
    /// Dell EMC ECS, through its S3 API.
    Ecs,
    /// `OpenShift` Container Storage, through its S3 API.
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

    /// The name used on the command line.
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

/// A provider name that is not one of [`StorageProvider::ALL`].
#[derive(Debug, PartialEq, Eq)]
pub struct UnknownProvider(String);

impl fmt::Display for UnknownProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(name) = self;
        write!(
            f,
            "invalid storage provider `{name}`: must be Local, S3, ABS, GCS, Swift, OSS, ECS or OCS"
        )
    }
}

impl std::error::Error for UnknownProvider {}

impl FromStr for StorageProvider {
    type Err = UnknownProvider;

    /// Parses the exact name; the empty string means `Local`, as in etcd-backup-restore's one-shot commands.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_provider_parses_from_its_name() {
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
}
