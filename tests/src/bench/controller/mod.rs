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

use super::args::Cache;
use super::machine::Machine;
use super::usage;
use changes::Next;
use process::Controller;
use server::Server;
use world::World;

/// Measures the controller with many clusters on a real API server.
#[derive(Clone, Debug, Parser)]
pub struct ControllerArgs {
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
    pub(super) cache: Cache,

    /// Write the report to this file, too
    #[arg(long, value_name = "FILE")]
    pub write: Option<PathBuf>,

    /// The date the report carries
    #[arg(long, default_value = "not dated")]
    pub date: String,
}

/// Everything measured.
#[derive(Clone, Debug)]
struct Figures {
    /// From the start of the controller until all clusters were made.
    made: Duration,
    /// From the start of another controller until it has looked at all of them.
    cold: Duration,
    /// What that one wrote meanwhile.
    cold_writes: u64,
    /// How long it was watched at rest.
    rest: Duration,
    /// What it wrote meanwhile, by resource.
    rest_writes: Vec<(String, u64)>,
    /// Renewals of Leases meanwhile, by the bench.
    renewals: u64,
    /// Processor time it took meanwhile, in seconds.
    rest_cpu_seconds: f64,
    /// From sending a change until its effect was seen, sorted.
    acted: Vec<Duration>,
    /// The same, when the next change does not wait for the statuses of the last.
    hurried: Vec<Duration>,
    /// The most memory the first one and the second one had.
    peak_bytes: [u64; 2],
}

/// Runs the bench of the controller.
pub(super) fn main(args: &ControllerArgs) -> anyhow::Result<()> {
    let machine = Machine::observe();
    let data = args.cache.data()?;
    let _lock = super::claim(&data)?;
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

fn say(what: &str) {
    eprintln!("bench: controller: {what}");
}

async fn measure(args: &ControllerArgs) -> anyhow::Result<Figures> {
    let program = program(args)?;
    let api_server = ApiServer::start().await;
    let definitions = mainstay_crds::definition::all();
    api_server
        .define(definitions.into_iter().map(|definition| definition.crd))
        .await;
    let server = Server::of(&api_server).await;
    let world = World::play(&server.client, Duration::from_secs(args.renew_seconds));
    say("creating the resources");
    let etcds = server.create(&api_server, args.etcds).await?;

    say("the controller makes the clusters");
    let mut first = Controller::start(&program, &api_server)?;
    let made = server.until_settled(&etcds, &mut first).await?;
    server.until_quiet(&world, &mut first).await?;
    let first_peak = usage::peak_bytes(first.id())?;
    first.stop()?;

    say("another one starts");
    let before = server.writes(&world).await?;
    let mut controller = Controller::start(&program, &api_server)?;
    let cold = controller.until_passed(args.etcds).await?;
    server.until_quiet(&world, &mut controller).await?;
    let cold_writes = server.writes(&world).await?.since(&before).total();

    say("at rest");
    let (before, started) = (server.writes(&world).await?, Instant::now());
    let used = usage::cpu_seconds(controller.id())?;
    sleep(Duration::from_secs(args.rest_seconds)).await;
    let after = server.writes(&world).await?;
    let (rest, rest_cpu_seconds) = (
        started.elapsed(),
        usage::cpu_seconds(controller.id())? - used,
    );
    ensure!(
        after.renewals > before.renewals,
        "no Lease was renewed: the world stands still"
    );

    say("many change at once");
    let how_many = (args.changes, args.rounds);
    let acted = changes::measure(&server.client, &etcds, how_many, Next::Told).await?;
    say("many change at once, without a pause");
    let hurried = changes::measure(&server.client, &etcds, how_many, Next::Acted).await?;
    let peak_bytes = [first_peak, usage::peak_bytes(controller.id())?];
    controller.stop()?;
    world.stop();
    Ok(Figures {
        made,
        cold,
        cold_writes,
        rest,
        rest_writes: after.since(&before).by_resource(),
        renewals: after.renewals - before.renewals,
        rest_cpu_seconds,
        acted,
        hurried,
        peak_bytes,
    })
}

fn program(args: &ControllerArgs) -> anyhow::Result<PathBuf> {
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
