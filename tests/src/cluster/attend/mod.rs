//! What a cluster needs beside the programs of Kubernetes: names for services, and volumes for claims.
//!
//! Runs as a component inside the world. Both parts follow the API server by watching it; when one of them
//! cannot go on, all of it ends and process 1 starts it again.

pub mod dns;
pub mod volumes;

use std::convert::Infallible;

use kube::Client;

use super::find::{KubeClientError, connect_client};
use super::home::ClusterHome;

/// Why it cannot go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NodeServicesError {
    /// There is no client.
    #[error(transparent)]
    Client(#[from] KubeClientError),
    /// Names are not answered any more.
    #[error(transparent)]
    Dns(#[from] dns::DnsError),
    /// Claims are not served any more.
    #[error(transparent)]
    Volumes(#[from] volumes::ProvisionError),
}

/// Runs until something fails.
pub async fn run_node_services(home: &ClusterHome) -> Result<Infallible, NodeServicesError> {
    let client: Client = connect_client(&home.kubeconfig()).await?;
    let names = dns::serve(client.clone());
    let volumes = volumes::run_provisioner(client, home.clone());
    tokio::select! {
        ended = names => Ok(ended?),
        ended = volumes => Ok(ended?),
    }
}
