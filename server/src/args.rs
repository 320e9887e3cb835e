//! The command line.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use jiff::SignedDuration;
use mainstay_etcdserver::PrincipalGrant;
use mainstay_telemetry::LogArgs;

/// Serves the etcd v3 API over a storage engine
///
/// Clients of etcd such as etcdctl and the client libraries connect to it without changes. It is one process without
/// raft: use etcd itself where a cluster must survive the loss of a machine.
#[derive(Debug, Parser)]
#[command(
    name = "mainstay-server",
    version,
    propagate_version = true,
    subcommand_required = true,
    arg_required_else_help = true,
    max_term_width = 100,
    after_help = "Examples:\n  \
        mainstay-server serve --engine memory\n  \
        etcdctl --endpoints 127.0.0.1:2379 put greeting hello\n\n\
        Documentation: docs/reference/server.md"
)]
pub struct ServerArgs {
    /// What to do
    #[command(subcommand)]
    pub command: ServerCommand,

    #[command(flatten)]
    pub(crate) log: LogArgs,
}

/// The verbs of the program.
#[derive(Debug, Subcommand)]
pub enum ServerCommand {
    /// Serve an engine for reading and writing
    ///
    /// Runs until SIGTERM or SIGINT. Then it answers the requests in flight, ends watches and closes the engine.
    Serve(ServeArgs),
}

/// Where the data is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum EngineKind {
    /// In memory: everything ends with the process
    Memory,
    /// In a database file on this machine: an acknowledged write survives a crash
    Redb,
}

/// Flags of `serve`.
#[derive(Clone, Debug, Args)]
pub struct ServeArgs {
    /// Where the data is
    #[arg(
        long,
        env = "MAINSTAY_SERVER_ENGINE",
        value_name = "ENGINE",
        default_value = "memory"
    )]
    pub(crate) engine: EngineKind,

    /// Directory of the database file. It is created if it is missing
    #[arg(
        long,
        env = "MAINSTAY_SERVER_DATA_DIR",
        value_name = "DIRECTORY",
        required_if_eq("engine", "redb")
    )]
    pub(crate) data_dir: Option<PathBuf>,

    /// Bytes of keys and values, history included, at which puts are refused; 0 for no limit
    ///
    /// Deletes and compactions stay possible, so that space can be made.
    #[arg(
        long,
        env = "MAINSTAY_SERVER_QUOTA_BACKEND_BYTES",
        value_name = "BYTES",
        default_value_t = 2_147_483_648
    )]
    pub(crate) quota_backend_bytes: u64,

    #[command(flatten)]
    pub(crate) api: ApiArgs,
}

/// Flags of the API, whatever is served.
#[derive(Clone, Debug, Args)]
pub struct ApiArgs {
    /// Address of the etcd API
    #[arg(
        long,
        env = "MAINSTAY_SERVER_LISTEN",
        value_name = "ADDRESS",
        default_value = "127.0.0.1:2379"
    )]
    pub(crate) listen: SocketAddr,

    /// Address of /metrics and /healthz
    #[arg(
        long,
        env = "MAINSTAY_SERVER_METRICS_LISTEN",
        value_name = "ADDRESS",
        default_value = "127.0.0.1:2381"
    )]
    pub(crate) metrics_listen: SocketAddr,

    /// Name of the member. Cluster and member ID are derived from it
    #[arg(
        long,
        env = "MAINSTAY_SERVER_NAME",
        value_name = "NAME",
        default_value = "mainstay-server"
    )]
    pub(crate) name: String,

    /// URL that the member list gives to clients (may be repeated) [default: from --listen]
    #[arg(long, env = "MAINSTAY_SERVER_ADVERTISE_CLIENT_URL", value_name = "URL")]
    pub(crate) advertise_client_url: Vec<String>,

    /// Interval of progress notifications to watches that request them
    #[arg(
        long,
        env = "MAINSTAY_SERVER_PROGRESS_INTERVAL",
        value_name = "DURATION",
        default_value = "10m",
        value_parser = parse_interval
    )]
    pub(crate) progress_interval: Duration,

    /// Requests that one principal may have in flight, watches included
    #[arg(
        long,
        env = "MAINSTAY_SERVER_REQUESTS_PER_PRINCIPAL",
        value_name = "COUNT",
        default_value_t = 10_000
    )]
    pub(crate) requests_per_principal: usize,

    /// Rights of a principal (may be repeated): NAME=read,write,maintenance
    ///
    /// NAME is the common name of the client certificate. read: reads, watches and the status. write: transactions,
    /// writes, compactions and leases. maintenance: snapshots, hashes, defragmentation and alarms. Without this flag,
    /// every client that can connect has all rights.
    #[arg(
        long,
        env = "MAINSTAY_SERVER_GRANT",
        value_name = "GRANT",
        requires = "client_ca"
    )]
    pub(crate) grant: Vec<PrincipalGrant>,

    #[command(flatten)]
    pub(crate) tls: TlsArgs,
}

/// TLS flags.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "TLS")]
pub struct TlsArgs {
    /// Certificate chain of the server. Without it, the API is served without TLS
    #[arg(
        long,
        env = "MAINSTAY_SERVER_CERT",
        value_name = "FILE",
        requires = "key"
    )]
    pub(crate) cert: Option<PathBuf>,

    /// Private key of the server
    #[arg(
        long,
        env = "MAINSTAY_SERVER_KEY",
        value_name = "FILE",
        requires = "cert"
    )]
    pub(crate) key: Option<PathBuf>,

    /// CA of client certificates. With it, every client needs a certificate
    #[arg(
        long,
        env = "MAINSTAY_SERVER_CLIENT_CA",
        value_name = "FILE",
        requires = "cert"
    )]
    pub(crate) client_ca: Option<PathBuf>,
}

fn parse_interval(text: &str) -> Result<Duration, String> {
    let parsed: SignedDuration = text
        .parse()
        .map_err(|error: jiff::Error| error.to_string())?;
    match Duration::try_from(parsed) {
        Ok(interval) if !interval.is_zero() => Ok(interval),
        _ => Err("must be positive".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn command_line_is_consistent() {
        ServerArgs::command().debug_assert();
    }

    #[test]
    fn flags_that_need_others_are_refused_without_them() {
        let parse = |arguments: &[&str]| {
            let all = ["mainstay-server", "serve"].iter().chain(arguments);
            ServerArgs::try_parse_from(all)
        };
        assert!(parse(&["--grant", "a=read"]).is_err());
        let tls = [
            "--cert",
            "c",
            "--key",
            "k",
            "--client-ca",
            "ca",
            "--grant",
            "a=read",
        ];
        assert!(parse(&tls).is_ok());
        assert!(parse(&["--progress-interval", "0s"]).is_err());
        assert!(
            parse(&["--engine", "redb"]).is_err(),
            "it needs a directory"
        );
    }
}
