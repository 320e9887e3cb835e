//! Runs a program and waits for it.

use std::ffi::OsStr;
use std::io;
use std::process::{ExitStatus, Output};

use tokio::process::Command;

/// Why a program failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The program does not exist or is not executable.
    #[error("failed to start {program}")]
    Start {
        /// Name of the program.
        program: String,
        /// Underlying error.
        source: io::Error,
    },
    /// The program exited with an error.
    #[error("{command} ended with {status}: {output}")]
    Failed {
        /// Program and arguments.
        command: String,
        /// Exit status.
        status: ExitStatus,
        /// Its stdout, then its stderr.
        output: String,
    },
}

/// Runs a program; returns its stdout.
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
    let arguments = arguments
        .iter()
        .map(|argument| argument.as_ref().to_string_lossy());
    let command = arguments.fold(program.to_owned(), |line, argument| {
        format!("{line} {argument}")
    });
    let output = format!("{stdout}{}", String::from_utf8_lossy(&stderr));
    Err(RunError::Failed {
        command,
        status,
        output: output.trim().to_owned(),
    })
}

/// Runs a command line that is split at blanks; quotes are not supported.
pub(crate) async fn run_line(line: &str) -> Result<String, RunError> {
    let mut words = line.split_whitespace();
    let program = words.next().unwrap_or_default();
    run(program, &words.collect::<Vec<_>>()).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn failure_reports_command_exit_status_and_output() {
        let failure = run("sh", &["-c", "echo first; echo second >&2; exit 3"]).await;
        let text = failure.unwrap_err().to_string();
        assert!(text.starts_with("sh -c"), "{text}");
        assert!(text.ends_with("exit status: 3: first\nsecond"), "{text}");
    }

    #[tokio::test]
    async fn missing_program_is_named() {
        let failure = run_line("no-such-program --flag").await.unwrap_err();
        assert_eq!(failure.to_string(), "failed to start no-such-program");
    }
}
