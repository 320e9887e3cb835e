//! The HTTP client below the object store client.
//!
//! The client library folds every unexpected answer into one opaque error. Retrying well needs the
//! status, so answers that deserve another attempt are turned into a [`RemoteStatus`] here, where it
//! can be found again in the chain of causes. Retries themselves are the business of [`crate::retry`]:
//! the library's own are switched off, because they neither resume a body nor know our deadlines.

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse,
    HttpResponseBody, HttpService, ReqwestConnector,
};
use object_store::{BackoffConfig, ClientOptions, RetryConfig};

use crate::error::Class;

/// How much of an error page is worth keeping.
const EXCERPT_BYTES: usize = 1024;

/// A server's answer that is about the server, not about the request.
#[derive(Debug, thiserror::Error)]
#[error("status {status}: {excerpt}")]
pub(crate) struct RemoteStatus {
    pub(crate) status: u16,
    /// The beginning of the body, which is where stores put code and request id.
    pub(crate) excerpt: String,
}

impl RemoteStatus {
    /// 501 says that the call does not exist; everything else may pass.
    pub(crate) fn class(&self) -> Class {
        if self.status == 501 {
            Class::Invalid
        } else {
            Class::Transient
        }
    }
}

/// Builds HTTP clients that report retryable statuses as [`RemoteStatus`].
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
        match status {
            408 | 429 | 500..=599 => {
                let excerpt = excerpt(response.into_body()).await;
                Err(HttpError::new(
                    HttpErrorKind::Unknown,
                    RemoteStatus { status, excerpt },
                ))
            }
            400 => idle_connection(response).await,
            _ => Ok(response),
        }
    }
}

/// S3 answers 400 with code `RequestTimeout` when the body came too slowly: nothing is wrong with it.
async fn idle_connection(response: HttpResponse) -> Result<HttpResponse, HttpError> {
    let (parts, body) = response.into_parts();
    let excerpt = excerpt(body).await;
    if excerpt.contains("<Code>RequestTimeout</Code>") {
        let status = RemoteStatus {
            status: 400,
            excerpt,
        };
        return Err(HttpError::new(HttpErrorKind::Unknown, status));
    }
    let body = HttpResponseBody::from(Bytes::from(excerpt));
    Ok(HttpResponse::from_parts(parts, body))
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
