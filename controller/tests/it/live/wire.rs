//! What lies between a controller and the API server, and what may happen there to each request.

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

use super::stage::TestEnv;

/// What happens to a request.
#[derive(Clone, Copy, Debug)]
pub(super) enum FaultAction {
    /// It is answered.
    Forward,
    /// It never arrives.
    DropRequest,
    /// It arrives, and its answer is lost.
    DropResponse,
    /// It arrives late.
    Delay(Duration),
    /// It arrives when somebody gives it a permit.
    HoldForPermit(&'static Semaphore),
    /// It is refused with this code by somebody on the way.
    RespondStatus(u16),
    /// It is answered with these words by somebody on the way.
    RespondBody(&'static str),
    /// Nothing ever happens.
    Hang,
}

/// Decides what happens to each request.
type FaultPolicy = Arc<dyn Fn(&Request<Body>) -> FaultAction + Send + Sync>;

/// Whether a request writes.
pub(super) fn is_write(request: &Request<Body>) -> bool {
    request.method() != Method::GET
}

/// A connection on which `decide` rules.
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
    /// A few times on the way: enough to see that another one goes on.
    #[default]
    Low,
    /// After every few writes, now one, now more: `make soak`.
    High,
}

impl KillRate {
    /// How many writes a controller may make that comes after so many others.
    fn allowed_writes(self, lives: u32) -> u32 {
        match self {
            Self::Low => 2 << lives.min(8),
            Self::High => 1 + lives % 4,
        }
    }

    /// Fails when fewer were killed than are needed to prove anything: more than `often` at every few writes.
    pub(super) fn assert_enough_kills(self, lives: u32, often: u32) {
        let least = match self {
            Self::Low => 0,
            Self::High => often,
        };
        assert!(lives > least, "{lives} lives are too few to prove anything");
    }
}

/// Lets controllers live for some writes each, until something holds. Between two lives it is looked at, too, while nobody writes.
/// Returns how many it took.
pub(super) async fn run_with_kills(
    stage: &TestEnv,
    what: &str,
    is: impl AsyncFn() -> bool,
) -> u32 {
    const MAX_CONTROLLERS: u32 = 200;
    for lives in 0..MAX_CONTROLLERS {
        let (writes, one_more) = (AtomicU32::new(0), Arc::new(Notify::new()));
        let (told, allowed) = (Arc::clone(&one_more), stage.kill_rate.allowed_writes(lives));
        let client = build_client(stage, move |request| {
            if !is_write(request) || writes.fetch_add(1, Ordering::Relaxed) < allowed {
                return FaultAction::Forward;
            }
            told.notify_one();
            FaultAction::Hang
        })
        .await;
        let controller = stage.start_controller_via(client, |_| {});
        let is_there = stage.wait_until(what, async || is().await);
        let is_there = tokio::select! {
            () = one_more.notified() => false,
            () = is_there => true,
        };
        controller.kill();
        if is_there || is().await {
            return lives;
        }
    }
    panic!("{MAX_CONTROLLERS} controllers did not get there: {what}");
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
            FaultAction::DropRequest => async { Err("lost on the way there".into()) }.boxed(),
            FaultAction::RespondStatus(code) => async move { Ok(status_response(code)) }.boxed(),
            FaultAction::RespondBody(words) => async move { Ok(Response::new(AnyBody::from(words))) }.boxed(),
            FaultAction::Hang => futures::future::pending().boxed(),
            FaultAction::Forward | FaultAction::DropResponse | FaultAction::Delay(_) | FaultAction::HoldForPermit(_) => {
                // Nothing is sent before this is polled.
                let answer = self.inner.call(request);
                async move {
                    match fault {
                        FaultAction::Delay(by) => tokio::time::sleep(by).await,
                        FaultAction::HoldForPermit(gate) => gate.acquire().await?.forget(),
                        _ => {}
                    }
                    let answer = answer.await?;
                    if matches!(fault, FaultAction::DropResponse) {
                        return Err("lost on the way back".into());
                    }
                    Ok(answer.map(AnyBody::new))
                }
                .boxed()
            }
        }
    }
}

fn status_response(code: u16) -> Response<AnyBody> {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": "made up by the test", "reason": "MadeUp", "code": code,
    });
    Response::builder()
        .status(code)
        .body(AnyBody::from(status.to_string()))
        .expect("an answer")
}
