//! The HTTP client below the object store client.
//!
//! The client library folds most refusals into one opaque error. What to do about a refusal depends on
//! its status, so refusals are turned into a [`HttpStatusError`] here, where it can be found again in the
//! chain of causes. Statuses that answer a condition stay as they are: the library knows what was asked.
//! Retries themselves are the business of [`crate::retry`]: the library's own are switched off, because
//! they neither resume a body nor know our deadlines.

use async_trait::async_trait;
use futures::StreamExt;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse,
    HttpResponseBody, HttpService, ReqwestConnector,
};
use object_store::{BackoffConfig, ClientOptions, RetryConfig};

use crate::error::ErrorClass;

/// How much of an error page is worth keeping.
const MAX_EXCERPT_BYTES: usize = 1024;

/// A server that refused, and the beginning of what it said.
#[derive(Debug, thiserror::Error)]
#[error("status {status}: {excerpt}")]
pub(crate) struct HttpStatusError {
    pub(crate) status: u16,
    /// The beginning of the body, which is where stores put code and request id.
    pub(crate) excerpt: String,
}

impl HttpStatusError {
    pub(crate) fn class(&self) -> ErrorClass {
        match self.status {
            401 | 403 => ErrorClass::Denied,
            404 => ErrorClass::NotFound,
            // S3's name for a body that came too slowly: nothing is wrong with the request.
            400 if self.excerpt.contains("<Code>RequestTimeout</Code>") => ErrorClass::Transient,
            // The call does not exist there.
            501 => ErrorClass::Invalid,
            408 | 429 | 500..=599 => ErrorClass::Transient,
            _ => ErrorClass::Invalid,
        }
    }

    fn is_error_status(status: u16) -> bool {
        matches!(status, 400 | 401 | 403 | 404 | 408 | 429 | 500..=599)
    }
}

/// Builds HTTP clients that report refusals as [`HttpStatusError`].
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

/// Switches the library's own retries off.
pub(crate) fn disable_client_retries() -> RetryConfig {
    RetryConfig {
        backoff: BackoffConfig::default(),
        max_retries: 0,
        ..RetryConfig::default()
    }
}
