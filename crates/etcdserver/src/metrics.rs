//! Metrics of requests, as a tower layer.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

use prometheus::{
    HistogramOpts, HistogramVec, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
};
use tower::{Layer, Service};

/// Methods that are served. Others share one label, so that clients cannot create series.
const METHODS: [(&str, &str); 18] = [
    ("/etcdserverpb.KV/Range", "Range"),
    ("/etcdserverpb.KV/Put", "Put"),
    ("/etcdserverpb.KV/DeleteRange", "DeleteRange"),
    ("/etcdserverpb.KV/Txn", "Txn"),
    ("/etcdserverpb.KV/Compact", "Compact"),
    ("/etcdserverpb.Watch/Watch", "Watch"),
    ("/etcdserverpb.Lease/LeaseGrant", "LeaseGrant"),
    ("/etcdserverpb.Lease/LeaseRevoke", "LeaseRevoke"),
    ("/etcdserverpb.Lease/LeaseKeepAlive", "LeaseKeepAlive"),
    ("/etcdserverpb.Lease/LeaseTimeToLive", "LeaseTimeToLive"),
    ("/etcdserverpb.Lease/LeaseLeases", "LeaseLeases"),
    ("/etcdserverpb.Cluster/MemberList", "MemberList"),
    ("/etcdserverpb.Maintenance/Alarm", "Alarm"),
    ("/etcdserverpb.Maintenance/Status", "Status"),
    ("/etcdserverpb.Maintenance/Defragment", "Defragment"),
    ("/etcdserverpb.Maintenance/Hash", "Hash"),
    ("/etcdserverpb.Maintenance/HashKV", "HashKV"),
    ("/etcdserverpb.Maintenance/Snapshot", "Snapshot"),
];

/// Metrics of the API.
#[derive(Clone, Debug)]
pub struct ServerMetrics {
    requests: IntCounterVec,
    duration: HistogramVec,
    in_flight: IntGaugeVec,
    revision: IntGauge,
    compacted_revision: IntGauge,
    size: IntGaugeVec,
}

impl ServerMetrics {
    /// Registers the metrics.
    pub fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let requests = IntCounterVec::new(
            Opts::new(
                "mainstay_server_requests_total",
                "Requests by method and gRPC code. A stream counts when it begins.",
            ),
            &["method", "code"],
        )?;
        let duration = HistogramVec::new(
            HistogramOpts::new(
                "mainstay_server_request_seconds",
                "Time to the response, or to the start of a stream.",
            )
            .buckets(vec![
                0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2.5, 10.0,
            ]),
            &["method"],
        )?;
        let in_flight = IntGaugeVec::new(
            Opts::new(
                "mainstay_server_requests_in_flight",
                "Requests waiting for a response.",
            ),
            &["method"],
        )?;
        let revision = IntGauge::new("mainstay_server_revision", "Current revision.")?;
        let compacted_revision = IntGauge::new(
            "mainstay_server_compacted_revision",
            "Compacted revision; 0 for none.",
        )?;
        let size = IntGaugeVec::new(
            Opts::new(
                "mainstay_server_store_bytes",
                "Bytes of the store, allocated and in use.",
            ),
            &["kind"],
        )?;
        registry.register(Box::new(requests.clone()))?;
        registry.register(Box::new(duration.clone()))?;
        registry.register(Box::new(in_flight.clone()))?;
        registry.register(Box::new(revision.clone()))?;
        registry.register(Box::new(compacted_revision.clone()))?;
        registry.register(Box::new(size.clone()))?;
        for (_, method) in METHODS {
            requests.with_label_values(&[method, "OK"]);
        }
        Ok(Self {
            requests,
            duration,
            in_flight,
            revision,
            compacted_revision,
            size,
        })
    }

    /// Updates what is read from the engine.
    pub async fn observe(&self, engine: &dyn mainstay_engine::Engine) {
        let progress = engine.progress();
        self.revision.set(progress.current.0);
        self.compacted_revision
            .set(progress.compacted.map_or(0, |revision| revision.0));
        if let Ok(size) = engine.size().await {
            let signed = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
            self.size
                .with_label_values(&["allocated"])
                .set(signed(size.total_bytes));
            self.size
                .with_label_values(&["in_use"])
                .set(signed(size.in_use_bytes));
        }
    }
}

fn method_of(path: &str) -> &'static str {
    let known = METHODS.iter().find(|(served, _)| *served == path);
    known.map_or("other", |(_, method)| *method)
}

/// Counts and times requests.
#[derive(Clone, Debug)]
pub(crate) struct MetricsLayer(pub(crate) ServerMetrics);

impl<S> Layer<S> for MetricsLayer {
    type Service = Measured<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Measured {
            inner,
            metrics: self.0.clone(),
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Measured<S> {
    inner: S,
    metrics: ServerMetrics,
}

/// Counts a request as finished however it ends.
struct InFlight(IntGauge);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl<S, B, R> Service<http::Request<B>> for Measured<S>
where
    S: Service<http::Request<B>, Response = http::Response<R>>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        let method = method_of(request.uri().path());
        let metrics = self.metrics.clone();
        let began = Instant::now();
        let in_flight = metrics.in_flight.with_label_values(&[method]);
        in_flight.inc();
        let in_flight = InFlight(in_flight);
        let response = self.inner.call(request);
        Box::pin(async move {
            let _in_flight = in_flight;
            let response = response.await?;
            let code = response.headers().get("grpc-status").map_or(0, |code| {
                code.to_str()
                    .ok()
                    .and_then(|code| code.parse().ok())
                    .unwrap_or(2)
            });
            let code = code_name(tonic::Code::from_i32(code));
            metrics.requests.with_label_values(&[method, code]).inc();
            metrics
                .duration
                .with_label_values(&[method])
                .observe(began.elapsed().as_secs_f64());
            Ok(response)
        })
    }
}

fn code_name(code: tonic::Code) -> &'static str {
    match code {
        tonic::Code::Ok => "OK",
        tonic::Code::Cancelled => "Canceled",
        tonic::Code::Unknown => "Unknown",
        tonic::Code::InvalidArgument => "InvalidArgument",
        tonic::Code::DeadlineExceeded => "DeadlineExceeded",
        tonic::Code::NotFound => "NotFound",
        tonic::Code::AlreadyExists => "AlreadyExists",
        tonic::Code::PermissionDenied => "PermissionDenied",
        tonic::Code::ResourceExhausted => "ResourceExhausted",
        tonic::Code::FailedPrecondition => "FailedPrecondition",
        tonic::Code::Aborted => "Aborted",
        tonic::Code::OutOfRange => "OutOfRange",
        tonic::Code::Unimplemented => "Unimplemented",
        tonic::Code::Internal => "Internal",
        tonic::Code::Unavailable => "Unavailable",
        tonic::Code::DataLoss => "DataLoss",
        tonic::Code::Unauthenticated => "Unauthenticated",
    }
}
