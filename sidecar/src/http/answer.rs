//! Answers that are not what was asked for: a status and `{"error": "…"}`.

use axum::Json;
use axum::http::header::{ALLOW, RETRY_AFTER};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::json;

use super::lane::Busy;
use crate::ask::AskError;

/// Why there is no other answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Problem {
    status: StatusCode,
    text: String,
    allow: Option<&'static str>,
}

impl Problem {
    pub(super) fn new(status: StatusCode, text: impl Into<String>) -> Self {
        Self {
            status,
            text: text.into(),
            allow: None,
        }
    }

    /// Snapshots cannot be had from this sidecar now. The peer answers 405, and its clients know that; the methods a 405 must
    /// name are right, the moment is not.
    pub(super) fn not_here(text: impl Into<String>) -> Self {
        let allow = Some("GET,POST");
        let status = StatusCode::METHOD_NOT_ALLOWED;
        Self {
            allow,
            ..Self::new(status, text)
        }
    }

    /// Another method is asked for.
    pub(super) fn wrong_method(allow: Option<&'static str>) -> Self {
        let text = "this path does not take that method";
        let status = StatusCode::METHOD_NOT_ALLOWED;
        Self {
            allow,
            ..Self::new(status, text)
        }
    }

    /// Come back later.
    pub(super) fn busy(text: &str) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, text)
    }
}

impl From<AskError> for Problem {
    fn from(error: AskError) -> Self {
        match error {
            AskError::NoStore => Self::not_here(error.to_string()),
            AskError::NotLeading { .. }
            | AskError::DeltasDisabled
            | AskError::Failed { .. }
            | AskError::Ended => Self::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
        }
    }
}

impl From<Busy> for Problem {
    fn from(_: Busy) -> Self {
        Self::busy("too many callers ask for this already")
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let body = Json(json!({ "error": self.text }));
        let mut response = (self.status, body).into_response();
        let headers = response.headers_mut();
        if self.status == StatusCode::SERVICE_UNAVAILABLE {
            headers.insert(RETRY_AFTER, HeaderValue::from_static("5"));
        }
        if let Some(allow) = self.allow {
            headers.insert(ALLOW, HeaderValue::from_static(allow));
        }
        response
    }
}
