//! The configuration file: etcd-druid's `OperatorConfiguration`, with the fields that have a meaning here.
//!
//! Invariants: every file that etcd-druid accepts is accepted, unknown fields are ignored; keys that etcd-druid's chart
//! spells differently are accepted in both spellings. Every field has a default.

use std::collections::BTreeMap;
use std::time::Duration;

use mainstay_crds::scalar::DurationString;
use serde::Deserialize;
use serde::de::{Deserializer, Error as _};

use crate::model::UpkeepPolicy;

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct OperatorConfiguration {
    pub(crate) client_connection: ClientConnection,
    pub leader_election: LeaderElection,
    pub(crate) server: ServerConfig,
    pub controllers: Controllers,
    /// Feature gates of etcd-druid. Accepted and ignored.
    pub(crate) feature_gates: BTreeMap<String, bool>,
    #[serde(alias = "logConfiguration")]
    pub(crate) logging: Logging,
}

/// Client-side rate limits. Accepted and ignored: the number of workers bounds the requests.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ClientConnection {
    pub(crate) qps: Option<f32>,
    pub(crate) burst: Option<i32>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LeaderElection {
    pub enabled: bool,
    /// Time without renewal after which another replica may take the Lease.
    #[serde(deserialize_with = "span")]
    pub lease_duration: Duration,
    /// Time without renewal after which the leader stops writing. Must be shorter than `lease_duration`.
    #[serde(deserialize_with = "span")]
    pub renew_deadline: Duration,
    /// Time between two attempts to acquire or renew the Lease.
    #[serde(deserialize_with = "span")]
    pub retry_period: Duration,
    pub(crate) resource_name: String,
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

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ServerConfig {
    /// Metrics and health checks.
    pub(crate) metrics: ListenerConfig,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ListenerConfig {
    /// Empty means all addresses.
    pub(crate) bind_address: String,
    pub(crate) port: u16,
}

impl Default for ListenerConfig {
    fn default() -> Self {
        Self {
            bind_address: String::new(),
            port: 8080,
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Controllers {
    pub etcd: EtcdController,
    pub compaction: CompactionController,
    pub(crate) etcd_copy_backups_task: CopyController,
    pub(crate) etcd_ops_task: OpsController,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct CopyController {
    /// Number of tasks reconciled at the same time.
    pub(crate) concurrent_syncs: u16,
}

impl Default for CopyController {
    fn default() -> Self {
        Self {
            concurrent_syncs: 8,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct OpsController {
    /// Number of tasks reconciled at the same time. A task that takes a snapshot occupies a worker for minutes.
    pub(crate) concurrent_syncs: u16,
}

impl Default for OpsController {
    fn default() -> Self {
        Self {
            concurrent_syncs: 32,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EtcdController {
    /// Number of Etcds reconciled at the same time.
    pub(crate) concurrent_syncs: u16,
    /// Apply spec changes without the annotation `operation=reconcile`.
    pub enable_etcd_spec_auto_reconcile: bool,
    /// Do not mount service account tokens into etcd pods.
    pub(crate) disable_etcd_service_account_automount: bool,
    pub(crate) etcd_member: EtcdMember,
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

/// A reconcile of an idle cluster takes a millisecond; one that queries etcd may block for seconds.
const DEFAULT_CONCURRENT_SYNCS: u16 = 64;

/// Ages of a member's Lease that change its reported state.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct EtcdMember {
    /// Time a member may stay Unknown before it counts as NotReady.
    #[serde(deserialize_with = "span")]
    pub(crate) not_ready_threshold: Duration,
    /// Time since the last Lease renewal before a member counts as Unknown.
    #[serde(deserialize_with = "span")]
    pub(crate) unknown_threshold: Duration,
}

impl Default for EtcdMember {
    fn default() -> Self {
        Self {
            not_ready_threshold: Duration::from_mins(5),
            unknown_threshold: Duration::from_mins(1),
        }
    }
}

/// When delta snapshots are compacted into a full snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CompactionController {
    pub enabled: bool,
    /// Events since the last full snapshot that trigger a compaction.
    pub(crate) events_threshold: i64,
    /// Events above which a full snapshot is taken instead, because a Job would take too long.
    pub(crate) trigger_full_snapshot_threshold: i64,
    #[serde(deserialize_with = "span")]
    pub active_deadline_duration: Duration,
    /// Time a finished Job is kept so that its metrics can be scraped.
    #[serde(deserialize_with = "span")]
    pub(crate) metrics_scrape_wait_duration: Duration,
}

impl From<&CompactionController> for UpkeepPolicy {
    fn from(compaction: &CompactionController) -> Self {
        Self {
            is_compaction_enabled: compaction.enabled,
            events_threshold: compaction.events_threshold,
            full_snapshot_threshold: compaction.trigger_full_snapshot_threshold,
            job_deadline: compaction.active_deadline_duration,
            ..Self::default()
        }
    }
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

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Logging {
    /// `info`, `debug` or `error`.
    pub(crate) log_level: Option<String>,
    /// `json` or `text`.
    pub(crate) log_format: Option<String>,
}

fn span<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(from)?;
    // Go's ParseDuration accepts "0" without a unit.
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    DurationString(text).to_duration().map_err(D::Error::custom)
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    #[error("{field} must be greater than zero")]
    Zero { field: &'static str },
    /// Two replicas would reconcile at the same time.
    #[error("leaderElection.renewDeadline must be shorter than leaderElection.leaseDuration")]
    RenewDeadlineTooLong,
}

impl OperatorConfiguration {
    pub(crate) fn validate(&self) -> Result<(), ConfigError> {
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
        // kube treats a concurrency of 0 as unlimited.
        if let Some((field, _)) = workers.iter().find(|(_, workers)| *workers == 0) {
            return Err(ConfigError::Zero { field });
        }
        // A leader has to stop writing before another replica may take its Lease.
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
    fn etcd_druid_config_file_is_read_in_both_spellings() {
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
    fn empty_config_file_has_every_default() {
        let config: OperatorConfiguration = serde_norway::from_str("{}").unwrap();
        assert_eq!(config, OperatorConfiguration::default());
        config.validate().unwrap();
    }

    #[test]
    fn zero_concurrent_syncs_is_refused() {
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
    fn renew_deadline_as_long_as_the_lease_is_refused() {
        let mut config = OperatorConfiguration::default();
        config.leader_election.renew_deadline = Duration::from_secs(15);
        assert_eq!(config.validate(), Err(ConfigError::RenewDeadlineTooLong));
    }
}
