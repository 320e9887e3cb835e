//! Measures the controller with many clusters on one real API server: idle, when they change, and after a restart.
//!
//! ```text
//! etcd ◄─ kube-apiserver ◄─┬─ controller (the program)
//!                          ├─ world: creates pods and PVCs for each StatefulSet, renews Leases
//!                          └─ bench: creates, changes, watches; reads the write counters of the API server
//! ```
//!
//! No result is reported by the controller itself: its writes are those counted by the API server minus those of the
//! benchmark. No pod and no etcd of the clusters runs.

mod changes;
mod process;
mod report;
mod server;
mod simulator;

use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::Parser;
use mainstay_testkit::kube::ApiServer;
use tokio::runtime::Runtime;
use tokio::time::sleep;

use super::args::CacheArgs;
use super::machine::Machine;
use super::usage;
use changes::ChangePacing;
use process::ControllerProcess;
use server::BenchApiServer;
use simulator::ClusterSimulator;

/// Measure the controller with many clusters on a real API server
#[derive(Clone, Debug, Parser)]
pub struct ControllerBenchArgs {
    /// Number of Etcds, of three members each
    #[arg(long, default_value_t = 1_000)]
    pub etcds: usize,

    /// Time for which the idle controller is observed
    #[arg(long, default_value_t = 120)]
    pub rest_seconds: u64,

    /// Number of resources that change at once
    #[arg(long, default_value_t = 50)]
    pub changes: usize,

    /// Number of such rounds
    #[arg(long, default_value_t = 10)]
    pub rounds: usize,

    /// Interval in which each member renews its Lease
    #[arg(long, default_value_t = 30)]
    pub renew_seconds: u64,

    /// The program to measure [default: mainstay-controller in the directory of this program]
    #[arg(long, value_name = "FILE", env = "MAINSTAY_CONTROLLER")]
    pub controller: Option<PathBuf>,

    #[command(flatten)]
    pub(super) cache: CacheArgs,

    /// Also write the report to this file
    #[arg(long, value_name = "FILE")]
    pub write: Option<PathBuf>,

    /// Date shown in the report
    #[arg(long, default_value = "not dated")]
    pub date: String,
}

/// All measurements.
#[derive(Clone, Debug)]
struct ControllerFigures {
    /// Time from the start of the controller until all clusters were created.
    creation_time: Duration,
    /// Time from the start of a second controller until it has reconciled all clusters.
    cold_start: Duration,
    /// Writes of the second controller meanwhile.
    cold_start_writes: u64,
    /// Time for which the idle controller was observed.
    idle_time: Duration,
    /// Writes meanwhile, by resource.
    idle_writes: Vec<(String, u64)>,
    /// Lease renewals by the benchmark meanwhile.
    renewals: u64,
    /// CPU time meanwhile, in seconds.
    idle_cpu_seconds: f64,
    /// Times from sending a change until its effect was observed, sorted.
    change_latencies: Vec<Duration>,
    /// The same, if the next change does not wait for the statuses of the last.
    unpaced_latencies: Vec<Duration>,
    /// Peak memory of the first and of the second controller, in bytes.
    peak_bytes: [u64; 2],
}

/// Runs the benchmark of the controller.
pub(super) fn main(args: &ControllerBenchArgs) -> anyhow::Result<()> {
    let machine = Machine::detect();
    let data = args.cache.data_dir()?;
    let _lock = super::lock_data_dir(&data)?;
    let runtime = Runtime::new().context("failed to start the async runtime")?;
    let figures = runtime.block_on(measure(args))?;
    let text = report::render(args, &machine, &figures)?;
    io::stdout()
        .lock()
        .write_all(text.as_bytes())
        .context("failed to print the report")?;
    if let Some(path) = &args.write {
        fs::write(path, text).with_context(|| format!("failed to write {}", path.display()))?;
    }
    Ok(())
}

fn log_progress(what: &str) {
    eprintln!("bench: controller: {what}");
}

async fn measure(args: &ControllerBenchArgs) -> anyhow::Result<ControllerFigures> {
    let program = find_controller(args)?;
    let api_server_flags = ApiServer::start().await;
    let definitions = mainstay_crds::crd::all_crds();
    api_server_flags
        .create_crds(definitions.into_iter().map(|definition| definition.crd))
        .await;
    let server = BenchApiServer::new(&api_server_flags).await;
    let world = ClusterSimulator::start(&server.client, Duration::from_secs(args.renew_seconds));
    log_progress("creating the Etcds");
    let etcds = server.create_etcds(&api_server_flags, args.etcds).await?;

    log_progress("waiting for the controller to create the clusters");
    let mut first = ControllerProcess::start(&program, &api_server_flags)?;
    let creation_time = server.wait_until_settled(&etcds, &mut first).await?;
    server.wait_until_quiet(&world, &mut first).await?;
    let first_peak = usage::peak_bytes(first.pid())?;
    first.stop()?;

    log_progress("starting a second controller");
    let before = server.count_writes(&world).await?;
    let mut controller = ControllerProcess::start(&program, &api_server_flags)?;
    let cold_start = controller.wait_for_reconciles(args.etcds).await?;
    server.wait_until_quiet(&world, &mut controller).await?;
    let cold_start_writes = server.count_writes(&world).await?.since(&before).total();

    log_progress("observing the idle controller");
    let (before, started) = (server.count_writes(&world).await?, Instant::now());
    let used = usage::cpu_seconds(controller.pid())?;
    sleep(Duration::from_secs(args.rest_seconds)).await;
    let after = server.count_writes(&world).await?;
    let (idle_time, idle_cpu_seconds) = (
        started.elapsed(),
        usage::cpu_seconds(controller.pid())? - used,
    );
    ensure!(
        after.renewals > before.renewals,
        "no Lease was renewed: the simulation does not run"
    );

    log_progress("changing many Etcds at once");
    let how_many = (args.changes, args.rounds);
    let change_latencies =
        changes::measure(&server.client, &etcds, how_many, ChangePacing::AfterStatus).await?;
    log_progress("changing many Etcds at once, without a pause");
    let unpaced_latencies =
        changes::measure(&server.client, &etcds, how_many, ChangePacing::AfterAction).await?;
    let peak_bytes = [first_peak, usage::peak_bytes(controller.pid())?];
    controller.stop()?;
    world.stop();
    Ok(ControllerFigures {
        creation_time,
        cold_start,
        cold_start_writes,
        idle_time,
        idle_writes: after.since(&before).into_resources(),
        renewals: after.renewals - before.renewals,
        idle_cpu_seconds,
        change_latencies,
        unpaced_latencies,
        peak_bytes,
    })
}

fn find_controller(args: &ControllerBenchArgs) -> anyhow::Result<PathBuf> {
    if let Some(program) = &args.controller {
        return Ok(program.clone());
    }
    let own = std::env::current_exe().context("failed to find the path of this program")?;
    let program = own.with_file_name("mainstay-controller");
    ensure!(
        program.exists(),
        "{} not found; build it with `cargo build --release -p mainstay-controller`",
        program.display()
    );
    Ok(program)
}
