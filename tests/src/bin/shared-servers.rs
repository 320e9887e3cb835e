//! `shared-servers -- COMMAND`: runs a command with one Kubernetes API server that all its tests share.
//!
//! `make test-live` calls it. Tests that use `ApiServer::shared` find the server through the variable `MAINSTAY_SHARED_API`;
//! each has its own namespace. The server stops when the command ends, and the exit code of the command is returned.

use std::ffi::OsString;
use std::process::{ExitCode, ExitStatus};

use anyhow::Context as _;
use clap::Parser;
use mainstay_testkit::ApiServer;
use mainstay_testkit::kube::SHARED_API_ENV;
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};

/// Shells report a command that was ended by a signal as this plus the number of the signal.
const SIGNAL_EXIT_BASE: u8 = 128;

/// Run a command with one Kubernetes API server that all its tests share
#[derive(Parser)]
struct SharedServersArgs {
    /// The command and its arguments
    #[arg(required = true, last = true)]
    command: Vec<OsString>,
}

#[tokio::main]
async fn main() -> anyhow::Result<ExitCode> {
    let SharedServersArgs { command } = SharedServersArgs::parse();
    let server = ApiServer::start().await.with_controllers().await;
    let (program, arguments) = command.split_first().context("no command given")?;
    let child = Command::new(program)
        .args(arguments)
        .env(SHARED_API_ENV, server.shared_dir())
        .spawn()
        .with_context(|| format!("failed to start {}", program.display()))?;
    let status = wait_for_command(child).await?;
    drop(server);
    Ok(ExitCode::from(exit_code(status)))
}

/// Waits for the command. SIGTERM is passed on to it, so that it can clean up before this program exits.
async fn wait_for_command(mut child: Child) -> anyhow::Result<ExitStatus> {
    let mut terminate = signal(SignalKind::terminate()).context("failed to listen for SIGTERM")?;
    // A terminal sends SIGINT to the command as well: it is not passed on a second time.
    let mut interrupt = signal(SignalKind::interrupt()).context("failed to listen for SIGINT")?;
    loop {
        tokio::select! {
            status = child.wait() => return status.context("failed to wait for the command"),
            _ = terminate.recv() => {
                let id = child.id().and_then(|id| i32::try_from(id).ok());
                if let Some(pid) = id.and_then(Pid::from_raw) {
                    kill_process(pid, Signal::TERM).context("failed to send SIGTERM to the command")?;
                }
            }
            _ = interrupt.recv() => {}
        }
    }
}

fn exit_code(status: ExitStatus) -> u8 {
    use std::os::unix::process::ExitStatusExt as _;
    let by_signal = || status.signal().and_then(|number| u8::try_from(number).ok());
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    code.or_else(|| by_signal().map(|number| SIGNAL_EXIT_BASE.saturating_add(number)))
        .unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;

    use super::*;

    #[test]
    fn exit_code_of_the_command_is_returned() {
        assert_eq!(exit_code(ExitStatus::from_raw(0)), 0);
        assert_eq!(exit_code(ExitStatus::from_raw(100 << 8)), 100);
        assert_eq!(exit_code(ExitStatus::from_raw(15)), 143, "ended by SIGTERM");
    }
}
