//! Starts the engine and the listeners, and stops them in the right order.

use std::io;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result};
use clap::Parser;
use mainstay_engine::{Engine, memory_engine, redb_engine};
use mainstay_etcdserver::{Access, EtcdApi, FrontOptions, ServerMetrics, TlsFiles};
use prometheus::Registry;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::args::{ApiArgs, EngineKind, ServeArgs, ServerArgs, ServerCommand, TlsArgs};
use crate::http::{HttpState, router};

/// Runs the program with the arguments of the process.
pub fn main() -> ExitCode {
    let ServerArgs { command, log } = ServerArgs::parse();
    log.install();
    // Another crate of the build may enable a second provider: rustls then chooses none by itself. An error means that
    // one is installed.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => return report(&anyhow::Error::new(error).context("failed to start")),
    };
    match runtime.block_on(run(command)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => report(&error),
    }
}

fn report(error: &anyhow::Error) -> ExitCode {
    tracing::error!(error = format!("{error:#}"), "server ended");
    ExitCode::FAILURE
}

async fn run(command: ServerCommand) -> Result<()> {
    match command {
        ServerCommand::Serve(args) => serve(args).await,
    }
}

async fn serve(args: ServeArgs) -> Result<()> {
    let ServeArgs {
        engine,
        data_dir,
        quota_backend_bytes,
        api,
    } = args;
    let quota_bytes = (quota_backend_bytes > 0).then_some(quota_backend_bytes);
    let engine: Arc<dyn Engine> = match engine {
        EngineKind::Memory => Arc::new(memory_engine(quota_bytes)?),
        EngineKind::Redb => {
            let data_dir = data_dir.context("--data-dir is required for the engine redb")?;
            let opened = tokio::task::spawn_blocking(move || redb_engine(&data_dir, quota_bytes));
            Arc::new(opened.await?.context("failed to open the engine redb")?)
        }
    };
    serve_api(engine, quota_bytes, api).await
}

/// Serves an engine until a signal. A listener that fails ends the program.
async fn serve_api(engine: Arc<dyn Engine>, quota_bytes: Option<u64>, args: ApiArgs) -> Result<()> {
    let registry = Registry::new();
    let metrics = ServerMetrics::register(&registry)?;
    let listener = bind(args.listen).await?;
    let http_listener = bind(args.metrics_listen).await?;
    let stop = CancellationToken::new();
    let state = HttpState {
        engine: Arc::clone(&engine),
        metrics: metrics.clone(),
        registry,
    };
    let http = axum::serve(http_listener, router(state))
        .with_graceful_shutdown(stop.clone().cancelled_owned());
    tracing::info!(
        engine = engine.capabilities().name,
        listen = %listener.local_addr()?,
        revision = engine.progress().current.0,
        "serving the etcd API"
    );
    let api = etcd_api(engine, metrics, quota_bytes, args)
        .serve(listener, stop.clone().cancelled_owned());
    let signals = async {
        let caught = wait_for_signal().await;
        stop.cancel();
        caught
    };
    let on_failure = stop.clone();
    let (api, http, signals) = tokio::join!(
        async {
            api.await
                .context("the etcd API failed")
                .inspect_err(|_| on_failure.cancel())
        },
        async {
            http.into_future()
                .await
                .context("the metrics listener failed")
                .inspect_err(|_| on_failure.cancel())
        },
        async {
            tokio::select! {
                caught = signals => caught.context("failed to wait for a signal"),
                () = stop.cancelled() => Ok(()),
            }
        },
    );
    api.and(http).and(signals)
}

async fn bind(address: std::net::SocketAddr) -> Result<TcpListener> {
    TcpListener::bind(address)
        .await
        .with_context(|| format!("failed to listen on {address}"))
}

fn etcd_api(
    engine: Arc<dyn Engine>,
    metrics: ServerMetrics,
    quota_bytes: Option<u64>,
    args: ApiArgs,
) -> EtcdApi {
    let ApiArgs {
        listen,
        metrics_listen: _, // bound by the caller
        name,
        advertise_client_url,
        progress_interval,
        requests_per_principal,
        grant,
        tls: TlsArgs {
            cert,
            key,
            client_ca,
        },
    } = args;
    let scheme = if cert.is_some() { "https" } else { "http" };
    let client_urls = if advertise_client_url.is_empty() {
        vec![format!("{scheme}://{listen}")]
    } else {
        advertise_client_url
    };
    let options = FrontOptions {
        client_urls,
        quota_bytes,
        progress_interval,
        requests_per_principal,
        ..FrontOptions::new(name)
    };
    let api = EtcdApi::new(engine, options, metrics).access(Access::by_grants(grant));
    match (cert, key) {
        (Some(certificate), Some(key)) => api.tls(TlsFiles {
            certificate,
            key,
            client_ca,
        }),
        _ => api,
    }
}

async fn wait_for_signal() -> io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    tracing::info!("stopping");
    Ok(())
}
