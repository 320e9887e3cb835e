//! Forwards a request to the leader's sidecar.
//!
//! The leader's sidecar has the host of its member's client URL, and the port and scheme of this server: the sidecars of
//! a cluster have the same configuration. Its health is checked first. A request that arrives with [`FORWARDED_HEADER`]
//! is not forwarded again: otherwise two sidecars that take each other for the leader would loop.
//!
//! As in etcd-backup-restore, failing to find a healthy leader is a 405; a later failure is a 502 or 504.

use std::error::Error as StdError;
use std::io;
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use axum::body::Body;
use axum::extract::Request;
use axum::http::header::{ALLOW, CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderName, StatusCode};
use axum::response::Response;
use mainstay_ids::MemberId;
use mainstay_telemetry::ErrorChain;
use reqwest::{Certificate, Client, Identity, redirect};
use tokio::time::timeout;
use tracing::{info, warn};
use url::Url;

use super::error_response::ErrorResponse;
use super::request_queue::RequestQueue;
use super::routes::HttpApp;
use super::{HttpLimits, LeaderTlsFiles};

/// Marks a request as forwarded by another sidecar.
pub const FORWARDED_HEADER: &str = "x-mainstay-forwarded";

/// Headers of the leader's response that are relayed.
const RELAYED_HEADERS: [HeaderName; 3] = [ALLOW, CONTENT_TYPE, RETRY_AFTER];

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LeaderError {
    #[error("etcd has no leader")]
    NoLeader,
    #[error("leader {leader} advertises no client URL")]
    NoClientUrl { leader: MemberId },
    #[error("failed to look up the leader in etcd")]
    Lookup {
        source: Box<dyn StdError + Send + Sync>,
    },
}

/// Looks up the leader of etcd.
#[async_trait]
pub trait FindLeader: Send + Sync + 'static {
    /// The first client URL that the leader advertises.
    async fn find_leader_url(&self) -> Result<Url, LeaderError>;
}

/// Failure to build the HTTP client.
#[derive(Debug, thiserror::Error)]
enum LeaderClientError {
    #[error("failed to read {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{} is not a valid PEM file", path.display())]
    Pem {
        path: PathBuf,
        source: reqwest::Error,
    },
    #[error("failed to build the HTTP client")]
    Build { source: reqwest::Error },
}

/// Sends the request to the leader's sidecar and relays its response.
pub(super) async fn forward_to_leader(
    app: &HttpApp,
    lane: &RequestQueue,
    request: Request,
) -> Result<Response, ErrorResponse> {
    if request.headers().contains_key(FORWARDED_HEADER) {
        return Err(ErrorResponse::unavailable_here(
            "this sidecar does not lead, and the request was already forwarded once",
        ));
    }
    let limits = &app.config.limits;
    let _active = lane.acquire(limits.queue_timeout).await?;
    let base = find_leader_sidecar(app).await?;
    let client = build_client(app).await.map_err(|error| {
        warn!(error = %ErrorChain(&error), "failed to set up the connection to the leader's sidecar");
        ErrorResponse::unavailable_here("failed to set up the connection to the leader's sidecar")
    })?;
    check_health(&client, &base, limits).await?;
    info!("forwarding snapshot request to the leader's sidecar");
    let asked = client
        .request(request.method().clone(), build_target_url(&base, &request))
        .header(FORWARDED_HEADER, "1")
        .timeout(limits.snapshot_timeout)
        .send();
    let response = asked.await.map_err(|error| to_gateway_error(&error))?;
    relay_response(response, limits.max_response_bytes).await
}

/// Scheme, host and port of the leader's sidecar.
async fn find_leader_sidecar(app: &HttpApp) -> Result<Url, ErrorResponse> {
    let asked = app.backend.leader_finder.find_leader_url();
    let found = timeout(app.config.limits.leader_timeout, asked).await;
    let found =
        found.map_err(|_| ErrorResponse::unavailable_here("leader lookup in etcd timed out"))?;
    let url =
        found.map_err(|error| ErrorResponse::unavailable_here(ErrorChain(&error).to_string()))?;
    let scheme = if app.config.tls.is_some() {
        "https"
    } else {
        "http"
    };
    sidecar_url(&url, scheme, app.port).ok_or_else(|| {
        ErrorResponse::unavailable_here(format!("client URL {url} of the leader has no host"))
    })
}

fn sidecar_url(member: &Url, scheme: &str, port: u16) -> Option<Url> {
    let host = member.host_str().filter(|host| !host.is_empty())?;
    Url::parse(&format!("{scheme}://{host}:{port}/")).ok()
}

