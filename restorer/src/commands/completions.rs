//! `completions`: prints a completion script for a shell.

use clap::{Args, CommandFactory};
use clap_complete::Shell;
use mainstay_verdict::Verdict;

use crate::outcome::CommandOutcome;

/// Flags of `completions`.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  mainstay-restorer completions bash > /etc/bash_completion.d/mainstay-restorer"
)]
pub struct CompletionsArgs {
    /// Shell to print the script for
    pub(crate) shell: Shell,
}

/// Prints the script.
pub(crate) fn run(args: &CompletionsArgs) -> CommandOutcome {
    let mut script = Vec::new();
    let mut command = crate::args::RestorerArgs::command();
    clap_complete::generate(args.shell, &mut command, "mainstay-restorer", &mut script);
    let script = String::from_utf8_lossy(&script).into_owned();
    CommandOutcome::new(
        Verdict::Shown,
        script.clone(),
        &serde_json::json!({ "script": script }),
    )
}
