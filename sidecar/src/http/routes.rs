//! Which path is answered by whom, and what every request passes on its way there.

use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::header::{
    CONTENT_LENGTH, CONTENT_SECURITY_POLICY, STRICT_TRANSPORT_SECURITY, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderValue, Method, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};
use tokio::sync::{Semaphore, SemaphorePermit};

use super::answer::Problem;
use super::connections::Ends;
use super::lane::Lane;
use super::{HttpConfig, Parts, Trigger, health, snapshots};
use crate::metrics::{OTHER_ROUTE, ROUTES};

/// What is known about who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Caller {
    /// Nothing.
    Anybody,
    /// Showed a certificate of an authority we trust.
    Certified,
}

/// What handlers share.
#[derive(Clone)]
pub(super) struct App(Arc<AppState>);

/// See [`App`].
pub(super) struct AppState {
    pub(super) config: HttpConfig,
    /// The port this server has, and so its siblings.
    pub(super) port: u16,
    pub(super) parts: Parts,
    pub(super) lanes: Lanes,
    pub(super) ends: Ends,
    pub(super) started: Instant,
    requests: Semaphore,
}

/// One line for each thing that costs something.
pub(super) struct Lanes {
    pub(super) full: Lane,
    pub(super) delta: Lane,
    pub(super) list: Lane,
}

impl std::ops::Deref for App {
    type Target = AppState;

    fn deref(&self) -> &AppState {
        &self.0
    }
}

impl App {
    pub(super) fn new(config: HttpConfig, port: u16, parts: Parts, ends: Ends) -> Self {
        let lane = || Lane::new(config.limits.waiting);
        let lanes = Lanes {
            full: lane(),
            delta: lane(),
            list: lane(),
        };
        let requests = Semaphore::new(config.limits.requests);
        Self(Arc::new(AppState {
            config,
            port,
            parts,
            lanes,
            ends,
            started: Instant::now(),
            requests,
        }))
    }

    /// Lets a request in, or says why not.
    fn admit(
        &self,
        route: &str,
        request: &Request,
    ) -> Result<Option<SemaphorePermit<'_>>, Problem> {
        let length = request.headers().get(CONTENT_LENGTH);
        let length = length.and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
        if length > Some(self.config.limits.body_bytes) {
            let text = "no path here takes a body of that size";
            return Err(Problem::new(StatusCode::PAYLOAD_TOO_LARGE, text));
        }
        if self.is_guarded(route)
            && request.extensions().get::<Caller>() != Some(&Caller::Certified)
        {
            let text = "a client certificate is required here";
            return Err(Problem::new(StatusCode::FORBIDDEN, text));
        }
        self.check_trigger(route, request.method())?;
        // Health costs nothing and must be told always; snapshots have lines of their own.
        if route.ends_with('z') || route.starts_with("/snapshot/") {
            return Ok(None);
        }
        let permit = self.requests.try_acquire();
        let busy = || Problem::busy("too many requests at the same time");
        permit.map(Some).map_err(|_| busy())
    }

    /// What takes a snapshot takes few methods. The router would let HEAD pass for GET, and a HEAD must change nothing.
    fn check_trigger(&self, route: &str, method: &Method) -> Result<(), Problem> {
        if !matches!(route, "/snapshot/full" | "/snapshot/delta") || method == Method::POST {
            return Ok(());
        }
        match self.config.trigger {
            Trigger::GetOrPost if method == Method::GET => Ok(()),
            Trigger::GetOrPost => Err(Problem::wrong_method(Some("GET,POST"))),
            Trigger::PostOnly => Err(Problem::wrong_method(Some("POST"))),
        }
    }

    /// Whether a path needs a client certificate.
    fn is_guarded(&self, route: &str) -> bool {
        let tls = self.config.tls.as_ref();
        let authority = tls.and_then(|files| files.client_ca.as_ref());
        authority.is_some() && (route == "/status" || route.starts_with("/snapshot/"))
    }
}

/// Everything that is served.
pub(super) fn router(app: App) -> Router {
    Router::new()
        .route("/healthz", get(health::healthz))
        .route("/readyz", get(health::readyz))
        .route("/metrics", get(health::metrics))
        .route("/status", get(health::status))
        .route("/snapshot/full", any(snapshots::full))
        .route("/snapshot/delta", any(snapshots::delta))
        .route(
            "/snapshot/latest",
            get(snapshots::latest).post(snapshots::latest),
        )
        .fallback(nothing_here)
        .method_not_allowed_fallback(wrong_method)
        .layer(from_fn_with_state(app.clone(), gate))
        .with_state(app)
}

/// What every request passes.
async fn gate(State(app): State<App>, request: Request, next: Next) -> Response {
    let route = label(request.uri().path());
    let mut response = match app.admit(route, &request) {
        Ok(_permit) => next.run(request).await,
        Err(problem) => problem.into_response(),
    };
    app.parts
        .metrics
        .http_request(route, response.status().as_u16());
    let headers = response.headers_mut();
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    if app.config.tls.is_some() {
        let year = HeaderValue::from_static("max-age=31536000");
        headers.insert(STRICT_TRANSPORT_SECURITY, year);
        let policy = HeaderValue::from_static("default-src 'self'");
        headers.insert(CONTENT_SECURITY_POLICY, policy);
    }
    response
}

/// A path as metrics name it.
fn label(path: &str) -> &'static str {
    let known = ROUTES.into_iter().find(|route| *route == path);
    known.unwrap_or(OTHER_ROUTE)
}

async fn nothing_here() -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "there is nothing at this path")
}

/// The methods that would be right are added by the router.
async fn wrong_method() -> Problem {
    Problem::wrong_method(None)
}
