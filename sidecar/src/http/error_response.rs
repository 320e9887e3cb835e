//! Error responses: a status and `{"error": "…"}`.

use axum::Json;
use axum::http::header::{ALLOW, RETRY_AFTER};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::json;

use super::request_queue::QueueFull;
use crate::snapshotter::SnapshotRequestError;

/// An error as JSON, with `Allow` or `Retry-After` where the status calls for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ErrorResponse {
    status: StatusCode,
    message: String,
    allowed_methods: Option<&'static str>,
}

impl ErrorResponse {
    pub(super) fn new(status: StatusCode, text: impl Into<String>) -> Self {
        Self {
            status,
            message: text.into(),
            allowed_methods: None,
        }
    }

    /// This sidecar cannot take snapshots now. 405 because etcd-backup-restore returns it and its clients expect it;
    /// HTTP requires an `Allow` header with it, although the method is not the problem.
    pub(super) fn unavailable_here(text: impl Into<String>) -> Self {
        let allowed_methods = Some("GET,POST");
        let status = StatusCode::METHOD_NOT_ALLOWED;
        Self {
            allowed_methods,
            ..Self::new(status, text)
        }
    }

    /// `None`: the router adds the `Allow` header.
    pub(super) fn wrong_method(allowed_methods: Option<&'static str>) -> Self {
        let text = "method not allowed for this path";
        let status = StatusCode::METHOD_NOT_ALLOWED;
        Self {
            allowed_methods,
            ..Self::new(status, text)
        }
    }

    /// 503 with `Retry-After`.
    pub(super) fn busy(text: &str) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, text)
    }
}

impl From<SnapshotRequestError> for ErrorResponse {
    fn from(error: SnapshotRequestError) -> Self {
        match error {
            SnapshotRequestError::NoStore => Self::unavailable_here(error.to_string()),
            SnapshotRequestError::NotLeading { .. }
            | SnapshotRequestError::DeltasDisabled
            | SnapshotRequestError::Failed { .. }
            | SnapshotRequestError::Aborted => {
                Self::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
            }
        }
    }
}

impl From<QueueFull> for ErrorResponse {
    fn from(_: QueueFull) -> Self {
        Self::busy("too many callers are waiting for this operation")
    }
}

impl IntoResponse for ErrorResponse {
    fn into_response(self) -> Response {
        let body = Json(json!({ "error": self.message }));
        let mut response = (self.status, body).into_response();
        let headers = response.headers_mut();
        if self.status == StatusCode::SERVICE_UNAVAILABLE {
            headers.insert(RETRY_AFTER, HeaderValue::from_static("5"));
        }
        if let Some(allow) = self.allowed_methods {
            headers.insert(ALLOW, HeaderValue::from_static(allow));
        }
        response
    }
}
