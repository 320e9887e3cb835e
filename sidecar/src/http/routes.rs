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

use super::answer::ErrorResponse;
use super::connections::ServerShutdown;
use super::lane::RequestQueue;
use super::{HttpConfig, HttpBackend, SnapshotMethods, health, snapshots};
use crate::metrics::{OTHER_ROUTE, ROUTES};

/// What is known about who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Caller {
    /// Nothing.
    Anonymous,
    /// Showed a certificate of an authority we trust.
    Authenticated,
}

/// What handlers share.
#[derive(Clone)]
pub(super) struct HttpApp(Arc<AppState>);

/// See [`HttpApp`].
pub(super) struct AppState {
    pub(super) config: HttpConfig,
    /// The port this server has, and so its siblings.
    pub(super) port: u16,
    pub(super) backend: HttpBackend,
    pub(super) queues: RequestQueues,
    pub(super) shutdown: ServerShutdown,
    pub(super) started_at: Instant,
    request_slots: Semaphore,
}

/// One line for each thing that costs something.
pub(super) struct RequestQueues {
    pub(super) full: RequestQueue,
    pub(super) delta: RequestQueue,
    pub(super) list: RequestQueue,
}

impl std::ops::Deref for HttpApp {
    type Target = AppState;

    fn deref(&self) -> &AppState {
        &self.0
    }
}

impl HttpApp {
    pub(super) fn new(config: HttpConfig, port: u16, parts: HttpBackend, ends: ServerShutdown) -> Self {
        let lane = || RequestQueue::new(config.limits.max_waiting);
        let queues = RequestQueues {
            full: lane(),
            delta: lane(),
            list: lane(),
        };
        let requests = Semaphore::new(config.limits.max_requests);
        Self(Arc::new(AppState {
            config,
            port,
            backend: parts,
            queues,
            shutdown: ends,
            started_at: Instant::now(),
            request_slots: requests,
        }))
    }

    /// Lets a request in, or says why not.
    fn admit(
        &self,
        route: &str,
        request: &Request,
    ) -> Result<Option<SemaphorePermit<'_>>, ErrorResponse> {
        let length = request.headers().get(CONTENT_LENGTH);
        let length = length.and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
        if length > Some(self.config.limits.max_body_bytes) {
            let text = "no path here takes a body of that size";
            return Err(ErrorResponse::new(StatusCode::PAYLOAD_TOO_LARGE, text));
        }
        if self.is_guarded(route)
            && request.extensions().get::<Caller>() != Some(&Caller::Authenticated)
        {
            let text = "a client certificate is required here";
            return Err(ErrorResponse::new(StatusCode::FORBIDDEN, text));
        }
        self.check_method(route, request.method())?;
        // Health costs nothing and must be told always; snapshots have lines of their own.
        if route.ends_with('z') || route.starts_with("/snapshot/") {
            return Ok(None);
        }
        let permit = self.request_slots.try_acquire();
        let busy = || ErrorResponse::busy("too many requests at the same time");
        permit.map(Some).map_err(|_| busy())
    }

    /// What takes a snapshot takes few methods. The router would let HEAD pass for GET, and a HEAD must change nothing.
    fn check_method(&self, route: &str, method: &Method) -> Result<(), ErrorResponse> {
        if !matches!(route, "/snapshot/full" | "/snapshot/delta") || method == Method::POST {
            return Ok(());
        }
        match self.config.snapshot_methods {
            SnapshotMethods::GetOrPost if method == Method::GET => Ok(()),
            SnapshotMethods::GetOrPost => Err(ErrorResponse::wrong_method(Some("GET,POST"))),
            SnapshotMethods::PostOnly => Err(ErrorResponse::wrong_method(Some("POST"))),
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
pub(super) fn build_router(app: HttpApp) -> Router {
    Router::new()
        .route("/healthz", get(health::healthz))
        .route("/readyz", get(health::readyz))
        .route("/metrics", get(health::metrics))
        .route("/status", get(health::status))
        .route("/snapshot/full", any(snapshots::take_full))
        .route("/snapshot/delta", any(snapshots::take_delta))
        .route(
            "/snapshot/latest",
            get(snapshots::list_latest).post(snapshots::list_latest),
        )
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(from_fn_with_state(app.clone(), handle_request))
        .with_state(app)
}

/// What every request passes.
async fn handle_request(State(app): State<HttpApp>, request: Request, next: Next) -> Response {
    let route = route_label(request.uri().path());
    let mut response = match app.admit(route, &request) {
        Ok(_permit) => next.run(request).await,
        Err(problem) => problem.into_response(),
    };
    app.backend
        .metrics
        .count_http_request(route, response.status().as_u16());
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
fn route_label(path: &str) -> &'static str {
    let known = ROUTES.into_iter().find(|route| *route == path);
    known.unwrap_or(OTHER_ROUTE)
}

async fn not_found() -> ErrorResponse {
    ErrorResponse::new(StatusCode::NOT_FOUND, "there is nothing at this path")
}

/// The methods that would be right are added by the router.
async fn method_not_allowed() -> ErrorResponse {
    ErrorResponse::wrong_method(None)
}
