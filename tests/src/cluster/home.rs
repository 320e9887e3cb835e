//! The directory a cluster keeps everything in.

use std::path::{Path, PathBuf};

use mainstay_testkit::place::{cache, setting};

use super::components::Component;

/// Why there is no place for a cluster.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HomeError {
    /// No variable says where caches are.
    #[error(
        "none of MAINSTAY_CLUSTER, MAINSTAY_CACHE, XDG_CACHE_HOME and HOME says where to keep a cluster"
    )]
    Nowhere,
}

/// Where a cluster keeps its files. One cluster per directory, and one per machine: the addresses are fixed.
#[derive(Clone, Debug)]
pub struct Home(PathBuf);

impl Home {
    /// The directory `MAINSTAY_CLUSTER` names, or `cluster` in the cache.
    pub fn of_this_machine() -> Result<Self, HomeError> {
        let path = setting("MAINSTAY_CLUSTER").or_else(|| Some(cache()?.join("cluster")));
        path.map(Self).ok_or(HomeError::Nowhere)
    }

    /// A given directory, by its absolute path.
    pub fn at(path: &Path) -> Self {
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
    pub(crate) fn kubeconfig_of(&self, who: &str) -> PathBuf {
        self.0.join(format!("{who}.kubeconfig"))
    }

    /// A key or a certificate.
    pub(crate) fn pki(&self, file: &str) -> PathBuf {
        self.0.join("pki").join(file)
    }

    /// What a component wrote, over all its starts.
    pub fn log(&self, component: Component) -> PathBuf {
        self.log_named(component.name())
    }

    /// The same for what is no component.
    pub(crate) fn log_named(&self, name: &str) -> PathBuf {
        self.0.join("log").join(format!("{name}.log"))
    }

    /// While this file exists, a component does not run.
    pub(crate) fn hold(&self, component: Component) -> PathBuf {
        self.0
            .join("run")
            .join(format!("{}.hold", component.name()))
    }

    /// This file exists while a component runs.
    pub(crate) fn running(&self, component: Component) -> PathBuf {
        self.0
            .join("run")
            .join(format!("{}.running", component.name()))
    }

    /// Written by process 1 when its world is furnished.
    pub(crate) fn furnished(&self) -> PathBuf {
        self.0.join("run/furnished")
    }

    /// Written from outside when the link is there.
    pub(crate) fn linked(&self) -> PathBuf {
        self.0.join("run/linked")
    }

    /// Who holds the world.
    pub(crate) fn record(&self) -> PathBuf {
        self.0.join("run/record.json")
    }

    /// containerd's socket.
    pub(crate) fn socket(&self) -> PathBuf {
        self.0.join("containerd.sock")
    }

    /// This program, as it was when the cluster came up.
    pub(crate) fn program(&self) -> PathBuf {
        self.0.join("cluster")
    }

    /// Volumes of pods, a directory each.
    pub(crate) fn volumes(&self) -> PathBuf {
        self.0.join("volumes")
    }

    /// Archives of images.
    pub(crate) fn images(&self) -> PathBuf {
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
