//! Connects to etcd members by pod IP. TLS verifies the certificate against the DNS name of the pod.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::Client as EtcdClient;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};
use mainstay_crds::Etcd;
use mainstay_crds::tls::TlsConfig;
use mainstay_etcd::{ConnectSettings, RequestError, TlsMaterial, connect, with_deadline};
use tokio::sync::Mutex;

/// Timeout of connecting and of a single request.
pub(super) const DIAL_TIMEOUT: Duration = Duration::from_secs(2);

/// Key of the CA in a Secret that is used when none is configured and the default key is missing.
const FALLBACK_CA_KEY: &str = "bundle.crt";

/// Endpoint of one member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EtcdEndpoint {
    /// Client URL with the pod IP.
    pub(crate) url: String,
    /// Name to verify in the certificate; `None` uses the host of the URL.
    pub(crate) server_name: Option<String>,
    /// Certificates the pod was created with; `None` uses those of the spec.
    pub(crate) tls: Option<TlsConfig>,
}

/// Errors of reading certificates and calling etcd.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum DialError {
    #[error("failed to read Secret {name}")]
    Secret {
        name: String,
        source: Box<kube::Error>,
    },
    #[error("Secret {name} has no key {key}")]
    MissingKey { name: String, key: String },
    #[error("failed to connect to {url}")]
    Connect {
        url: String,
        source: etcd_client::Error,
    },
    #[error("{url}: {operation} failed")]
    Request {
        operation: &'static str,
        url: String,
        source: etcd_client::Error,
    },
    #[error("{url}: {operation} timed out")]
    Timeout {
        operation: &'static str,
        url: String,
    },
    #[error("{url}: {operation}: response without header")]
    NoHeader {
        operation: &'static str,
        url: String,
    },
}

impl DialError {
    /// Names the operation and the member that a request failed on.
    pub(super) fn request_failed(
        operation: &'static str,
        endpoint: &EtcdEndpoint,
    ) -> impl FnOnce(RequestError) -> Self {
        let url = endpoint.url.clone();
        move |error| match error {
            RequestError::Failed(source) => Self::Request {
                operation,
                url,
                source: *source,
            },
            RequestError::NoHeader => Self::NoHeader { operation, url },
            _ => Self::Timeout { operation, url },
        }
    }
}

/// Connects to the members of one cluster.
///
/// While TLS or its CA is switched, pods of one cluster differ, so each pod is called with the certificates it was created
/// with. Each Secret is read once, and only for endpoints with TLS.
#[derive(Clone)]
pub(crate) struct Dialer {
    secrets: Api<Secret>,
    spec_tls: Option<TlsConfig>,
    loaded: Arc<Mutex<Vec<(TlsConfig, TlsMaterial)>>>,
}

impl std::fmt::Debug for Dialer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Dialer")
            .field("tls", &self.spec_tls.is_some())
            .finish_non_exhaustive()
    }
}

impl Dialer {
    pub(crate) fn new(client: &Client, etcd: &Etcd) -> Self {
        let namespace = etcd.metadata.namespace.as_deref().unwrap_or_default();
        Self {
            secrets: Api::namespaced(client.clone(), namespace),
            spec_tls: etcd.spec.etcd.client_url_tls.clone(),
            loaded: Arc::default(),
        }
    }

    /// The CA and client certificate for an endpoint; `None` for one without TLS.
    async fn load_material(
        &self,
        endpoint: &EtcdEndpoint,
    ) -> Result<Option<TlsMaterial>, DialError> {
        let tls = endpoint.tls.as_ref().or(self.spec_tls.as_ref());
        let Some(tls) = tls.filter(|_| endpoint.url.starts_with("https:")) else {
            return Ok(None);
        };
        let mut loaded = self.loaded.lock().await;
        if let Some((_, material)) = loaded.iter().find(|(known, _)| known == tls) {
            return Ok(Some(material.clone()));
        }
        let ca = Some(read_ca(&self.secrets, tls).await?);
        // etcd requires a client certificate; without a client Secret, present the server certificate.
        let identity = match tls.client_secret().or(tls.server.non_empty_name()) {
            Some(name) => Some(read_key_pair(&self.secrets, name).await?),
            None => None,
        };
        let material = TlsMaterial {
            ca,
            identity,
            server_name: None,
        };
        loaded.push((tls.clone(), material.clone()));
        Ok(Some(material))
    }

    /// Connects to this member only: a client with several endpoints would answer from any of them.
    pub(crate) async fn connect(&self, endpoint: &EtcdEndpoint) -> Result<EtcdClient, DialError> {
        self.connect_with_timeout(endpoint, DIAL_TIMEOUT).await
    }

    /// Connects with a longer request timeout.
    pub(crate) async fn connect_with_timeout(
        &self,
        endpoint: &EtcdEndpoint,
        limit: Duration,
    ) -> Result<EtcdClient, DialError> {
        let tls = self.load_material(endpoint).await?;
        let settings = ConnectSettings {
            request_timeout: Some(limit),
            tls: tls.map(|material| TlsMaterial {
                server_name: endpoint.server_name.clone(),
                ..material
            }),
            ..ConnectSettings::new(DIAL_TIMEOUT)
        };
        connect(&[&endpoint.url], settings)
            .await
            .map_err(|error| match error {
                RequestError::Failed(source) => DialError::Connect {
                    url: endpoint.url.clone(),
                    source: *source,
                },
                error => DialError::request_failed("connect", endpoint)(error),
            })
    }
}

/// Awaits a request to etcd, at most for `limit`.
pub(crate) async fn call_with_timeout<T>(
    name: &'static str,
    endpoint: &EtcdEndpoint,
    limit: Duration,
    request: impl Future<Output = Result<T, etcd_client::Error>>,
) -> Result<T, DialError> {
    with_deadline(limit, request)
        .await
        .map_err(DialError::request_failed(name, endpoint))
}

/// The CA bundle of a listener, PEM-encoded.
pub(crate) async fn read_ca(secrets: &Api<Secret>, tls: &TlsConfig) -> Result<Vec<u8>, DialError> {
    let name = tls.ca.non_empty_name().unwrap_or_default();
    let data = read_secret(secrets, name).await?;
    let found = get_entry(&data, name, tls.ca.key());
    match tls.ca.data_key {
        Some(_) => found,
        // A TLS configuration read from a pod does not always contain the key.
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
