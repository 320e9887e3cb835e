//! The command line.

use std::path::PathBuf;

use clap::{Parser, ValueEnum};
use mainstay_telemetry::LogArgs;

use crate::commands::RestorerCommand;

/// Format of the result on standard output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OutputFormat {
    /// Readable text
    Text,
    /// One JSON object
    Json,
}

/// Verifies, restores, compacts and copies etcd backups without running etcd
///
/// Reads and writes the files of etcd directly: every key, revision and lease of a restored cluster is the one that was
/// backed up. Reads buckets written by etcd-backup-restore, and writes buckets that etcd-backup-restore can read.
#[derive(Debug, Parser)]
#[command(
    name = "mainstay-restorer",
    version,
    propagate_version = true,
    subcommand_required = true,
    arg_required_else_help = true,
    max_term_width = 100,
    after_help = "Exit codes (see docs/reference/exit-codes.md): 0 success, 1 unexpected error, 2 invalid command line, \
                  10-16 data directory, 20-23 backup, 30 disk, 40-42 etcd must not start yet."
)]
pub struct RestorerArgs {
    #[command(subcommand)]
    pub command: RestorerCommand,

    /// Format of the result on standard output
    #[arg(
        short,
        long,
        global = true,
        value_name = "FORMAT",
        default_value = "text"
    )]
    #[arg(env = "MAINSTAY_OUTPUT")]
    pub(crate) output: OutputFormat,

    /// Also write the result as JSON to this file
    ///
    /// In Kubernetes: /dev/termination-log. The JSON is shortened to the 4096 bytes that the kubelet keeps.
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        env = "MAINSTAY_TERMINATION_MESSAGE_PATH"
    )]
    pub(crate) termination_message_path: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) log: LogArgs,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn command_line_is_consistent() {
        RestorerArgs::command().debug_assert();
    }
}
