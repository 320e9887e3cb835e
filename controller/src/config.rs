//! The operator's configuration: etcd-druid's `OperatorConfiguration` file, with what has a meaning here.
//!
//! **Holds**: a file etcd-druid reads is read, whatever else it says; keys its chart has spelt differently are read in both
//! spellings. Every value has a default.

use std::collections::BTreeMap;
use std::time::Duration;

use mainstay_crds::scalar::DurationString;
use serde::Deserialize;
use serde::de::{Deserializer, Error as _};

/// The file.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct OperatorConfiguration {
    /// How the API server is spoken to.
    pub client_connection: ClientConnection,
    /// Which of several replicas acts.
    pub leader_election: LeaderElection,
    /// Where this process listens.
    pub server: ServerConfig,
    /// What it does.
    pub controllers: Controllers,
    /// Switches of etcd-druid; none has a meaning here.
    pub feature_gates: BTreeMap<String, bool>,
    /// What is logged.
    #[serde(alias = "logConfiguration")]
    pub logging: Logging,
}

/// How the API server is spoken to. Accepted: this process does not limit itself, it is bounded by its workers.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClientConnection {
    /// Requests a second.
    pub qps: Option<f32>,
    /// Requests at once.
    pub burst: Option<i32>,
}

/// Which of several replicas acts.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LeaderElection {
    /// Whether there may be several.
    pub enabled: bool,
    /// How long others wait for a leader that gives no sign of life.
    #[serde(deserialize_with = "span")]
    pub lease_duration: Duration,
    /// How long a leader acts without having renewed.
    #[serde(deserialize_with = "span")]
    pub renew_deadline: Duration,
    /// The pause between two attempts.
    #[serde(deserialize_with = "span")]
    pub retry_period: Duration,
    /// Name of the Lease.
    pub resource_name: String,
}

impl Default for LeaderElection {
    fn default() -> Self {
        Self {
            enabled: false,
            lease_duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
            resource_name: "druid-leader-election".to_owned(),
        }
    }
}

/// Where this process listens.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServerConfig {
    /// For metrics and health.
    pub metrics: ListenerConfig,
}

/// One address.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ListenerConfig {
    /// The address; all when it is empty.
    pub bind_address: String,
    /// The port.
    pub port: u16,
}

impl Default for ListenerConfig {
    fn default() -> Self {
        Self {
            bind_address: String::new(),
            port: 8080,
        }
    }
}

/// What this process does.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Controllers {
    /// To clusters.
    pub etcd: EtcdController,
    /// To backups.
    pub compaction: CompactionController,
    /// To tasks that copy backups.
    pub etcd_copy_backups_task: CopyController,
    /// To other tasks.
    pub etcd_ops_task: OpsController,
}

/// What is done to tasks that copy backups.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CopyController {
    /// How many are worked on at the same time.
    pub concurrent_syncs: u16,
}

impl Default for CopyController {
    fn default() -> Self {
        Self {
            concurrent_syncs: 8,
        }
    }
}

/// What is done to other tasks.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct OpsController {
    /// How many are worked on at the same time. One that takes a snapshot waits for it, which may take minutes.
    pub concurrent_syncs: u16,
}

impl Default for OpsController {
    fn default() -> Self {
        Self {
            concurrent_syncs: 32,
        }
    }
}

/// What is done to clusters.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EtcdController {
    /// How many are worked on at the same time.
    pub concurrent_syncs: u16,
    /// Whether a changed spec is acted on without being asked to.
    pub enable_etcd_spec_auto_reconcile: bool,
    /// Whether pods get no token of their service account.
    pub disable_etcd_service_account_automount: bool,
    /// When silence of a member means something.
    pub etcd_member: EtcdMember,
}

impl Default for EtcdController {
    fn default() -> Self {
        Self {
            concurrent_syncs: DEFAULT_CONCURRENT_SYNCS,
            enable_etcd_spec_auto_reconcile: false,
            disable_etcd_service_account_automount: false,
            etcd_member: EtcdMember::default(),
        }
    }
}

/// A pass over a cluster at rest takes a millisecond; one that asks etcd may wait for seconds.
const DEFAULT_CONCURRENT_SYNCS: u16 = 64;

/// When silence of a member means something.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EtcdMember {
    /// It is not ready this long after nobody knew.
    #[serde(deserialize_with = "span")]
    pub not_ready_threshold: Duration,
    /// Nobody knows after this long.
    #[serde(deserialize_with = "span")]
    pub unknown_threshold: Duration,
}

impl Default for EtcdMember {
    fn default() -> Self {
        Self {
            not_ready_threshold: Duration::from_mins(5),
            unknown_threshold: Duration::from_mins(1),
        }
    }
}

/// When deltas are folded into a full snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CompactionController {
    /// Whether they are.
    pub enabled: bool,
    /// After so many changes.
    pub events_threshold: i64,
    /// At so many, etcd itself is asked for a full snapshot.
    pub trigger_full_snapshot_threshold: i64,
    /// How long it may take.
    #[serde(deserialize_with = "span")]
    pub active_deadline_duration: Duration,
    /// How long a finished Job stays to be measured.
    #[serde(deserialize_with = "span")]
    pub metrics_scrape_wait_duration: Duration,
}

impl Default for CompactionController {
    fn default() -> Self {
        Self {
            enabled: true,
            events_threshold: 1_000_000,
            trigger_full_snapshot_threshold: 3_000_000,
            active_deadline_duration: Duration::from_hours(3),
            metrics_scrape_wait_duration: Duration::ZERO,
        }
    }
}

