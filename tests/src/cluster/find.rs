//! The cluster tests run on: the one `KUBECONFIG` names, or the one of this machine.

use std::fs;
use std::path::{Path, PathBuf};

use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};
use mainstay_testkit::place::env_path;
use rustls::crypto::{CryptoProvider, ring};

use super::home::{ClusterHome, HomeError};
use super::node::LocalNode;

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KubeClientError {
    /// The kubeconfig cannot be read or used.
    #[error("read {}", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        source: Box<KubeconfigError>,
    },
    /// What it says makes no client.
    #[error("make a client of {}", path.display())]
    Make {
        /// Which.
        path: PathBuf,
        /// Why.
        source: Box<kube::Error>,
    },
}

/// Why there is no cluster to test on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FindError {
    /// There is no place where it could be.
    #[error(transparent)]
    Home(#[from] HomeError),
    /// None runs.
    #[error("no cluster runs in {}: `make cluster-up` brings one up, KUBECONFIG names another", home.display())]
    NotRunning {
        /// Where it was looked for.
        home: PathBuf,
    },
    /// There is no client.
    #[error(transparent)]
    Client(#[from] KubeClientError),
}

/// A cluster, and the machine's hand on it if it is the machine's own.
#[derive(Clone)]
pub struct TestCluster {
    client: Client,
    kubeconfig: PathBuf,
    node: Option<LocalNode>,
}

impl TestCluster {
    /// The one to use.
    pub async fn find() -> Result<Self, FindError> {
        let home = ClusterHome::from_env()?;
        let ClusterSource::External(kubeconfig) = cluster_source(&home) else {
            return Self::open_local(&home).await;
        };
        Ok(Self {
            client: connect_client(&kubeconfig).await?,
            kubeconfig,
            node: None,
        })
    }

    /// The machine's own in a directory, whatever `KUBECONFIG` says.
    pub async fn open_local(home: &ClusterHome) -> Result<Self, FindError> {
        let node = LocalNode::open(home);
        let node = node.ok_or_else(|| FindError::NotRunning {
            home: home.path().to_owned(),
        })?;
        let kubeconfig = home.kubeconfig();
        let client = connect_client(&kubeconfig).await?;
        Ok(Self {
            client,
            kubeconfig,
            node: Some(node),
        })
    }

    /// A client with all rights.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// The file that makes such clients.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// The machine's hand on it; `None` for a cluster of somebody else.
    pub fn node(&self) -> Option<&LocalNode> {
        self.node.as_ref()
    }
}

/// Whose cluster is meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClusterSource {
    /// The machine's own.
    Local,
    /// Somebody else's, by its kubeconfig: it is used as it is, and stays.
    External(PathBuf),
}

/// The cluster `KUBECONFIG` names; the machine's own also if that is the one it names.
pub fn cluster_source(home: &ClusterHome) -> ClusterSource {
    choose_source(env_path("KUBECONFIG"), &home.kubeconfig())
}

fn choose_source(named: Option<PathBuf>, own: &Path) -> ClusterSource {
    let real = |path: &Path| fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    match named {
        Some(named) if real(&named) != real(own) => ClusterSource::External(named),
        _ => ClusterSource::Local,
    }
}

/// A client of the cluster a kubeconfig names.
pub(super) async fn connect_client(kubeconfig: &Path) -> Result<Client, KubeClientError> {
    // Two crates of the graph bring a provider each, so none is the default by itself. Somebody else may
    // have chosen already, which is as good.
    if CryptoProvider::get_default().is_none() {
        ring::default_provider().install_default().ok();
    }
    let path = kubeconfig.to_owned();
    let config = match Kubeconfig::read_from(kubeconfig) {
        Ok(file) => Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await,
        Err(error) => Err(error),
    };
    let config = config.map_err(|source| KubeClientError::Read {
        path: path.clone(),
        source: Box::new(source),
    })?;
    Client::try_from(config).map_err(|source| KubeClientError::Make {
        path,
        source: Box::new(source),
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_cluster_is_somebody_elses_unless_its_kubeconfig_is_the_machines_own() {
        let directory = tempfile::tempdir().unwrap();
        let [own, other, link] = ["own", "other", "link"].map(|name| directory.path().join(name));
        for file in [&own, &other] {
            fs::write(file, "").unwrap();
        }
        symlink(&own, &link).unwrap();
        assert_eq!(choose_source(None, &own), ClusterSource::Local);
        assert_eq!(choose_source(Some(own.clone()), &own), ClusterSource::Local);
        assert_eq!(choose_source(Some(link), &own), ClusterSource::Local, "by another name");
        assert_eq!(choose_source(Some(other.clone()), &own), ClusterSource::External(other));
    }

    #[test]
    fn a_cluster_of_the_machine_that_is_down_is_still_its_own() {
        let own = Path::new("/nowhere/kubeconfig");
        assert_eq!(choose_source(Some(own.to_owned()), own), ClusterSource::Local);
    }
}
