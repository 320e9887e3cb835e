//! Passes a request on to the sidecar that leads.
//!
//! The leader's sidecar has the host of its member's client URL and the port and scheme of this server: the sidecars of a
//! cluster are configured alike. It is asked for its health first. A request that arrives with [`FORWARDED_HEADER`] is not
//! passed on again, so two sidecars that take each other for the leader do not play ping-pong.
//!
//! As the peer, anything that keeps the leader from being found is a 405; what goes wrong after that is a 502 or 504.

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

use super::answer::ErrorResponse;
use super::lane::RequestQueue;
use super::routes::HttpApp;
use super::{LeaderTlsFiles, HttpLimits};

/// Says that a request comes from a sidecar that does not lead.
pub const FORWARDED_HEADER: &str = "x-mainstay-forwarded";

/// What of the leader's answer matters beside its body.
const RELAYED_HEADERS: [HeaderName; 3] = [ALLOW, CONTENT_TYPE, RETRY_AFTER];

/// Why the leader is not found.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LeaderError {
    /// The member knows of none.
    #[error("the cluster has no leader")]
    NoLeader,
    /// The leader does not say where it is.
    #[error("member {leader} leads and has no client URL")]
    NoClientUrl {
        /// The leader.
        leader: MemberId,
    },
    /// etcd could not be asked.
    #[error("etcd cannot be asked who leads")]
    Lookup {
        /// Why.
        source: Box<dyn StdError + Send + Sync>,
    },
}

/// Knows where the leader is.
#[async_trait]
pub trait FindLeader: Send + Sync + 'static {
    /// The first client URL the leader advertises.
    async fn find_leader_url(&self) -> Result<Url, LeaderError>;
}

/// Why a client for the leader cannot be made.
#[derive(Debug, thiserror::Error)]
enum LeaderClientError {
    #[error("read {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{} is not usable", path.display())]
    Pem {
        path: PathBuf,
        source: reqwest::Error,
    },
    #[error("make an HTTP client")]
    Build { source: reqwest::Error },
}

/// Asks the leader's sidecar and passes its answer on.
pub(super) async fn forward_to_leader(app: &HttpApp, lane: &RequestQueue, request: Request) -> Result<Response, ErrorResponse> {
    if request.headers().contains_key(FORWARDED_HEADER) {
        return Err(ErrorResponse::unavailable_here(
            "this sidecar does not lead, and the request has been passed on once",
        ));
    }
    let limits = &app.config.limits;
    let _active = lane.acquire(limits.queue_timeout).await?;
    let base = find_leader_sidecar(app).await?;
    let client = build_client(app).await.map_err(|error| {
        warn!(error = %ErrorChain(&error), "the leader's sidecar cannot be spoken to");
        ErrorResponse::unavailable_here("the leader's sidecar cannot be spoken to")
    })?;
    check_health(&client, &base, limits).await?;
    info!("a request for a snapshot is passed on to the leader's sidecar");
    let asked = client
        .request(request.method().clone(), build_target_url(&base, &request))
        .header(FORWARDED_HEADER, "1")
        .timeout(limits.snapshot_timeout)
        .send();
    let answer = asked.await.map_err(|error| to_gateway_error(&error))?;
    relay_response(answer, limits.max_response_bytes).await
}

/// Scheme, host and port of the leader's sidecar.
async fn find_leader_sidecar(app: &HttpApp) -> Result<Url, ErrorResponse> {
    let asked = app.backend.leader_finder.find_leader_url();
    let found = timeout(app.config.limits.leader_timeout, asked).await;
    let found = found.map_err(|_| ErrorResponse::unavailable_here("etcd does not say in time who leads"))?;
    let url = found.map_err(|error| ErrorResponse::unavailable_here(ErrorChain(&error).to_string()))?;
    let scheme = if app.config.tls.is_some() {
        "https"
    } else {
        "http"
    };
    sidecar_url(&url, scheme, app.port)
        .ok_or_else(|| ErrorResponse::unavailable_here(format!("the leader's client URL {url} has no host")))
}

fn sidecar_url(member: &Url, scheme: &str, port: u16) -> Option<Url> {
    let host = member.host_str().filter(|host| !host.is_empty())?;
    Url::parse(&format!("{scheme}://{host}:{port}/")).ok()
}

/// The same path and query there.
fn build_target_url(base: &Url, request: &Request) -> Url {
    let mut target = base.clone();
    target.set_path(request.uri().path());
    target.set_query(request.uri().query());
    target
}

async fn check_health(client: &Client, base: &Url, limits: &HttpLimits) -> Result<(), ErrorResponse> {
    let mut url = base.clone();
    url.set_path("/healthz");
    let asked = client.get(url).timeout(limits.leader_timeout).send().await;
    match asked {
        Ok(answer) if answer.status() == StatusCode::OK => Ok(()),
        Ok(_) => Err(ErrorResponse::unavailable_here("the leader's sidecar is not healthy")),
        Err(error) => {
            warn!(error = %ErrorChain(&error), "the leader's sidecar does not tell its health");
            Err(ErrorResponse::unavailable_here(
                "the leader's sidecar does not tell its health",
            ))
        }
    }
}

fn to_gateway_error(error: &reqwest::Error) -> ErrorResponse {
    warn!(error = %ErrorChain(error), "the leader's sidecar did not answer");
    if error.is_timeout() {
        let text = "the leader's sidecar takes longer than a request may";
        ErrorResponse::new(StatusCode::GATEWAY_TIMEOUT, text)
    } else {
        ErrorResponse::new(
            StatusCode::BAD_GATEWAY,
            "the leader's sidecar did not answer",
        )
    }
}

/// The answer as it came, if it is no larger than allowed.
async fn relay_response(mut answer: reqwest::Response, max_total: usize) -> Result<Response, ErrorResponse> {
    let mut body = Vec::new();
    while let Some(piece) = answer.chunk().await.map_err(|error| to_gateway_error(&error))? {
        if body.len() + piece.len() > max_total {
            let text = "the answer of the leader's sidecar is too large";
            return Err(ErrorResponse::new(StatusCode::BAD_GATEWAY, text));
        }
        body.extend_from_slice(&piece);
    }
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = answer.status();
    for name in RELAYED_HEADERS {
        if let Some(value) = answer.headers().get(&name) {
            response.headers_mut().insert(name, value.clone());
        }
    }
    Ok(response)
}

/// A client made anew for each request: they are rare, and its files may have changed.
async fn build_client(app: &HttpApp) -> Result<Client, LeaderClientError> {
    let mut builder = Client::builder()
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
            builder = builder.identity(identity.map_err(|source| to_pem_error(certificate, source))?);
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
    fn the_leaders_sidecar_has_its_members_host_and_our_scheme_and_port() {
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
