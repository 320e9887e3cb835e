//! The process: reads the command line, waits for its turn, runs the controller, ends in order.
//!
//! ```text
//! HTTP ─────────────────────────────────────────────────────────────► until the end
//! client ─► CRDs are there? ─► leads? ─► watches ─► all listed ─► controller ─┬─ signal ─► passes finish, lease given back
//!                                                                              └─ leadership lost ─► all stops at once
//! ```
//!
//! Every task is joined. One that ends unasked ends the process.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use anyhow::{Context as _, bail};
use futures::{StreamExt, channel::mpsc};
use kube::api::ApiResource;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::controller::Config as ControllerConfig;
use kube::runtime::events::{Recorder, Reporter};
use kube::runtime::{Controller, watcher};
use kube::{Client, Config};
use mainstay_telemetry::ErrorChain;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, error, info, warn};

use crate::act::marks::FIELD_MANAGER;
use crate::args::OperatorArgs;
use crate::caches::pauses::WatchBackoff;
use crate::caches::{LazyEtcd, PAGE_SIZE, WatchScope, Watches};
use crate::config::OperatorConfiguration;
use crate::context::{Context, LocalState, ReconcileTrigger};
use crate::decide::ReconcilePolicy;
use crate::decide::upkeep::UpkeepPolicy;
use crate::http::{self, Readiness};
use crate::insight::ReconcileProbe;
use crate::leader::{LeaderElector, Leadership};
use crate::metrics::ControllerMetrics;
use crate::reconcile::{error_policy, reconcile};
use crate::resources;
use crate::status::Thresholds;
use crate::turns::WriteScheduler;

/// How long connecting to the API server may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// How long the API server may say nothing: longer than a watch lasts, which it ends by itself.
const READ_TIMEOUT: Duration = Duration::from_secs(295);
/// How long answers that are being given may take when the process ends.
const HTTP_SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);
/// Events of one cluster within this are one pass.
const DEBOUNCE: Duration = Duration::from_millis(50);
/// How long passes may go on when the process is told to stop.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(20);

/// Runs the program on the process's arguments.
pub fn main() -> ExitCode {
    let (args, unknown) = match OperatorArgs::parse_known(std::env::args_os()) {
        Ok(read) => read,
        Err(error) => error.exit(),
    };
    args.log.install();
    for flag in unknown {
        warn!(flag, "this flag has no meaning here and is ignored");
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    let outcome = runtime
        .context("start a runtime")
        .and_then(|runtime| runtime.block_on(run(args)));
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            error!(error = format!("{error:#}"), "the controller ends");
            ExitCode::FAILURE
        }
    }
}

async fn run(args: OperatorArgs) -> anyhow::Result<()> {
    let config = args.load_config()?;
    let client = connect(&args).await?;
    let cancel = CancellationToken::new();
    let signals = stop_on_signal(cancel.clone())?;
    let metrics = ControllerMetrics::new().context("set up the metrics")?;
    let readiness = Readiness::default();
    let listener = &config.server.metrics;
    let address = match listener.bind_address.as_str() {
        "" => IpAddr::from(Ipv6Addr::UNSPECIFIED),
        address => address.parse().context("read the address for metrics")?,
    };
    let address = SocketAddr::from((address, listener.port));
    let quiet = CancellationToken::new(); // answers go on until everything else has ended
    let mut served = tokio::spawn(http::serve(
        address,
        metrics.clone(),
        readiness.clone(),
        quiet.clone(),
    ));
    let parts = Manager {
        args,
        config,
        client,
        metrics,
        readiness,
        probe: ReconcileProbe::default(),
        cancel,
    };
    let outcome = tokio::select! {
        outcome = parts.run() => outcome,
        served = &mut served => match served.context("the HTTP server panicked")? {
            Ok(()) => bail!("the HTTP server ended unasked"),
            Err(error) => return Err(error).context("serve HTTP"),
        },
    };
    quiet.cancel();
    tokio::time::timeout(HTTP_SHUTDOWN_TIMEOUT, served).await.ok();
    signals.abort();
    outcome
}

