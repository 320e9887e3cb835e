//! `init`: decides whether etcd may start in a pod, and writes its configuration.
//!
//! ```text
//! configuration of all members ┐
//! data directory: verified     ├─► decide (pure) ─┬─ start, bootstrap, join ─► the member's configuration, exit 0
//! other members: queried       │                  ├─ wait ─► observe again, until the timeout
//! backup: listed, if needed;   ┘                  └─ restore required, refuse ─► exit, etcd does not start
//!   compared with valid data if its names are newer
//!                                     └─► report for the controller, in the termination message
//! ```
//!
//! Invariants:
//! * The data directory is not changed, except that the clean-shutdown marker, which is valid once, is removed and the
//!   namespace is recorded on the volume. Nothing is restored here.
//! * An unreachable store is not an empty one, and unreachable members are not absent.

pub(crate) mod cluster;
pub(crate) mod data;
pub(crate) mod decide;
mod messages;
pub(crate) mod template;

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use jiff::SignedDuration;
use mainstay_datadir::write_volume_guard;
use mainstay_store::{StoreArgs, StoreConfig};
use mainstay_verdict::{
    BackupSummary, ClusterSummary, DataDirSummary, DataState, InitDecision, InitReport, Verdict,
};
use tokio::time::{Instant, sleep, timeout};
use tracing::{info, warn};

use self::cluster::{ClusterArgs, LocalMember, MemberResponse, choose_response};
use self::data::{CleanStopUse, ExpectedOwner, ObservedDataDir};
use self::decide::{
    ConfiguredCluster, InitialClusterState, decide, is_older_by_name, needs_backup, should_wait,
};
use self::template::{ConfigTemplate, InitialClusterConfig, TemplateError};
use crate::backup::{Backup, newest_revision, to_store_config};
use crate::cli::CommandContext;
use crate::failure::CommandFailure;
use crate::history_check::compare_with_backup;
use crate::outcome::CommandOutcome;

/// Interval of observing again while waiting.
const POLL_INTERVAL: Duration = Duration::from_secs(2);

/// Flags of `init`.
#[derive(Debug, Args)]
#[command(
    long_about = "Decides whether and how etcd may start, and writes its configuration. Runs as the init \
        container of a member.\n\n\
        Verifies the data directory (a quick check after a clean shutdown, all of it otherwise), queries the \
        other members, lists the backup if it matters, and decides: bootstrap a new cluster, start with the \
        existing data, or join as an added member. Otherwise etcd does not start: the data must be restored, \
        the controller or an operator must act first, or etcd must never start on this volume. Only the \
        first three decisions write the configuration and exit with 0.\n\n\
        Valid data of an only member is compared with the backup if the names of the snapshots are newer: the \
        data must be restored only if rows prove that the backup continues it.\n\n\
        Never changes data and never restores. The field `init` of the JSON result contains the observed \
        state and the decision. On machines without Kubernetes, use `initialize`.",
    after_help = "Exit codes: 0 etcd may start; 40 the data must be restored first; 41 the controller or an operator \
        must act first, for example add this member to the cluster; 42 etcd must not start on this volume.\n\n\
        Examples:\n  \
        # in a pod of a StatefulSet, with POD_NAME and POD_NAMESPACE set\n  \
        mainstay-restorer init --config-template /var/etcd/config/etcd.conf.yaml --config-output /var/etcd/run/etcd.conf.yaml \\\n    \
        --service-endpoints http://etcd-main-client:2379 --storage-provider S3 --store-container backups --store-prefix shoot-1/etcd-main\n\n  \
        # print the decision, change nothing\n  \
        mainstay-restorer init --pod-name etcd-main-0 --config-template etcd.conf.yaml --dry-run -o json"
)]
pub struct InitArgs {
    /// Configuration template of all members
    ///
    /// A configuration file of etcd, except that the advertised URLs are maps from member name to URLs.
    #[arg(long, value_name = "FILE", env = "MAINSTAY_CONFIG_TEMPLATE")]
    pub(crate) config_template: PathBuf,

    /// File to write the configuration of this member to, for `etcd --config-file`
    #[arg(long, value_name = "FILE", env = "MAINSTAY_CONFIG_OUTPUT")]
    #[arg(required_unless_present = "dry_run")]
    pub(crate) config_output: Option<PathBuf>,

    /// Name of the pod, from which the member name is derived
    ///
    /// If the template has a `member-name-prefix`, the member name is PREFIX-POD.
    #[arg(long, value_name = "NAME", env = "POD_NAME")]
    pub(crate) pod_name: String,

