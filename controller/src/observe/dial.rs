//! How members are reached: by the address of their pod, under the name their certificate carries.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Certificate, Client as EtcdClient, ConnectOptions, Identity, TlsOptions};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};
use mainstay_crds::Etcd;
use mainstay_crds::tls::TlsConfig;
use tokio::sync::Mutex;

/// How long connecting may take, and any one question.
const DIAL_TIMEOUT: Duration = Duration::from_secs(2);

/// The key of authorities that is used where none is told and the usual one is not there.
const FALLBACK_CA_KEY: &str = "bundle.crt";

/// Where one member is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdEndpoint {
    /// Its client URL, by address.
    pub url: String,
    /// The name its certificate carries; that in the URL when there is none.
    pub server_name: Option<String>,
    /// The certificates its pod was made with; those of the spec when absent.
    pub tls: Option<TlsConfig>,
}

/// Why a member cannot be asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DialError {
    /// A secret cannot be had.
    #[error("read the secret {name}")]
    Secret {
        /// Which.
        name: String,
        /// What the API server said.
        source: Box<kube::Error>,
    },
    /// A secret lacks a key.
    #[error("the secret {name} has no {key}")]
    MissingKey {
        /// Which.
        name: String,
        /// What it lacks.
        key: String,
    },
    /// There is no connection.
    #[error("connect to {url}")]
    Connect {
        /// Where.
        url: String,
        /// Why.
        source: etcd_client::Error,
    },
    /// The question was refused.
    #[error("{operation} at {url}")]
    Request {
        /// What was asked.
        operation: &'static str,
        /// Whom.
        url: String,
        /// What it said.
        source: etcd_client::Error,
    },
    /// There was no answer in time.
    #[error("no answer of {url} to {operation} within {DIAL_TIMEOUT:?}")]
    Timeout {
        /// What was asked.
        operation: &'static str,
        /// Whom.
        url: String,
    },
}

/// Connects to the members of one cluster.
///
/// While certificates are switched on, off, or to another authority, its pods differ: each is spoken to with those it was made
/// with. Secrets are read by name, once each, and only where a listener needs certificates.
#[derive(Clone)]
pub struct Dialer {
    secrets: Api<Secret>,
    spec_tls: Option<TlsConfig>,
    loaded: Arc<Mutex<Vec<(TlsConfig, TlsMaterial)>>>,
}

/// Certificates as they stand in secrets.
#[derive(Clone)]
struct TlsMaterial {
    ca: Vec<u8>,
    identity: Option<(Vec<u8>, Vec<u8>)>,
}

impl std::fmt::Debug for Dialer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Dialer")
            .field("tls", &self.spec_tls.is_some())
            .finish_non_exhaustive()
    }
}

impl Dialer {
    /// For one cluster.
    pub fn new(client: &Client, etcd: &Etcd) -> Self {
        let namespace = etcd.metadata.namespace.as_deref().unwrap_or_default();
        Self {
            secrets: Api::namespaced(client.clone(), namespace),
            spec_tls: etcd.spec.etcd.client_url_tls.clone(),
            loaded: Arc::default(),
        }
    }

    /// What a listener asks for and is checked against; `None` for one that is plain.
    async fn load_material(&self, reach: &EtcdEndpoint) -> Result<Option<TlsMaterial>, DialError> {
        let tls = reach.tls.as_ref().or(self.spec_tls.as_ref());
        let Some(tls) = tls.filter(|_| reach.url.starts_with("https:")) else {
            return Ok(None);
        };
        let mut read = self.loaded.lock().await;
        if let Some((_, material)) = read.iter().find(|(known, _)| known == tls) {
            return Ok(Some(material.clone()));
        }
        let ca = read_ca(&self.secrets, tls).await?;
        // The listener asks for a certificate; without one for clients the server's own is shown.
        let identity = match tls.client_secret().or(tls.server.non_empty_name()) {
            Some(name) => Some(read_key_pair(&self.secrets, name).await?),
            None => None,
        };
        let material = TlsMaterial { ca, identity };
        read.push((tls.clone(), material.clone()));
        Ok(Some(material))
    }