fn stop_on_signal(cancel: CancellationToken) -> anyhow::Result<tokio::task::JoinHandle<()>> {
    let mut terminate = signal(SignalKind::terminate()).context("listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("listen for SIGINT")?;
    Ok(tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => info!("SIGTERM: stopping"),
            _ = interrupt.recv() => info!("SIGINT: stopping"),
        }
        cancel.cancel();
    }))
}

async fn connect(args: &OperatorArgs) -> anyhow::Result<Client> {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // Two are linked, so one has to be chosen; somebody else may have, which is as good.
        rustls::crypto::ring::default_provider()
            .install_default()
            .ok();
    }
    let mut config = match &args.kubeconfig {
        Some(path) => {
            let file = Kubeconfig::read_from(path).context("read the kubeconfig")?;
            Config::from_custom_kubeconfig(file, &KubeConfigOptions::default())
                .await
                .context("use the kubeconfig")?
        }
        None => Config::incluster().context("read the pod's service account")?,
    };
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    config.read_timeout = Some(READ_TIMEOUT);
    Client::try_from(config).context("prepare the connection to the API server")
}

/// Everything the process consists of besides HTTP.
pub struct Manager {
    /// The command line.
    pub args: OperatorArgs,
    /// The operator's configuration.
    pub config: OperatorConfiguration,
    /// The API server.
    pub client: Client,
    /// What is measured.
    pub metrics: ControllerMetrics,
    /// Whether it is of use.
    pub readiness: Readiness,
    /// What it has observed and reconciled, for tests.
    pub probe: ReconcileProbe,
    /// Tells it to stop.
    pub cancel: CancellationToken,
}

impl Manager {
    /// Runs until told to stop, or until leadership is lost, which is an error.
    pub async fn run(self) -> anyhow::Result<()> {
        let scope = self.args.watch_scope();
        let cancel = self.cancel.clone();
        // Before the election: who gets no answer must not keep others from leading.
        let served = async {
            resources::wait_for_crds(&self.client, &scope).await;
            resources::discover_pdb(&self.client).await
        };
        let budgets = tokio::select! {
            () = cancel.cancelled() => return Ok(()),
            budgets = served => budgets,
        };
        let election = self.build_elector();
        let (leadership, keeper) = match election {
            None => (Leadership::always_leader(), None),
            Some(election) => {
                self.readiness.set(true); // a replica that waits for its turn is of use
                let stop = CancellationToken::new();
                let lead = election.wait_for_leadership(&self.client, stop.clone());
                tokio::select! {
                    () = cancel.cancelled() => return Ok(()),
                    (leadership, keeper) = lead => (leadership, Some((keeper, stop))),
                }
            }
        };
        let lost = leadership.clone();
        let outcome = tokio::select! {
            outcome = self.run_controller(leadership, &scope, budgets) => outcome,
            () = lost.wait_until_lost() => {
                bail!("leadership was lost: everything stops at once, another replica goes on")
            }
        };
        if let Some((keeper, stop)) = keeper {
            stop.cancel();
            keeper.await.context("the keeper of the lease panicked")?;
        }
        outcome
    }

    fn build_elector(&self) -> Option<LeaderElector> {
        let of = &self.config.leader_election;
        let identity = || {
            let pod = self
                .args
                .pod_name
                .clone()
                .unwrap_or_else(|| "mainstay-controller".to_owned());
            // A container that is started again in the same pod is another process.
            format!("{pod}_{}", jiff::Timestamp::now().as_nanosecond())
        };
        of.enabled.then(|| LeaderElector {
            lease_name: of.resource_name.clone(),
            namespace: self.args.pod_namespace.clone(),
            identity: identity(),
            lease_duration: of.lease_duration,
            renew_deadline: of.renew_deadline,
            retry_period: of.retry_period,
        })
    }

