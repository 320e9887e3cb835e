//! The directory of a cluster.

use std::path::{Path, PathBuf};

use mainstay_testkit::paths::{cache_dir, env_path};

use super::components::ClusterComponent;

/// Why the directory of a cluster is unknown.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HomeError {
    /// No environment variable defines it.
    #[error(
        "no directory for the cluster: set MAINSTAY_CLUSTER, MAINSTAY_CACHE, XDG_CACHE_HOME or HOME"
    )]
    NotConfigured,
}

/// The directory of a cluster's files. Only one cluster can run per machine, because the addresses are fixed.
#[derive(Clone, Debug)]
pub struct ClusterHome(PathBuf);

impl ClusterHome {
    /// The directory in `MAINSTAY_CLUSTER`, or `cluster` in the cache directory.
    pub fn from_env() -> Result<Self, HomeError> {
        let path = env_path("MAINSTAY_CLUSTER").or_else(|| Some(cache_dir()?.join("cluster")));
        path.map(Self).ok_or(HomeError::NotConfigured)
    }

    /// `path` must be absolute.
    pub fn new(path: &Path) -> Self {
        Self(path.to_owned())
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The administrator's kubeconfig.
    pub fn kubeconfig(&self) -> PathBuf {
        self.0.join("kubeconfig")
    }

    /// The kubeconfig of a component.
    pub(crate) fn component_kubeconfig(&self, who: &str) -> PathBuf {
        self.0.join(format!("{who}.kubeconfig"))
    }

    /// A key or a certificate.
    pub(crate) fn pki_file(&self, file: &str) -> PathBuf {
        self.0.join("pki").join(file)
    }

    /// The log of a component, over all its restarts.
    pub fn log_file(&self, component: ClusterComponent) -> PathBuf {
        self.named_log_file(component.name())
    }

    /// The log of a program that is not a component.
    pub(crate) fn named_log_file(&self, name: &str) -> PathBuf {
        self.0.join("log").join(format!("{name}.log"))
    }

    /// While this file exists, process 1 keeps the component stopped.
    pub(crate) fn hold_file(&self, component: ClusterComponent) -> PathBuf {
        self.0
            .join("run")
            .join(format!("{}.hold", component.name()))
    }

    /// Exists while the component runs.
    pub(crate) fn running_file(&self, component: ClusterComponent) -> PathBuf {
        self.0
            .join("run")
            .join(format!("{}.running", component.name()))
    }

    /// Written by process 1 when its namespaces are prepared.
    pub(crate) fn prepared_file(&self) -> PathBuf {
        self.0.join("run/furnished")
    }

    /// Written by `cluster up` when the network link exists.
    pub(crate) fn linked_file(&self) -> PathBuf {
        self.0.join("run/linked")
    }

    /// The record of the process that holds the namespaces.
    pub(crate) fn record_file(&self) -> PathBuf {
        self.0.join("run/record.json")
    }

    /// containerd's socket.
    pub(crate) fn containerd_socket(&self) -> PathBuf {
        self.0.join("containerd.sock")
    }

    /// A copy of this program from the start of the cluster.
    pub(crate) fn cluster_program(&self) -> PathBuf {
        self.0.join("cluster")
    }

    /// Volumes of pods, one directory each.
    pub(crate) fn volumes_dir(&self) -> PathBuf {
        self.0.join("volumes")
    }

    /// Image archives.
    pub(crate) fn images_dir(&self) -> PathBuf {
        self.0.join("images")
    }

    /// Directories to create before the cluster starts.
    pub(crate) fn directories(&self) -> [PathBuf; 9] {
        [
            "pki", "log", "run", "cni", "images", "kernel", "volumes", "plugins", "s3",
        ]
        .map(|name| self.0.join(name))
    }

    /// A file in the directory.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}
