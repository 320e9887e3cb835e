//! The process: command line, leader election, controller, graceful shutdown.
//!
//! ```text
//! HTTP ─────────────────────────────────────────────────────────────► until the end
//! client ─► CRDs served? ─► leader? ─► watches ─► all listed ─► controller ─┬─ signal ─► reconciles finish, Lease released
//!                                                                            └─ leadership lost ─► stops at once
//! ```
//!
//! Every task is joined. A task that ends unexpectedly ends the process.

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

use crate::args::OperatorArgs;
use crate::caches::backoff::WatchBackoff;
use crate::caches::{LazyEtcd, PAGE_SIZE, WatchScope, Watches};
use crate::config::OperatorConfiguration;
use crate::context::{Context, LocalState, ReconcileTrigger};
use crate::discovery;
use crate::http::{self, Readiness};
use crate::leader::LeaderElector;
use crate::metrics::ControllerMetrics;
use crate::model::annotations::FIELD_MANAGER;
use crate::model::{ReconcilePolicy, Thresholds};
use crate::probe::ReconcileProbe;
use crate::reconcile::{error_policy, reconcile};
use crate::write_scheduler::WriteScheduler;
use crate::writer::{Leadership, Writer};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// Longer than a watch, which the API server ends by itself.
const READ_TIMEOUT: Duration = Duration::from_secs(295);
/// Time for open HTTP requests when the process ends.
const HTTP_SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);
/// Watch events of one cluster within this time cause one reconcile.
const DEBOUNCE: Duration = Duration::from_millis(50);
/// Time for running reconciles after a stop signal; shorter than the usual grace period of 30 s.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(20);

/// Entry point of the program.
pub fn main() -> ExitCode {
    let (args, unknown) = match OperatorArgs::parse_known(std::env::args_os()) {
        Ok(parsed) => parsed,
        Err(error) => error.exit(),
    };
    args.log.install();
    for flag in unknown {
        warn!(flag, "unknown flag ignored");
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    let outcome = runtime
        .context("failed to start the tokio runtime")
        .and_then(|runtime| runtime.block_on(run(args)));
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            error!(error = format!("{error:#}"), "controller failed");
            ExitCode::FAILURE
        }
    }
}

async fn run(args: OperatorArgs) -> anyhow::Result<()> {
    let config = args.load_config()?;
    let client = connect(&args).await?;
    let cancel = CancellationToken::new();
    let signals = stop_on_signal(cancel.clone())?;
    let metrics = ControllerMetrics::new().context("failed to register metrics")?;
    let readiness = Readiness::default();
    let listener = &config.server.metrics;
    let address = match listener.bind_address.as_str() {
        "" => IpAddr::from(Ipv6Addr::UNSPECIFIED),
        address => address.parse().context("invalid address for metrics")?,
    };
    let address = SocketAddr::from((address, listener.port));
    let stop_http = CancellationToken::new(); // probes and metrics are served until everything else has ended
    let mut served = tokio::spawn(http::serve(
        address,
        metrics.clone(),
        readiness.clone(),
        stop_http.clone(),
    ));
    let manager = Manager {
        args,
        config,
        client,
        metrics,
        readiness,
        probe: ReconcileProbe::default(),
        cancel,
    };
    let outcome = tokio::select! {
        outcome = manager.run() => outcome,
        served = &mut served => match served.context("HTTP server panicked")? {
            Ok(()) => bail!("HTTP server ended unexpectedly"),
            Err(error) => return Err(error).context("HTTP server failed"),
        },
    };
    stop_http.cancel();
    tokio::time::timeout(HTTP_SHUTDOWN_TIMEOUT, served)
        .await
        .ok();
    signals.abort();
    outcome
}

fn stop_on_signal(cancel: CancellationToken) -> anyhow::Result<tokio::task::JoinHandle<()>> {
    let mut terminate =
        signal(SignalKind::terminate()).context("failed to install the SIGTERM handler")?;
    let mut interrupt =
        signal(SignalKind::interrupt()).context("failed to install the SIGINT handler")?;
    Ok(tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => info!("received SIGTERM, stopping"),
            _ = interrupt.recv() => info!("received SIGINT, stopping"),
        }
        cancel.cancel();
    }))
}

async fn connect(args: &OperatorArgs) -> anyhow::Result<Client> {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // Two providers are linked, so rustls cannot choose one itself. A provider installed meanwhile is fine.
        rustls::crypto::ring::default_provider()
            .install_default()
            .ok();
    }
    let mut config = match &args.kubeconfig {
        Some(path) => {
            let file = Kubeconfig::read_from(path).context("failed to read the kubeconfig")?;
            Config::from_custom_kubeconfig(file, &KubeConfigOptions::default())
                .await
                .context("invalid kubeconfig")?
        }
        None => Config::incluster().context(
            "failed to read the pod's service account (use --kubeconfig outside of a cluster)",
        )?,
    };
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    config.read_timeout = Some(READ_TIMEOUT);
    Client::try_from(config).context("failed to create the Kubernetes client")
}

/// The whole process except the HTTP server.
pub struct Manager {
    pub args: OperatorArgs,
    pub config: OperatorConfiguration,
    pub client: Client,
    pub metrics: ControllerMetrics,
    pub readiness: Readiness,
    /// For tests: what was observed and reconciled.
    pub probe: ReconcileProbe,
    /// Requests a graceful shutdown.
    pub cancel: CancellationToken,
}