    /// Namespace of the volume; a volume of another namespace is refused
    #[arg(long, value_name = "NAMESPACE", env = "POD_NAMESPACE")]
    pub(crate) namespace: Option<String>,

    /// Timeout of waiting for the controller, an operator or other members to act
    ///
    /// After the timeout the program exits with 41, and the kubelet restarts the container.
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "30s",
        env = "MAINSTAY_WAIT_TIMEOUT"
    )]
    pub(crate) wait_timeout: SignedDuration,

    /// Timeout of listing the backup, after which the store counts as unreachable
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "15s",
        env = "MAINSTAY_STORE_LIST_TIMEOUT"
    )]
    pub(crate) store_list_timeout: SignedDuration,

    /// Print the decision and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,

    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,

    /// The backup; none if provider, container and prefix have their defaults.
    #[command(flatten, next_help_heading = "Backup")]
    pub(crate) store: StoreArgs,
}

/// Observed state and decision of one attempt.
struct InitObservation {
    observed: ObservedDataDir,
    cluster: ClusterSummary,
    backup: BackupSummary,
    decision: InitDecision,
    response: Option<MemberResponse>,
}

/// Inputs that do not change while init waits.
struct InitContext<'a> {
    context: &'a CommandContext,
    template_path: PathBuf,
    pod_name: String,
    cluster: ClusterArgs,
    store: Option<StoreConfig>,
    store_timeout: Duration,
}

/// Decides, waits if that can change the decision, and writes the configuration.
pub(crate) async fn run(
    args: InitArgs,
    context: &CommandContext,
) -> Result<CommandOutcome, CommandFailure> {
    let InitArgs {
        config_template,
        config_output,
        pod_name,
        namespace,
        wait_timeout,
        store_list_timeout,
        dry_run,
        cluster,
        store,
    } = args;
    let positive = |given: SignedDuration| Duration::try_from(given).unwrap_or_default();
    let template = ConfigTemplate::read(&config_template)?;
    let data_dir = template.data_dir()?;
    let member = template.member_name(&pod_name);
    let owner = ExpectedOwner {
        namespace: namespace.as_deref(),
        member: &member,
        peer_urls: &template.peer_urls(&member).unwrap_or_default(),
    };
    // The marker is valid once: a dry run must not use it up.
    let (marker, wait) = if dry_run {
        (CleanStopUse::Ignore, Duration::ZERO)
    } else {
        (CleanStopUse::Consume, positive(wait_timeout))
    };
    // Observed once: a full verification is expensive, and the marker is valid once.
    let observed = data::observe_data_dir(&data_dir, owner, marker).await?;
    let watch = InitContext {
        context,
        template_path: config_template,
        pod_name,
        cluster,
        store: to_store_config(store)?,
        store_timeout: positive(store_list_timeout),
    };
    let observation = watch.wait_for_decision(observed, wait).await?;
    // Read again: the controller may have changed the template while init waited.
    let (template, member) = watch.read_template()?;
    let report = InitReport {
        version: InitReport::VERSION,
        member: member.clone(),
        decision: observation.decision,
        data: observation.observed.summary.clone(),
        cluster: observation.cluster.clone(),
        backup: observation.backup,
    };
    let text = messages::describe_decision(&report, observation.observed.faults.as_deref());
    let Some(roster) = choose_initial_cluster(&template, &member, &observation)? else {
        return Err(messages::to_failure(&report, text));
    };
    if let Some(output) = config_output.filter(|_| !dry_run) {
        template::write_atomically(&output, &template.render_member_config(&member, &roster)?)?;
        // After the configuration: a volume is marked only if etcd starts on it.
        if let Some(namespace) = namespace {
            write_volume_guard(&data_dir, &namespace)?;
        }
    }
    let details = serde_json::json!({ "init": report });
    Ok(CommandOutcome::new(Verdict::Ready, text, &details))
}

/// Returns `initial-cluster` for a member that may start; `None` if it must not start.
fn choose_initial_cluster(
    template: &ConfigTemplate,
    member: &str,
    observation: &InitObservation,
) -> Result<Option<InitialClusterConfig>, TemplateError> {
    Ok(match observation.decision {
        InitDecision::Bootstrap => {
            Some(InitialClusterConfig::FromTemplate(InitialClusterState::New))
        }
        InitDecision::Start => Some(InitialClusterConfig::FromTemplate(
            InitialClusterState::Existing,
        )),
        InitDecision::Join => {
            let peer_urls = template.peer_urls(member)?;
            let myself = LocalMember {
                name: member,
                peer_urls: &peer_urls,
                observed: &observation.observed,
            };
            observation
                .response
                .as_ref()
                .map(|answer| answer.to_initial_cluster(myself))
        }
        InitDecision::RestoreRequired(_) | InitDecision::Wait(_) | InitDecision::Refuse(_) => None,
    })
}

