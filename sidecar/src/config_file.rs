//! The configuration file of etcd-backup-restore: maps each of its fields to a flag.
//!
//! A file replaces the whole command line except for logging, as in etcd-backup-restore. Its fields are converted to
//! flags and parsed as such, so that defaults and checks exist once.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use serde_norway::Value;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum ConfigFileError {
    #[error("failed to read configuration file {}", path.display())]
    Read {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("configuration file {} is not valid YAML", path.display())]
    Syntax {
        path: PathBuf,
        source: serde_norway::Error,
    },
    #[error("configuration file {}: unknown field {field}", path.display())]
    UnknownField { path: PathBuf, field: String },
    /// A field is nested too deep or holds a value that a flag cannot take.
    #[error("configuration file {}: field {field}: expected string, number, boolean or list", path.display())]
    UnsupportedValue { path: PathBuf, field: String },
}

/// Fields of the file and their flags. An empty flag: the field is accepted and has no effect.
const FIELD_FLAGS: &[(&str, &str)] = &[
    ("etcdConnectionConfig.endpoints", "endpoints"),
    ("etcdConnectionConfig.serviceEndpoints", "service-endpoints"),
    ("etcdConnectionConfig.username", "etcd-username"),
    ("etcdConnectionConfig.password", "etcd-password"),
    (
        "etcdConnectionConfig.connectionTimeout",
        "etcd-connection-timeout",
    ),
    (
        "etcdConnectionConfig.snapshotTimeout",
        "etcd-snapshot-timeout",
    ),
    ("etcdConnectionConfig.defragTimeout", "etcd-defrag-timeout"),
    (
        "etcdConnectionConfig.insecureTransport",
        "insecure-transport",
    ),
    (
        "etcdConnectionConfig.insecureSkipVerify",
        "insecure-skip-tls-verify",
    ),
    ("etcdConnectionConfig.certFile", "cert"),
    ("etcdConnectionConfig.keyFile", "key"),
    ("etcdConnectionConfig.caFile", "cacert"),
    ("etcdConnectionConfig.maxCallSendMsgSize", ""),
    ("serverConfig.port", "server-port"),
    ("serverConfig.enableProfiling", ""),
    ("serverConfig.server-cert", "server-cert"),
    ("serverConfig.server-key", "server-key"),
    ("snapshotterConfig.schedule", "schedule"),
    (
        "snapshotterConfig.deltaSnapshotPeriod",
        "delta-snapshot-period",
    ),
    (
        "snapshotterConfig.deltaSnapshotMemoryLimit",
        "delta-snapshot-memory-limit",
    ),
    (
        "snapshotterConfig.garbageCollectionPeriod",
        "garbage-collection-period",
    ),
    (
        "snapshotterConfig.garbageCollectionPolicy",
        "garbage-collection-policy",
    ),
    ("snapshotterConfig.maxBackups", "max-backups"),
    (
        "snapshotterConfig.deltaSnapshotRetentionPeriod",
        "delta-snapshot-retention-period",
    ),
    ("snapstoreConfig.provider", "storage-provider"),
    ("snapstoreConfig.container", "store-container"),
    ("snapstoreConfig.prefix", "store-prefix"),
    (
        "snapstoreConfig.endpointOverride",
        "store-endpoint-override",
    ),
    (
        "snapstoreConfig.maxParallelChunkUploads",
        "max-parallel-chunk-uploads",
    ),
    ("snapstoreConfig.minChunkSize", "min-chunk-size"),
    ("snapstoreConfig.tempDir", "snapstore-temp-directory"),
    ("compressionConfig.enabled", "compress-snapshots"),
    ("compressionConfig.policy", "compression-policy"),
    ("restorationConfig.restoreDataDir", "data-dir"),
    ("restorationConfig.dataDir", "data-dir"),
    ("restorationConfig.initialCluster", ""),
    ("restorationConfig.initialClusterToken", ""),
    ("restorationConfig.initialAdvertisePeerURLs", ""),
    ("restorationConfig.name", ""),
    ("restorationConfig.skipHashCheck", ""),
    ("restorationConfig.maxFetchers", ""),
    ("restorationConfig.maxCallSendMsgSize", ""),
    ("restorationConfig.maxRequestBytes", ""),
    ("restorationConfig.maxTxnOps", ""),
    ("restorationConfig.embeddedEtcdQuotaBytes", ""),
    ("restorationConfig.autoCompactionMode", ""),
    ("restorationConfig.autoCompactionRetention", ""),
    ("restorationConfig.tempSnapshotsDir", ""),
    (
        "healthConfig.snapshotLeaseRenewalEnabled",
        "enable-snapshot-lease-renewal",
    ),
    (
        "healthConfig.memberLeaseRenewalEnabled",
        "enable-member-lease-renewal",
    ),
    ("healthConfig.heartbeatDuration", "k8s-heartbeat-duration"),
    (
        "healthConfig.fullSnapshotLeaseName",
        "full-snapshot-lease-name",
    ),
    (
        "healthConfig.deltaSnapshotLeaseName",
        "delta-snapshot-lease-name",
    ),
    ("leaderElectionConfig.reelectionPeriod", "reelection-period"),
    (
        "leaderElectionConfig.etcdConnectionTimeout",
        "etcd-connection-timeout-leader-election",
    ),
    ("exponentialBackoffConfig.multiplier", "backoff-multiplier"),
    ("exponentialBackoffConfig.attemptLimit", ""),
    (
        "exponentialBackoffConfig.thresholdTime",
        "backoff-threshold-time",
    ),
    ("defragmentationSchedule", "defragmentation-schedule"),
    ("useEtcdWrapper", ""),
];

