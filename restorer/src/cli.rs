//! Runs a verb and turns its result into output, termination message and exit code.
//!
//! Only this module reads the clock and the environment, so that tests can set both.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use clap::Parser;
use jiff::Timestamp;
use mainstay_store::Environment;
use mainstay_verdict::Verdict;

use crate::args::{OutputFormat, RestorerArgs};
use crate::failure::CommandFailure;
use crate::outcome::CommandOutcome;
use crate::termination_message;

/// Async tasks mostly wait for the store; CPU-heavy work runs on its own threads.
const RUNTIME_THREADS: usize = 2;

/// Input of every verb besides its flags.
#[derive(Clone, Debug)]
pub struct CommandContext {
    /// Start time of the program.
    pub now: Timestamp,
    /// Environment variables of the process.
    pub environment: Environment,
}

/// Runs the program with the arguments of the process.
pub fn main() -> ExitCode {
    run(std::env::args_os())
}

/// Runs the program with the given arguments.
pub(crate) fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let args = match RestorerArgs::try_parse_from(arguments) {
        Ok(args) => args,
        Err(error) => {
            let _ = error.print(); // a failure to print cannot be reported anywhere
            // clap reports --help and --version as errors with exit code 0.
            let is_help = error.exit_code() == 0;
            return if is_help {
                ExitCode::SUCCESS
            } else {
                Verdict::Usage.exit_code()
            };
        }
    };
    let RestorerArgs {
        command,
        output,
        termination_message_path,
        log,
    } = args;
    log.install();
    let context = CommandContext {
        now: Timestamp::now(),
        environment: Environment::from_process(),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(RUNTIME_THREADS)
        .enable_all()
        .build();
    let result = match runtime {
        Ok(runtime) => runtime.block_on(command.run(&context)),
        Err(error) => Err(CommandFailure::new(Verdict::Failed, &error)),
    };
    if let Some(path) = termination_message_path {
        write_termination_message(&path, &result);
    }
    print_result(output, &result)
}

fn write_termination_message(path: &Path, result: &Result<CommandOutcome, CommandFailure>) {
    let message = match result {
        Ok(outcome) => outcome.to_json(),
        Err(failure) => failure.to_json(),
    };
    if let Err(error) = fs::write(path, termination_message::truncate_to_fit(&message)) {
        tracing::warn!(error = %error, path = %path.display(), "failed to write the termination message");
    }
}

fn print_result(output: OutputFormat, result: &Result<CommandOutcome, CommandFailure>) -> ExitCode {
    let mut stdout = io::stdout().lock();
    let (verdict, written) = match (result, output) {
        (Ok(outcome), OutputFormat::Json) => (
            outcome.verdict(),
            writeln!(stdout, "{:#}", outcome.to_json()),
        ),
        (Ok(outcome), OutputFormat::Text) => {
            (outcome.verdict(), write!(stdout, "{}", outcome.text()))
        }
        (Err(failure), OutputFormat::Json) => (
            failure.verdict(),
            writeln!(stdout, "{:#}", failure.to_json()),
        ),
        (Err(failure), OutputFormat::Text) => {
            (failure.verdict(), write!(io::stderr().lock(), "{failure}"))
        }
    };
    match written.and_then(|()| stdout.flush()) {
        Ok(()) => verdict.exit_code(),
        // The reader closed the pipe (`… | head`): the verb itself succeeded or failed as before.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => verdict.exit_code(),
        Err(_) => Verdict::Failed.exit_code(),
    }
}
