//! What a cluster needs beside the programs of Kubernetes: names for services, and volumes for claims.
//!
//! Runs as a component inside the world. Both parts follow the API server by watching it; when one of them
//! cannot go on, all of it ends and process 1 starts it again.

pub mod dns;
pub mod volumes;

use std::convert::Infallible;

use kube::Client;

use super::find::{ClientError, client};
use super::home::Home;

/// Why it cannot go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AttendError {
    /// There is no client.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// Names are not answered any more.
    #[error(transparent)]
    Names(#[from] dns::ServeError),
    /// Claims are not served any more.
    #[error(transparent)]
    Volumes(#[from] volumes::ProvideError),
}

/// Runs until something fails.
pub async fn attend(home: &Home) -> Result<Infallible, AttendError> {
    let client: Client = client(&home.kubeconfig()).await?;
    let names = dns::serve(client.clone());
    let volumes = volumes::provide(client, home.clone());
    tokio::select! {
        ended = names => Ok(ended?),
        ended = volumes => Ok(ended?),
    }
}
