//! Who may do what, and how much at once: one tower layer in front of every service.

mod permit;
mod rights;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tonic::transport::server::{TcpConnectInfo, TlsConnectInfo};
use tower::{Layer, Service};
use x509_parser::prelude::{FromDer, X509Certificate};

use self::permit::{InFlight, Permitted};
pub use self::rights::{Access, ParseGrantError, PrincipalGrant, Right, Rights};
use crate::error::EtcdError;

/// Principal of connections without a client certificate.
const ANONYMOUS: &str = "";

/// Checks rights and limits.
#[derive(Clone, Debug)]
pub(crate) struct GuardLayer {
    access: Arc<Access>,
    in_flight: Arc<InFlight>,
}

impl GuardLayer {
    pub(crate) fn new(access: Access, requests_per_principal: usize) -> Self {
        Self {
            access: Arc::new(access),
            in_flight: Arc::new(InFlight::new(requests_per_principal)),
        }
    }
}

impl<S> Layer<S> for GuardLayer {
    type Service = Guarded<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Guarded {
            inner,
            guard: self.clone(),
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Guarded<S> {
    inner: S,
    guard: GuardLayer,
}

impl<S, B, R> Service<http::Request<B>> for Guarded<S>
where
    S: Service<http::Request<B>, Response = http::Response<R>>,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
    R: Default + Send + 'static,
{
    type Response = http::Response<Permitted<R>>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        let principal = principal_of(&request);
        if !self.guard.access.allows(&principal, request.uri().path()) {
            tracing::debug!(principal, path = request.uri().path(), "request refused");
            return refuse(EtcdError::PERMISSION_DENIED);
        }
        let Some(permit) = self.guard.in_flight.enter(principal) else {
            return refuse(EtcdError::TOO_MANY_REQUESTS);
        };
        let response = self.inner.call(request);
        Box::pin(async move {
            // The permit goes with the body: a stream is in flight until it ends.
            Ok(response.await?.map(|body| Permitted::new(body, permit)))
        })
    }
}

type Refused<R, E> = Pin<Box<dyn Future<Output = Result<http::Response<Permitted<R>>, E>> + Send>>;

fn refuse<R: Default + Send + 'static, E: Send + 'static>(error: EtcdError) -> Refused<R, E> {
    let response = error.status().into_http::<Permitted<R>>();
    Box::pin(std::future::ready(Ok(response)))
}

/// The common name of the client certificate, which the TLS layer has verified.
fn principal_of<B>(request: &http::Request<B>) -> String {
    let connection = request.extensions().get::<TlsConnectInfo<TcpConnectInfo>>();
    let certificates = connection.and_then(TlsConnectInfo::peer_certs);
    let name = certificates.as_ref().and_then(|chain| {
        let (_, certificate) = X509Certificate::from_der(chain.first()?).ok()?;
        let name = certificate
            .subject()
            .iter_common_name()
            .next()?
            .as_str()
            .ok()?;
        Some(name.to_owned())
    });
    name.unwrap_or_else(|| ANONYMOUS.to_owned())
}
