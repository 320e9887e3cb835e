//! Command line: etcd-druid's flags where the meaning is the same, and our own. Unknown flags are logged and ignored, so
//! that the command line of an etcd-druid Deployment keeps working.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, CommandFactory, Parser, ValueEnum};
use mainstay_crds::scalar::DurationString;
use mainstay_manifests::{DefaultImages, OperatorSettings, PullPolicy};
use mainstay_telemetry::LogArgs;

use crate::caches::WatchScope;
use crate::config::{ConfigError, OperatorConfiguration};

const EXAMPLES: &str = "\
Examples:
  # in a pod, with the configuration from a file
  mainstay-controller --config=/etc/mainstay/config.yaml

  # from a workstation, for one namespace, applying every spec change
  mainstay-controller --kubeconfig=$HOME/.kube/config --namespace=shoot --enable-etcd-spec-auto-reconcile";

/// Reconciles Etcd resources into running, backed up etcd clusters
///
/// Several replicas may run; with leader election one of them reconciles. The configuration comes from the file named
/// by --config (kind `OperatorConfiguration`, as for etcd-druid) or, without a file, from flags.
#[derive(Clone, Debug, Parser)]
#[command(name = "mainstay-controller", version, after_help = EXAMPLES)]
pub struct OperatorArgs {
    /// Configuration file (kind `OperatorConfiguration`)
    ///
    /// With a file, the flags of the group "Without a file" are ignored.
    #[arg(long, env = "MAINSTAY_CONFIG", value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,

    /// Image of etcd for Etcds without spec.etcd.image
    ///
    /// The tag should be a version: the upgrade path is checked by it.
    #[arg(
        long,
        env = "MAINSTAY_ETCD_IMAGE",
        value_name = "IMAGE",
        default_value = "gcr.io/etcd-development/etcd:v3.5.27"
    )]
    pub(crate) etcd_image: String,

    /// Image of mainstay-sidecar for Etcds without spec.backup.image
    #[arg(long, env = "MAINSTAY_SIDECAR_IMAGE", value_name = "IMAGE", default_value = concat!("mainstay-sidecar:v", env!("CARGO_PKG_VERSION")))]
    pub(crate) sidecar_image: String,

    /// Image of mainstay-restorer for init containers and Jobs
    #[arg(long, env = "MAINSTAY_RESTORER_IMAGE", value_name = "IMAGE", default_value = concat!("mainstay-restorer:v", env!("CARGO_PKG_VERSION")))]
    pub(crate) restorer_image: String,

    /// Pull policy of these images
    ///
    /// Default: the policy of Kubernetes (Always for the tag `latest`, else IfNotPresent).
    #[arg(long, env = "MAINSTAY_IMAGE_PULL_POLICY", value_name = "POLICY")]
    pub(crate) image_pull_policy: Option<ImagePullPolicy>,

    /// Names of Secrets with which nodes pull these images, separated by commas
    ///
    /// A Secret of each name must exist in the namespace of every Etcd that needs it.
    #[arg(
        long,
        env = "MAINSTAY_IMAGE_PULL_SECRETS",
        value_name = "NAMES",
        value_delimiter = ','
    )]
    pub(crate) image_pull_secrets: Vec<String>,

    /// Reconcile only the Etcds in this namespace
    ///
    /// Default: all namespaces. Set it when the service account has no cluster-wide permissions.
    #[arg(long, env = "MAINSTAY_NAMESPACE", value_name = "NAME")]
    pub(crate) namespace: Option<String>,

    /// Kubeconfig to use instead of the pod's service account
    #[arg(long, env = "KUBECONFIG", value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,

    /// Name of the controller's pod, its identity in leader election
    #[arg(long, env = "POD_NAME", value_name = "NAME")]
    pub(crate) pod_name: Option<String>,

    /// Namespace of the controller's pod and of the leader election Lease
    #[arg(
        long,
        env = "POD_NAMESPACE",
        value_name = "NAME",
        default_value = "default"
    )]
    pub(crate) pod_namespace: String,

    #[command(flatten, next_help_heading = "Without a file")]
    pub(crate) legacy: LegacyArgs,

    #[command(flatten)]
    pub log: LogArgs,
}