/// Reads a file and returns its fields as flags.
pub(crate) fn read_flags(path: &Path) -> Result<Vec<OsString>, ConfigFileError> {
    let text = std::fs::read_to_string(path).map_err(|source| ConfigFileError::Read {
        path: path.to_owned(),
        source,
    })?;
    let file: Value = serde_norway::from_str(&text).map_err(|source| ConfigFileError::Syntax {
        path: path.to_owned(),
        source,
    })?;
    let mut leaves = Vec::new();
    collect_leaves(path, String::new(), &file, &mut leaves)?;
    let mut flags = Vec::new();
    for (field, value) in leaves {
        let known = FIELD_FLAGS.iter().find(|(name, _)| *name == field);
        match known {
            Some((_, "")) => {}
            Some((_, flag)) => flags.push(format!("--{flag}={value}").into()),
            // A misspelt field must not silently fall back to a default.
            None => {
                return Err(ConfigFileError::UnknownField {
                    path: path.to_owned(),
                    field,
                });
            }
        }
    }
    Ok(flags)
}

/// Collects the fields that hold a value, as `section.field`.
fn collect_leaves(
    path: &Path,
    field: String,
    value: &Value,
    leaves: &mut Vec<(String, String)>,
) -> Result<(), ConfigFileError> {
    let shape = |field: &str| ConfigFileError::UnsupportedValue {
        path: path.to_owned(),
        field: field.to_owned(),
    };
    match value {
        Value::Null => Ok(()),
        Value::Mapping(fields) => {
            for (name, value) in fields {
                let name = name.as_str().ok_or_else(|| shape(&field))?;
                let inner = if field.is_empty() {
                    name.to_owned()
                } else {
                    format!("{field}.{name}")
                };
                // Known fields have at most two levels; the limit also bounds the recursion.
                if inner.matches('.').count() > 1 {
                    return Err(shape(&inner));
                }
                collect_leaves(path, inner, value, leaves)?;
            }
            Ok(())
        }
        Value::Sequence(items) => {
            let items: Option<Vec<String>> = items.iter().map(scalar_to_string).collect();
            let items = items.ok_or_else(|| shape(&field))?;
            leaves.push((field, items.join(",")));
            Ok(())
        }
        other => {
            let value = scalar_to_string(other).ok_or_else(|| shape(&field))?;
            leaves.push((field, value));
            Ok(())
        }
    }
}

fn scalar_to_string(value: &Value) -> Option<String> {
    match value {
        Value::Bool(value) => Some(value.to_string()),
        Value::Number(value) => Some(value.to_string()),
        Value::String(value) => Some(value.clone()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::*;
    use crate::args::SidecarArgs;

    fn flags_from_text(text: &str) -> Result<Vec<String>, ConfigFileError> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let flags = read_flags(file.path())?;
        Ok(flags
            .into_iter()
            .map(|f| f.into_string().unwrap())
            .collect())
    }

    #[test]
    fn every_field_maps_to_an_existing_flag() {
        let command = SidecarArgs::command();
        let known: Vec<&str> = command
            .get_arguments()
            .filter_map(clap::Arg::get_long)
            .collect();
        for (field, flag) in FIELD_FLAGS {
            assert!(
                flag.is_empty() || known.contains(flag),
                "{field} is --{flag}"
            );
        }
    }

    #[test]
    fn etcd_backup_restore_config_file_becomes_flags() {
        let flags = flags_from_text(
            "etcdConnectionConfig:\n  endpoints: [\"http://a:1\", \"http://b:2\"]\n  connectionTimeout: 10s\n\
             serverConfig:\n  port: 9090\nsnapshotterConfig:\n  schedule: \"0 */2 * * *\"\n\
             snapstoreConfig:\n  provider: Local\n  tempDir: /tmp\ndefragmentationSchedule: \"0 0 */3 * *\"\n",
        )
        .unwrap();
        assert!(
            flags.contains(&"--endpoints=http://a:1,http://b:2".to_owned()),
            "{flags:?}"
        );
        assert!(
            flags.contains(&"--server-port=9090".to_owned()),
            "{flags:?}"
        );
        let line = std::iter::once("mainstay-sidecar".to_owned()).chain(flags);
        let args = SidecarArgs::try_parse_from(line).unwrap();
        assert_eq!(args.snapshots.schedule.to_string(), "0 */2 * * *");
    }

    #[test]
    fn misspelt_field_is_named_in_the_error() {
        let error = flags_from_text("snapshotterConfig:\n  shedule: \"0 * * * *\"\n").unwrap_err();
        let text = error.to_string();
        assert!(text.contains("snapshotterConfig.shedule"), "{text}");
    }

    #[test]
    fn invalid_yaml_and_too_deep_nesting_are_errors() {
        assert!(matches!(
            flags_from_text("a: [").unwrap_err(),
            ConfigFileError::Syntax { .. }
        ));
        let deep = flags_from_text("a:\n  b:\n    c: 1\n").unwrap_err();
        assert!(
            matches!(deep, ConfigFileError::UnsupportedValue { .. }),
            "{deep}"
        );
    }
}
