//! The process: reads the command line, joins the parts, ends in order.
//!
//! ```text
//! signal ─► election ends (the session stores what it captured) ─► everything else ends ─► note beside the data directory
//! ```
//!
//! Every task is joined. One that ends unasked ends the process, since a sidecar that silently does half of its work is
//! worse than one that is started again.

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
use crate::assemble::{SidecarTasks, HttpServerParts};
use crate::config_file::{self, ConfigFileError};
use crate::farewell;
use crate::http;

/// Async work is waiting for etcd and the store; compression has threads of its own.
const RUNTIME_THREADS: usize = 2;

/// Runs the program on the process's arguments.
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
    let outcome = runtime.context("start a runtime").and_then(|runtime| {
        let outcome = runtime.block_on(run(args, has_store));
        // A thread that works for a store that does not answer is not waited for.
        runtime.shutdown_background();
        outcome
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            error!(error = format!("{error:#}"), "the sidecar ends");
            ExitCode::FAILURE
        }
    }
}

/// The command line, or the file it names; and whether a store is configured at all.
fn parse_args(line: Vec<OsString>) -> Result<(SidecarArgs, bool), clap::Error> {
    let matches = SidecarArgs::command().try_get_matches_from(&line)?;
    let args = SidecarArgs::from_arg_matches(&matches)?;
    let Some(file) = args.config_file else {
        return Ok((args, has_storage_provider(&matches)));
    };
    let refused = |error: ConfigFileError| {
        let kind = clap::error::ErrorKind::Io;
        SidecarArgs::command().error(kind, ErrorChain(&error))
    };
    let flags = config_file::read_flags(&file).map_err(refused)?;
    let program = line.into_iter().take(1);
    let matches = SidecarArgs::command().try_get_matches_from(program.chain(flags))?;
    let from_file = SidecarArgs::from_arg_matches(&matches)?;
    let log = args.log;
    Ok((SidecarArgs { log, ..from_file }, has_storage_provider(&matches)))
}

/// An empty provider means `Local` to programs that cannot do without a store; here it means none.
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
            own_member: care,
            defragmenter,
            heartbeat,
            state_rx: view,
            peer_tls: is_peer_tls,
        } = self;
        let ends = ShutdownStages::default();
        let mut tasks = JoinSet::new();
        let first = ends.election.clone();
        let writer = tokio::spawn(async move { election.run(first).await });
        let cancel = ends.others.clone();
        let observed = view.clone();
        tasks.spawn(async move {
            let HttpServerParts {
                config,
                handle,
                leader,
                metrics,
            } = server;
            let served = http::serve(config, observed, handle, leader, metrics, cancel).await;
            served.context("serve HTTP")
        });
        let cancel = ends.others.clone();
        tasks.spawn(async move {
            care.run(cancel).await;
            Ok(())
        });
        let (cancel, observed) = (ends.others.clone(), view.clone());
        tasks.spawn(async move {
            defragmenter.run(observed, cancel).await;
            Ok(())
        });
        if let Some(heartbeat) = heartbeat {
            let cancel = ends.others.clone();
            tasks.spawn(async move {
                heartbeat.run(view, is_peer_tls, cancel).await;
                Ok(())
            });
        }
        ends.wait_and_stop(writer, tasks, stop).await
    }
}

/// What is told to end, in two steps: first who writes, then everybody else.
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
        let mut terminate = signal(SignalKind::terminate()).context("listen for SIGTERM")?;
        let mut interrupt = signal(SignalKind::interrupt()).context("listen for SIGINT")?;
        tokio::select! {
            _ = terminate.recv() => info!("SIGTERM: stopping"),
            _ = interrupt.recv() => info!("SIGINT: stopping"),
            ended = &mut writer => {
                ended.context("the election panicked")?;
                bail!("the election ended unasked");
            }
            ended = tasks.join_next() => {
                let outcome = ended.context("there is nothing to do")?;
                outcome.context("a part of the sidecar panicked")??;
                bail!("a part of the sidecar ended unasked");
            }
        }
        let orderly = async {
            self.election.cancel();
            let written = writer.await;
            self.others.cancel();
            written.context("the election panicked")?;
            while let Some(ended) = tasks.join_next().await {
                ended.context("a part of the sidecar panicked")??;
            }
            let grace = Duration::try_from(stop.stop_grace).unwrap_or_default();
            farewell::record_clean_stop(stop.data_dir, grace).await;
            anyhow::Ok(())
        };
        tokio::select! {
            outcome = orderly => outcome,
            _ = terminate.recv() => bail!("stopped by a second signal"),
            _ = interrupt.recv() => bail!("stopped by a second signal"),
        }
    }
}