/// What is logged.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Logging {
    /// `info`, `debug` or `error`.
    pub log_level: Option<String>,
    /// `json` or `text`.
    pub log_format: Option<String>,
}

fn span<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(from)?;
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    DurationString(text).to_duration().map_err(D::Error::custom)
}

/// Why a configuration cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A number that has to be above zero is not.
    #[error("{field} must be above zero")]
    Zero {
        /// Which.
        field: &'static str,
    },
    /// A leader would act longer than others wait.
    #[error("leaderElection.renewDeadline must be shorter than leaderElection.leaseDuration")]
    RenewDeadlineTooLong,
}

impl OperatorConfiguration {
    /// Checks what the types do not.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let LeaderElection {
            lease_duration,
            renew_deadline,
            retry_period,
            ..
        } = self.leader_election;
        let spans = [
            ("leaderElection.leaseDuration", lease_duration),
            ("leaderElection.renewDeadline", renew_deadline),
            ("leaderElection.retryPeriod", retry_period),
            (
                "controllers.etcd.etcdMember.unknownThreshold",
                self.controllers.etcd.etcd_member.unknown_threshold,
            ),
            (
                "controllers.etcd.etcdMember.notReadyThreshold",
                self.controllers.etcd.etcd_member.not_ready_threshold,
            ),
        ];
        if let Some((field, _)) = spans.iter().find(|(_, span)| span.is_zero()) {
            return Err(ConfigError::Zero { field });
        }
        let controllers = &self.controllers;
        let workers = [
            (
                "controllers.etcd.concurrentSyncs",
                controllers.etcd.concurrent_syncs,
            ),
            (
                "controllers.etcdCopyBackupsTask.concurrentSyncs",
                controllers.etcd_copy_backups_task.concurrent_syncs,
            ),
            (
                "controllers.etcdOpsTask.concurrentSyncs",
                controllers.etcd_ops_task.concurrent_syncs,
            ),
        ];
        // kube takes none for no limit.
        if let Some((field, _)) = workers.iter().find(|(_, workers)| *workers == 0) {
            return Err(ConfigError::Zero { field });
        }
        if renew_deadline >= lease_duration {
            return Err(ConfigError::RenewDeadlineTooLong);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_etcd_druid_is_read_in_both_spellings() {
        let text = "
            apiVersion: config.druid.gardener.cloud/v1alpha1
            kind: OperatorConfiguration
            clientConnection: {qps: 100, burst: 150, acceptContentType: ''}
            leaderElection: {enabled: true, leaseDuration: 20s, resourceLock: leases, resourceName: other}
            server: {webhooks: {port: 9443}, metrics: {bindAddress: '', port: 9090}}
            controllers:
              disableLeaseCache: false
              etcd: {concurrentSyncs: 5, enableEtcdSpecAutoReconcile: true, etcdStatusSyncPeriod: 15s,
                     etcdMember: {notReadyThreshold: 2m, unknownThreshold: 30s}}
              compaction: {enabled: false, metricsScrapeWaitDuration: 0s}
              etcdCopyBackupsTask: {enabled: true, concurrentSyncs: 4}
              etcdOpsTask: {concurrentSyncs: 6, requeueInterval: 15s}
              secret: {concurrentSyncs: 10}
            webhooks: {etcdComponentProtection: {enabled: false}}
            featureGates: {UpgradeEtcdVersion: true}
            logConfiguration: {logLevel: debug}
        ";
        let config: OperatorConfiguration = serde_norway::from_str(text).unwrap();
        config.validate().unwrap();
        assert_eq!(
            config.leader_election.lease_duration,
            Duration::from_secs(20)
        );
        assert_eq!(
            config.leader_election.renew_deadline,
            Duration::from_secs(10)
        );
        assert_eq!(
            (
                config.server.metrics.port,
                config.controllers.etcd.concurrent_syncs,
                config.controllers.etcd_copy_backups_task.concurrent_syncs,
                config.controllers.etcd_ops_task.concurrent_syncs,
            ),
            (9090, 5, 4, 6)
        );
        assert_eq!(
            config.controllers.etcd.etcd_member.unknown_threshold,
            Duration::from_secs(30)
        );
        assert!(
            config.controllers.etcd.enable_etcd_spec_auto_reconcile
                && !config.controllers.compaction.enabled
        );
        assert_eq!(config.logging.log_level.as_deref(), Some("debug"));
    }

    #[test]
    fn an_empty_file_has_every_default() {
        let config: OperatorConfiguration = serde_norway::from_str("{}").unwrap();
        assert_eq!(config, OperatorConfiguration::default());
        config.validate().unwrap();
    }

    #[test]
    fn nobody_to_work_on_something_is_refused_not_taken_for_everybody() {
        for kind in ["etcd", "etcdCopyBackupsTask", "etcdOpsTask"] {
            let text = format!("controllers: {{{kind}: {{concurrentSyncs: 0}}}}");
            let config: OperatorConfiguration = serde_norway::from_str(&text).unwrap();
            assert!(
                matches!(config.validate(), Err(ConfigError::Zero { field }) if field.contains(kind)),
                "{kind}"
            );
        }
    }

    #[test]
    fn a_leader_that_would_outlive_its_lease_is_refused() {
        let mut config = OperatorConfiguration::default();
        config.leader_election.renew_deadline = Duration::from_secs(15);
        assert_eq!(config.validate(), Err(ConfigError::RenewDeadlineTooLong));
    }
}