/// Same path and query at the leader's sidecar.
fn build_target_url(base: &Url, request: &Request) -> Url {
    let mut target = base.clone();
    target.set_path(request.uri().path());
    target.set_query(request.uri().query());
    target
}

async fn check_health(
    client: &Client,
    base: &Url,
    limits: &HttpLimits,
) -> Result<(), ErrorResponse> {
    let mut url = base.clone();
    url.set_path("/healthz");
    let asked = client.get(url).timeout(limits.leader_timeout).send().await;
    match asked {
        Ok(response) if response.status() == StatusCode::OK => Ok(()),
        Ok(_) => Err(ErrorResponse::unavailable_here(
            "the leader's sidecar is not healthy",
        )),
        Err(error) => {
            warn!(error = %ErrorChain(&error), "health check of the leader's sidecar failed");
            Err(ErrorResponse::unavailable_here(
                "health check of the leader's sidecar failed",
            ))
        }
    }
}

fn to_gateway_error(error: &reqwest::Error) -> ErrorResponse {
    warn!(error = %ErrorChain(error), "request to the leader's sidecar failed");
    if error.is_timeout() {
        let text = "request to the leader's sidecar timed out";
        ErrorResponse::new(StatusCode::GATEWAY_TIMEOUT, text)
    } else {
        ErrorResponse::new(
            StatusCode::BAD_GATEWAY,
            "request to the leader's sidecar failed",
        )
    }
}

/// Relays a response of at most `max_total` bytes.
async fn relay_response(
    mut received: reqwest::Response,
    max_total: usize,
) -> Result<Response, ErrorResponse> {
    let mut body = Vec::new();
    while let Some(piece) = received
        .chunk()
        .await
        .map_err(|error| to_gateway_error(&error))?
    {
        if body.len() + piece.len() > max_total {
            let text = "response of the leader's sidecar is too large";
            return Err(ErrorResponse::new(StatusCode::BAD_GATEWAY, text));
        }
        body.extend_from_slice(&piece);
    }
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = received.status();
    for name in RELAYED_HEADERS {
        if let Some(value) = received.headers().get(&name) {
            response.headers_mut().insert(name, value.clone());
        }
    }
    Ok(response)
}

/// A new client for each request: they are rare, and the certificate files may have changed.
async fn build_client(app: &HttpApp) -> Result<Client, LeaderClientError> {
    let mut builder = Client::builder()
        // A redirect or proxy would send the request to something that is not the leader's sidecar.
        .redirect(redirect::Policy::none())
        .no_proxy()
        .connect_timeout(app.config.limits.leader_timeout);
    if app.config.tls.is_some() {
        let LeaderTlsFiles { ca, identity } = &app.config.leader_tls;
        if let Some(path) = ca {
            let bundle = Certificate::from_pem_bundle(&read_file(path).await?);
            builder = builder.tls_certs_only(bundle.map_err(|source| to_pem_error(path, source))?);
        }
        if let Some((certificate, key)) = identity {
            let mut pem = read_file(certificate).await?;
            pem.push(b'\n');
            pem.extend(read_file(key).await?);
            let identity = Identity::from_pem(&pem);
            builder =
                builder.identity(identity.map_err(|source| to_pem_error(certificate, source))?);
        }
    }
    builder
        .build()
        .map_err(|source| LeaderClientError::Build { source })
}

async fn read_file(path: &Path) -> Result<Vec<u8>, LeaderClientError> {
    let bytes = tokio::fs::read(path).await;
    bytes.map_err(|source| LeaderClientError::Read {
        path: path.to_owned(),
        source,
    })
}

fn to_pem_error(path: &Path, source: reqwest::Error) -> LeaderClientError {
    LeaderClientError::Pem {
        path: path.to_owned(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leader_sidecar_url_has_the_member_host_and_own_scheme_and_port() {
        let found = |url: &str| {
            let url = Url::parse(url).unwrap();
            sidecar_url(&url, "http", 8080).map(String::from)
        };
        let expected = |text: &str| Some(text.to_owned());
        let plain = found("https://etcd-main-2.etcd-main-peer.ns.svc:2379/x?y");
        assert_eq!(
            plain,
            expected("http://etcd-main-2.etcd-main-peer.ns.svc:8080/")
        );
        assert_eq!(
            found("http://[fd00::1]:2379"),
            expected("http://[fd00::1]:8080/")
        );
        assert_eq!(
            found("http://user:secret@host:2379"),
            expected("http://host:8080/")
        );
        assert_eq!(found("unix:/run/etcd.sock"), None);
    }
}
