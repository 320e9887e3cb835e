//! The HTTP client below the object store client.
//!
//! The client library folds most refusals into one opaque error. What to do about a refusal depends on
//! its status, so refusals are turned into a [`RemoteStatus`] here, where it can be found again in the
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

use crate::error::Class;

/// How much of an error page is worth keeping.
const EXCERPT_BYTES: usize = 1024;

/// A server that refused, and the beginning of what it said.
#[derive(Debug, thiserror::Error)]
#[error("status {status}: {excerpt}")]
pub(crate) struct RemoteStatus {
    pub(crate) status: u16,
    /// The beginning of the body, which is where stores put code and request id.
    pub(crate) excerpt: String,
}

impl RemoteStatus {
    pub(crate) fn class(&self) -> Class {
        match self.status {
            401 | 403 => Class::Denied,
            404 => Class::NotFound,
            // S3's name for a body that came too slowly: nothing is wrong with the request.
            400 if self.excerpt.contains("<Code>RequestTimeout</Code>") => Class::Transient,
            // The call does not exist there.
            501 => Class::Invalid,
            408 | 429 | 500..=599 => Class::Transient,
            _ => Class::Invalid,
        }
    }

    fn is_refusal(status: u16) -> bool {
        matches!(status, 400 | 401 | 403 | 404 | 408 | 429 | 500..=599)
    }
}

/// Builds HTTP clients that report refusals as [`RemoteStatus`].
#[derive(Debug, Default)]
pub(crate) struct Connector;

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(Statuses(
            ReqwestConnector::default().connect(options)?,
        )))
    }
}

#[derive(Debug)]
struct Statuses(HttpClient);

#[async_trait]
impl HttpService for Statuses {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let response = self.0.execute(request).await?;
        let status = response.status().as_u16();
        if !RemoteStatus::is_refusal(status) {
            return Ok(response);
        }
        let excerpt = excerpt(response.into_body()).await;
        Err(HttpError::new(
            HttpErrorKind::Unknown,
            RemoteStatus { status, excerpt },
        ))
    }
}

async fn excerpt(body: HttpResponseBody) -> String {
    let mut text = Vec::new();
    let mut chunks = body.bytes_stream();
    while let Some(Ok(chunk)) = chunks.next().await {
        let room = EXCERPT_BYTES - text.len();
        text.extend(chunk.iter().take(room));
        if text.len() == EXCERPT_BYTES {
            break;
        }
    }
    String::from_utf8_lossy(&text).into_owned()
}

/// Switches the library's own retries off.
pub(crate) fn no_inner_retries() -> RetryConfig {
    RetryConfig {
        backoff: BackoffConfig::default(),
        max_retries: 0,
        ..RetryConfig::default()
    }
}
