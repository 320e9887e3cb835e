//! `cluster`: a real Kubernetes cluster on this machine, up or down.
//!
//! `make cluster-up` and `make cluster-down` call it.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Context as _;
use clap::{Parser, Subcommand};
use mainstay_tests::cluster::attend::run_node_services;
use mainstay_tests::cluster::world::run_init;
use mainstay_tests::cluster::{
    TestCluster, ClusterHome, CONTROLLER_NAMESPACE, Programs, ClusterSource, diagnose, down, image, import, install, timeline,
    up, cluster_source,
};

/// All tests, and those that need no hand on the node, as filters of nextest.
const ALL_TESTS: &str = "all()";
const TESTS_WITHOUT_NODE: &str = "not test(/^cluster::node::/)";

/// A real Kubernetes cluster on this machine.
#[derive(Parser)]
struct ClusterCliArgs {
    /// Where it keeps its files; a directory of its own.
    #[arg(long, env = "MAINSTAY_CLUSTER")]
    home: Option<PathBuf>,
    #[command(subcommand)]
    verb: ClusterCommand,
}

#[derive(Subcommand)]
enum ClusterCommand {
    /// Brings a cluster up, after removing what an earlier one left.
    Up {
        /// The directory our programs are built in; those found there become images.
        #[arg(long)]
        programs: Option<PathBuf>,
    },
    /// Ends the cluster and removes everything it made.
    Down,
    /// Imports our programs into the running cluster, as they are built now.
    Load {
        /// The directory they are built in.
        #[arg(long)]
        programs: Option<PathBuf>,
    },
    /// Installs the controller into the cluster with its chart.
    Install,
    /// Prints which tests can run on the cluster, as a filter of nextest.
    Filter,
    /// Writes how long all recoveries took that the tests of this machine have seen.
    Report {
        /// The page with a place for it.
        page: PathBuf,
    },
    /// What `up` starts as the first process of the cluster.
    #[command(hide = true)]
    Init,
    /// What that process starts for names and volumes.
    #[command(hide = true)]
    Attend,
}

#[tokio::main]
async fn main() -> ExitCode {
    match run(ClusterCliArgs::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            writeln!(io::stderr(), "cluster: failed: {error:#}").ok(); // as in `say`
            ExitCode::FAILURE
        }
    }
}

async fn run(ClusterCliArgs { home, verb }: ClusterCliArgs) -> anyhow::Result<()> {
    let home = match home {
        Some(path) => {
            ClusterHome::new(&std::path::absolute(path).context("find the directory of the cluster")?)
        }
        None => ClusterHome::from_env()?,
    };
    match verb {
        ClusterCommand::Up { programs } => bring_up(&home, programs).await,
        ClusterCommand::Down => take_down(&home).await,
        ClusterCommand::Load { programs } => {
            let images = image::build_program_images(&program_dir(programs)?).await?;
            import(&home, &Programs::find()?, &images).await?;
            Ok(())
        }
        ClusterCommand::Install => install_controller(&home).await,
        ClusterCommand::Filter => {
            let filter = match cluster_source(&home) {
                ClusterSource::Local => ALL_TESTS,
                ClusterSource::External(_) => TESTS_WITHOUT_NODE,
            };
            writeln!(io::stdout(), "{filter}").context("print the filter")
        }
        ClusterCommand::Report { page } => {
            let written = timeline::render_report(&timeline::timelines_dir()?, &page)?;
            std::fs::write(&page, written).context("write the page")
        }
        ClusterCommand::Init => match run_init(&home).await? {},
        ClusterCommand::Attend => match run_node_services(&home).await? {},
    }
}

async fn bring_up(home: &ClusterHome, programs: Option<PathBuf>) -> anyhow::Result<()> {
    let start = Instant::now();
    if let ClusterSource::External(kubeconfig) = cluster_source(home) {
        let named = kubeconfig.display();
        log_progress(
            start,
            &format!("KUBECONFIG names a cluster, which is used: {named}"),
        );
        log_progress(start, "tests that need a hand on its node are left out");
        return Ok(());
    }
    let ours = image::build_program_images(&program_dir(programs)?).await?;
    let brought = up(home, &Programs::find()?, ours, &|line| log_progress(start, line)).await;
    brought.with_context(|| format!("bring a cluster up in {}", home.path().display()))?;
    log_progress(
        start,
        &format!("ready: export KUBECONFIG={}", home.kubeconfig().display()),
    );
    Ok(())
}

async fn take_down(home: &ClusterHome) -> anyhow::Result<()> {
    let start = Instant::now();
    if let ClusterSource::External(kubeconfig) = cluster_source(home) {
        let named = kubeconfig.display();
        log_progress(
            start,
            &format!("KUBECONFIG names a cluster, which stays: {named}"),
        );
        return Ok(());
    }
    down(home).await?;
    log_progress(start, "nothing is left of it");
    Ok(())
}

async fn install_controller(home: &ClusterHome) -> anyhow::Result<()> {
    let start = Instant::now();
    let kubeconfig = match cluster_source(home) {
        ClusterSource::Local => home.kubeconfig(),
        ClusterSource::External(kubeconfig) => kubeconfig,
    };
    let installed = install(&kubeconfig, &Programs::find_etcds()?).await;
    if installed.is_err()
        && let Ok(cluster) = TestCluster::find().await
    {
        let state = diagnose(&cluster.client(), CONTROLLER_NAMESPACE).await;
        log_progress(start, &format!("the cluster when that failed:\n{state}"));
    }
    installed?;
    log_progress(start, "the controller is installed");
    Ok(())
}

/// Our programs are built where this one is.
fn program_dir(named: Option<PathBuf>) -> anyhow::Result<PathBuf> {
    if let Some(named) = named {
        return Ok(named);
    }
    let this = std::env::current_exe().context("find this program")?;
    Ok(this.parent().unwrap_or(Path::new("/")).to_owned())
}

fn log_progress(start: Instant, line: &str) {
    // Nobody to read it is no reason to stop.
    writeln!(
        io::stderr(),
        "cluster: {:>3} s  {line}",
        start.elapsed().as_secs()
    )
    .ok();
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        ClusterCliArgs::command().debug_assert();
    }
}
