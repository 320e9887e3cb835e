//! The command line: etcd-druid's flags where the meaning is the same, ours where there is none. Flags nobody knows are
//! told about and ignored, as etcd-druid does.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, CommandFactory, Parser, ValueEnum};
use mainstay_crds::scalar::DurationString;
use mainstay_manifests::{DefaultImages, PullPolicy, OperatorSettings};
use mainstay_telemetry::LogArgs;

use crate::caches::WatchScope;
use crate::config::{ConfigError, OperatorConfiguration};

const EXAMPLES: &str = "\
Examples:
  # in a pod, one of several replicas, settings from a file
  mainstay-controller --config=/etc/mainstay/config.yaml

  # from a laptop, for one namespace, acting on every change of a spec
  mainstay-controller --kubeconfig=$HOME/.kube/config --namespace=shoot --enable-etcd-spec-auto-reconcile";

/// Turns Etcd resources into healthy etcd clusters, and keeps them so.
///
/// Run one or more replicas in a cluster; with `--enable-leader-election` one of them acts. Settings come from the
/// file --config names (kind `OperatorConfiguration`, as etcd-druid has it) or from flags.
#[derive(Clone, Debug, Parser)]
#[command(name = "mainstay-controller", version, after_help = EXAMPLES)]
pub struct OperatorArgs {
    /// File with the operator's configuration; the flags of the group "without a file" are ignored then
    #[arg(long, env = "MAINSTAY_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Image of etcd for clusters that name none; its tag should be a version
    #[arg(
        long,
        env = "MAINSTAY_ETCD_IMAGE",
        value_name = "IMAGE",
        default_value = "etcd:v3.5.27"
    )]
    pub etcd_image: String,

    /// Image of mainstay-sidecar for clusters that name none
    #[arg(long, env = "MAINSTAY_SIDECAR_IMAGE", value_name = "IMAGE", default_value = concat!("mainstay-sidecar:v", env!("CARGO_PKG_VERSION")))]
    pub sidecar_image: String,

    /// Image of mainstay-restorer, for init containers and Jobs
    #[arg(long, env = "MAINSTAY_RESTORER_IMAGE", value_name = "IMAGE", default_value = concat!("mainstay-restorer:v", env!("CARGO_PKG_VERSION")))]
    pub restorer_image: String,

    /// When nodes pull these images
    #[arg(long, env = "MAINSTAY_IMAGE_PULL_POLICY", value_name = "POLICY")]
    pub image_pull_policy: Option<ImagePullPolicy>,

    /// Look after the Etcds of this namespace only
    #[arg(long, env = "MAINSTAY_NAMESPACE", value_name = "NAME")]
    pub namespace: Option<String>,

    /// Reach Kubernetes with this kubeconfig instead of the pod's service account
    #[arg(long, env = "KUBECONFIG", value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,

    /// Name of the pod this runs in: who leads
    #[arg(long, env = "POD_NAME", value_name = "NAME")]
    pub pod_name: Option<String>,

    /// Namespace of the pod: where the lease of the leader is
    #[arg(
        long,
        env = "POD_NAMESPACE",
        value_name = "NAME",
        default_value = "default"
    )]
    pub pod_namespace: String,

    /// What is said when there is no file
    #[command(flatten, next_help_heading = "Without a file")]
    pub legacy: LegacyArgs,

    /// What is logged
    #[command(flatten)]
    pub log: LogArgs,
}

