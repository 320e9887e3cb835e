//! Flags of the HTTP server. Those up to `--server-key` have the names and defaults of etcd-backup-restore.

use std::convert::Infallible;
use std::net::IpAddr;
use std::path::PathBuf;

use clap::{ArgAction, Args};

use super::{HttpConfig, HttpLimits, LeaderTlsFiles, ServerTlsFiles, SnapshotMethods};

/// Default port of etcd-backup-restore.
pub(super) const DEFAULT_PORT: u16 = 8080;

/// Flags that are invalid in combination.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum HttpArgsError {
    /// A certificate without a key, or a key without a certificate.
    #[error("--server-cert and --server-key must be set together: {missing} is missing")]
    IncompletePair { missing: &'static str },
    #[error("--server-client-ca requires --server-cert and --server-key")]
    ClientCaWithoutTls,
}

#[derive(Debug, Clone, PartialEq, Eq, Args)]
#[command(next_help_heading = "HTTP server")]
pub struct HttpArgs {
    /// Port that serves health, metrics, status and on-demand snapshots
    #[arg(long = "server-port", short = 'p', env = "MAINSTAY_SERVER_PORT",
        value_name = "PORT", default_value_t = DEFAULT_PORT)]
    pub(crate) server_port: u16,

    /// Certificate chain of the server, PEM; together with --server-key enables TLS
    ///
    /// Reloaded when it changes.
    #[arg(long = "server-cert", env = "MAINSTAY_SERVER_CERT",
        value_name = "FILE", value_parser = parse_path)]
    pub(crate) server_cert: Option<PathBuf>,

    /// Private key of the server, PEM
    ///
    /// Reloaded when it changes.
    #[arg(long = "server-key", env = "MAINSTAY_SERVER_KEY",
        value_name = "FILE", value_parser = parse_path)]
    pub(crate) server_key: Option<PathBuf>,

    /// No effect: accepted for compatibility, there is no profiler
    #[arg(long = "enable-profiling", env = "MAINSTAY_ENABLE_PROFILING", hide = true,
        value_name = "BOOL", action = ArgAction::Set, default_value_t = false,
        num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(crate) enable_profiling: bool,

    /// CA bundle that verifies client certificates, PEM
    ///
    /// If set, /snapshot/* and /status require a client certificate of one of these CAs. /healthz, /readyz and /metrics do
    /// not, because kubelets have no client certificate. Reloaded when it changes.
    #[arg(long = "server-client-ca", env = "MAINSTAY_SERVER_CLIENT_CA",
        value_name = "FILE", value_parser = parse_path)]
    pub(crate) server_client_ca: Option<PathBuf>,

    /// IP address to listen on [default: all addresses, IPv4 and IPv6]
    #[arg(
        long = "listen-address",
        env = "MAINSTAY_LISTEN_ADDRESS",
        value_name = "ADDRESS"
    )]
    pub(crate) listen_address: Option<IpAddr>,

    /// Accept only POST for /snapshot/full and /snapshot/delta
    ///
    /// By default GET is accepted as well, because clients of etcd-backup-restore use it.
    #[arg(long = "require-post", env = "MAINSTAY_REQUIRE_POST",
        value_name = "BOOL", action = ArgAction::Set, default_value_t = false,
        num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(crate) require_post: bool,
}

impl HttpArgs {
    /// Validates the combination of flags. The caller fills in `delegation`, which follows from the flags of etcd.
    pub fn into_config(self) -> Result<HttpConfig, HttpArgsError> {
        let Self {
            server_port,
            server_cert,
            server_key,
            enable_profiling: _,
            server_client_ca,
            listen_address,
            require_post,
        } = self;
        let client_ca = non_empty(server_client_ca);
        let tls = match (non_empty(server_cert), non_empty(server_key)) {
            (Some(certificate), Some(key)) => Some(ServerTlsFiles {
                certificate,
                key,
                client_ca,
            }),
            (None, None) if client_ca.is_some() => return Err(HttpArgsError::ClientCaWithoutTls),
            (None, None) => None,
            (Some(_), None) => {
                return Err(HttpArgsError::IncompletePair {
                    missing: "--server-key",
                });
            }
            (None, Some(_)) => {
                return Err(HttpArgsError::IncompletePair {
                    missing: "--server-cert",
                });
            }
        };
        let snapshot_methods = if require_post {
            SnapshotMethods::PostOnly
        } else {
            SnapshotMethods::GetOrPost
        };
        Ok(HttpConfig {
            listen_address,
            port: server_port,
            tls,
            snapshot_methods,
            leader_tls: LeaderTlsFiles::default(),
            limits: HttpLimits::default(),
        })
    }
}

/// Charts pass `--server-cert=` for no certificate.
fn non_empty(path: Option<PathBuf>) -> Option<PathBuf> {
    path.filter(|path| !path.as_os_str().is_empty())
}

#[expect(clippy::unnecessary_wraps, reason = "the form clap asks for")]
fn parse_path(text: &str) -> Result<PathBuf, Infallible> {
    Ok(PathBuf::from(text))
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::*;

    #[derive(Parser)]
    struct HttpCommand {
        #[command(flatten)]
        http: HttpArgs,
    }

    fn parse_config(flags: &[&str]) -> Result<HttpConfig, HttpArgsError> {
        let flags = [&["sidecar"], flags].concat();
        HttpCommand::try_parse_from(flags)
            .unwrap()
            .http
            .into_config()
    }

    #[test]
    fn flag_definitions_are_valid() {
        HttpCommand::command().debug_assert();
    }

    #[test]
    fn default_is_plain_http_on_port_8080() {
        let config = parse_config(&[]).unwrap();
        assert_eq!((config.port, config.listen_address), (8080, None));
        assert_eq!(
            (config.tls, config.snapshot_methods),
            (None, SnapshotMethods::GetOrPost)
        );
    }

    #[test]
    fn etcd_backup_restore_spellings_are_accepted() {
        let flags = [
            "-p",
            "2380",
            "--enable-profiling=true",
            "--server-cert=",
            "--server-key=",
        ];
        let config = parse_config(&flags).unwrap();
        assert_eq!((config.port, config.tls), (2380, None));
        assert!(HttpCommand::try_parse_from(["sidecar", "--enable-profiling"]).is_ok());
    }

    #[test]
    fn incomplete_tls_flags_are_refused_with_the_missing_flag() {
        let refused = |flags: &[&str]| parse_config(flags).unwrap_err().to_string();
        assert!(refused(&["--server-cert", "a"]).contains("--server-key is missing"));
        assert!(refused(&["--server-key", "a"]).contains("--server-cert is missing"));
        let error = parse_config(&["--server-client-ca", "ca"]).unwrap_err();
        assert_eq!(error, HttpArgsError::ClientCaWithoutTls);
    }

    #[test]
    fn complete_tls_flags_and_the_other_flags_are_applied() {
        let flags = [
            "--server-cert=c",
            "--server-key=k",
            "--server-client-ca=a",
            "--listen-address=::1",
            "--require-post",
        ];
        let config = parse_config(&flags).unwrap();
        let files = ServerTlsFiles {
            certificate: "c".into(),
            key: "k".into(),
            client_ca: Some("a".into()),
        };
        assert_eq!(config.tls, Some(files));
        assert_eq!(config.listen_address, Some("::1".parse().unwrap()));
        assert_eq!(config.snapshot_methods, SnapshotMethods::PostOnly);
    }
}
