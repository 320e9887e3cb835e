//! The process: parses the command line, runs the parts, shuts down in order.
//!
//! ```text
//! signal ─► election ends (the session stores captured events) ─► other tasks end ─► clean-stop marker at the data directory
//! ```
//!
//! Every task is joined. A task that ends by itself ends the process: Kubernetes restarts it, while a sidecar that runs only
//! half of its tasks would go unnoticed.

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{ArgMatches, CommandFactory, FromArgMatches};
use mainstay_telemetry::ErrorChain;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::{error, info};

use crate::args::{SidecarArgs, StopArgs};
use crate::assembly::{HttpServerParts, SidecarTasks};
use crate::clean_stop;
use crate::config_file::{self, ConfigFileError};
use crate::http;

/// Async tasks mostly wait for etcd and the store; compression has its own threads.
const RUNTIME_THREADS: usize = 2;

/// Runs the sidecar with the arguments of the process.
pub fn main() -> ExitCode {
    let (args, has_store) = match parse_args(std::env::args_os().collect()) {
        Ok(parsed) => parsed,
        Err(error) => error.exit(),
    };
    args.log.install();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(RUNTIME_THREADS)
        .enable_all()
        .build();
    let outcome = runtime
        .context("failed to start the async runtime")
        .and_then(|runtime| {
            let outcome = runtime.block_on(run(args, has_store));
            // Does not wait for blocking threads: one may hang on a store that does not respond.
            runtime.shutdown_background();
            outcome
        });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            error!(error = format!("{error:#}"), "sidecar failed");
            ExitCode::FAILURE
        }
    }
}

/// Parses the command line, or the configuration file it names; also returns whether a store is configured.
fn parse_args(line: Vec<OsString>) -> Result<(SidecarArgs, bool), clap::Error> {
    let matches = SidecarArgs::command().try_get_matches_from(&line)?;
    let args = SidecarArgs::from_arg_matches(&matches)?;
    let Some(file) = args.config_file else {
        return Ok((args, has_storage_provider(&matches)));
    };
    let to_error = |error: ConfigFileError| {
        let kind = clap::error::ErrorKind::Io;
        SidecarArgs::command().error(kind, ErrorChain(&error))
    };
    let flags = config_file::read_flags(&file).map_err(to_error)?;
    let program = line.into_iter().take(1);
    let matches = SidecarArgs::command().try_get_matches_from(program.chain(flags))?;
    let from_file = SidecarArgs::from_arg_matches(&matches)?;
    let log = args.log;
    Ok((
        SidecarArgs { log, ..from_file },
        has_storage_provider(&matches),
    ))
}

/// Whether a provider is set. `StoreArgs` defaults to an empty provider, which means `Local` in the restorer; here it means
/// no backups, as in etcd-backup-restore.
fn has_storage_provider(matches: &ArgMatches) -> bool {
    let mut given = matches.get_raw("storage-provider").into_iter().flatten();
    given.any(|provider| !provider.is_empty())
}

async fn run(args: SidecarArgs, has_store: bool) -> anyhow::Result<()> {
    let stop = args.stop.clone();
    SidecarTasks::from_args(args, has_store)?.run(stop).await
}

impl SidecarTasks {
    async fn run(self, stop: StopArgs) -> anyhow::Result<()> {
        let Self {
            election,
            server,
            own_member,
            defragmenter,
            heartbeat,
            state_rx,
            peer_tls,
        } = self;
        let ends = ShutdownStages::default();
        let mut tasks = JoinSet::new();
        let first = ends.election.clone();
        let writer = tokio::spawn(async move { election.run(first).await });
        let cancel = ends.others.clone();
        let observed = state_rx.clone();
        tasks.spawn(async move {
            let HttpServerParts {
                config,
                handle,
                leader,
                metrics,
            } = server;
            let served = http::serve(config, observed, handle, leader, metrics, cancel).await;
            served.context("HTTP server failed")
        });
        let cancel = ends.others.clone();
        tasks.spawn(async move {
            own_member.run(cancel).await;
            Ok(())
        });
        let (cancel, observed) = (ends.others.clone(), state_rx.clone());
        tasks.spawn(async move {
            defragmenter.run(observed, cancel).await;
            Ok(())
        });
        if let Some(heartbeat) = heartbeat {
            let cancel = ends.others.clone();
            tasks.spawn(async move {
                heartbeat.run(state_rx, peer_tls, cancel).await;
                Ok(())
            });
        }
        ends.wait_and_stop(writer, tasks, stop).await
    }
}

/// Shutdown in two steps: first the election with its session, which uploads captured events; then everything else, so
/// that HTTP and Leases still work during the upload.
#[derive(Default)]
struct ShutdownStages {
    election: CancellationToken,
    others: CancellationToken,
}

impl ShutdownStages {
    async fn wait_and_stop(
        self,
        mut writer: JoinHandle<()>,
        mut tasks: JoinSet<anyhow::Result<()>>,
        stop: StopArgs,
    ) -> anyhow::Result<()> {
        let mut terminate =
            signal(SignalKind::terminate()).context("failed to listen for SIGTERM")?;
        let mut interrupt =
            signal(SignalKind::interrupt()).context("failed to listen for SIGINT")?;
        tokio::select! {
            _ = terminate.recv() => info!("received SIGTERM, stopping"),
            _ = interrupt.recv() => info!("received SIGINT, stopping"),
            ended = &mut writer => {
                ended.context("election task panicked")?;
                bail!("election task ended unexpectedly");
            }
            ended = tasks.join_next() => {
                let outcome = ended.context("no task is running")?;
                outcome.context("a task of the sidecar panicked")??;
                bail!("a task of the sidecar ended unexpectedly");
            }
        }
        let shutdown = async {
            self.election.cancel();
            let written = writer.await;
            self.others.cancel();
            written.context("election task panicked")?;
            while let Some(ended) = tasks.join_next().await {
                ended.context("a task of the sidecar panicked")??;
            }
            let grace = Duration::try_from(stop.stop_grace).unwrap_or_default();
            clean_stop::record_clean_stop(stop.data_dir, grace).await;
            anyhow::Ok(())
        };
        tokio::select! {
            outcome = shutdown => outcome,
            _ = terminate.recv() => bail!("stopped by a second signal before the shutdown completed"),
            _ = interrupt.recv() => bail!("stopped by a second signal before the shutdown completed"),
        }
    }
}
