//! Flags about etcd, named as the peer names them.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use jiff::SignedDuration;
use mainstay_store::Secret;
use url::Url;

use super::{EtcdClientConfig, Password, ClientTlsFiles};

/// Flags about etcd.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "etcd")]
pub struct EtcdArgs {
    /// The own member's client URL; further ones are not asked
    #[arg(
        short,
        long,
        env = "MAINSTAY_ENDPOINTS",
        value_name = "URL",
        value_delimiter = ',',
        default_value = "http://127.0.0.1:2379"
    )]
    pub endpoints: Vec<Url>,

    /// Client URLs by which any member is reached, for changes of membership [default: the own member]
    #[arg(
        long,
        env = "MAINSTAY_SERVICE_ENDPOINTS",
        value_name = "URL",
        value_delimiter = ','
    )]
    pub service_endpoints: Vec<Url>,

    /// User to log in as, when etcd asks for one
    #[arg(long, env = "MAINSTAY_ETCD_USERNAME", value_name = "NAME")]
    pub etcd_username: Option<String>,

    /// Password of the user; a file keeps it out of the list of processes
    #[arg(
        long,
        env = "MAINSTAY_ETCD_PASSWORD",
        value_name = "PASSWORD",
        hide_env_values = true
    )]
    pub etcd_password: Option<String>,

    /// File that holds the password
    #[arg(
        long,
        env = "MAINSTAY_ETCD_PASSWORD_FILE",
        value_name = "FILE",
        conflicts_with = "etcd_password"
    )]
    pub etcd_password_file: Option<PathBuf>,

    /// How long connecting to etcd may take
    #[arg(
        long,
        env = "MAINSTAY_ETCD_CONNECTION_TIMEOUT",
        value_name = "DURATION",
        default_value = "30s"
    )]
    pub etcd_connection_timeout: SignedDuration,

    /// How long streaming a full snapshot may take
    #[arg(
        long,
        env = "MAINSTAY_ETCD_SNAPSHOT_TIMEOUT",
        value_name = "DURATION",
        default_value = "15m"
    )]
    pub etcd_snapshot_timeout: SignedDuration,

    /// How long one question to etcd may take while leadership is judged
    #[arg(
        long,
        env = "MAINSTAY_ETCD_CONNECTION_TIMEOUT_LEADER_ELECTION",
        value_name = "DURATION",
        default_value = "5s"
    )]
    pub etcd_connection_timeout_leader_election: SignedDuration,

    /// Certificates to trust, for https endpoints
    #[arg(long, env = "MAINSTAY_CACERT", value_name = "FILE")]
    pub cacert: Option<PathBuf>,

    /// Client certificate
    #[arg(long, env = "MAINSTAY_CERT", value_name = "FILE", requires = "key")]
    pub cert: Option<PathBuf>,

    /// Key of the client certificate
    #[arg(long, env = "MAINSTAY_KEY", value_name = "FILE", requires = "cert")]
    pub key: Option<PathBuf>,

    /// Without effect: the scheme of an endpoint says whether it is encrypted
    #[arg(long, num_args = 0..=1, default_missing_value = "true", hide = true)]
    pub insecure_transport: Option<bool>,

    /// Refused for https endpoints: certificates are always verified
    #[arg(long, num_args = 0..=1, default_missing_value = "true", hide = true)]
    pub insecure_skip_tls_verify: Option<bool>,
}

/// Why flags that parsed one by one do not make sense together.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EtcdArgsError {
    /// No endpoint.
    #[error("--endpoints is empty: give the client URL of the member beside this sidecar")]
    NoEndpoint,
    /// Neither http nor https.
    #[error("endpoint {url} is neither http:// nor https://")]
    Scheme {
        /// The endpoint.
        url: Url,
    },
    /// Nobody to trust.
    #[error("endpoint {url} is encrypted, but nothing says whom to trust: give --cacert")]
    NoCa {
        /// The endpoint.
        url: Url,
    },
    /// Verification cannot be switched off.
    #[error(
        "--insecure-skip-tls-verify is refused for {url}: a backup of whoever answers is no backup. Give --cacert"
    )]
    SkipVerify {
        /// The endpoint.
        url: Url,
    },
    /// A user without a password.
    #[error("--etcd-username {name} has no password: give --etcd-password-file")]
    NoPassword {
        /// The user.
        name: String,
    },
    /// The password file cannot be read.
    #[error("read the password file {}", path.display())]
    PasswordFile {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A time that is none.
    #[error("--{flag} must be longer than zero")]
    Duration {
        /// The flag.
        flag: &'static str,
    },
}

impl EtcdArgs {
    /// Checks the flags against each other, and that the password file can be read.
    pub fn into_config(self) -> Result<EtcdClientConfig, EtcdArgsError> {
        let first = self.endpoints.first().ok_or(EtcdArgsError::NoEndpoint)?;
        for url in self.endpoints.iter().chain(&self.service_endpoints) {
            self.check_endpoint(url)?;
        }
        if self.insecure_skip_tls_verify == Some(true) && first.scheme() == "https" {
            return Err(EtcdArgsError::SkipVerify { url: first.clone() });
        }
        let user = match &self.etcd_username {
            Some(name) => Some((name.clone(), self.load_password(name)?)),
            None => None,
        };
        Ok(EtcdClientConfig {
            connection_timeout: require_positive(self.etcd_connection_timeout, "etcd-connection-timeout")?,
            snapshot_timeout: require_positive(self.etcd_snapshot_timeout, "etcd-snapshot-timeout")?,
            request_timeout: require_positive(
                self.etcd_connection_timeout_leader_election,
                "etcd-connection-timeout-leader-election",
            )?,
            tls: ClientTlsFiles {
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

/// A duration that is one.
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
    fn without_flags_the_member_on_this_machine_is_asked() {
        let config = parse_config(&[]).unwrap();
        assert_eq!(config.endpoints[0].as_str(), "http://127.0.0.1:2379/");
        assert_eq!(config.snapshot_timeout, Duration::from_mins(15));
    }

    #[test]
    fn an_encrypted_endpoint_needs_someone_to_trust() {
        let refused = parse_config(&["--endpoints", "https://etcd:2379"]).unwrap_err();
        assert!(matches!(refused, EtcdArgsError::NoCa { .. }), "{refused}");
        parse_config(&["--endpoints", "https://etcd:2379", "--cacert", "ca.crt"]).unwrap();
    }

    #[test]
    fn verification_is_not_switched_off() {
        let flags = ["--endpoints=https://etcd:2379", "--cacert=ca.crt"];
        let refused = parse_config(&[&flags[..], &["--insecure-skip-tls-verify"]].concat()).unwrap_err();
        assert!(
            matches!(refused, EtcdArgsError::SkipVerify { .. }),
            "{refused}"
        );
        // As the peer is configured without encryption.
        parse_config(&[
            "--insecure-transport=true",
            "--insecure-skip-tls-verify=true",
        ])
        .unwrap();
    }

    #[test]
    fn a_password_is_read_from_its_file_without_the_line_end() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "s3cret\n").unwrap();
        let path = file.path().to_str().unwrap();
        let config = parse_config(&["--etcd-username=root", "--etcd-password-file", path]).unwrap();
        let (name, password) = config.user.unwrap();
        let read = password.read().unwrap();
        assert_eq!((name.as_str(), read.expose()), ("root", "s3cret"));
    }
}
