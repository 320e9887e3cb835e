//! Credential lookup, compatible with the variables and files of etcd-backup-restore.
//!
//! ```text
//! <ROLE><STEM>_JSON = file      ─┐
//! <ROLE><STEM>      = directory ─┼─► Fields ─► typed credentials of one provider
//!      *.json inside, else       │
//!      one file per field       ─┘
//! not set ─► ambient identity of the machine or pod
//! ```
//!
//! The role prefix is empty, `SOURCE_` or `SECONDARY_`. A trailing newline of a file is not part of its
//! value. Values are [`crate::Secret`]s as soon as they are read; errors name variable, file and field,
//! never a value.

mod accounts;
mod fields;

pub(crate) use accounts::GoogleKind;
pub(crate) use accounts::{AzureAccount, GoogleAccount, OssAccount, S3Credentials, S3Identity};
pub(crate) use fields::fingerprint_credentials;
pub use fields::{CredentialError, CredentialFingerprint};

#[cfg(test)]
mod tests;
