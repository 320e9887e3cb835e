//! Runs a program of the machine to its end.

use std::ffi::OsStr;
use std::io;
use std::process::{ExitStatus, Output};

use tokio::process::Command;

/// Why a program did not do what it was started for.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// It is not there, or may not be started.
    #[error("start {program}")]
    Start {
        /// The program.
        program: String,
        /// What the system said.
        source: io::Error,
    },
    /// It failed.
    #[error("{command} ended with {status}: {output}")]
    Failed {
        /// The program and its arguments.
        command: String,
        /// How.
        status: ExitStatus,
        /// What it wrote, errors last.
        output: String,
    },
}

/// What a program wrote to its output.
pub(crate) async fn run<S: AsRef<OsStr>>(
    program: &str,
    arguments: &[S],
) -> Result<String, RunError> {
    let output = Command::new(program).args(arguments).output().await;
    let Output {
        status,
        stdout,
        stderr,
    } = output.map_err(|source| RunError::Start {
        program: program.to_owned(),
        source,
    })?;
    let stdout = String::from_utf8_lossy(&stdout).into_owned();
    if status.success() {
        return Ok(stdout);
    }
    let words = arguments.iter().map(|word| word.as_ref().to_string_lossy());
    let command = words.fold(program.to_owned(), |line, word| format!("{line} {word}"));
    let output = format!("{stdout}{}", String::from_utf8_lossy(&stderr));
    Err(RunError::Failed {
        command,
        status,
        output: output.trim().to_owned(),
    })
}

/// Runs a line of words without quotes in them.
pub(crate) async fn run_line(line: &str) -> Result<String, RunError> {
    let mut words = line.split_whitespace();
    let program = words.next().unwrap_or_default();
    run(program, &words.collect::<Vec<_>>()).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_failure_tells_the_command_its_end_and_its_words() {
        let failure = run("sh", &["-c", "echo first; echo second >&2; exit 3"]).await;
        let text = failure.unwrap_err().to_string();
        assert!(text.starts_with("sh -c"), "{text}");
        assert!(text.ends_with("exit status: 3: first\nsecond"), "{text}");
    }

    #[tokio::test]
    async fn a_program_that_is_not_there_is_named() {
        let failure = run_line("no-such-program --flag").await.unwrap_err();
        assert_eq!(failure.to_string(), "start no-such-program");
    }
}
