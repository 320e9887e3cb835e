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
use mainstay_telemetry::Chain;
use reqwest::{Certificate, Client, Identity, redirect};
use tokio::time::timeout;
use tracing::{info, warn};
use url::Url;

use super::answer::Problem;
use super::lane::Lane;
use super::routes::App;
use super::{Delegation, Limits};

/// Says that a request comes from a sidecar that does not lead.
pub const FORWARDED_HEADER: &str = "x-mainstay-forwarded";

/// What of the leader's answer matters beside its body.
const PASSED_ON: [HeaderName; 3] = [ALLOW, CONTENT_TYPE, RETRY_AFTER];

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
    Ask {
        /// Why.
        source: Box<dyn StdError + Send + Sync>,
    },
}

/// Knows where the leader is.
#[async_trait]
pub trait FindLeader: Send + Sync + 'static {
    /// The first client URL the leader advertises.
    async fn leader_client_url(&self) -> Result<Url, LeaderError>;
}

/// Why a client for the leader cannot be made.
#[derive(Debug, thiserror::Error)]
enum ClientError {
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
pub(super) async fn forward(app: &App, lane: &Lane, request: Request) -> Result<Response, Problem> {
    if request.headers().contains_key(FORWARDED_HEADER) {
        return Err(Problem::not_here(
            "this sidecar does not lead, and the request has been passed on once",
        ));
    }
    let limits = &app.config.limits;
    let _turn = lane.enter(limits.queue_time).await?;
    let base = leader_address(app).await?;
    let client = client(app).await.map_err(|error| {
        warn!(error = %Chain(&error), "the leader's sidecar cannot be spoken to");
        Problem::not_here("the leader's sidecar cannot be spoken to")
    })?;
    check_health(&client, &base, limits).await?;
    info!("a request for a snapshot is passed on to the leader's sidecar");
    let asked = client
        .request(request.method().clone(), target(&base, &request))
        .header(FORWARDED_HEADER, "1")
        .timeout(limits.snapshot_time)
        .send();
    let answer = asked.await.map_err(|error| unanswered(&error))?;
    pass_on(answer, limits.answer_bytes).await
}

/// Scheme, host and port of the leader's sidecar.
async fn leader_address(app: &App) -> Result<Url, Problem> {
    let asked = app.parts.leader.leader_client_url();
    let found = timeout(app.config.limits.leader_time, asked).await;
    let found = found.map_err(|_| Problem::not_here("etcd does not say in time who leads"))?;
    let url = found.map_err(|error| Problem::not_here(Chain(&error).to_string()))?;
    let scheme = if app.config.tls.is_some() {
        "https"
    } else {
        "http"
    };
    sidecar_of(&url, scheme, app.port)
        .ok_or_else(|| Problem::not_here(format!("the leader's client URL {url} has no host")))
}

fn sidecar_of(member: &Url, scheme: &str, port: u16) -> Option<Url> {
    let host = member.host_str().filter(|host| !host.is_empty())?;
    Url::parse(&format!("{scheme}://{host}:{port}/")).ok()
}

/// The same path and query there.
fn target(base: &Url, request: &Request) -> Url {
    let mut target = base.clone();
    target.set_path(request.uri().path());
    target.set_query(request.uri().query());
    target
}

async fn check_health(client: &Client, base: &Url, limits: &Limits) -> Result<(), Problem> {
    let mut url = base.clone();
    url.set_path("/healthz");
    let asked = client.get(url).timeout(limits.leader_time).send().await;
    match asked {
        Ok(answer) if answer.status() == StatusCode::OK => Ok(()),
        Ok(_) => Err(Problem::not_here("the leader's sidecar is not healthy")),
        Err(error) => {
            warn!(error = %Chain(&error), "the leader's sidecar does not tell its health");
            Err(Problem::not_here(
                "the leader's sidecar does not tell its health",
            ))
        }
    }
}

fn unanswered(error: &reqwest::Error) -> Problem {
    warn!(error = %Chain(error), "the leader's sidecar did not answer");
    if error.is_timeout() {
        let text = "the leader's sidecar takes longer than a request may";
        Problem::new(StatusCode::GATEWAY_TIMEOUT, text)
    } else {
        Problem::new(
            StatusCode::BAD_GATEWAY,
            "the leader's sidecar did not answer",
        )
    }
}

/// The answer as it came, if it is no larger than allowed.
async fn pass_on(mut answer: reqwest::Response, most: usize) -> Result<Response, Problem> {
    let mut body = Vec::new();
    while let Some(piece) = answer.chunk().await.map_err(|error| unanswered(&error))? {
        if body.len() + piece.len() > most {
            let text = "the answer of the leader's sidecar is too large";
            return Err(Problem::new(StatusCode::BAD_GATEWAY, text));
        }
        body.extend_from_slice(&piece);
    }
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = answer.status();
    for name in PASSED_ON {
        if let Some(value) = answer.headers().get(&name) {
            response.headers_mut().insert(name, value.clone());
        }
    }
    Ok(response)
}

/// A client made anew for each request: they are rare, and its files may have changed.
async fn client(app: &App) -> Result<Client, ClientError> {
    let mut builder = Client::builder()
        .redirect(redirect::Policy::none())
        .no_proxy()
        .connect_timeout(app.config.limits.leader_time);
    if app.config.tls.is_some() {
        let Delegation { ca, identity } = &app.config.delegation;
        if let Some(path) = ca {
            let bundle = Certificate::from_pem_bundle(&read(path).await?);
            builder = builder.tls_certs_only(bundle.map_err(|source| unusable(path, source))?);
        }
        if let Some((certificate, key)) = identity {
            let mut pem = read(certificate).await?;
            pem.push(b'\n');
            pem.extend(read(key).await?);
            let identity = Identity::from_pem(&pem);
            builder = builder.identity(identity.map_err(|source| unusable(certificate, source))?);
        }
    }
    builder
        .build()
        .map_err(|source| ClientError::Build { source })
}

async fn read(path: &Path) -> Result<Vec<u8>, ClientError> {
    let bytes = tokio::fs::read(path).await;
    bytes.map_err(|source| ClientError::Read {
        path: path.to_owned(),
        source,
    })
}

fn unusable(path: &Path, source: reqwest::Error) -> ClientError {
    ClientError::Pem {
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
            sidecar_of(&url, "http", 8080).map(String::from)
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