impl InitContext<'_> {
    /// Reads the template, which may change while init waits, and derives the name of this member.
    fn read_template(&self) -> Result<(ConfigTemplate, String), TemplateError> {
        let template = ConfigTemplate::read(&self.template_path)?;
        let member = template.member_name(&self.pod_name);
        Ok((template, member))
    }

    /// Observes and decides until there is nothing to wait for, or `wait` has passed.
    async fn wait_for_decision(
        &self,
        seen: ObservedDataDir,
        wait: Duration,
    ) -> Result<InitObservation, CommandFailure> {
        let deadline = Instant::now() + wait;
        let mut logged = None;
        loop {
            let observation = self.observe(seen.clone()).await?;
            if !should_wait(observation.decision) || Instant::now() + POLL_INTERVAL > deadline {
                return Ok(observation);
            }
            // Each decision is logged once, not at every interval.
            if logged.replace(observation.decision) != Some(observation.decision) {
                info!(decision = ?observation.decision, "waiting");
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    async fn observe(
        &self,
        mut observed: ObservedDataDir,
    ) -> Result<InitObservation, CommandFailure> {
        // Read again each time: the controller adds members to the template while init waits.
        let (template, member) = self.read_template()?;
        let configured = template.configured_cluster(&member)?;
        let peer_urls = template.peer_urls(&member).unwrap_or_default();
        let myself = LocalMember {
            name: &member,
            peer_urls: &peer_urls,
            observed: &observed,
        };
        // No answer of the cluster changes a refusal, so do not wait for one.
        let response = if is_always_refused(&observed.summary) {
            None
        } else {
            let answers = self
                .cluster
                .query_members(template.other_client_urls(&member)?)
                .await;
            choose_response(&answers, observed.cluster_id).cloned()
        };
        let cluster = response
            .as_ref()
            .map(|response| response.to_cluster_summary(myself));
        let cluster = cluster.unwrap_or(ClusterSummary::Unreachable);
        let (backup, opened) = self
            .observe_backup(&observed.summary, &cluster, configured)
            .await;
        if let (BackupSummary::Present { newest_revision }, Some(opened)) = (backup, opened)
            && configured.is_single_member
            && is_older_by_name(&observed.summary, newest_revision)
            && observed.summary.state == DataState::Sound
        {
            compare_history(&mut observed, &template.data_dir()?, &opened).await;
        }
        let decision = decide(&observed.summary, &cluster, configured, &backup);
        Ok(InitObservation {
            observed,
            cluster,
            backup,
            decision,
            response,
        })
    }

    async fn observe_backup(
        &self,
        data: &DataDirSummary,
        cluster: &ClusterSummary,
        configured: ConfiguredCluster,
    ) -> (BackupSummary, Option<Backup>) {
        let Some(config) = &self.store else {
            return (BackupSummary::Unconfigured, None);
        };
        if !needs_backup(data, cluster, configured) {
            return (BackupSummary::NotAsked, None);
        }
        let listing = Backup::open(config, &self.context.environment);
        // A member with valid data must not wait until an outage of the store ends.
        match timeout(self.store_timeout, listing).await {
            Ok(Ok(backup)) => match newest_revision(&backup.catalogue) {
                Some(newest_revision) => (BackupSummary::Present { newest_revision }, Some(backup)),
                None => (BackupSummary::Empty, None),
            },
            Ok(Err(failure)) => {
                warn!(error = failure.reason(), "failed to list the store");
                (BackupSummary::Unreachable, None)
            }
            Err(_) => {
                warn!("listing the store timed out");
                (BackupSummary::Unreachable, None)
            }
        }
    }
}

/// Compares valid data with a backup whose names are newer. A failure of the store is no result: valid data starts.
async fn compare_history(observed: &mut ObservedDataDir, data_dir: &Path, backup: &Backup) {
    match compare_with_backup(data_dir, backup).await {
        Ok(check) => {
            observed.summary.history = check.relation;
            observed.faults = Some(check.to_string());
        }
        Err(failure) => {
            warn!(
                error = failure.reason(),
                "failed to compare the data with the backup"
            );
        }
    }
}

/// Returns whether the data directory alone decides that etcd must not start.
fn is_always_refused(data: &DataDirSummary) -> bool {
    match data.state {
        DataState::Foreign | DataState::InUse | DataState::Removed => true,
        DataState::Sound | DataState::Missing | DataState::Corrupt => false,
    }
}
