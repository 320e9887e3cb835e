//! Injects faults between a controller and the API server, request by request.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body as AnyBody, Bytes, HttpBody};
use futures::FutureExt;
use http::{Method, Request, Response};
use kube::client::{Body, ClientBuilder};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::json;
use tokio::sync::{Notify, Semaphore};
use tower::{BoxError, Layer, Service};

use super::test_env::TestEnv;

/// What happens to one request.
#[derive(Clone, Copy, Debug)]
pub(super) enum FaultAction {
    /// Forwards it.
    Forward,
    /// Fails it before it reaches the API server.
    DropRequest,
    /// Forwards it and fails the response.
    DropResponse,
    /// Forwards it after this delay.
    Delay(Duration),
    /// Forwards it once the test adds a permit.
    HoldForPermit(&'static Semaphore),
    /// Answers it with this status code.
    RespondStatus(u16),
    /// Answers it with this body.
    RespondBody(&'static str),
    /// Never answers it.
    Hang,
}

type FaultPolicy = Arc<dyn Fn(&Request<Body>) -> FaultAction + Send + Sync>;

pub(super) fn is_write(request: &Request<Body>) -> bool {
    request.method() != Method::GET
}

/// Creates a client whose requests are subject to `decide`.
pub(super) async fn build_client(
    stage: &TestEnv,
    decide: impl Fn(&Request<Body>) -> FaultAction + Send + Sync + 'static,
) -> Client {
    let file = Kubeconfig::read_from(stage.server.kubeconfig()).expect("a kubeconfig");
    let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default())
        .await
        .expect("a configuration");
    let builder = ClientBuilder::try_from(config).expect("a connection");
    let decide: FaultPolicy = Arc::new(decide);
    builder.with_layer(&FaultLayer(decide)).build()
}

/// How often controllers are killed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum KillRate {
    /// A few times: enough to show that the next controller continues.
    #[default]
    Low,
    /// After every one to four writes: `make soak`.
    High,
}

impl KillRate {
    /// Number of writes of the controller that follows so many kills.
    fn allowed_writes(self, kills: u32) -> u32 {
        match self {
            Self::Low => 2 << kills.min(8),
            Self::High => 1 + kills % 4,
        }
    }

    /// Panics unless more than `often` controllers were killed at [`KillRate::High`]: fewer prove nothing.
    pub(super) fn assert_enough_kills(self, kills: u32, often: u32) {
        let least = match self {
            Self::Low => 0,
            Self::High => often,
        };
        assert!(kills > least, "{kills} kills are too few to prove anything");
    }
}

/// Runs one controller after the other, each killed after some writes, until a condition holds. The condition is also checked
/// between two controllers, while nothing writes. Returns the number of kills.
pub(super) async fn run_with_kills(
    stage: &TestEnv,
    what: &str,
    predicate: impl AsyncFn() -> bool,
) -> u32 {
    const MAX_CONTROLLERS: u32 = 200;
    for kills in 0..MAX_CONTROLLERS {
        let (writes, one_more) = (AtomicU32::new(0), Arc::new(Notify::new()));
        let (notifier, allowed) = (Arc::clone(&one_more), stage.kill_rate.allowed_writes(kills));
        let client = build_client(stage, move |request| {
            if !is_write(request) || writes.fetch_add(1, Ordering::Relaxed) < allowed {
                return FaultAction::Forward;
            }
            notifier.notify_one();
            FaultAction::Hang
        })
        .await;
        let controller = stage.start_controller_via(client, |_| {});
        let is_done = stage.wait_until(what, async || predicate().await);
        let is_done = tokio::select! {
            () = one_more.notified() => false,
            () = is_done => true,
        };
        controller.kill();
        if is_done || predicate().await {
            return kills;
        }
    }
    panic!("{MAX_CONTROLLERS} controllers did not suffice: {what}");
}

#[derive(Clone)]
struct FaultLayer(FaultPolicy);

impl<S> Layer<S> for FaultLayer {
    type Service = FaultService<S>;

    fn layer(&self, inner: S) -> FaultService<S> {
        FaultService {
            inner,
            policy: Arc::clone(&self.0),
        }
    }
}

struct FaultService<S> {
    inner: S,
    policy: FaultPolicy,
}

type ServiceResult = Result<Response<AnyBody>, BoxError>;

impl<S, B> Service<Request<Body>> for FaultService<S>
where
    S: Service<Request<Body>, Response = Response<B>, Error = BoxError>,
    S::Future: Send + 'static,
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<AnyBody>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = ServiceResult> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let fault = (self.policy)(&request);
        match fault {
            FaultAction::DropRequest => async { Err("test fault: request lost".into()) }.boxed(),
            FaultAction::RespondStatus(code) => async move { Ok(status_response(code)) }.boxed(),
            FaultAction::RespondBody(body) => {
                async move { Ok(Response::new(AnyBody::from(body))) }.boxed()
            }
            FaultAction::Hang => futures::future::pending().boxed(),
            FaultAction::Forward
            | FaultAction::DropResponse
            | FaultAction::Delay(_)
            | FaultAction::HoldForPermit(_) => {
                // A lazy future: the request is sent when it is polled first.
                let response = self.inner.call(request);
                async move {
                    match fault {
                        FaultAction::Delay(delay) => tokio::time::sleep(delay).await,
                        FaultAction::HoldForPermit(gate) => gate.acquire().await?.forget(),
                        _ => {}
                    }
                    let response = response.await?;
                    if matches!(fault, FaultAction::DropResponse) {
                        return Err("test fault: response lost".into());
                    }
                    Ok(response.map(AnyBody::new))
                }
                .boxed()
            }
        }
    }
}

fn status_response(code: u16) -> Response<AnyBody> {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": "test fault", "reason": "TestFault", "code": code,
    });
    Response::builder()
        .status(code)
        .body(AnyBody::from(status.to_string()))
        .expect("a response")
}
