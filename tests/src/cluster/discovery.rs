//! Finds the cluster for the tests: the one of `KUBECONFIG`, or the one of this machine.

use std::fs;
use std::path::{Path, PathBuf};

use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};
use mainstay_testkit::paths::env_path;
use rustls::crypto::{CryptoProvider, ring};

use super::home::{ClusterHome, HomeError};
use super::node::LocalNode;

/// Why no client could be created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KubeClientError {
    /// The kubeconfig could not be read.
    #[error("failed to read kubeconfig {}", path.display())]
    Read {
        /// Affected path.
        path: PathBuf,
        /// Underlying error.
        source: Box<KubeconfigError>,
    },
    /// The kubeconfig is invalid.
    #[error("failed to create a client from kubeconfig {}", path.display())]
    Make {
        /// Affected path.
        path: PathBuf,
        /// Underlying error.
        source: Box<kube::Error>,
    },
}

/// Why no cluster was found.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FindError {
    /// The directory of clusters is unknown.
    #[error(transparent)]
    Home(#[from] HomeError),
    /// No cluster is running.
    #[error("no cluster is running in {}; start one with `make cluster-up`, or set KUBECONFIG to use another", home.display())]
    NotRunning {
        /// The directory that was checked.
        home: PathBuf,
    },
    /// No client could be created.
    #[error(transparent)]
    Client(#[from] KubeClientError),
}

/// A cluster, with access to its node if it is the one of this machine.
#[derive(Clone)]
pub struct TestCluster {
    client: Client,
    kubeconfig: PathBuf,
    node: Option<LocalNode>,
}

impl TestCluster {
    /// Finds the cluster to use.
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

    /// The cluster of a directory of this machine, regardless of `KUBECONFIG`.
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

    /// A client with administrator rights.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// The administrator's kubeconfig.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// Access to the node; `None` for an external cluster.
    pub fn node(&self) -> Option<&LocalNode> {
        self.node.as_ref()
    }
}

/// Origin of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClusterSource {
    /// Started by `cluster up` on this machine.
    Local,
    /// External, given by its kubeconfig: it is never deleted.
    External(PathBuf),
}

/// The cluster of `KUBECONFIG`; `Own` also if `KUBECONFIG` points to this machine's cluster.
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

/// Creates a client from a kubeconfig.
pub(super) async fn connect_client(kubeconfig: &Path) -> Result<Client, KubeClientError> {
    // Two dependencies bring a rustls provider each, so rustls does not choose a default. An error means
    // that another caller has installed one already.
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
    fn cluster_is_external_unless_its_kubeconfig_is_the_local_one() {
        let directory = tempfile::tempdir().unwrap();
        let [own, other, link] = ["own", "other", "link"].map(|name| directory.path().join(name));
        for file in [&own, &other] {
            fs::write(file, "").unwrap();
        }
        symlink(&own, &link).unwrap();
        assert_eq!(choose_source(None, &own), ClusterSource::Local);
        assert_eq!(choose_source(Some(own.clone()), &own), ClusterSource::Local);
        assert_eq!(
            choose_source(Some(link), &own),
            ClusterSource::Local,
            "through a symlink"
        );
        assert_eq!(
            choose_source(Some(other.clone()), &own),
            ClusterSource::External(other)
        );
    }

    #[test]
    fn stopped_local_cluster_is_still_local() {
        let own = Path::new("/nowhere/kubeconfig");
        assert_eq!(
            choose_source(Some(own.to_owned()), own),
            ClusterSource::Local
        );
    }
}
