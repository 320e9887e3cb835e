//! `cluster`: a real Kubernetes cluster on this machine, up or down.
//!
//! `make cluster-up` and `make cluster-down` call it.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Context as _;
use clap::{Parser, Subcommand};
use mainstay_tests::cluster::attend::attend;
use mainstay_tests::cluster::world::init;
use mainstay_tests::cluster::{
    Cluster, Home, NAMESPACE, Programs, Whose, diagnose, down, image, import, install, timeline,
    up, whose,
};

/// All tests, and those that need no hand on the node, as filters of nextest.
const ALL: &str = "all()";
const WITHOUT_THE_NODE: &str = "not test(/^cluster::node::/)";

/// A real Kubernetes cluster on this machine.
#[derive(Parser)]
struct Args {
    /// Where it keeps its files; a directory of its own.
    #[arg(long, env = "MAINSTAY_CLUSTER")]
    home: Option<PathBuf>,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
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
    match run(Args::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            writeln!(io::stderr(), "cluster: failed: {error:#}").ok(); // as in `say`
            ExitCode::FAILURE
        }
    }
}

async fn run(Args { home, verb }: Args) -> anyhow::Result<()> {
    let home = match home {
        Some(path) => {
            Home::at(&std::path::absolute(path).context("find the directory of the cluster")?)
        }
        None => Home::of_this_machine()?,
    };
    match verb {
        Verb::Up { programs } => bring_up(&home, programs).await,
        Verb::Down => take_down(&home).await,
        Verb::Load { programs } => {
            let images = image::programs(&built_in(programs)?).await?;
            import(&home, &Programs::find()?, &images).await?;
            Ok(())
        }
        Verb::Install => put_in(&home).await,
        Verb::Filter => {
            let filter = match whose(&home) {
                Whose::Own => ALL,
                Whose::Given(_) => WITHOUT_THE_NODE,
            };
            writeln!(io::stdout(), "{filter}").context("print the filter")
        }
        Verb::Report { page } => {
            let written = timeline::report(&timeline::directory()?, &page)?;
            std::fs::write(&page, written).context("write the page")
        }
        Verb::Init => match init(&home).await? {},
        Verb::Attend => match attend(&home).await? {},
    }
}

async fn bring_up(home: &Home, programs: Option<PathBuf>) -> anyhow::Result<()> {
    let start = Instant::now();
    if let Whose::Given(kubeconfig) = whose(home) {
        let named = kubeconfig.display();
        say(
            start,
            &format!("KUBECONFIG names a cluster, which is used: {named}"),
        );
        say(start, "tests that need a hand on its node are left out");
        return Ok(());
    }
    let ours = image::programs(&built_in(programs)?).await?;
    let brought = up(home, &Programs::find()?, ours, &|line| say(start, line)).await;
    brought.with_context(|| format!("bring a cluster up in {}", home.path().display()))?;
    say(
        start,
        &format!("ready: export KUBECONFIG={}", home.kubeconfig().display()),
    );
    Ok(())
}

async fn take_down(home: &Home) -> anyhow::Result<()> {
    let start = Instant::now();
    if let Whose::Given(kubeconfig) = whose(home) {
        let named = kubeconfig.display();
        say(
            start,
            &format!("KUBECONFIG names a cluster, which stays: {named}"),
        );
        return Ok(());
    }
    down(home).await?;
    say(start, "nothing is left of it");
    Ok(())
}

async fn put_in(home: &Home) -> anyhow::Result<()> {
    let start = Instant::now();
    let kubeconfig = match whose(home) {
        Whose::Own => home.kubeconfig(),
        Whose::Given(kubeconfig) => kubeconfig,
    };
    let installed = install(&kubeconfig, &Programs::of_etcd()?).await;
    if installed.is_err()
        && let Ok(cluster) = Cluster::find().await
    {
        let state = diagnose(&cluster.client(), NAMESPACE).await;
        say(start, &format!("the cluster when that failed:\n{state}"));
    }
    installed?;
    say(start, "the controller is installed");
    Ok(())
}

/// Our programs are built where this one is.
fn built_in(named: Option<PathBuf>) -> anyhow::Result<PathBuf> {
    if let Some(named) = named {
        return Ok(named);
    }
    let this = std::env::current_exe().context("find this program")?;
    Ok(this.parent().unwrap_or(Path::new("/")).to_owned())
}

fn say(start: Instant, line: &str) {
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
        Args::command().debug_assert();
    }
}
