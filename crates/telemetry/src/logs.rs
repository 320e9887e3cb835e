//! Log level, format and destination.

use std::io::{self, IsTerminal};

use clap::{Args, ValueEnum};
use tracing::Subscriber;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::FmtSpan;
use tracing_subscriber::util::SubscriberInitExt;

/// Format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Readable text
    Text,
    /// One JSON object per line
    Json,
}

/// Logging flags, shared by the programs.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Logging")]
pub struct LogArgs {
    /// Log level: error, warn, info, debug or trace, or a filter
    ///
    /// A filter sets levels per module, such as `info,mainstay_store=debug`. The numbers 0 to 6 of etcd-backup-restore
    /// are accepted as well.
    #[arg(
        long,
        env = "MAINSTAY_LOG_LEVEL",
        default_value = "info",
        value_name = "LEVEL",
        global = true
    )]
    pub log_level: String,

    /// Format of log lines [default: text on a terminal, json otherwise]
    #[arg(
        long,
        env = "MAINSTAY_LOG_FORMAT",
        value_name = "FORMAT",
        global = true
    )]
    pub log_format: Option<LogFormat>,
}

impl LogArgs {
    /// Installs the global subscriber. Must be called once, by `main`.
    pub fn install(&self) {
        // An invalid filter must not keep the program from starting: fall back to the default level.
        let filter = EnvFilter::try_new(self.filter()).unwrap_or_else(|_| EnvFilter::new("info"));
        let is_terminal = io::stderr().is_terminal();
        let default = if is_terminal {
            LogFormat::Text
        } else {
            LogFormat::Json
        };
        match self.log_format.unwrap_or(default) {
            LogFormat::Text => tracing_subscriber::fmt()
                .with_env_filter(filter)
                .with_span_events(FmtSpan::NONE)
                .with_target(false)
                .with_writer(io::stderr)
                .with_ansi(is_terminal)
                .compact()
                .init(),
            LogFormat::Json => json_subscriber(io::stderr, filter).init(),
        }
    }

    fn filter(&self) -> &str {
        // etcd-backup-restore takes logrus levels, 0 (panic) to 6 (trace).
        match self.log_level.trim() {
            "0" | "1" | "2" => "error",
            "3" => "warn",
            "4" => "info",
            "5" => "debug",
            "6" => "trace",
            filter => filter,
        }
    }
}

/// Writes one JSON object per line, with the fields of an event on the same level as its message.
pub(crate) fn json_subscriber<W>(writer: W, filter: EnvFilter) -> impl Subscriber + Send + Sync
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_span_events(FmtSpan::NONE)
        .with_target(false)
        .with_writer(writer)
        .json()
        .flatten_event(true)
        .finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numeric_log_levels_of_etcd_backup_restore_are_accepted() {
        let filter = |level: &str| {
            LogArgs {
                log_level: level.into(),
                log_format: None,
            }
            .filter()
            .to_owned()
        };
        assert_eq!(filter("4"), "info");
        assert_eq!(filter("5"), "debug");
        assert_eq!(
            filter("warn,mainstay_store=debug"),
            "warn,mainstay_store=debug"
        );
    }
}
