//! The HTTP client used by `object_store`.
//!
//! `object_store` maps most HTTP error statuses to one opaque error, but how to handle an error depends on
//! its status. This client returns a [`HttpStatusError`], which callers find in the source chain. Statuses
//! that answer a condition (304, 409, 412) pass through, because `object_store` maps those itself.
//! The library's own retries are off: they neither resume a body nor honour our deadlines. See
//! [`crate::retry`].

use async_trait::async_trait;
use futures::StreamExt;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse,
    HttpResponseBody, HttpService, ReqwestConnector,
};
use object_store::{BackoffConfig, ClientOptions, RetryConfig};

use crate::error::ErrorClass;

/// Bytes of an error response to keep.
const MAX_EXCERPT_BYTES: usize = 1024;

/// An HTTP error status and the start of the response body.
#[derive(Debug, thiserror::Error)]
#[error("HTTP status {status}: {excerpt}")]
pub(crate) struct HttpStatusError {
    pub(crate) status: u16,
    /// The start of the body, where stores put error code and request id.
    pub(crate) excerpt: String,
}

impl HttpStatusError {
    pub(crate) fn class(&self) -> ErrorClass {
        match self.status {
            401 | 403 => ErrorClass::Denied,
            404 => ErrorClass::NotFound,
            // S3 answers 400 RequestTimeout when the request body arrives too slowly; the request is valid.
            400 if self.excerpt.contains("<Code>RequestTimeout</Code>") => ErrorClass::Transient,
            // Not Implemented: the server lacks the call, so a retry cannot succeed.
            501 => ErrorClass::Invalid,
            408 | 429 | 500..=599 => ErrorClass::Transient,
            _ => ErrorClass::Invalid,
        }
    }

    fn is_error_status(status: u16) -> bool {
        matches!(status, 400 | 401 | 403 | 404 | 408 | 429 | 500..=599)
    }
}

/// Builds HTTP clients that return error statuses as [`HttpStatusError`].
#[derive(Debug, Default)]
pub(crate) struct Connector;

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(StatusService(
            ReqwestConnector::default().connect(options)?,
        )))
    }
}

#[derive(Debug)]
struct StatusService(HttpClient);

#[async_trait]
impl HttpService for StatusService {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let response = self.0.execute(request).await?;
        let status = response.status().as_u16();
        if !HttpStatusError::is_error_status(status) {
            return Ok(response);
        }
        let excerpt = read_excerpt(response.into_body()).await;
        Err(HttpError::new(
            HttpErrorKind::Unknown,
            HttpStatusError { status, excerpt },
        ))
    }
}

async fn read_excerpt(body: HttpResponseBody) -> String {
    let mut text = Vec::new();
    let mut chunks = body.bytes_stream();
    while let Some(Ok(chunk)) = chunks.next().await {
        let room = MAX_EXCERPT_BYTES - text.len();
        text.extend(chunk.iter().take(room));
        if text.len() == MAX_EXCERPT_BYTES {
            break;
        }
    }
    String::from_utf8_lossy(&text).into_owned()
}

/// Disables the library's own retries.
pub(crate) fn disable_client_retries() -> RetryConfig {
    RetryConfig {
        backoff: BackoffConfig::default(),
        max_retries: 0,
        ..RetryConfig::default()
    }
}
