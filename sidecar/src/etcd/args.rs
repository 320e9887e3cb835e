//! Flags of the etcd connection, with the names that etcd-backup-restore uses.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use jiff::SignedDuration;
use mainstay_etcd::TlsFiles;
use mainstay_store::Secret;
use url::Url;

use super::{EtcdClientConfig, Password};

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "etcd")]
pub struct EtcdArgs {
    /// Client URL of this sidecar's member
    ///
    /// Further URLs, comma-separated, are used only to reach the cluster for membership changes if --service-endpoints is
    /// not set.
    #[arg(
        short,
        long,
        env = "MAINSTAY_ENDPOINTS",
        value_name = "URL",
        value_delimiter = ',',
        default_value = "http://127.0.0.1:2379"
    )]
    pub(crate) endpoints: Vec<Url>,

    /// Client URLs that reach any member, for membership changes
    ///
    /// Default: the further URLs of --endpoints, or else this sidecar's member.
    #[arg(
        long,
        env = "MAINSTAY_SERVICE_ENDPOINTS",
        value_name = "URL",
        value_delimiter = ','
    )]
    pub(crate) service_endpoints: Vec<Url>,

    /// etcd user, if etcd has authentication enabled
    #[arg(long, env = "MAINSTAY_ETCD_USERNAME", value_name = "NAME")]
    pub(crate) etcd_username: Option<String>,

    /// Password of the etcd user
    ///
    /// Visible in the process list: prefer --etcd-password-file.
    #[arg(
        long,
        env = "MAINSTAY_ETCD_PASSWORD",
        value_name = "PASSWORD",
        hide_env_values = true
    )]
    pub(crate) etcd_password: Option<String>,

    /// File that contains the password of the etcd user
    ///
    /// Reloaded when it changes.
    #[arg(
        long,
        env = "MAINSTAY_ETCD_PASSWORD_FILE",
        value_name = "FILE",
        conflicts_with = "etcd_password"
    )]
    pub(crate) etcd_password_file: Option<PathBuf>,

    /// Timeout for connecting to etcd
    #[arg(
        long,
        env = "MAINSTAY_ETCD_CONNECTION_TIMEOUT",
        value_name = "DURATION",
        default_value = "30s"
    )]
    pub(crate) etcd_connection_timeout: SignedDuration,

    /// Timeout for taking a full snapshot
    #[arg(
        long,
        env = "MAINSTAY_ETCD_SNAPSHOT_TIMEOUT",
        value_name = "DURATION",
        default_value = "15m"
    )]
    pub(crate) etcd_snapshot_timeout: SignedDuration,

    /// Timeout of one request to etcd while checking leadership
    #[arg(
        long,
        env = "MAINSTAY_ETCD_CONNECTION_TIMEOUT_LEADER_ELECTION",
        value_name = "DURATION",
        default_value = "5s"
    )]
    pub(crate) etcd_connection_timeout_leader_election: SignedDuration,

    /// CA bundle that verifies etcd's certificate, PEM; required for https endpoints
    #[arg(long, env = "MAINSTAY_CACERT", value_name = "FILE")]
    pub(crate) cacert: Option<PathBuf>,

    /// Client certificate for etcd, PEM
    #[arg(long, env = "MAINSTAY_CERT", value_name = "FILE", requires = "key")]
    pub(crate) cert: Option<PathBuf>,

    /// Private key of the client certificate, PEM
    #[arg(long, env = "MAINSTAY_KEY", value_name = "FILE", requires = "cert")]
    pub(crate) key: Option<PathBuf>,

    /// No effect: the scheme of an endpoint selects TLS
    #[arg(long, num_args = 0..=1, default_missing_value = "true", hide = true)]
    pub(crate) insecure_transport: Option<bool>,

    /// Rejected for https endpoints: certificates are always verified
    #[arg(long, num_args = 0..=1, default_missing_value = "true", hide = true)]
    pub(crate) insecure_skip_tls_verify: Option<bool>,
}

/// Flags that are invalid in combination.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EtcdArgsError {
    #[error("--endpoints is empty: set the client URL of this sidecar's member")]
    NoEndpoint,
    #[error("endpoint {url}: scheme must be http or https")]
    Scheme { url: Url },
    #[error("endpoint {url} uses https, but no CA is configured: set --cacert")]
    NoCa { url: Url },
    #[error(
        "--insecure-skip-tls-verify is not supported for {url}: it could back up the wrong server. Set --cacert"
    )]
    SkipVerify { url: Url },
    #[error("--etcd-username {name} has no password: set --etcd-password-file")]
    NoPassword { name: String },
    #[error("failed to read password file {}", path.display())]
    PasswordFile {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("--{flag} must be greater than zero")]
    Duration { flag: &'static str },
}

