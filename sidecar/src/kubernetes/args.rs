//! Flags about Kubernetes. Names and defaults up to `--delta-snapshot-lease-name` are those of
//! etcd-backup-restore; the others are our own.

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Args};
use jiff::SignedDuration;

use super::connection::KubeAccess;
use super::heartbeat::LeaseConfig;

#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct KubernetesArgs {
    /// Renew the Lease of this member
    ///
    /// The controller reads the member's health and role from it.
    #[arg(long, env = "MAINSTAY_ENABLE_MEMBER_LEASE_RENEWAL", value_name = "BOOL",
        action = ArgAction::Set, num_args = 0..=1, require_equals = true,
        default_missing_value = "true", default_value_t = false)]
    pub(crate) enable_member_lease_renewal: bool,

    /// Record the revisions of the latest snapshots in Leases
    #[arg(long, env = "MAINSTAY_ENABLE_SNAPSHOT_LEASE_RENEWAL", value_name = "BOOL",
        action = ArgAction::Set, num_args = 0..=1, require_equals = true,
        default_missing_value = "true", default_value_t = false)]
    pub(crate) enable_snapshot_lease_renewal: bool,

    /// Renewal interval of the member Lease, at least 1s
    #[arg(long, env = "MAINSTAY_K8S_HEARTBEAT_DURATION", value_name = "DURATION",
        default_value = "30s", value_parser = parse_heartbeat)]
    pub(crate) k8s_heartbeat_duration: Duration,

    /// Name of the Lease that records the latest full snapshot
    #[arg(
        long,
        env = "MAINSTAY_FULL_SNAPSHOT_LEASE_NAME",
        value_name = "NAME",
        default_value = "full-snapshot-revisions"
    )]
    pub(crate) full_snapshot_lease_name: String,

    /// Name of the Lease that records the latest delta snapshots
    #[arg(
        long,
        env = "MAINSTAY_DELTA_SNAPSHOT_LEASE_NAME",
        value_name = "NAME",
        default_value = "delta-snapshot-revisions"
    )]
    pub(crate) delta_snapshot_lease_name: String,

    /// Name of the coordination ConfigMap of this etcd
    ///
    /// Garbage collection keeps the snapshots that are pinned in it. Without it no snapshot is pinned.
    #[arg(long, env = "MAINSTAY_COORDINATION_NAME", value_name = "NAME")]
    pub(crate) coordination_name: Option<String>,

    /// Name of this pod; the member Lease is named after it
    #[arg(long, env = "POD_NAME", value_name = "NAME")]
    pub(crate) pod_name: Option<String>,

    /// Namespace of this pod, its Leases and the coordination ConfigMap
    #[arg(long, env = "POD_NAMESPACE", value_name = "NAME")]
    pub(crate) pod_namespace: Option<String>,

    /// Kubeconfig to use instead of the pod's service account
    #[arg(long, env = "MAINSTAY_KUBECONFIG", value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,
}

/// Flags that are invalid in combination.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum KubernetesArgsError {
    /// A flag requires the name or namespace of the pod.
    #[error("{flag} requires {variable}: set it from the pod's metadata")]
    Missing {
        flag: &'static str,
        variable: &'static str,
    },
}

/// Validated configuration.
#[derive(Clone, Debug)]
pub struct KubernetesSettings {
    pub(crate) access: KubeAccess,
    /// Namespace of the Leases and of the ConfigMap.
    pub(crate) namespace: String,
    pub(crate) leases: LeaseConfig,
    /// Name of the coordination ConfigMap.
    pub(crate) coordination: Option<String>,
}

