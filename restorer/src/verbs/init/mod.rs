//! `init`: what has to be known and decided before etcd may start in a pod.
//!
//! ```text
//! configuration of all members ┐
//! data directory: verified     ├─► decide (pure) ─┬─ start, bootstrap, join ─► the member's configuration, exit 0
//! other members: asked         │                  ├─ wait ─► look again, until the time is up
//! backup: listed, if it matters┘                  └─ restore required, refuse ─► exit, etcd does not start
//!                                     └─► report, for whoever watches the container
//! ```
//!
//! **Holds**: the data directory is never written; only a note of an orderly stop, which counts once, is taken away, and
//! the mark of the volume's owner is set. Nothing is restored here. A store that cannot be reached is not an empty one,
//! and members that cannot be reached are not absent.

pub mod cluster;
pub mod data;
pub mod decide;
pub mod template;
mod words;

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use jiff::SignedDuration;
use mainstay_datadir::write_volume_guard;
use mainstay_store::{StorageProvider, StoreArgs, StoreConfig};
use mainstay_telemetry::ErrorChain;
use mainstay_verdict::{BackupSummary, ClusterSummary, DataDirSummary, DataState, InitDecision, InitReport};
use tokio::time::{Instant, sleep, timeout};
use tracing::{info, warn};

use self::cluster::{MemberResponse, ClusterArgs, LocalMember, choose_response};
use self::data::{CleanStopUse, ExpectedOwner, ObservedDataDir};
use self::decide::{InitialClusterState, ConfiguredCluster, decide, should_wait, needs_backup};
use self::template::{InitialClusterConfig, ConfigTemplate, TemplateError};
use super::initialize::newest_revision;
use crate::backup::list_snapshots;
use crate::cli::CommandContext;
use crate::failure::{CommandFailure, ExitVerdict};
use crate::outcome::CommandOutcome;

/// How often a member that waits looks again.
const POLL_INTERVAL: Duration = Duration::from_secs(2);

/// Flags of `init`.
#[derive(Debug, Args)]
#[command(
    long_about = "Decides whether and how etcd may start, and writes its configuration. Runs as the init \
        container of a member.\n\n\
        Verifies the data directory (quickly when etcd has ended in order, fully otherwise), asks the \
        other members what they know, looks whether there is a backup, and decides: begin a new \
        cluster, go on with the data, join as a member that was added; or not start, because the data has \
        to be restored, because somebody else has to act first, or because it must never start on this \
        volume. Only in the first three cases is the configuration written and the exit code 0.\n\n\
        Never changes data and never restores. What was found and decided is the field `init` of the \
        JSON result.",
    after_help = "Exit codes: 0 etcd may start; 40 the data has to be restored first; 41 somebody else has to \
        act first, for example by adding this member to the cluster; 42 etcd must not start on this volume.\n\n\
        Examples:\n  \
        # as in a pod of a StatefulSet, with POD_NAME and POD_NAMESPACE set\n  \
        mainstay-restorer init --config-template /var/etcd/config/etcd.conf.yaml --config-output /var/etcd/run/etcd.conf.yaml \\\n    \
        --service-endpoints http://etcd-main-client:2379 --storage-provider S3 --store-container backups --store-prefix shoot-1/etcd-main\n\n  \
        # what would be decided?\n  \
        mainstay-restorer init --pod-name etcd-main-0 --config-template etcd.conf.yaml --dry-run -o json"
)]
pub struct InitArgs {
    /// Configuration of all members: etcd's own keys, with advertised addresses by member
    #[arg(long, value_name = "FILE", env = "MAINSTAY_CONFIG_TEMPLATE")]
    pub config_template: PathBuf,

    /// Where to write the configuration of this member, for `etcd --config-file`
    #[arg(long, value_name = "FILE", env = "MAINSTAY_CONFIG_OUTPUT")]
    #[arg(required_unless_present = "dry_run")]
    pub config_output: Option<PathBuf>,

