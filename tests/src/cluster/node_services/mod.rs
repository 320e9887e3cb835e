//! DNS server and volume provisioner of the cluster.
//!
//! Runs as a component inside the cluster's namespaces. Both parts watch the API server; if one fails, the whole
//! program exits and process 1 restarts it.

pub mod dns;
pub mod volumes;

use std::convert::Infallible;

use kube::Client;

use super::discovery::{KubeClientError, connect_client};
use super::home::ClusterHome;

/// Why the program stopped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NodeServicesError {
    /// No Kubernetes client could be created.
    #[error(transparent)]
    Client(#[from] KubeClientError),
    /// The DNS server stopped.
    #[error(transparent)]
    Dns(#[from] dns::DnsError),
    /// The volume provisioner stopped.
    #[error(transparent)]
    Volumes(#[from] volumes::ProvisionError),
}

/// Runs until a failure.
pub async fn run_node_services(home: &ClusterHome) -> Result<Infallible, NodeServicesError> {
    let client: Client = connect_client(&home.kubeconfig()).await?;
    let names = dns::serve(client.clone());
    let volumes = volumes::run_provisioner(client, home.clone());
    tokio::select! {
        ended = names => Ok(ended?),
        ended = volumes => Ok(ended?),
    }
}