/// Flags of etcd-druid that the file replaces.
#[derive(Clone, Debug, clap::Args)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a flag of etcd-druid"
)]
pub struct LegacyArgs {
    /// Act only while holding a lease, so that there may be several replicas
    #[arg(long, value_name = "BOOL", action = ArgAction::Set, num_args = 0..=1, require_equals = true,
        default_missing_value = "true", default_value_t = false)]
    pub enable_leader_election: bool,

    /// Name of that lease
    #[arg(long, value_name = "NAME", default_value = "druid-leader-election")]
    pub leader_election_id: String,

    /// Address for metrics and health; all when empty
    #[arg(long, value_name = "ADDRESS", default_value = "")]
    pub metrics_bind_address: String,

    /// Port for metrics and health
    #[arg(long, value_name = "PORT", default_value_t = 8080)]
    pub metrics_port: u16,

    /// How many clusters are worked on at the same time
    #[arg(long, value_name = "COUNT")]
    pub etcd_workers: Option<u16>,

    /// Act on a changed spec without being asked to by an annotation
    #[arg(long, visible_alias = "ignore-operation-annotation", value_name = "BOOL", action = ArgAction::Set,
        num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value_t = false)]
    pub enable_etcd_spec_auto_reconcile: bool,

    /// Give pods no token of their service account
    #[arg(long, value_name = "BOOL", action = ArgAction::Set, num_args = 0..=1, require_equals = true,
        default_missing_value = "true", default_value_t = false)]
    pub disable_etcd_serviceaccount_automount: bool,

    /// A member is not ready this long after nobody knew
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = span)]
    pub etcd_member_notready_threshold: Duration,

    /// Nobody knows how a member is after this long without a sign of life
    #[arg(long, value_name = "DURATION", default_value = "1m", value_parser = span)]
    pub etcd_member_unknown_threshold: Duration,

    /// Fold deltas into full snapshots
    #[arg(long, value_name = "BOOL", action = ArgAction::Set, num_args = 0..=1, require_equals = true,
        default_missing_value = "true", default_value_t = false)]
    pub enable_backup_compaction: bool,

    /// After so many changes
    #[arg(long, value_name = "COUNT", default_value_t = 1_000_000)]
    pub etcd_events_threshold: i64,

    /// How long folding may take
    #[arg(long, value_name = "DURATION", default_value = "3h", value_parser = span)]
    pub active_deadline_duration: Duration,

    /// How long a finished Job stays to be measured
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = span)]
    pub metrics_scrape_wait_duration: Duration,
}

/// When nodes pull images.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "PascalCase")]
pub enum ImagePullPolicy {
    /// At every start.
    Always,
    /// When a node has none.
    IfNotPresent,
    /// Never.
    Never,
}

fn span(text: &str) -> Result<Duration, String> {
    DurationString::from(text)
        .to_duration()
        .map_err(|error| error.to_string())
}

/// Why there are no settings.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigLoadError {
    /// The file cannot be read.
    #[error("read {}", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file makes no sense.
    #[error("understand {}", path.display())]
    Parse {
        /// Which.
        path: PathBuf,
        /// What is wrong with it.
        source: serde_norway::Error,
    },
    /// The settings contradict each other.
    #[error("use the configuration")]
    Config {
        /// How.
        source: ConfigError,
    },
}

impl OperatorArgs {
    /// Reads a command line; returns the flags nobody knows, too.
    pub fn parse_known(
        line: impl IntoIterator<Item = OsString>,
    ) -> Result<(Self, Vec<String>), clap::Error> {
        let (line, unknown) = split_unknown_flags(line.into_iter().collect());
        Ok((Self::try_parse_from(line)?, unknown))
    }

    /// The operator's configuration: of the file, or of the flags.
    pub fn load_config(&self) -> Result<OperatorConfiguration, ConfigLoadError> {
        let config = match &self.config {
            Some(path) => {
                let text = std::fs::read_to_string(path).map_err(|source| ConfigLoadError::Read {
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

    /// How objects are rendered.
    pub fn to_settings(&self, config: &OperatorConfiguration) -> OperatorSettings {
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
            automount_service_account_token: !config
                .controllers
                .etcd
                .disable_etcd_service_account_automount,
            ..OperatorSettings::with_images(images)
        }
    }

    /// Where to look.
    pub fn watch_scope(&self) -> WatchScope {
        let named = self.namespace.as_ref().filter(|name| !name.is_empty());
        named.map_or(WatchScope::Cluster, |name| WatchScope::Namespace(name.clone()))
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

/// The command line without flags nobody knows, and these.
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
        // Its value, when it comes as a word of its own.
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
    fn the_command_is_sound() {
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
    fn flags_nobody_knows_are_told_and_ignored_with_their_values() {
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
    fn a_file_wins_over_flags() {
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
    fn a_file_that_is_not_there_is_named() {
        let (args, _) = parse_flags(&["--config=/nowhere/config.yaml"]);
        assert_eq!(
            args.load_config().unwrap_err().to_string(),
            "read /nowhere/config.yaml"
        );
    }
}
