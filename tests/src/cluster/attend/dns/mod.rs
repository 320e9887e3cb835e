//! A name server for the services of a cluster.
//!
//! ```text
//! Services, Endpoints ─ watch ─► Zone ─┐
//! datagram ─ Question::decode ─────────┴► Answer ─ encode ─► datagram
//! ```
//!
//! **Holds**: names are those of Kubernetes' specification for DNS, for IPv4: services, named ports, pods of
//! headless services by host name and back from their address. What is not of the cluster does not
//! exist. **Does not do**: TCP; no answer of a test's cluster needs it.

mod wire;
mod zone;

use std::convert::Infallible;
use std::future::ready;
use std::io;

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{Endpoints, Service};
use kube::runtime::{WatchStreamExt as _, reflector, watcher};
use kube::{Api, Client};
use tokio::net::UdpSocket;

pub use wire::{DnsAnswer, RecordData, RecordType, Question};
pub use zone::Zone;

use crate::cluster::addresses::NODE;

const PORT: u16 = 53;
/// Longer questions than any resolver asks.
const MAX_QUERY_BYTES: usize = 4096;

/// Why names are not answered any more.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DnsError {
    /// The address is taken, or not there yet.
    #[error("listen on {NODE}, port {PORT}")]
    Listen(#[source] io::Error),
    /// The socket broke.
    #[error("receive a question")]
    Receive(#[source] io::Error),
    /// The watch of services and endpoints ended.
    #[error("the watch of services ended")]
    Watch,
}

/// Answers until something fails.
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
    // A cluster of tests has few services: the zone is made for each question, and is never old.
    let zone = || Zone::new(&services.state(), &endpoints.state());
    tokio::select! {
        ended = answer_queries(&socket, zone) => ended,
        () = watch_services => Err(DnsError::Watch),
        () = watch_endpoints => Err(DnsError::Watch),
    }
}

async fn answer_queries(socket: &UdpSocket, zone: impl Fn() -> Zone) -> Result<Infallible, DnsError> {
    let mut buffer = vec![0; MAX_QUERY_BYTES];
    loop {
        let (length, from) = socket
            .recv_from(&mut buffer)
            .await
            .map_err(DnsError::Receive)?;
        // What is no question gets no answer, as on any open port.
        let Some(question) = Question::decode(&buffer[..length]) else {
            continue;
        };
        let reply = zone()
            .lookup(&question.name, question.record_type)
            .encode(&question);
        // Whoever asked may be gone.
        socket.send_to(&reply, from).await.ok();
    }
}
