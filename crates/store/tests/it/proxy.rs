//! A reverse proxy that injects faults.
//!
//! It forwards requests with all headers, so that signatures stay valid. A [`Rule`] selects the n-th request
//! of a kind and injects a fault. Tests check the number of injected faults, so that a fault that never
//! occurred does not count as tolerated.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, combinators::BoxBody};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::http::request;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode, Uri, header};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;

type BoxError = Box<dyn std::error::Error + Send + Sync>;
type ProxyResponse = Response<BoxBody<Bytes, BoxError>>;

/// Kind of request that a rule matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequestKind {
    /// Ranged reads of objects.
    Get,
    Head,
    List,
    /// Complete objects in one request.
    Put,
    /// Parts of an upload.
    Part,
    /// Completion of a multipart upload.
    Complete,
    Any,
}

/// The fault to inject.
#[derive(Debug, Clone, Copy)]
pub(crate) enum InjectedFault {
    /// Respond with this status without forwarding the request.
    Status(u16),
    /// Close the connection without forwarding the request.
    CloseConnection,
    /// Forward the request, then close the connection without a response.
    DropResponse,
    /// Close the connection after this many bytes of the body.
    TruncateBody(usize),
    /// Send this many bytes of the body, then stall forever.
    StallBody(usize),
    /// Send the body in small pieces with pauses.
    SlowBody { piece: usize, pause: Duration },
    /// Never respond.
    NeverRespond,
}

/// Injects a fault into requests of a kind: skips `skip` of them, then affects `times`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FaultRule {
    pub(crate) kind: RequestKind,
    pub(crate) skip: usize,
    pub(crate) times: usize,
    pub(crate) fault: InjectedFault,
}

/// Rewrites a request before it is forwarded.
pub(crate) type TranslateFn = fn(&mut request::Parts);

#[derive(Default)]
struct ProxyState {
    rules: Mutex<Vec<FaultRule>>,
    injected_count: AtomicUsize,
    sent_bytes: AtomicU64,
    active_bodies: AtomicUsize,
}

/// A running proxy; stops when dropped.
pub(crate) struct Proxy {
    pub(crate) endpoint: String,
    state: Arc<ProxyState>,
    _task: AbortOnDropHandle<()>,
}

#[derive(Clone)]
struct Forwarder {
    upstream: String,
    client: Client<HttpConnector, Full<Bytes>>,
    translate: TranslateFn,
    state: Arc<ProxyState>,
}

impl Proxy {
    /// Forwards requests to `upstream`, an `http://host:port` with an optional path.
    pub(crate) async fn start(upstream: &str) -> Self {
        Self::start_translating(upstream, |_| ()).await
    }

    pub(crate) async fn start_translating(upstream: &str, translate: TranslateFn) -> Self {
        let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0)))
            .await
            .unwrap();
        let address = listener.local_addr().unwrap();
        let url: url::Url = upstream.parse().unwrap();
        let state = Arc::new(ProxyState::default());
        let hop = Forwarder {
            upstream: url.authority().to_owned(),
            client: Client::builder(TokioExecutor::new()).build_http(),
            translate,
            state: Arc::clone(&state),
        };
        let task = tokio::spawn(serve(listener, hop));
        let path = url.path().trim_end_matches('/');
        let endpoint = format!("http://{address}{path}");
        Self {
            endpoint,
            state,
            _task: AbortOnDropHandle::new(task),
        }
    }

    pub(crate) fn inject(
        &self,
        kind: RequestKind,
        skip: usize,
        times: usize,
        fault: InjectedFault,
    ) {
        self.state.rules.lock().unwrap().push(FaultRule {
            kind,
            skip,
            times,
            fault,
        });
    }

    /// Number of injected faults.
    pub(crate) fn injected_count(&self) -> usize {
        self.state.injected_count.load(Ordering::SeqCst)
    }

    /// Number of response bodies in flight.
    pub(crate) fn active_bodies(&self) -> usize {
        self.state.active_bodies.load(Ordering::SeqCst)
    }

    /// Bytes of response bodies sent to the client.
    pub(crate) fn sent_bytes(&self) -> u64 {
        self.state.sent_bytes.load(Ordering::SeqCst)
    }
}

