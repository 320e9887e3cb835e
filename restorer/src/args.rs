//! The command line.

use std::path::PathBuf;

use clap::{Parser, ValueEnum};
use mainstay_telemetry::LogArgs;

use crate::verbs::Verb;

/// How results look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people.
    Text,
    /// One JSON object.
    Json,
}

/// Verifies, restores, compacts and copies etcd backups, without an etcd.
///
/// Reads and writes etcd's own files: a restored cluster is byte for byte the one that was backed
/// up. Understands the buckets that etcd-backup-restore writes, and writes buckets it understands.
#[derive(Debug, Parser)]
#[command(
    name = "mainstay-restorer",
    version,
    propagate_version = true,
    subcommand_required = true,
    arg_required_else_help = true,
    max_term_width = 100,
    after_help = "Exit codes tell what happened, see docs/reference/exit-codes.md: 0 done, 2 wrong command line, \
                  10-14 the data directory, 20-23 the backup, 30 the disk, 40-42 etcd must not start yet."
)]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    pub verb: Verb,

    /// How the result looks: text for people, json for machines
    #[arg(
        short,
        long,
        global = true,
        value_name = "FORMAT",
        default_value = "text"
    )]
    #[arg(env = "MAINSTAY_OUTPUT")]
    pub output: Format,

    /// Also write the result as JSON to this file (Kubernetes: /dev/termination-log)
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        env = "MAINSTAY_TERMINATION_MESSAGE_PATH"
    )]
    pub termination_message_path: Option<PathBuf>,

    /// Flags about logging.
    #[command(flatten)]
    pub log: LogArgs,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }
}
