//! The DNS server of the cluster.
//!
//! ```text
//! Services, Endpoints ─ watch ─► Zone ─┐
//! datagram ─ Question::decode ─────────┴► Answer ─ encode ─► datagram
//! ```
//!
//! It implements the Kubernetes DNS specification for IPv4: Services, named ports, pods of headless Services by host
//! name, and reverse lookups. Names outside the cluster do not exist. It does not serve TCP: no answer in a test
//! cluster is that large.

mod message;
mod zone;

use std::convert::Infallible;
use std::future::ready;
use std::io;

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{Endpoints, Service};
use kube::runtime::{WatchStreamExt as _, reflector, watcher};
use kube::{Api, Client};
use tokio::net::UdpSocket;

pub use message::{DnsAnswer, Question, RecordData, RecordType};
pub use zone::Zone;

use crate::cluster::addresses::NODE;

const PORT: u16 = 53;
/// Larger than any question of a resolver, in bytes.
const MAX_QUERY_BYTES: usize = 4096;

/// Why the DNS server stopped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DnsError {
    /// The address is in use or not configured yet.
    #[error("failed to listen on {NODE}:{PORT}/udp")]
    Listen(#[source] io::Error),
    /// Reading from the socket failed.
    #[error("failed to receive a DNS question")]
    Receive(#[source] io::Error),
    /// The watch of Services and Endpoints ended.
    #[error("watch of Services and Endpoints ended")]
    Watch,
}

/// Serves until a failure.
pub(super) async fn serve(client: Client) -> Result<Infallible, DnsError> {
    let socket = UdpSocket::bind((NODE, PORT))
        .await
        .map_err(DnsError::Listen)?;
    let (services, service_writer) = reflector::store::<Service>();
    let (endpoints, endpoint_writer) = reflector::store::<Endpoints>();
    let watch_services = watcher(
        Api::<Service>::all(client.clone()),
        watcher::Config::default(),
    )
    .default_backoff()
    .reflect(service_writer)
    .for_each(|_| ready(()));
    let watch_endpoints = watcher(Api::<Endpoints>::all(client), watcher::Config::default())
        .default_backoff()
        .reflect(endpoint_writer)
        .for_each(|_| ready(()));
    // A test cluster has few Services: the zone is built per question, so it is never stale.
    let zone = || Zone::new(&services.state(), &endpoints.state());
    tokio::select! {
        ended = answer_queries(&socket, zone) => ended,
        () = watch_services => Err(DnsError::Watch),
        () = watch_endpoints => Err(DnsError::Watch),
    }
}

async fn answer_queries(
    socket: &UdpSocket,
    zone: impl Fn() -> Zone,
) -> Result<Infallible, DnsError> {
    let mut buffer = vec![0; MAX_QUERY_BYTES];
    loop {
        let (length, from) = socket
            .recv_from(&mut buffer)
            .await
            .map_err(DnsError::Receive)?;
        // Datagrams that are not DNS questions are dropped.
        let Some(question) = Question::decode(&buffer[..length]) else {
            continue;
        };
        let reply = zone()
            .lookup(&question.name, question.record_type)
            .encode(&question);
        // The client may be gone.
        socket.send_to(&reply, from).await.ok();
    }
}