/// Flags of etcd-druid that the configuration file replaces.
#[derive(Clone, Debug, clap::Args)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a flag of etcd-druid"
)]
pub(crate) struct LegacyArgs {
    /// Reconcile only while holding a Lease; required for several replicas
    #[arg(long, value_name = "BOOL", action = ArgAction::Set, num_args = 0..=1, require_equals = true,
        default_missing_value = "true", default_value_t = false)]
    pub(crate) enable_leader_election: bool,

    /// Name of the leader election Lease
    ///
    /// The default is etcd-druid's, so that the two do not reconcile at the same time.
    #[arg(long, value_name = "NAME", default_value = "druid-leader-election")]
    pub(crate) leader_election_id: String,

    /// Address for metrics and health checks; empty means all addresses
    #[arg(long, value_name = "ADDRESS", default_value = "")]
    pub(crate) metrics_bind_address: String,

    /// Port for metrics and health checks
    #[arg(long, value_name = "PORT", default_value_t = 8080)]
    pub(crate) metrics_port: u16,

    /// Number of Etcds reconciled at the same time
    ///
    /// Default: 64.
    #[arg(long, value_name = "COUNT")]
    pub(crate) etcd_workers: Option<u16>,

    /// Apply spec changes without the annotation operation=reconcile
    #[arg(long, visible_alias = "ignore-operation-annotation", value_name = "BOOL", action = ArgAction::Set,
        num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value_t = false)]
    pub(crate) enable_etcd_spec_auto_reconcile: bool,

    /// Do not mount service account tokens into etcd pods
    #[arg(long, value_name = "BOOL", action = ArgAction::Set, num_args = 0..=1, require_equals = true,
        default_missing_value = "true", default_value_t = false)]
    pub(crate) disable_etcd_serviceaccount_automount: bool,

    /// Time a member may stay Unknown before it counts as NotReady
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = span)]
    pub(crate) etcd_member_notready_threshold: Duration,

    /// Time since the last Lease renewal before a member counts as Unknown
    #[arg(long, value_name = "DURATION", default_value = "1m", value_parser = span)]
    pub(crate) etcd_member_unknown_threshold: Duration,

    /// Compact delta snapshots into full snapshots with Jobs
    #[arg(long, value_name = "BOOL", action = ArgAction::Set, num_args = 0..=1, require_equals = true,
        default_missing_value = "true", default_value_t = false)]
    pub(crate) enable_backup_compaction: bool,

    /// Events that trigger a compaction
    ///
    /// Counted as revisions since the last full snapshot. Lower it to shorten restores, at the cost of more Jobs.
    #[arg(long, value_name = "COUNT", default_value_t = 1_000_000)]
    pub(crate) etcd_events_threshold: i64,

    /// Compaction Job deadline
    ///
    /// A Job that takes longer fails. Raise it for large databases.
    #[arg(long, value_name = "DURATION", default_value = "3h", value_parser = span)]
    pub(crate) active_deadline_duration: Duration,

    /// Time a finished compaction Job is kept so that its metrics can be scraped
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = span)]
    pub(crate) metrics_scrape_wait_duration: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "PascalCase")]
pub(crate) enum ImagePullPolicy {
    /// Pull at every container start
    Always,
    /// Pull when the node does not have the image
    IfNotPresent,
    /// Never pull
    Never,
}