impl EtcdArgs {
    /// Validates the combination of flags, and that the password file is readable.
    pub fn into_config(self) -> Result<EtcdClientConfig, EtcdArgsError> {
        let first = self.endpoints.first().ok_or(EtcdArgsError::NoEndpoint)?;
        for url in self.endpoints.iter().chain(&self.service_endpoints) {
            self.check_endpoint(url)?;
        }
        // etcd-druid sets the flag for plain http as well, where it has no effect.
        if self.insecure_skip_tls_verify == Some(true) && first.scheme() == "https" {
            return Err(EtcdArgsError::SkipVerify { url: first.clone() });
        }
        let user = match &self.etcd_username {
            Some(name) => Some((name.clone(), self.load_password(name)?)),
            None => None,
        };
        Ok(EtcdClientConfig {
            connection_timeout: require_positive(
                self.etcd_connection_timeout,
                "etcd-connection-timeout",
            )?,
            snapshot_timeout: require_positive(
                self.etcd_snapshot_timeout,
                "etcd-snapshot-timeout",
            )?,
            request_timeout: require_positive(
                self.etcd_connection_timeout_leader_election,
                "etcd-connection-timeout-leader-election",
            )?,
            tls: TlsFiles {
                ca: self.cacert,
                identity: self.cert.zip(self.key),
            },
            endpoints: self.endpoints,
            service_endpoints: self.service_endpoints,
            user,
        })
    }

    fn check_endpoint(&self, url: &Url) -> Result<(), EtcdArgsError> {
        match url.scheme() {
            "http" => Ok(()),
            "https" if self.cacert.is_some() => Ok(()),
            "https" => Err(EtcdArgsError::NoCa { url: url.clone() }),
            _ => Err(EtcdArgsError::Scheme { url: url.clone() }),
        }
    }

    fn load_password(&self, name: &str) -> Result<Password, EtcdArgsError> {
        if let Some(path) = &self.etcd_password_file {
            let password = Password::File(path.clone());
            password
                .read()
                .map_err(|source| EtcdArgsError::PasswordFile {
                    path: path.clone(),
                    source,
                })?;
            return Ok(password);
        }
        let password = self.etcd_password.as_deref();
        password
            .map(|text| Password::Text(Secret::new(text)))
            .ok_or_else(|| EtcdArgsError::NoPassword {
                name: name.to_owned(),
            })
    }
}

/// Rejects zero and negative durations.
pub(crate) fn require_positive(
    given: SignedDuration,
    flag: &'static str,
) -> Result<Duration, EtcdArgsError> {
    Duration::try_from(given)
        .ok()
        .filter(|duration| !duration.is_zero())
        .ok_or(EtcdArgsError::Duration { flag })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct EtcdCommand {
        #[command(flatten)]
        etcd: EtcdArgs,
    }

    fn parse_config(flags: &[&str]) -> Result<EtcdClientConfig, EtcdArgsError> {
        let line = [&["sidecar"], flags].concat();
        EtcdCommand::parse_from(line).etcd.into_config()
    }

    #[test]
    fn default_endpoint_is_the_local_member() {
        let config = parse_config(&[]).unwrap();
        assert_eq!(config.endpoints[0].as_str(), "http://127.0.0.1:2379/");
        assert_eq!(config.snapshot_timeout, Duration::from_mins(15));
    }

    #[test]
    fn https_endpoint_requires_a_ca() {
        let refused = parse_config(&["--endpoints", "https://etcd:2379"]).unwrap_err();
        assert!(matches!(refused, EtcdArgsError::NoCa { .. }), "{refused}");
        parse_config(&["--endpoints", "https://etcd:2379", "--cacert", "ca.crt"]).unwrap();
    }

    #[test]
    fn tls_verification_cannot_be_disabled() {
        let flags = ["--endpoints=https://etcd:2379", "--cacert=ca.crt"];
        let refused =
            parse_config(&[&flags[..], &["--insecure-skip-tls-verify"]].concat()).unwrap_err();
        assert!(
            matches!(refused, EtcdArgsError::SkipVerify { .. }),
            "{refused}"
        );
        // The flags of an etcd-backup-restore without TLS.
        parse_config(&[
            "--insecure-transport=true",
            "--insecure-skip-tls-verify=true",
        ])
        .unwrap();
    }

    #[test]
    fn password_file_is_read_without_the_line_end() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "s3cret\n").unwrap();
        let path = file.path().to_str().unwrap();
        let config = parse_config(&["--etcd-username=root", "--etcd-password-file", path]).unwrap();
        let (name, password) = config.user.unwrap();
        let read = password.read().unwrap();
        assert_eq!((name.as_str(), read.expose()), ("root", "s3cret"));
    }
}
