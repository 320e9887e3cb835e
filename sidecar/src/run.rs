//! The process: reads the command line, joins the parts, ends in order.
//!
//! ```text
//! signal ─► election ends (the session stores what it captured) ─► everything else ends ─► note beside the data directory
//! ```
//!
//! Every task is joined. One that ends unasked ends the process, since a sidecar that silently does half of its work is
//! worse than one that is started again.

use std::ffi::OsString;
use std::num::NonZeroUsize;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::{ArgMatches, CommandFactory, FromArgMatches};
use steward_store::Environment;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{error, info};

use crate::args::SidecarArgs;
use crate::bucket::Bucket;
use crate::config_file;
use crate::election::{Cadence, Election, Fence};
use crate::etcd::Etcd;
use crate::farewell;
use crate::http::{self, HttpConfig};
use crate::members::Members;
use crate::metrics::Metrics;
use crate::session::{Duty, Handle, Leader, Line};
use crate::state::{Board, State};
use crate::wiring::{DefragmentDuty, RetentionDuty};

/// Async work is waiting for etcd and the store; compression has threads of its own.
const RUNTIME_THREADS: usize = 2;
/// Threads that compress a full snapshot, at most: etcd needs processors, too.
const MOST_COMPRESSORS: usize = 4;

/// Runs the program on the process's arguments.
pub fn main() -> ExitCode {
    match parse(std::env::args_os().collect()) {
        Ok((args, has_store)) => {
            args.log.install();
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(RUNTIME_THREADS)
                .enable_all()
                .build();
            let outcome = runtime
                .context("start a runtime")
                .and_then(|runtime| runtime.block_on(run(args, has_store)));
            match outcome {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => {
                    error!(error = format!("{error:#}"), "the sidecar ends");
                    ExitCode::FAILURE
                }
            }
        }
        Err(error) => error.exit(),
    }
}

/// The command line, or the file it names; and whether a store is configured at all.
fn parse(line: Vec<OsString>) -> Result<(SidecarArgs, bool), clap::Error> {
    let command = SidecarArgs::command;
    let matches = command().try_get_matches_from(&line)?;
    let args = SidecarArgs::from_arg_matches(&matches)?;
    let Some(file) = args.config_file else {
        let has_store = names_a_provider(&matches);
        return Ok((args, has_store));
    };
    let refused =
        |error: config_file::ConfigFileError| command().error(clap::error::ErrorKind::Io, steward_telemetry::Chain(&error));
    let flags = config_file::flags(&file).map_err(refused)?;
    let log = args.log;
    let program = line.into_iter().take(1);
    let matches = command().try_get_matches_from(program.chain(flags))?;
    let mut args = SidecarArgs::from_arg_matches(&matches)?;
    args.log = log;
    let has_store = names_a_provider(&matches);
    Ok((args, has_store))
}

/// An empty provider means `Local` to programs that cannot do without a store; here it means none.
fn names_a_provider(matches: &ArgMatches) -> bool {
    let mut given = matches.get_raw("storage-provider").into_iter().flatten();
    given.any(|provider| !provider.is_empty())
}

async fn run(args: SidecarArgs, has_store: bool) -> anyhow::Result<()> {
    let SidecarArgs {
        verb: _,
        config_file: _,
        etcd,
        store,
        snapshots,
        retention,
        maintenance,
        kubernetes,
        http,
        stop,
        peer: _,
        log: _,
    } = args;
    let environment = Environment::ambient();
    let etcd = Etcd::new(etcd.into_config()?);
    let bucket = match has_store {
        true => Some(Bucket::new(store.into_config()?, environment)),
        false => None,
    };
    let metrics = Metrics::new().context("set up the metrics")?;
    let (board, view) = watch::channel(State {
        has_store,
        ..State::default()
    });
    let line = Line::default();
    let cadence = Cadence::from_period(snapshots.reelection(), etcd.config().question_timeout);
    let fence = Fence {
        etcd: etcd.clone(),
        patience: cadence.patience,
    };
    let quiet = Arc::new(Semaphore::new(1));
    let kubernetes = kubernetes.into_config()?;
    let mut duties: Vec<Arc<dyn Duty>> = Vec::new();
    if let Some(bucket) = &bucket {
        duties.push(Arc::new(RetentionDuty {
            bucket: bucket.clone(),
            config: retention.into_config(),
            pins: kubernetes.pins(),
            metrics: metrics.clone(),
        }));
    }
    let maintenance = maintenance.into_config()?;
    duties.push(Arc::new(DefragmentDuty::new(&maintenance, &etcd, &quiet, &metrics)));
    let leader = Leader {
        config: snapshots.session(etcd.config().snapshot_timeout, compressors()),
        etcd: etcd.clone(),
        bucket: bucket.clone(),
        fence,
        board: board.clone(),
        metrics: metrics.clone(),
        line: line.clone(),
        quiet,
        duties,
    };
    let election = Election {
        etcd: etcd.clone(),
        cadence,
        board: board.clone(),
        session: leader,
        metrics: metrics.clone(),
    };
    let handle = Handle { line, bucket, view: view.clone() };
    let parts = Parts {
        election,
        http: http.into_config()?,
        handle: Arc::new(handle),
        members: Members { etcd, config: maintenance, metrics: metrics.clone() },
        heartbeat: kubernetes.heartbeat(view.clone(), metrics.clone()),
        board,
        metrics,
    };
    parts.run(stop).await
}