fn span(text: &str) -> Result<Duration, String> {
    DurationString::from(text)
        .to_duration()
        .map_err(|error| error.to_string())
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigLoadError {
    #[error("failed to read configuration file {}", path.display())]
    Read {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("failed to parse configuration file {}", path.display())]
    Parse {
        path: PathBuf,
        source: serde_norway::Error,
    },
    #[error("invalid configuration")]
    Config { source: ConfigError },
}

impl OperatorArgs {
    /// Parses a command line. Also returns the unknown flags, which are ignored.
    pub fn parse_known(
        line: impl IntoIterator<Item = OsString>,
    ) -> Result<(Self, Vec<String>), clap::Error> {
        let (line, unknown) = split_unknown_flags(line.into_iter().collect());
        Ok((Self::try_parse_from(line)?, unknown))
    }

    /// The configuration of the file, or of the flags when no file is given.
    pub fn load_config(&self) -> Result<OperatorConfiguration, ConfigLoadError> {
        let config = match &self.config {
            Some(path) => {
                let text =
                    std::fs::read_to_string(path).map_err(|source| ConfigLoadError::Read {
                        path: path.clone(),
                        source,
                    })?;
                serde_norway::from_str(&text).map_err(|source| ConfigLoadError::Parse {
                    path: path.clone(),
                    source,
                })?
            }
            None => self.legacy.to_config(),
        };
        config
            .validate()
            .map_err(|source| ConfigLoadError::Config { source })?;
        Ok(config)
    }

    pub(crate) fn to_settings(&self, config: &OperatorConfiguration) -> OperatorSettings {
        let images = DefaultImages {
            etcd: self.etcd_image.clone(),
            sidecar: self.sidecar_image.clone(),
            restorer: self.restorer_image.clone(),
        };
        OperatorSettings {
            image_pull_policy: self.image_pull_policy.map(|policy| match policy {
                ImagePullPolicy::Always => PullPolicy::Always,
                ImagePullPolicy::IfNotPresent => PullPolicy::IfNotPresent,
                ImagePullPolicy::Never => PullPolicy::Never,
            }),
            // A variable that is set to nothing is a list with an empty name.
            image_pull_secrets: self
                .image_pull_secrets
                .iter()
                .filter(|name| !name.is_empty())
                .cloned()
                .collect(),
            automount_service_account_token: !config
                .controllers
                .etcd
                .disable_etcd_service_account_automount,
            ..OperatorSettings::with_images(images)
        }
    }

    pub(crate) fn watch_scope(&self) -> WatchScope {
        let named = self.namespace.as_ref().filter(|name| !name.is_empty());
        named.map_or(WatchScope::Cluster, |name| {
            WatchScope::Namespace(name.clone())
        })
    }
}

impl LegacyArgs {
    fn to_config(&self) -> OperatorConfiguration {
        let Self {
            enable_leader_election,
            leader_election_id,
            metrics_bind_address,
            metrics_port,
            etcd_workers,
            enable_etcd_spec_auto_reconcile,
            disable_etcd_serviceaccount_automount,
            etcd_member_notready_threshold,
            etcd_member_unknown_threshold,
            enable_backup_compaction,
            etcd_events_threshold,
            active_deadline_duration,
            metrics_scrape_wait_duration,
        } = self;
        let mut config = OperatorConfiguration::default();
        config.leader_election.enabled = *enable_leader_election;
        config
            .leader_election
            .resource_name
            .clone_from(leader_election_id);
        config
            .server
            .metrics
            .bind_address
            .clone_from(metrics_bind_address);
        config.server.metrics.port = *metrics_port;
        let etcd = &mut config.controllers.etcd;
        etcd.concurrent_syncs = etcd_workers.unwrap_or(etcd.concurrent_syncs);
        etcd.enable_etcd_spec_auto_reconcile = *enable_etcd_spec_auto_reconcile;
        etcd.disable_etcd_service_account_automount = *disable_etcd_serviceaccount_automount;
        etcd.etcd_member.not_ready_threshold = *etcd_member_notready_threshold;
        etcd.etcd_member.unknown_threshold = *etcd_member_unknown_threshold;
        let compaction = &mut config.controllers.compaction;
        compaction.enabled = *enable_backup_compaction;
        compaction.events_threshold = *etcd_events_threshold;
        compaction.active_deadline_duration = *active_deadline_duration;
        compaction.metrics_scrape_wait_duration = *metrics_scrape_wait_duration;
        config
    }
}

/// Splits a command line into known words and the names of unknown flags.
fn split_unknown_flags(line: Vec<OsString>) -> (Vec<OsString>, Vec<String>) {
    let command = OperatorArgs::command();
    let names: Vec<String> = command
        .get_arguments()
        .flat_map(|arg| {
            let aliases = arg.get_all_aliases().unwrap_or_default();
            arg.get_long()
                .into_iter()
                .chain(aliases)
                .map(str::to_owned)
                .collect::<Vec<_>>()
        })
        .chain(["help", "version"].map(str::to_owned))
        .collect();
    let (mut kept, mut unknown) = (Vec::new(), Vec::new());
    let mut line = line.into_iter().peekable();
    while let Some(word) = line.next() {
        let text = word.to_string_lossy().into_owned();
        // Positional words and short flags are left to clap, which rejects them with a usage message.
        let Some(flag) = text.strip_prefix("--").filter(|flag| !flag.is_empty()) else {
            kept.push(word);
            continue;
        };
        let name = flag.split('=').next().unwrap_or(flag);
        if names.iter().any(|known| known == name) {
            kept.push(word);
            continue;
        }
        unknown.push(format!("--{name}"));
        let is_alone = !flag.contains('=');
        // `--flag value`: the value of an unknown flag is dropped with it.
        line.next_if(|next| is_alone && !next.to_string_lossy().starts_with('-'));
    }
    (kept, unknown)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_flags(flags: &[&str]) -> (OperatorArgs, Vec<String>) {
        let line = std::iter::once("mainstay-controller").chain(flags.iter().copied());
        OperatorArgs::parse_known(line.map(OsString::from)).unwrap()
    }

    #[test]
    fn command_definition_is_valid() {
        OperatorArgs::command().debug_assert();
    }

    #[test]
    fn flags_of_etcd_druid_still_work() {
        let (args, unknown) = parse_flags(&[
            "--enable-leader-election=true",
            "--etcd-workers=7",
            "--ignore-operation-annotation=true",
            "--etcd-member-unknown-threshold=30s",
            "--metrics-port=9090",
        ]);
        let config = args.load_config().unwrap();
        assert_eq!(unknown, [""; 0]);
        assert!(
            config.leader_election.enabled
                && config.controllers.etcd.enable_etcd_spec_auto_reconcile
        );
        assert_eq!(
            (
                config.controllers.etcd.concurrent_syncs,
                config.server.metrics.port
            ),
            (7, 9090)
        );
        assert_eq!(
            config.controllers.etcd.etcd_member.unknown_threshold,
            Duration::from_secs(30)
        );
    }

    #[test]
    fn unknown_flags_are_reported_and_ignored_with_their_values() {
        let (args, unknown) = parse_flags(&[
            "--custodian-workers=3",
            "--secret-workers",
            "10",
            "--feature-gates=UpgradeEtcdVersion=true",
            "--some-switch",
            "--metrics-port=9091",
        ]);
        assert_eq!(
            unknown,
            [
                "--custodian-workers",
                "--secret-workers",
                "--feature-gates",
                "--some-switch"
            ]
        );
        assert_eq!(args.legacy.metrics_port, 9091);
    }

    #[test]
    fn image_pull_secrets_are_separated_by_commas() {
        let settings = |flags: &[&str]| {
            let (args, _) = parse_flags(flags);
            args.to_settings(&OperatorConfiguration::default())
        };
        assert_eq!(
            settings(&["--image-pull-secrets=ours,theirs"]).image_pull_secrets,
            ["ours", "theirs"]
        );
        assert_eq!(settings(&[]).image_pull_secrets, [""; 0]);
        assert_eq!(
            settings(&["--image-pull-secrets="]).image_pull_secrets,
            [""; 0]
        );
    }

    #[test]
    fn config_file_overrides_flags() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("config.yaml");
        std::fs::write(&path, "controllers: {etcd: {concurrentSyncs: 2}}").unwrap();
        let (args, _) = parse_flags(&["--config", path.to_str().unwrap(), "--etcd-workers=7"]);
        assert_eq!(
            args.load_config()
                .unwrap()
                .controllers
                .etcd
                .concurrent_syncs,
            2
        );
    }

    #[test]
    fn missing_config_file_is_named_in_the_error() {
        let (args, _) = parse_flags(&["--config=/nowhere/config.yaml"]);
        assert_eq!(
            args.load_config().unwrap_err().to_string(),
            "failed to read configuration file /nowhere/config.yaml"
        );
    }
}