    /// A client of one member, and of no other.
    pub async fn connect(&self, reach: &EtcdEndpoint) -> Result<EtcdClient, DialError> {
        self.connect_with_timeout(reach, DIAL_TIMEOUT).await
    }

    /// The same, for questions whose answers may take longer.
    pub(crate) async fn connect_with_timeout(
        &self,
        reach: &EtcdEndpoint,
        limit: Duration,
    ) -> Result<EtcdClient, DialError> {
        let mut options = ConnectOptions::new()
            .with_connect_timeout(DIAL_TIMEOUT)
            .with_timeout(limit);
        if let Some(material) = self.load_material(reach).await? {
            let mut tls = TlsOptions::new().ca_certificate(Certificate::from_pem(&material.ca));
            if let Some(name) = &reach.server_name {
                tls = tls.domain_name(name);
            }
            if let Some((certificate, key)) = &material.identity {
                tls = tls.identity(Identity::from_pem(certificate, key));
            }
            options = options.with_tls(tls);
        }
        let connecting = EtcdClient::connect([&reach.url], Some(options));
        match tokio::time::timeout(DIAL_TIMEOUT, connecting).await {
            Ok(connected) => connected.map_err(|source| DialError::Connect {
                url: reach.url.clone(),
                source,
            }),
            Err(_) => Err(DialError::Timeout {
                operation: "connect",
                url: reach.url.clone(),
            }),
        }
    }
}

/// Asks one question with a deadline.
pub(crate) async fn call_with_timeout<T>(
    question: &'static str,
    reach: &EtcdEndpoint,
    limit: Duration,
    answer: impl Future<Output = Result<T, etcd_client::Error>>,
) -> Result<T, DialError> {
    match tokio::time::timeout(limit, answer).await {
        Ok(answer) => answer.map_err(|source| DialError::Request {
            operation: question,
            url: reach.url.clone(),
            source,
        }),
        Err(_) => Err(DialError::Timeout {
            operation: question,
            url: reach.url.clone(),
        }),
    }
}

/// A question with the usual deadline.
pub(crate) async fn call<T>(
    question: &'static str,
    reach: &EtcdEndpoint,
    answer: impl Future<Output = Result<T, etcd_client::Error>>,
) -> Result<T, DialError> {
    call_with_timeout(question, reach, DIAL_TIMEOUT, answer).await
}

/// The authorities of a listener.
pub(crate) async fn read_ca(
    secrets: &Api<Secret>,
    tls: &TlsConfig,
) -> Result<Vec<u8>, DialError> {
    let name = tls.ca.non_empty_name().unwrap_or_default();
    let data = read_secret(secrets, name).await?;
    let found = get_entry(&data, name, tls.ca.key());
    match tls.ca.data_key {
        Some(_) => found,
        // A pod does not always tell the key.
        None => found.or_else(|error| get_entry(&data, name, FALLBACK_CA_KEY).map_err(|_| error)),
    }
}

async fn read_key_pair(secrets: &Api<Secret>, name: &str) -> Result<(Vec<u8>, Vec<u8>), DialError> {
    let data = read_secret(secrets, name).await?;
    Ok((
        get_entry(&data, name, "tls.crt")?,
        get_entry(&data, name, "tls.key")?,
    ))
}

type SecretData = BTreeMap<String, ByteString>;

async fn read_secret(secrets: &Api<Secret>, name: &str) -> Result<SecretData, DialError> {
    let secret = secrets
        .get(name)
        .await
        .map_err(|source| DialError::Secret {
            name: name.to_owned(),
            source: Box::new(source),
        })?;
    Ok(secret.data.unwrap_or_default())
}

fn get_entry(data: &SecretData, name: &str, key: &str) -> Result<Vec<u8>, DialError> {
    data.get(key)
        .map(|bytes| bytes.0.clone())
        .ok_or_else(|| DialError::MissingKey {
            name: name.to_owned(),
            key: key.to_owned(),
        })
}
