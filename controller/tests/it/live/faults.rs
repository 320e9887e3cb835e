//! A controller that is killed, contradicted and answered with errors still gets there, and never twice.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::FutureExt;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::client::{Body, ClientBuilder};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::json;
use steward_crds::Etcd;
use tower::{BoxError, Layer, Service};

use super::kubelet::Kubelet;
use super::stage::Stage;

/// Loses every third write on its way there, and the answer to every fifth on its way back.
#[derive(Clone, Default)]
struct Lossy {
    writes: Arc<AtomicU32>,
    lost: Arc<AtomicU32>,
}

impl<S> Layer<S> for Lossy {
    type Service = LossyService<S>;

    fn layer(&self, inner: S) -> LossyService<S> {
        LossyService {
            inner,
            faults: self.clone(),
        }
    }
}

struct LossyService<S> {
    inner: S,
    faults: Lossy,
}

impl<S> Service<http::Request<Body>> for LossyService<S>
where
    S: Service<http::Request<Body>, Error = BoxError>,
    S::Future: Send + 'static,
    S::Response: Send,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        if request.method() == http::Method::GET {
            return self.inner.call(request).boxed();
        }
        let number = self.faults.writes.fetch_add(1, Ordering::Relaxed);
        let lost = Arc::clone(&self.faults.lost);
        if number % 3 == 2 {
            lost.fetch_add(1, Ordering::Relaxed);
            return async { Err("lost on the way there".into()) }.boxed();
        }
        let answer = self.inner.call(request);
        async move {
            let answer = answer.await;
            if number % 5 == 4 {
                lost.fetch_add(1, Ordering::Relaxed);
                return Err("lost on the way back".into());
            }
            answer
        }
        .boxed()
    }
}

async fn lossy(stage: &Stage) -> (Client, Lossy) {
    let file = Kubeconfig::read_from(stage.server.kubeconfig()).unwrap();
    let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default())
        .await
        .unwrap();
    let faults = Lossy::default();
    let client = ClientBuilder::try_from(config)
        .unwrap()
        .with_layer(&faults)
        .build();
    (client, faults)
}

#[tokio::test]
async fn writes_and_answers_that_are_lost_change_nothing_about_the_outcome() {
    let stage = Stage::set().await;
    let kubelet = Kubelet::play(&stage.client, &stage.namespace);
    let (client, faults) = lossy(&stage).await;
    let controller = stage.control_through(client, |_| {}).await;
    stage.create("main", json!({ "replicas": 3 })).await;
    stage.settled("main").await;
    stage
        .change("main", json!({ "spec": { "replicas": 0 } }))
        .await;
    stage.set_of("main", 0).await;
    stage.settled("main").await;
    assert!(
        faults.lost.load(Ordering::Relaxed) > 5,
        "nothing was lost: the test proves nothing"
    );
    assert_eq!(stage.count::<Lease>().await, 3);
    stage
        .api::<Etcd>()
        .delete("main", &DeleteParams::default())
        .await
        .unwrap();
    stage
        .eventually("the Etcd is gone", async || {
            stage.api::<Etcd>().get_opt("main").await.unwrap().is_none()
        })
        .await;
    assert_eq!(stage.count::<Lease>().await, 0);
    drop(kubelet);
    controller.stop().await;
}

#[tokio::test]
async fn a_controller_that_is_killed_again_and_again_gets_there_while_others_write_too() {
    let stage = Stage::set().await;
    let kubelet = Kubelet::play(&stage.client, &stage.namespace);
    stage.create("main", json!({ "replicas": 3 })).await;
    let sets = stage.api::<StatefulSet>();
    let rival = tokio::spawn(async move {
        // Every write of ours that is based on an older version is refused.
        for number in 0_u64.. {
            let patch = json!({ "metadata": { "annotations": { "rival": number.to_string() } } });
            sets.patch("main", &PatchParams::default(), &Patch::Merge(&patch))
                .await
                .ok();
            tokio::time::sleep(Duration::from_millis(40)).await;
        }
    });
    for round in 1..12_u64 {
        let controller = stage.control().await;
        tokio::time::sleep(Duration::from_millis(130 * round % 900)).await;
        controller.kill();
    }
    rival.abort();
    let controller = stage.control().await;
    stage.settled("main").await;
    assert_eq!(stage.count::<StatefulSet>().await, 1);
    assert_eq!(stage.count::<Lease>().await, 3);
    drop(kubelet);
    controller.stop().await;
}
