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

use super::stage::Stage;

/// What happens to a request.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fate {
    /// It is answered.
    Answered,
    /// It never arrives.
    Lost,
    /// It arrives, and its answer is lost.
    Unanswered,
    /// It arrives late.
    Late(Duration),
    /// It arrives when somebody gives it a permit.
    Held(&'static Semaphore),
    /// It is refused with this code by somebody on the way.
    Refused(u16),
    /// It is answered with these words by somebody on the way.
    Told(&'static str),
    /// Nothing ever happens.
    Silent,
}

/// Decides what happens to each request.
type Decide = Arc<dyn Fn(&Request<Body>) -> Fate + Send + Sync>;

/// Whether a request writes.
pub(super) fn is_write(request: &Request<Body>) -> bool {
    request.method() != Method::GET
}

/// A connection on which `decide` rules.
pub(super) async fn client(
    stage: &Stage,
    decide: impl Fn(&Request<Body>) -> Fate + Send + Sync + 'static,
) -> Client {
    let file = Kubeconfig::read_from(stage.server.kubeconfig()).expect("a kubeconfig");
    let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default())
        .await
        .expect("a configuration");
    let builder = ClientBuilder::try_from(config).expect("a connection");
    let decide: Decide = Arc::new(decide);
    builder.with_layer(&Wire(decide)).build()
}

/// How often controllers are killed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Kills {
    /// A few times on the way: enough to see that another one goes on.
    #[default]
    Seldom,
    /// After every few writes, now one, now more: `make soak`.
    Often,
}

impl Kills {
    /// How many writes a controller may make that comes after so many others.
    fn allowed(self, lives: u32) -> u32 {
        match self {
            Self::Seldom => 2 << lives.min(8),
            Self::Often => 1 + lives % 4,
        }
    }

    /// Fails when fewer were killed than are needed to prove anything: more than `often` at every few writes.
    pub(super) fn assert_proven(self, lives: u32, often: u32) {
        let least = match self {
            Self::Seldom => 0,
            Self::Often => often,
        };
        assert!(lives > least, "{lives} lives are too few to prove anything");
    }
}

/// Lets controllers live for some writes each, until something holds. Between two lives it is looked at, too, while nobody writes.
/// Returns how many it took.
pub(super) async fn a_few_writes_at_a_time(
    stage: &Stage,
    what: &str,
    is: impl AsyncFn() -> bool,
) -> u32 {
    const MOST: u32 = 200;
    for lives in 0..MOST {
        let (writes, one_more) = (AtomicU32::new(0), Arc::new(Notify::new()));
        let (told, allowed) = (Arc::clone(&one_more), stage.kills.allowed(lives));
        let client = client(stage, move |request| {
            if !is_write(request) || writes.fetch_add(1, Ordering::Relaxed) < allowed {
                return Fate::Answered;
            }
            told.notify_one();
            Fate::Silent
        })
        .await;
        let controller = stage.control_through(client, |_| {});
        let is_there = stage.eventually(what, async || is().await);
        let is_there = tokio::select! {
            () = one_more.notified() => false,
            () = is_there => true,
        };
        controller.kill();
        if is_there || is().await {
            return lives;
        }
    }
    panic!("{MOST} controllers did not get there: {what}");
}

#[derive(Clone)]
struct Wire(Decide);

impl<S> Layer<S> for Wire {
    type Service = Wired<S>;

    fn layer(&self, inner: S) -> Wired<S> {
        Wired {
            inner,
            decide: Arc::clone(&self.0),
        }
    }
}

struct Wired<S> {
    inner: S,
    decide: Decide,
}

type Answer = Result<Response<AnyBody>, BoxError>;

impl<S, B> Service<Request<Body>> for Wired<S>
where
    S: Service<Request<Body>, Response = Response<B>, Error = BoxError>,
    S::Future: Send + 'static,
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<AnyBody>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Answer> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let fate = (self.decide)(&request);
        match fate {
            Fate::Lost => async { Err("lost on the way there".into()) }.boxed(),
            Fate::Refused(code) => async move { Ok(refusal(code)) }.boxed(),
            Fate::Told(words) => async move { Ok(Response::new(AnyBody::from(words))) }.boxed(),
            Fate::Silent => futures::future::pending().boxed(),
            Fate::Answered | Fate::Unanswered | Fate::Late(_) | Fate::Held(_) => {
                // Nothing is sent before this is polled.
                let answer = self.inner.call(request);
                async move {
                    match fate {
                        Fate::Late(by) => tokio::time::sleep(by).await,
                        Fate::Held(gate) => gate.acquire().await?.forget(),
                        _ => {}
                    }
                    let answer = answer.await?;
                    if matches!(fate, Fate::Unanswered) {
                        return Err("lost on the way back".into());
                    }
                    Ok(answer.map(AnyBody::new))
                }
                .boxed()
            }
        }
    }
}

fn refusal(code: u16) -> Response<AnyBody> {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": "made up by the test", "reason": "MadeUp", "code": code,
    });
    Response::builder()
        .status(code)
        .body(AnyBody::from(status.to_string()))
        .expect("an answer")
}