async fn serve(listener: TcpListener, hop: Forwarder) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            return;
        };
        let hop = hop.clone();
        tokio::spawn(async move {
            let service = service_fn(move |request| hop.clone().forward(request));
            // Connection errors are expected from injected faults.
            let _ = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}

impl Forwarder {
    async fn forward(self, request: Request<Incoming>) -> Result<ProxyResponse, BoxError> {
        let (mut parts, body) = request.into_parts();
        let fault = self.pick_fault(&parts);
        if matches!(fault, Some(InjectedFault::NeverRespond)) {
            std::future::pending::<Infallible>().await;
        }
        let body = body.collect().await?.to_bytes();
        match fault {
            Some(InjectedFault::Status(status)) => return Ok(error_response(status)),
            Some(InjectedFault::CloseConnection) => return Err("refused".into()),
            _ => {}
        }
        let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
        parts.uri = Uri::try_from(format!("http://{}{path}", self.upstream))?;
        (self.translate)(&mut parts);
        let answer = self
            .client
            .request(Request::from_parts(parts, Full::new(body)))
            .await?;
        if matches!(fault, Some(InjectedFault::DropResponse)) {
            answer.into_body().collect().await?;
            return Err("response dropped".into());
        }
        Ok(answer.map(|body| FaultyBody::new(body, fault, Arc::clone(&self.state)).boxed()))
    }

    /// The fault of the first matching rule.
    fn pick_fault(&self, parts: &request::Parts) -> Option<InjectedFault> {
        let mut rules = self.state.rules.lock().unwrap();
        for rule in rules
            .iter_mut()
            .filter(|rule| matches_kind(rule.kind, parts))
        {
            if rule.skip > 0 {
                rule.skip -= 1;
            } else if rule.times > 0 {
                rule.times -= 1;
                self.state.injected_count.fetch_add(1, Ordering::SeqCst);
                return Some(rule.fault);
            }
        }
        None
    }
}

fn matches_kind(kind: RequestKind, parts: &request::Parts) -> bool {
    let query = parts.uri.query().unwrap_or_default();
    let has = |name: &str| {
        query
            .split('&')
            .any(|pair| pair.split('=').next() == Some(name))
    };
    let is_list = has("list-type") || has("comp") && query.contains("comp=list");
    let is_part = has("partNumber") || query.contains("comp=block&");
    let is_ranged = [header::RANGE.as_str(), "x-ms-range"]
        .iter()
        .any(|name| parts.headers.contains_key(*name));
    match (kind, parts.method.as_str()) {
        (RequestKind::List, "GET") => is_list,
        (RequestKind::Get, "GET") => !is_list && is_ranged,
        (RequestKind::Any, _) | (RequestKind::Head, "HEAD") => true,
        (RequestKind::Part, "PUT") => is_part,
        (RequestKind::Put, "PUT") => query.is_empty(),
        (RequestKind::Complete, "POST") => has("uploadId"),
        (RequestKind::Complete, "PUT") => query.contains("comp=blocklist"),
        _ => false,
    }
}

fn error_response(status: u16) -> ProxyResponse {
    let body = Full::new(Bytes::from_static(b"<Error><Code>SlowDown</Code></Error>"));
    let mut answer = Response::new(body.map_err(|never| match never {}).boxed());
    *answer.status_mut() = StatusCode::from_u16(status).unwrap();
    answer
}

/// A body that counts its bytes, and may stall, slow down or fail.
struct FaultyBody {
    inner: Incoming,
    fault: Option<InjectedFault>,
    passed_bytes: usize,
    buffered: Bytes,
    pause: Option<Pin<Box<tokio::time::Sleep>>>,
    state: Arc<ProxyState>,
}

impl FaultyBody {
    fn new(inner: Incoming, fault: Option<InjectedFault>, state: Arc<ProxyState>) -> Self {
        state.active_bodies.fetch_add(1, Ordering::SeqCst);
        Self {
            inner,
            fault,
            passed_bytes: 0,
            buffered: Bytes::new(),
            pause: None,
            state,
        }
    }

    /// Number of `available` bytes to send now; an error closes the connection.
    fn allowed_bytes(&mut self, available: usize) -> Result<Option<usize>, BoxError> {
        match self.fault {
            Some(InjectedFault::TruncateBody(limit)) if self.passed_bytes >= limit => {
                Err("cut".into())
            }
            Some(InjectedFault::StallBody(limit)) if self.passed_bytes >= limit => Ok(None),
            Some(InjectedFault::TruncateBody(limit) | InjectedFault::StallBody(limit)) => {
                Ok(Some(available.min(limit - self.passed_bytes)))
            }
            Some(InjectedFault::SlowBody { piece, pause }) => {
                self.pause = Some(Box::pin(tokio::time::sleep(pause)));
                Ok(Some(available.min(piece)))
            }
            _ => Ok(Some(available)),
        }
    }
}

impl Drop for FaultyBody {
    fn drop(&mut self) {
        self.state.active_bodies.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Body for FaultyBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Some(pause) = &mut self.pause {
            std::task::ready!(pause.as_mut().poll(context));
            self.pause = None;
        }
        while self.buffered.is_empty() {
            match std::task::ready!(Pin::new(&mut self.inner).poll_frame(context)) {
                None => return Poll::Ready(None),
                Some(Err(error)) => return Poll::Ready(Some(Err(error.into()))),
                Some(Ok(frame)) => self.buffered = frame.into_data().unwrap_or_default(),
            }
        }
        let available = self.buffered.len();
        match self.allowed_bytes(available) {
            Err(error) => Poll::Ready(Some(Err(error))),
            // The body is never woken again: it stalls forever.
            Ok(None) => Poll::Pending,
            Ok(Some(length)) => {
                self.passed_bytes += length;
                self.state
                    .sent_bytes
                    .fetch_add(length as u64, Ordering::SeqCst);
                let piece = self.buffered.split_to(length);
                Poll::Ready(Some(Ok(Frame::data(piece))))
            }
        }
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
