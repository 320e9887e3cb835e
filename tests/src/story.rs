//! A story told on a terminal, chapter by chapter, and how it ends.

use std::any::Any;
use std::io::{self, Write as _};
use std::panic::{AssertUnwindSafe, set_hook};
use std::process::ExitCode;

use anyhow::{Context as _, anyhow};
use futures::FutureExt as _;
use tokio::signal::unix::{SignalKind, signal};

/// What a shell reports for a program that was interrupted.
const INTERRUPTED: u8 = 130;

/// A story in progress.
#[derive(Debug, Default)]
pub struct Story {
    chapter: u32,
}

impl Story {
    /// Begins the next chapter.
    pub fn tell(&mut self, title: &str, text: &str) -> anyhow::Result<()> {
        self.chapter += 1;
        say(&format!("\n{}. {title}\n{text}", self.chapter))
    }
}

/// A paragraph.
pub fn say(text: &str) -> anyhow::Result<()> {
    writeln!(io::stdout().lock(), "{text}").context("write to the terminal")
}

/// Announces a wait, with the time it takes on an idle machine.
pub fn waiting(what: &str, usual_seconds: u32) -> anyhow::Result<()> {
    say(&format!(
        "  waiting for {what}, usually about {usual_seconds} s"
    ))
}

/// How a story ended.
#[derive(Debug)]
pub enum Ended {
    /// As it should.
    Told,
    /// Something went wrong.
    Failed(anyhow::Error),
    /// A signal asked this program to stop.
    Interrupted,
}

impl Ended {
    /// Prints in one line why `program` did not come to its end, if it did not: every cause, and no backtrace.
    pub fn explain(&self, program: &str) {
        let why = match self {
            Self::Told => return,
            Self::Failed(error) => format!("failed: {error:#}"),
            Self::Interrupted => "interrupted".to_owned(),
        };
        writeln!(io::stderr(), "\n{program}: {why}").ok(); // without a terminal nobody reads it
    }

    /// The exit code of a program that told the story.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::Told => ExitCode::SUCCESS,
            Self::Failed(_) => ExitCode::FAILURE,
            Self::Interrupted => ExitCode::from(INTERRUPTED),
        }
    }
}

/// Tells a story until it ends, fails, panics, or SIGINT or SIGTERM arrives. What the story holds is dropped then.
pub async fn to_its_end(story: impl Future<Output = anyhow::Result<()>>) -> Ended {
    set_hook(Box::new(|_| {})); // a panic is reported like any other failure
    let mut signals = match (
        signal(SignalKind::interrupt()),
        signal(SignalKind::terminate()),
    ) {
        (Ok(interrupt), Ok(terminate)) => (interrupt, terminate),
        (Err(error), _) | (_, Err(error)) => {
            return Ended::Failed(anyhow::Error::new(error).context("wait for signals"));
        }
    };
    tokio::select! {
        told = AssertUnwindSafe(story).catch_unwind() => match told {
            Ok(Ok(())) => Ended::Told,
            Ok(Err(error)) => Ended::Failed(error),
            Err(panic) => Ended::Failed(anyhow!(words_of(&*panic))),
        },
        _ = signals.0.recv() => Ended::Interrupted,
        _ = signals.1.recv() => Ended::Interrupted,
    }
}

/// What a panic said.
fn words_of(panic: &(dyn Any + Send)) -> String {
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
    async fn a_story_that_fails_or_panics_tells_every_cause_in_one_line() {
        let failing = async { Err(anyhow!("no room").context("write")) };
        let Ended::Failed(error) = to_its_end(failing).await else {
            panic!("it failed");
        };
        assert_eq!(format!("{error:#}"), "write: no room");
        let Ended::Failed(error) = to_its_end(async { panicking(3) }).await else {
            panic!("it panicked");
        };
        assert_eq!(format!("{error:#}"), "3 members");
    }

    #[tokio::test]
    async fn a_story_that_is_interrupted_is_dropped_and_ends_with_130() {
        let interrupting = async {
            kill_process(getpid(), Signal::TERM).unwrap();
            pending().await
        };
        let ended = to_its_end(interrupting).await;
        assert!(matches!(ended, Ended::Interrupted), "{ended:?}");
        assert_eq!(ended.exit_code(), ExitCode::from(130));
    }
}