impl Manager {
    /// Runs until cancelled. Lost leadership is an error.
    pub async fn run(self) -> anyhow::Result<()> {
        let scope = self.args.watch_scope();
        let cancel = self.cancel.clone();
        // Before the election: a replica without access to the API must not hold the Lease.
        let served = async {
            discovery::wait_for_crds(&self.client, &scope).await;
            discovery::discover_pdb(&self.client).await
        };
        let budgets = tokio::select! {
            () = cancel.cancelled() => return Ok(()),
            budgets = served => budgets,
        };
        let election = self.build_elector();
        let (leadership, keeper) = match election {
            None => (Leadership::always_leader(), None),
            Some(election) => {
                self.readiness.set(true); // a standby replica is ready; otherwise a rolling update would not finish
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
            // Dropping the controller future cancels all reconciles: no write after the deadline.
            () = lost.wait_until_lost() => {
                bail!("leadership was lost: stopping at once, another replica takes over")
            }
        };
        // Only after the controller has stopped writing may the Lease be released.
        if let Some((keeper, stop)) = keeper {
            stop.cancel();
            keeper.await.context("lease renewal panicked")?;
        }
        outcome
    }

    fn build_elector(&self) -> Option<LeaderElector> {
        let election_config = &self.config.leader_election;
        let identity = || {
            let pod = self
                .args
                .pod_name
                .clone()
                .unwrap_or_else(|| "mainstay-controller".to_owned());
            // A restarted container in the same pod must not take over the Lease of the old process.
            format!("{pod}_{}", jiff::Timestamp::now().as_nanosecond())
        };
        election_config.enabled.then(|| LeaderElector {
            lease_name: election_config.resource_name.clone(),
            namespace: self.args.pod_namespace.clone(),
            identity: identity(),
            lease_duration: election_config.lease_duration,
            renew_deadline: election_config.renew_deadline,
            retry_period: election_config.retry_period,
        })
    }

    async fn run_controller(
        self,
        leadership: Leadership,
        scope: &WatchScope,
        budgets: ApiResource,
    ) -> anyhow::Result<()> {
        self.readiness.set(false); // until all kinds are listed
        let mut watches = Watches::start(&self.client, scope, budgets);
        tokio::select! {
            () = self.cancel.cancelled() => return Ok(()),
            ready = watches.wait_until_ready() => ready?,
        }
        self.probe.set_stores(&watches.stores);
        let (trigger_sender, triggered) = mpsc::unbounded();
        let context = Arc::new(self.build_context(leadership, &watches, trigger_sender));
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
            .reconcile_on(watches.triggers)
            .reconcile_on(triggered)
            .graceful_shutdown_on(cancel.clone().cancelled_owned());
        self.readiness.set(true);
        info!(workers, "caches filled, controller started");
        let unexpected = CancellationToken::new();
        let task_controllers = crate::tasks::run(
            self.client.clone(),
            scope.clone(),
            crate::tasks::TaskWorkers::from_config(&self.config.controllers),
            Arc::clone(&context),
            cancel.clone(),
        );
        let task_controllers = run_until_cancelled(task_controllers, &cancel, &unexpected);
        let reconciles = controller
            .run(reconcile, error_policy, Arc::clone(&context))
            .for_each(|result| async move {
                if let Err(error) = result {
                    debug!(error = %ErrorChain(&error), "reconcile failed");
                }
            });
        let reconciles = run_until_cancelled(reconciles, &cancel, &unexpected);
        tokio::select! {
            ((), ()) = async { tokio::join!(reconciles, task_controllers) } => {}
            () = unexpected.cancelled() => {}
            () = async { cancel.cancelled().await; tokio::time::sleep(SHUTDOWN_TIMEOUT).await } => {
                warn!("reconciles did not finish in time and are cancelled");
            }
            ended = watches.tasks.join_next() => bail!("watch ended unexpectedly: {ended:?}"),
        }
        tasks.close();
        if self.cancel.is_cancelled() {
            Ok(())
        } else {
            bail!("controller ended unexpectedly")
        }
    }

    fn build_context(
        &self,
        leadership: Leadership,
        watches: &Watches,
        trigger_sender: mpsc::UnboundedSender<kube::runtime::reflector::ObjectRef<LazyEtcd>>,
    ) -> Context {
        let etcd = &self.config.controllers.etcd;
        let reporter = Reporter {
            controller: FIELD_MANAGER.to_owned(),
            instance: self.args.pod_name.clone(),
        };
        Context {
            client: self.client.clone(),
            stores: watches.stores.clone(),
            settings: self.args.to_settings(&self.config),
            policy: ReconcilePolicy {
                auto_reconcile: etcd.enable_etcd_spec_auto_reconcile,
                upkeep: (&self.config.controllers.compaction).into(),
                ..ReconcilePolicy::default()
            },
            thresholds: Thresholds {
                unknown: etcd.etcd_member.unknown_threshold,
                not_ready: etcd.etcd_member.not_ready_threshold,
            },
            writer: Writer::new(
                self.client.clone(),
                leadership,
                self.metrics.clone(),
                Recorder::new(self.client.clone(), reporter),
            ),
            metrics: self.metrics.clone(),
            local: LocalState::default(),
            background_tasks: TaskTracker::new(),
            trigger: ReconcileTrigger(trigger_sender),
            run_counter: AtomicU64::new(0),
            write_scheduler: WriteScheduler::default(),
            probe: self.probe.clone(),
        }
    }
}

/// Runs a future that must not end before `cancel`; signals `unexpected` if it does.
async fn run_until_cancelled(
    work: impl Future<Output = ()>,
    cancel: &CancellationToken,
    unexpected: &CancellationToken,
) {
    work.await;
    if !cancel.is_cancelled() {
        unexpected.cancel();
    }
}
