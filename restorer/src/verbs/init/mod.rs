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
use mainstay_datadir::write_guard;
use mainstay_store::{Provider, StoreArgs, StoreConfig};
use mainstay_telemetry::Chain;
use mainstay_verdict::{Backup, Cluster, Data, DataState, Decision, InitReport};
use tokio::time::{Instant, sleep, timeout};
use tracing::{info, warn};

use self::cluster::{Answer, ClusterArgs, Myself, weightiest};
use self::data::{Note, Owner, SeenData};
use self::decide::{ClusterState, Configured, decide, is_worth_waiting, needs_backup};
use self::template::{Roster, Template, TemplateError};
use super::initialize::newest_revision;
use crate::backup::list;
use crate::cli::Context;
use crate::failure::{Failure, Verdict};
use crate::outcome::Outcome;

/// How often a member that waits looks again.
const LOOK_AGAIN: Duration = Duration::from_secs(2);

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
struct Sight {
    seen: SeenData,
    cluster: Cluster,
    backup: Backup,
    decision: Decision,
    answer: Option<Answer>,
}

/// Everything that stays the same while init waits.
struct Watch<'a> {
    context: &'a Context,
    template: PathBuf,
    pod_name: String,
    cluster: ClusterArgs,
    store: Option<StoreConfig>,
    store_timeout: Duration,
}

/// Decides, waits where that helps, and writes the configuration.
pub async fn run(args: InitArgs, context: &Context) -> Result<Outcome, Failure> {
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
    let template = Template::read(&config_template)?;
    let data_dir = template.data_dir()?;
    let member = template.member(&pod_name);
    let owner = Owner {
        namespace: namespace.as_deref(),
        member: &member,
        peer_urls: &template.peer_urls(&member).unwrap_or_default(),
    };
    let note = if dry_run { Note::Leave } else { Note::Take };
    let seen = data::observe(&data_dir, owner, note).await?;
    let watch = Watch {
        context,
        template: config_template,
        pod_name,
        cluster,
        store: configured_store(store)?,
        store_timeout: positive(store_list_timeout),
    };
    let patience = if dry_run {
        Duration::ZERO
    } else {
        positive(wait_timeout)
    };
    let sight = watch.settle(seen, patience).await?;
    let (template, member) = watch.template()?;
    let report = InitReport {
        version: InitReport::VERSION,
        member: member.clone(),
        decision: sight.decision,
        data: sight.seen.data.clone(),
        cluster: sight.cluster.clone(),
        backup: sight.backup,
    };
    let text = words::sentence(&report, sight.seen.faults.as_deref());
    let Some(roster) = roster(&template, &member, &sight)? else {
        return Err(words::failure(&report, text));
    };
    if let Some(output) = config_output.filter(|_| !dry_run) {
        template::put(&output, &template.file_of(&member, &roster)?)?;
        if let Some(namespace) = namespace {
            write_guard(&data_dir, &namespace)?;
        }
    }
    let details = serde_json::json!({ "init": report });
    Ok(Outcome::new(Verdict::Ready, text, &details))
}

/// The members a member that may start is told; `None` for one that may not.
fn roster(
    template: &Template,
    member: &str,
    sight: &Sight,
) -> Result<Option<Roster>, TemplateError> {
    Ok(match sight.decision {
        Decision::Bootstrap => Some(Roster::Configured(ClusterState::New)),
        Decision::Start => Some(Roster::Configured(ClusterState::Existing)),
        Decision::Join => {
            let peer_urls = template.peer_urls(member)?;
            let myself = Myself {
                name: member,
                peer_urls: &peer_urls,
                seen: &sight.seen,
            };
            sight.answer.as_ref().map(|answer| answer.roster(myself))
        }
        Decision::RestoreRequired(_) | Decision::Wait(_) | Decision::Refuse(_) => None,
    })
}

/// The store, where one is named. All its flags have defaults, so that a place in it decides.
pub(super) fn configured_store(store: StoreArgs) -> Result<Option<StoreConfig>, Failure> {
    let is_named = store.provider != Provider::Local
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

impl Watch<'_> {
    /// The template, which may change while init waits, and the name of this member.
    fn template(&self) -> Result<(Template, String), TemplateError> {
        let template = Template::read(&self.template)?;
        let member = template.member(&self.pod_name);
        Ok((template, member))
    }

    /// Looks until there is nothing to wait for, or the time is up.
    async fn settle(&self, seen: SeenData, patience: Duration) -> Result<Sight, Failure> {
        let until = Instant::now() + patience;
        let mut told = None;
        loop {
            let sight = self.look(seen.clone()).await?;
            if !is_worth_waiting(sight.decision) || Instant::now() + LOOK_AGAIN > until {
                return Ok(sight);
            }
            if told.replace(sight.decision) != Some(sight.decision) {
                info!(decision = ?sight.decision, "waiting");
            }
            sleep(LOOK_AGAIN).await;
        }
    }

    async fn look(&self, seen: SeenData) -> Result<Sight, Failure> {
        let (template, member) = self.template()?;
        let configured = template.configured(&member)?;
        let peer_urls = template.peer_urls(&member).unwrap_or_default();
        let myself = Myself {
            name: &member,
            peer_urls: &peer_urls,
            seen: &seen,
        };
        let answer = if is_hopeless(&seen.data) {
            None
        } else {
            let answers = self.cluster.ask(template.other_client_urls(&member)?).await;
            weightiest(&answers, seen.cluster).cloned()
        };
        let cluster = answer.as_ref().map(|answer| answer.summary(myself));
        let cluster = cluster.unwrap_or(Cluster::Unreachable);
        let backup = self.backup(&seen.data, &cluster, configured).await;
        let decision = decide(&seen.data, &cluster, configured, &backup);
        Ok(Sight {
            seen,
            cluster,
            backup,
            decision,
            answer,
        })
    }

    async fn backup(&self, data: &Data, cluster: &Cluster, configured: Configured) -> Backup {
        let Some(config) = &self.store else {
            return Backup::Unconfigured;
        };
        if !needs_backup(data, cluster, configured) {
            return Backup::NotAsked;
        }
        let listing = async {
            let store = mainstay_store::SnapStore::open(config, &self.context.environment)
                .map_err(|error| Failure::from(error).reason().to_owned())?;
            list(&store)
                .await
                .map_err(|error| Chain(&error).to_string())
        };
        match timeout(self.store_timeout, listing).await {
            Ok(Ok(catalogue)) => {
                newest_revision(&catalogue).map_or(Backup::Empty, |newest| Backup::Present {
                    newest_revision: newest,
                })
            }
            Ok(Err(reason)) => {
                warn!(error = reason, "the store cannot be listed");
                Backup::Unreachable
            }
            Err(_) => {
                warn!("the store does not answer in time");
                Backup::Unreachable
            }
        }
    }
}

/// Whether nobody needs to be asked.
fn is_hopeless(data: &Data) -> bool {
    match data.state {
        DataState::Foreign | DataState::InUse | DataState::Removed => true,
        DataState::Sound | DataState::Missing | DataState::Corrupt => false,
    }
}
