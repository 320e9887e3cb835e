//! The directory a cluster keeps everything in.

use std::path::{Path, PathBuf};

use mainstay_testkit::place::{cache_dir, env_path};

use super::components::ClusterComponent;

/// Why there is no place for a cluster.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HomeError {
    /// No variable says where caches are.
    #[error(
        "none of MAINSTAY_CLUSTER, MAINSTAY_CACHE, XDG_CACHE_HOME and HOME says where to keep a cluster"
    )]
    NotConfigured,
}

/// Where a cluster keeps its files. One cluster per directory, and one per machine: the addresses are fixed.
#[derive(Clone, Debug)]
pub struct ClusterHome(PathBuf);

impl ClusterHome {
    /// The directory `MAINSTAY_CLUSTER` names, or `cluster` in the cache.
    pub fn from_env() -> Result<Self, HomeError> {
        let path = env_path("MAINSTAY_CLUSTER").or_else(|| Some(cache_dir()?.join("cluster")));
        path.map(Self).ok_or(HomeError::NotConfigured)
    }

    /// A given directory, by its absolute path.
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

    /// A kubeconfig of one of the programs.
    pub(crate) fn component_kubeconfig(&self, who: &str) -> PathBuf {
        self.0.join(format!("{who}.kubeconfig"))
    }

    /// A key or a certificate.
    pub(crate) fn pki_file(&self, file: &str) -> PathBuf {
        self.0.join("pki").join(file)
    }

    /// What a component wrote, over all its starts.
    pub fn log_file(&self, component: ClusterComponent) -> PathBuf {
        self.named_log_file(component.name())
    }

    /// The same for what is no component.
    pub(crate) fn named_log_file(&self, name: &str) -> PathBuf {
        self.0.join("log").join(format!("{name}.log"))
    }

    /// While this file exists, a component does not run.
    pub(crate) fn hold_file(&self, component: ClusterComponent) -> PathBuf {
        self.0
            .join("run")
            .join(format!("{}.hold", component.name()))
    }

    /// This file exists while a component runs.
    pub(crate) fn running_file(&self, component: ClusterComponent) -> PathBuf {
        self.0
            .join("run")
            .join(format!("{}.running", component.name()))
    }

    /// Written by process 1 when its world is furnished.
    pub(crate) fn prepared_file(&self) -> PathBuf {
        self.0.join("run/furnished")
    }

    /// Written from outside when the link is there.
    pub(crate) fn linked_file(&self) -> PathBuf {
        self.0.join("run/linked")
    }

    /// Who holds the world.
    pub(crate) fn record_file(&self) -> PathBuf {
        self.0.join("run/record.json")
    }

    /// containerd's socket.
    pub(crate) fn containerd_socket(&self) -> PathBuf {
        self.0.join("containerd.sock")
    }

    /// This program, as it was when the cluster came up.
    pub(crate) fn cluster_program(&self) -> PathBuf {
        self.0.join("cluster")
    }

    /// Volumes of pods, a directory each.
    pub(crate) fn volumes_dir(&self) -> PathBuf {
        self.0.join("volumes")
    }

    /// Archives of images.
    pub(crate) fn images_dir(&self) -> PathBuf {
        self.0.join("images")
    }

    /// The directories that exist before anything starts.
    pub(crate) fn directories(&self) -> [PathBuf; 9] {
        [
            "pki", "log", "run", "cni", "images", "kernel", "volumes", "plugins", "s3",
        ]
        .map(|name| self.0.join(name))
    }

    /// A file of the directory itself.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}
