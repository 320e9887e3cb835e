//! `cluster`: starts and deletes a Kubernetes cluster on this machine.
//!
//! Called by `make cluster-up` and `make cluster-down`.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Context as _;
use clap::{Parser, Subcommand};
use mainstay_tests::cluster::namespaces::run_init;
use mainstay_tests::cluster::node_services::run_node_services;
use mainstay_tests::cluster::{
    CONTROLLER_NAMESPACE, ClusterHome, ClusterSource, Programs, TestCluster, cluster_source,
    diagnose, down, image, import, install, timeline, up,
};

/// nextest filters: all tests, and those that need no access to the node.
const ALL_TESTS: &str = "all()";
const TESTS_WITHOUT_NODE: &str = "not test(/^cluster::node::/)";

/// Manages a Kubernetes cluster on this machine for tests and demos
#[derive(Parser)]
struct ClusterCliArgs {
    /// Directory of the cluster's files; it must not contain anything else
    #[arg(long, env = "MAINSTAY_CLUSTER")]
    home: Option<PathBuf>,
    #[command(subcommand)]
    verb: ClusterCommand,
}

#[derive(Subcommand)]
enum ClusterCommand {
    /// Start a cluster, after deleting a previous one
    Up {
        /// Directory of the built programs, which become images [default: the directory of this program]
        #[arg(long)]
        programs: Option<PathBuf>,
    },
    /// Delete the cluster and everything it created
    Down,
    /// Import the built programs as images into the running cluster
    Load {
        /// Directory of the built programs [default: the directory of this program]
        #[arg(long)]
        programs: Option<PathBuf>,
    },
    /// Install the controller with its Helm chart
    Install,
    /// Print the nextest filter of the tests that can run on the cluster
    Filter,
    /// Write the recovery times measured by the tests of this machine into a page
    Report {
        /// The Markdown page; it must contain the markers of the table
        page: PathBuf,
    },
    /// The first process of the cluster, started by `up`
    #[command(hide = true)]
    Init,
    /// DNS server and volume provisioner of the cluster, started by `init`
    #[command(hide = true)]
    Attend,
}

#[tokio::main]
async fn main() -> ExitCode {
    match run(ClusterCliArgs::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            writeln!(io::stderr(), "cluster: failed: {error:#}").ok(); // stderr may be closed
            ExitCode::FAILURE
        }
    }
}

async fn run(ClusterCliArgs { home, verb }: ClusterCliArgs) -> anyhow::Result<()> {
    let home = match home {
        Some(path) => ClusterHome::new(
            &std::path::absolute(path).context("failed to resolve the directory of the cluster")?,
        ),
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
            writeln!(io::stdout(), "{filter}").context("failed to print the filter")
        }
        ClusterCommand::Report { page } => {
            let written = timeline::render_report(&timeline::timelines_dir()?, &page)?;
            std::fs::write(&page, written)
                .with_context(|| format!("failed to write {}", page.display()))
        }
        ClusterCommand::Init => match run_init(&home).await? {},
        ClusterCommand::Attend => match run_node_services(&home).await? {},
    }
}

async fn bring_up(home: &ClusterHome, programs: Option<PathBuf>) -> anyhow::Result<()> {
    let start = Instant::now();
    if let ClusterSource::External(kubeconfig) = cluster_source(home) {
        let named = kubeconfig.display();
        log_progress(start, &format!("using the cluster of KUBECONFIG={named}"));
        log_progress(start, "tests that need access to the node are skipped");
        return Ok(());
    }
    let ours = image::build_program_images(&program_dir(programs)?).await?;
    let brought = up(home, &Programs::find()?, ours, &|line| {
        log_progress(start, line);
    })
    .await;
    brought.with_context(|| format!("failed to start a cluster in {}", home.path().display()))?;
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
            &format!("not deleting the cluster of KUBECONFIG={named}"),
        );
        return Ok(());
    }
    down(home).await?;
    log_progress(start, "cluster deleted");
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
        log_progress(
            start,
            &format!("state of the cluster at the failure:\n{state}"),
        );
    }
    installed?;
    log_progress(start, "controller installed");
    Ok(())
}

/// Defaults to the directory of this program: cargo builds all programs into the same one.
fn program_dir(named: Option<PathBuf>) -> anyhow::Result<PathBuf> {
    if let Some(named) = named {
        return Ok(named);
    }
    let this = std::env::current_exe().context("failed to find the path of this program")?;
    Ok(this.parent().unwrap_or(Path::new("/")).to_owned())
}

fn log_progress(start: Instant, line: &str) {
    // A closed stderr must not stop the command.
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
    fn command_line_definition_is_valid() {
        ClusterCliArgs::command().debug_assert();
    }
}