impl KubernetesArgs {
    /// Validates the flags; `None` if none of them needs Kubernetes. The member Lease is named like the member: the pod's
    /// name, after the prefix of etcd's configuration file if there is one.
    pub fn into_settings(
        self,
        member_prefix: Option<&str>,
    ) -> Result<Option<KubernetesSettings>, KubernetesArgsError> {
        let Self {
            enable_member_lease_renewal,
            enable_snapshot_lease_renewal,
            k8s_heartbeat_duration,
            full_snapshot_lease_name,
            delta_snapshot_lease_name,
            coordination_name,
            pod_name,
            pod_namespace,
            kubeconfig,
        } = self;
        let coordination = coordination_name.filter(|name| !name.is_empty());
        let flag = match (
            enable_member_lease_renewal,
            enable_snapshot_lease_renewal,
            &coordination,
        ) {
            (true, _, _) => "--enable-member-lease-renewal",
            (false, true, _) => "--enable-snapshot-lease-renewal",
            (false, false, Some(_)) => "--coordination-name",
            (false, false, None) => return Ok(None),
        };
        let namespace = require_value(pod_namespace, flag, "POD_NAMESPACE")?;
        let member = match (enable_member_lease_renewal, member_prefix) {
            (false, _) => None,
            (true, None) => Some(require_value(pod_name, flag, "POD_NAME")?),
            (true, Some(prefix)) => Some(format!(
                "{prefix}-{}",
                require_value(pod_name, flag, "POD_NAME")?
            )),
        };
        let leases = LeaseConfig {
            member,
            full: enable_snapshot_lease_renewal.then_some(full_snapshot_lease_name),
            delta: enable_snapshot_lease_renewal.then_some(delta_snapshot_lease_name),
            heartbeat_interval: k8s_heartbeat_duration,
        };
        let access = kubeconfig.map_or(KubeAccess::InCluster, KubeAccess::Kubeconfig);
        Ok(Some(KubernetesSettings {
            access,
            namespace,
            leases,
            coordination,
        }))
    }
}

fn require_value(
    value: Option<String>,
    flag: &'static str,
    variable: &'static str,
) -> Result<String, KubernetesArgsError> {
    value
        .filter(|value| !value.is_empty())
        .ok_or(KubernetesArgsError::Missing { flag, variable })
}

fn parse_heartbeat(text: &str) -> Result<Duration, String> {
    let span: SignedDuration = text
        .parse()
        .map_err(|error: jiff::Error| error.to_string())?;
    match Duration::try_from(span) {
        Ok(span) if span >= Duration::from_secs(1) => Ok(span),
        _ => Err("must be at least 1s".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct KubernetesCommand {
        #[command(flatten)]
        kubernetes: KubernetesArgs,
    }

    fn parse(flags: &[&str]) -> KubernetesArgs {
        let line = ["program"].iter().chain(flags);
        KubernetesCommand::try_parse_from(line).unwrap().kubernetes
    }

    #[test]
    fn leases_are_disabled_by_default() {
        assert!(parse(&[]).into_settings(None).unwrap().is_none());
    }

    #[test]
    fn etcd_backup_restore_command_line_is_accepted() {
        let args = parse(&[
            "--enable-member-lease-renewal=true",
            "--enable-snapshot-lease-renewal=true",
            "--k8s-heartbeat-duration=1m0s",
            "--full-snapshot-lease-name=etcd-main-full-snap",
            "--delta-snapshot-lease-name=etcd-main-delta-snap",
            "--pod-name=etcd-main-0",
            "--pod-namespace=shoot",
        ]);
        let settings = args.into_settings(Some("eu")).unwrap().unwrap();
        assert_eq!(settings.namespace, "shoot");
        assert_eq!(settings.leases.member.as_deref(), Some("eu-etcd-main-0"));
        assert_eq!(settings.leases.full.as_deref(), Some("etcd-main-full-snap"));
        assert_eq!(
            settings.leases.delta.as_deref(),
            Some("etcd-main-delta-snap")
        );
        assert_eq!(settings.leases.heartbeat_interval, Duration::from_mins(1));
    }

    #[test]
    fn defaults_match_etcd_backup_restore() {
        let args = parse(&["--enable-snapshot-lease-renewal", "--pod-namespace=shoot"]);
        let settings = args.into_settings(None).unwrap().unwrap();
        assert_eq!(settings.leases.member, None);
        assert_eq!(
            settings.leases.full.as_deref(),
            Some("full-snapshot-revisions")
        );
        assert_eq!(
            settings.leases.delta.as_deref(),
            Some("delta-snapshot-revisions")
        );
        assert_eq!(settings.leases.heartbeat_interval, Duration::from_secs(30));
    }

    #[test]
    fn member_lease_without_a_pod_name_is_refused() {
        let args = parse(&[
            "--enable-member-lease-renewal",
            "--pod-namespace=shoot",
            "--pod-name=",
        ]);
        let missing = KubernetesArgsError::Missing {
            flag: "--enable-member-lease-renewal",
            variable: "POD_NAME",
        };
        assert_eq!(args.into_settings(None).unwrap_err(), missing);
    }

    #[test]
    fn heartbeat_below_one_second_is_refused() {
        let line = ["program", "--k8s-heartbeat-duration=10ms"];
        assert!(KubernetesCommand::try_parse_from(line).is_err());
    }
}
