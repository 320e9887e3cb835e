//! Routes, and the checks that every request passes first: body size, client certificate, method, concurrency.

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

use super::connections::ServerShutdown;
use super::error_response::ErrorResponse;
use super::request_queue::RequestQueue;
use super::{HttpBackend, HttpConfig, SnapshotMethods, health, snapshots};
use crate::metrics::{OTHER_ROUTE, ROUTES};

/// Identity of the client of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Caller {
    /// Presented no certificate.
    Anonymous,
    /// Presented a certificate of a configured CA.
    Authenticated,
}

/// State that handlers share.
#[derive(Clone)]
pub(super) struct HttpApp(Arc<AppState>);

pub(super) struct AppState {
    pub(super) config: HttpConfig,
    /// Port of this server, and so of the other sidecars.
    pub(super) port: u16,
    pub(super) backend: HttpBackend,
    pub(super) queues: RequestQueues,
    pub(super) shutdown: ServerShutdown,
    pub(super) started_at: Instant,
    request_slots: Semaphore,
}

/// One queue for each expensive operation.
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
    pub(super) fn new(
        config: HttpConfig,
        port: u16,
        backend: HttpBackend,
        shutdown: ServerShutdown,
    ) -> Self {
        let lane = || RequestQueue::new(config.limits.max_waiting);
        let queues = RequestQueues {
            full: lane(),
            delta: lane(),
            list: lane(),
        };
        let request_slots = Semaphore::new(config.limits.max_requests);
        Self(Arc::new(AppState {
            config,
            port,
            backend,
            queues,
            shutdown,
            started_at: Instant::now(),
            request_slots,
        }))
    }

    /// Checks a request before it is routed.
    fn admit(
        &self,
        route: &str,
        request: &Request,
    ) -> Result<Option<SemaphorePermit<'_>>, ErrorResponse> {
        let length = request.headers().get(CONTENT_LENGTH);
        let length = length.and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
        if length > Some(self.config.limits.max_body_bytes) {
            let text = "request body too large";
            return Err(ErrorResponse::new(StatusCode::PAYLOAD_TOO_LARGE, text));
        }
        if self.is_guarded(route)
            && request.extensions().get::<Caller>() != Some(&Caller::Authenticated)
        {
            let text = "client certificate required";
            return Err(ErrorResponse::new(StatusCode::FORBIDDEN, text));
        }
        self.check_method(route, request.method())?;
        // Probes are cheap and must be answered under load; snapshots have their own queues.
        if route.ends_with('z') || route.starts_with("/snapshot/") {
            return Ok(None);
        }
        let permit = self.request_slots.try_acquire();
        let busy = || ErrorResponse::busy("too many concurrent requests");
        permit.map(Some).map_err(|_| busy())
    }

    /// Restricts the methods that trigger a snapshot. axum routes HEAD to the GET handler, and HEAD must not have effects.
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

    /// Whether a path requires a client certificate.
    fn is_guarded(&self, route: &str) -> bool {
        let tls = self.config.tls.as_ref();
        let client_ca = tls.and_then(|files| files.client_ca.as_ref());
        client_ca.is_some() && (route == "/status" || route.starts_with("/snapshot/"))
    }
}

/// All routes.
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

/// Checks and counts every request, and sets the security headers.
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

/// Label of a path in metrics. Unknown paths share one label, so that clients cannot create series.
fn route_label(path: &str) -> &'static str {
    let known = ROUTES.into_iter().find(|route| *route == path);
    known.unwrap_or(OTHER_ROUTE)
}

async fn not_found() -> ErrorResponse {
    ErrorResponse::new(StatusCode::NOT_FOUND, "path not found")
}

/// The router adds the `Allow` header.
async fn method_not_allowed() -> ErrorResponse {
    ErrorResponse::wrong_method(None)
}
