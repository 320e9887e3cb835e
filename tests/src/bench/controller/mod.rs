//! Measures the controller: many clusters on one real API server, at rest, when they change, and after a restart.
//!
//! ```text
//! etcd ◄─ kube-apiserver ◄─┬─ controller (the program)
//!                          ├─ world: each StatefulSet gets pods and claims, Leases are held and renewed
//!                          └─ bench: creates, changes, watches; counts writes as the API server does
//! ```
//!
//! **Holds**: nothing the controller says about itself is a result; its writes are those the API server counted, less those the
//! bench made. **Does not do**: run pods, or etcd servers behind them.

mod changes;
mod page;
mod process;
mod server;
mod world;

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
use world::ClusterSimulator;

/// Measures the controller with many clusters on a real API server.
#[derive(Clone, Debug, Parser)]
pub struct ControllerBenchArgs {
    /// Etcd resources of three members each
    #[arg(long, default_value_t = 1_000)]
    pub etcds: usize,

    /// For how long the controller is watched at rest
    #[arg(long, default_value_t = 120)]
    pub rest_seconds: u64,

    /// How many resources change at once
    #[arg(long, default_value_t = 50)]
    pub changes: usize,

    /// How often that many change
    #[arg(long, default_value_t = 10)]
    pub rounds: usize,

    /// How often each member renews its Lease
    #[arg(long, default_value_t = 30)]
    pub renew_seconds: u64,

    /// The program to measure [default: the one beside this]
    #[arg(long, value_name = "FILE", env = "MAINSTAY_CONTROLLER")]
    pub controller: Option<PathBuf>,

    #[command(flatten)]
    pub(super) cache: CacheArgs,

    /// Write the report to this file, too
    #[arg(long, value_name = "FILE")]
    pub write: Option<PathBuf>,

    /// The date the report carries
    #[arg(long, default_value = "not dated")]
    pub date: String,
}

/// Everything measured.
#[derive(Clone, Debug)]
struct ControllerFigures {
    /// From the start of the controller until all clusters were made.
    creation_time: Duration,
    /// From the start of another controller until it has looked at all of them.
    cold_start: Duration,
    /// What that one wrote meanwhile.
    cold_start_writes: u64,
    /// How long it was watched at rest.
    idle_time: Duration,
    /// What it wrote meanwhile, by resource.
    idle_writes: Vec<(String, u64)>,
    /// Renewals of Leases meanwhile, by the bench.
    renewals: u64,
    /// Processor time it took meanwhile, in seconds.
    idle_cpu_seconds: f64,
    /// From sending a change until its effect was seen, sorted.
    change_latencies: Vec<Duration>,
    /// The same, when the next change does not wait for the statuses of the last.
    unpaced_latencies: Vec<Duration>,
    /// The most memory the first one and the second one had.
    peak_bytes: [u64; 2],
}

/// Runs the bench of the controller.
pub(super) fn main(args: &ControllerBenchArgs) -> anyhow::Result<()> {
    let machine = Machine::detect();
    let data = args.cache.data_dir()?;
    let _lock = super::lock_data_dir(&data)?;
    let runtime = Runtime::new().context("start a runtime")?;
    let figures = runtime.block_on(measure(args))?;
    let text = page::render(args, &machine, &figures)?;
    io::stdout()
        .lock()
        .write_all(text.as_bytes())
        .context("print the report")?;
    if let Some(path) = &args.write {
        fs::write(path, text).with_context(|| format!("write {}", path.display()))?;
    }
    Ok(())
}

fn log_progress(what: &str) {
    eprintln!("bench: controller: {what}");
}

async fn measure(args: &ControllerBenchArgs) -> anyhow::Result<ControllerFigures> {
    let program = find_controller(args)?;
    let api_server_flags = ApiServer::start().await;
    let definitions = mainstay_crds::definition::all_crds();
    api_server_flags
        .create_crds(definitions.into_iter().map(|definition| definition.crd))
        .await;
    let server = BenchApiServer::new(&api_server_flags).await;
    let world = ClusterSimulator::start(&server.client, Duration::from_secs(args.renew_seconds));
    log_progress("creating the resources");
    let etcds = server.create_etcds(&api_server_flags, args.etcds).await?;

    log_progress("the controller makes the clusters");
    let mut first = ControllerProcess::start(&program, &api_server_flags)?;
    let made = server.wait_until_settled(&etcds, &mut first).await?;
    server.wait_until_quiet(&world, &mut first).await?;
    let first_peak = usage::peak_bytes(first.pid())?;
    first.stop()?;

    log_progress("another one starts");
    let before = server.count_writes(&world).await?;
    let mut controller = ControllerProcess::start(&program, &api_server_flags)?;
    let cold_start = controller.wait_for_reconciles(args.etcds).await?;
    server.wait_until_quiet(&world, &mut controller).await?;
    let cold_start_writes = server.count_writes(&world).await?.since(&before).total();

    log_progress("at rest");
    let (before, started) = (server.count_writes(&world).await?, Instant::now());
    let used = usage::cpu_seconds(controller.pid())?;
    sleep(Duration::from_secs(args.rest_seconds)).await;
    let after = server.count_writes(&world).await?;
    let (rest, idle_cpu_seconds) = (
        started.elapsed(),
        usage::cpu_seconds(controller.pid())? - used,
    );
    ensure!(
        after.renewals > before.renewals,
        "no Lease was renewed: the world stands still"
    );

    log_progress("many change at once");
    let how_many = (args.changes, args.rounds);
    let change_latencies = changes::measure(&server.client, &etcds, how_many, ChangePacing::AfterStatus).await?;
    log_progress("many change at once, without a pause");
    let unpaced_latencies = changes::measure(&server.client, &etcds, how_many, ChangePacing::AfterAction).await?;
    let peak_bytes = [first_peak, usage::peak_bytes(controller.pid())?];
    controller.stop()?;
    world.stop();
    Ok(ControllerFigures {
        creation_time: made,
        cold_start,
        cold_start_writes,
        idle_time: rest,
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
    let own = std::env::current_exe().context("find this program")?;
    let program = own.with_file_name("mainstay-controller");
    ensure!(
        program.exists(),
        "{} is missing: cargo build --release -p mainstay-controller",
        program.display()
    );
    Ok(program)
}
