//! Prints the numbered steps of a demo, and runs the demo until it ends, fails or is interrupted.

use std::any::Any;
use std::io::{self, Write as _};
use std::panic::{AssertUnwindSafe, set_hook};
use std::process::ExitCode;

use anyhow::{Context as _, anyhow};
use futures::FutureExt as _;
use tokio::signal::unix::{SignalKind, signal};

/// The exit code that shells use for a program ended by SIGINT.
const INTERRUPTED_EXIT_CODE: u8 = 130;

/// Numbers the steps of a demo.
#[derive(Debug, Default)]
pub struct DemoOutput {
    step: u32,
}

impl DemoOutput {
    /// Prints the heading and the explanation of the next step.
    pub fn print_step(&mut self, title: &str, text: &str) -> anyhow::Result<()> {
        self.step += 1;
        print_text(&format!("\n{}. {title}\n{text}", self.step))
    }
}

/// Prints a paragraph to stdout.
pub fn print_text(text: &str) -> anyhow::Result<()> {
    writeln!(io::stdout().lock(), "{text}").context("failed to write to stdout")
}

/// Announces a wait, with the time it takes on an idle machine.
pub fn print_wait(what: &str, usual_seconds: u32) -> anyhow::Result<()> {
    print_text(&format!(
        "  waiting for {what}, usually about {usual_seconds} s"
    ))
}

/// How a demo ended.
#[derive(Debug)]
pub enum DemoOutcome {
    /// The demo ran to its end.
    Completed,
    /// A step failed or panicked.
    Failed(anyhow::Error),
    /// SIGINT or SIGTERM arrived.
    Interrupted,
}

impl DemoOutcome {
    /// Prints a failure or interruption of `program` to stderr: one line with every cause, without a backtrace.
    pub fn print_failure(&self, program: &str) {
        let reason = match self {
            Self::Completed => return,
            Self::Failed(error) => format!("failed: {error:#}"),
            Self::Interrupted => "interrupted".to_owned(),
        };
        writeln!(io::stderr(), "\n{program}: {reason}").ok(); // stderr may be closed
    }

    /// The exit code of the program: 0, 1 after a failure, 130 after a signal.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::Completed => ExitCode::SUCCESS,
            Self::Failed(_) => ExitCode::FAILURE,
            Self::Interrupted => ExitCode::from(INTERRUPTED_EXIT_CODE),
        }
    }
}

/// Runs a demo until it ends, fails, panics, or SIGINT or SIGTERM arrives. Then it is dropped, which stops its processes.
pub async fn run_to_end(story: impl Future<Output = anyhow::Result<()>>) -> DemoOutcome {
    set_hook(Box::new(|_| {})); // a panic is reported below like any other failure, without a backtrace
    let mut signals = match (
        signal(SignalKind::interrupt()),
        signal(SignalKind::terminate()),
    ) {
        (Ok(interrupt), Ok(terminate)) => (interrupt, terminate),
        (Err(error), _) | (_, Err(error)) => {
            return DemoOutcome::Failed(
                anyhow::Error::new(error).context("failed to listen for signals"),
            );
        }
    };
    tokio::select! {
        told = AssertUnwindSafe(story).catch_unwind() => match told {
            Ok(Ok(())) => DemoOutcome::Completed,
            Ok(Err(error)) => DemoOutcome::Failed(error),
            Err(panic) => DemoOutcome::Failed(anyhow!(panic_message(&*panic))),
        },
        _ = signals.0.recv() => DemoOutcome::Interrupted,
        _ = signals.1.recv() => DemoOutcome::Interrupted,
    }
}

fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("panicked").to_owned()
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use rustix::process::{Signal, getpid, kill_process};

    use super::*;

    fn panicking(number: u32) -> anyhow::Result<()> {
        panic!("{number} members")
    }

    #[tokio::test]
    async fn failed_demo_reports_all_causes_in_one_line() {
        let failing = async { Err(anyhow!("no room").context("write")) };
        let DemoOutcome::Failed(error) = run_to_end(failing).await else {
            panic!("expected a failure");
        };
        assert_eq!(format!("{error:#}"), "write: no room");
        let DemoOutcome::Failed(error) = run_to_end(async { panicking(3) }).await else {
            panic!("expected a panic");
        };
        assert_eq!(format!("{error:#}"), "3 members");
    }

    #[tokio::test]
    async fn interrupted_demo_exits_with_130() {
        let interrupting = async {
            kill_process(getpid(), Signal::TERM).unwrap();
            pending().await
        };
        let ended = run_to_end(interrupting).await;
        assert!(matches!(ended, DemoOutcome::Interrupted), "{ended:?}");
        assert_eq!(ended.exit_code(), ExitCode::from(130));
    }
}