    /// Name of the pod; the member is named after it, behind the prefix of the configuration
    #[arg(long, value_name = "NAME", env = "POD_NAME")]
    pub pod_name: String,

    /// Namespace the volume belongs to; a volume marked for another one is refused
    #[arg(long, value_name = "NAMESPACE", env = "POD_NAMESPACE")]
    pub namespace: Option<String>,

    /// How long to wait for others to act before giving up; the container is started again then
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "30s",
        env = "MAINSTAY_WAIT_TIMEOUT"
    )]
    pub wait_timeout: SignedDuration,

    /// How long the store may take to list the backup before it counts as unreachable
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "15s",
        env = "MAINSTAY_STORE_LIST_TIMEOUT"
    )]
    pub store_list_timeout: SignedDuration,

    /// Say what would be decided, and change nothing
    #[arg(long)]
    pub dry_run: bool,

    /// Other members.
    #[command(flatten)]
    pub cluster: ClusterArgs,

    /// The backup; without --store-container and --store-prefix there is none.
    #[command(flatten, next_help_heading = "Backup")]
    pub store: StoreArgs,
}

/// What was seen and decided at one moment.
struct InitObservation {
    observed: ObservedDataDir,
    cluster: ClusterSummary,
    backup: BackupSummary,
    decision: InitDecision,
    response: Option<MemberResponse>,
}

/// Everything that stays the same while init waits.
struct InitContext<'a> {
    context: &'a CommandContext,
    template_path: PathBuf,
    pod_name: String,
    cluster: ClusterArgs,
    store: Option<StoreConfig>,
    store_timeout: Duration,
}

/// Decides, waits where that helps, and writes the configuration.
pub async fn run(args: InitArgs, context: &CommandContext) -> Result<CommandOutcome, CommandFailure> {
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
    let note = if dry_run { CleanStopUse::Ignore } else { CleanStopUse::Consume };
    let seen = data::observe_data_dir(&data_dir, owner, note).await?;
    let watch = InitContext {
        context,
        template_path: config_template,
        pod_name,
        cluster,
        store: to_store_config(store)?,
        store_timeout: positive(store_list_timeout),
    };
    let patience = if dry_run {
        Duration::ZERO
    } else {
        positive(wait_timeout)
    };
    let sight = watch.wait_for_decision(seen, patience).await?;
    let (template, member) = watch.read_template()?;
    let report = InitReport {
        version: InitReport::VERSION,
        member: member.clone(),
        decision: sight.decision,
        data: sight.observed.summary.clone(),
        cluster: sight.cluster.clone(),
        backup: sight.backup,
    };
    let text = words::describe_decision(&report, sight.observed.faults.as_deref());
    let Some(roster) = choose_initial_cluster(&template, &member, &sight)? else {
        return Err(words::to_failure(&report, text));
    };
    if let Some(output) = config_output.filter(|_| !dry_run) {
        template::write_atomically(&output, &template.render_member_config(&member, &roster)?)?;
        if let Some(namespace) = namespace {
            write_volume_guard(&data_dir, &namespace)?;
        }
    }
    let details = serde_json::json!({ "init": report });
    Ok(CommandOutcome::new(ExitVerdict::Ready, text, &details))
}

/// The members a member that may start is told; `None` for one that may not.
fn choose_initial_cluster(
    template: &ConfigTemplate,
    member: &str,
    sight: &InitObservation,
) -> Result<Option<InitialClusterConfig>, TemplateError> {
    Ok(match sight.decision {
        InitDecision::Bootstrap => Some(InitialClusterConfig::FromTemplate(InitialClusterState::New)),
        InitDecision::Start => Some(InitialClusterConfig::FromTemplate(InitialClusterState::Existing)),
        InitDecision::Join => {
            let peer_urls = template.peer_urls(member)?;
            let myself = LocalMember {
                name: member,
                peer_urls: &peer_urls,
                observed: &sight.observed,
            };
            sight.response.as_ref().map(|answer| answer.to_initial_cluster(myself))
        }
        InitDecision::RestoreRequired(_) | InitDecision::Wait(_) | InitDecision::Refuse(_) => None,
    })
}