    async fn run_controller(
        self,
        leadership: Leadership,
        scope: &WatchScope,
        budgets: ApiResource,
    ) -> anyhow::Result<()> {
        self.readiness.set(false); // until it has seen everything
        let mut watching = Watches::start(&self.client, scope, budgets);
        tokio::select! {
            () = self.cancel.cancelled() => return Ok(()),
            ready = watching.wait_until_ready() => ready?,
        }
        self.probe.set_stores(&watching.stores);
        let (poke, poked) = mpsc::unbounded();
        let context = Arc::new(self.build_context(leadership, &watching, poke));
        let tasks = context.background_tasks.clone();
        let workers = self.config.controllers.etcd.concurrent_syncs;
        let cancel = self.cancel.clone();
        let etcds = scope.api::<LazyEtcd>(&self.client);
        let controller = Controller::new(etcds, watcher::Config::default().page_size(PAGE_SIZE))
            .with_config(
                ControllerConfig::default()
                    .concurrency(workers)
                    .debounce(DEBOUNCE),
            )
            .trigger_backoff(WatchBackoff::default())
            .reconcile_on(watching.triggers)
            .reconcile_on(poked)
            .graceful_shutdown_on(cancel.clone().cancelled_owned());
        self.readiness.set(true);
        info!(workers, "everything is listed, the controller runs");
        let unasked = CancellationToken::new();
        let tasks_of_users = crate::tasks::run(
            self.client.clone(),
            scope.clone(),
            crate::tasks::TaskWorkers::from_config(&self.config.controllers),
            Arc::clone(&context),
            cancel.clone(),
        );
        let tasks_of_users = run_until_cancelled(tasks_of_users, &cancel, &unasked);
        let passes = controller
            .run(reconcile, error_policy, Arc::clone(&context))
            .for_each(|passed| async move {
                if let Err(error) = passed {
                    debug!(error = %ErrorChain(&error), "a pass did not end well");
                }
            });
        let passes = run_until_cancelled(passes, &cancel, &unasked);
        tokio::select! {
            ((), ()) = async { tokio::join!(passes, tasks_of_users) } => {}
            () = unasked.cancelled() => {}
            () = async { cancel.cancelled().await; tokio::time::sleep(SHUTDOWN_TIMEOUT).await } => {
                warn!("passes did not end in time and are abandoned");
            }
            ended = watching.tasks.join_next() => bail!("a watch ended unasked: {ended:?}"),
        }
        tasks.close();
        if self.cancel.is_cancelled() {
            Ok(())
        } else {
            bail!("the controller ended unasked")
        }
    }

    fn build_context(
        &self,
        leadership: Leadership,
        watching: &Watches,
        poke: mpsc::UnboundedSender<kube::runtime::reflector::ObjectRef<LazyEtcd>>,
    ) -> Context {
        let etcd = &self.config.controllers.etcd;
        let reporter = Reporter {
            controller: FIELD_MANAGER.to_owned(),
            instance: self.args.pod_name.clone(),
        };
        Context {
            client: self.client.clone(),
            stores: watching.stores.clone(),
            settings: self.args.to_settings(&self.config),
            policy: ReconcilePolicy {
                auto_reconcile: etcd.enable_etcd_spec_auto_reconcile,
                upkeep: UpkeepPolicy::from_config(&self.config.controllers.compaction),
                ..ReconcilePolicy::default()
            },
            thresholds: Thresholds {
                unknown: etcd.etcd_member.unknown_threshold,
                not_ready: etcd.etcd_member.not_ready_threshold,
            },
            leadership,
            recorder: Recorder::new(self.client.clone(), reporter),
            metrics: self.metrics.clone(),
            local: LocalState::default(),
            background_tasks: TaskTracker::new(),
            trigger: ReconcileTrigger(poke),
            run_counter: AtomicU64::new(0),
            write_scheduler: WriteScheduler::default(),
            probe: self.probe.clone(),
        }
    }
}

/// Runs something that should not end before it is told to.
async fn run_until_cancelled(
    work: impl Future<Output = ()>,
    cancel: &CancellationToken,
    unasked: &CancellationToken,
) {
    work.await;
    if !cancel.is_cancelled() {
        unasked.cancel();
    }
}