/// The store, where one is named. All its flags have defaults, so that a place in it decides.
pub(super) fn to_store_config(store: StoreArgs) -> Result<Option<StoreConfig>, CommandFailure> {
    let is_named = store.provider != StorageProvider::Local
        || store
            .container
            .as_ref()
            .is_some_and(|name| !name.is_empty())
        || !store.prefix.is_empty();
    Ok(if is_named {
        Some(store.into_config()?)
    } else {
        None
    })
}

impl InitContext<'_> {
    /// The template, which may change while init waits, and the name of this member.
    fn read_template(&self) -> Result<(ConfigTemplate, String), TemplateError> {
        let template = ConfigTemplate::read(&self.template_path)?;
        let member = template.member_name(&self.pod_name);
        Ok((template, member))
    }

    /// Looks until there is nothing to wait for, or the time is up.
    async fn wait_for_decision(&self, seen: ObservedDataDir, patience: Duration) -> Result<InitObservation, CommandFailure> {
        let until = Instant::now() + patience;
        let mut told = None;
        loop {
            let sight = self.observe(seen.clone()).await?;
            if !should_wait(sight.decision) || Instant::now() + POLL_INTERVAL > until {
                return Ok(sight);
            }
            if told.replace(sight.decision) != Some(sight.decision) {
                info!(decision = ?sight.decision, "waiting");
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    async fn observe(&self, seen: ObservedDataDir) -> Result<InitObservation, CommandFailure> {
        let (template, member) = self.read_template()?;
        let configured = template.configured_cluster(&member)?;
        let peer_urls = template.peer_urls(&member).unwrap_or_default();
        let myself = LocalMember {
            name: &member,
            peer_urls: &peer_urls,
            observed: &seen,
        };
        let answer = if is_always_refused(&seen.summary) {
            None
        } else {
            let answers = self.cluster.query_members(template.other_client_urls(&member)?).await;
            choose_response(&answers, seen.cluster_id).cloned()
        };
        let cluster = answer.as_ref().map(|answer| answer.to_cluster_summary(myself));
        let cluster = cluster.unwrap_or(ClusterSummary::Unreachable);
        let backup = self.observe_backup(&seen.summary, &cluster, configured).await;
        let decision = decide(&seen.summary, &cluster, configured, &backup);
        Ok(InitObservation {
            observed: seen,
            cluster,
            backup,
            decision,
            response: answer,
        })
    }

    async fn observe_backup(&self, data: &DataDirSummary, cluster: &ClusterSummary, configured: ConfiguredCluster) -> BackupSummary {
        let Some(config) = &self.store else {
            return BackupSummary::Unconfigured;
        };
        if !needs_backup(data, cluster, configured) {
            return BackupSummary::NotAsked;
        }
        let listing = async {
            let store = mainstay_store::SnapStore::open(config, &self.context.environment)
                .map_err(|error| CommandFailure::from(error).reason().to_owned())?;
            list_snapshots(&store)
                .await
                .map_err(|error| ErrorChain(&error).to_string())
        };
        match timeout(self.store_timeout, listing).await {
            Ok(Ok(catalogue)) => {
                newest_revision(&catalogue).map_or(BackupSummary::Empty, |newest| BackupSummary::Present {
                    newest_revision: newest,
                })
            }
            Ok(Err(reason)) => {
                warn!(error = reason, "the store cannot be listed");
                BackupSummary::Unreachable
            }
            Err(_) => {
                warn!("the store does not answer in time");
                BackupSummary::Unreachable
            }
        }
    }
}

/// Whether nobody needs to be asked.
fn is_always_refused(data: &DataDirSummary) -> bool {
    match data.state {
        DataState::Foreign | DataState::InUse | DataState::Removed => true,
        DataState::Sound | DataState::Missing | DataState::Corrupt => false,
    }
}
