//! Finds the programs of a cluster on this machine.

use std::path::{Path, PathBuf};

use mainstay_testkit::paths::{cache_dir, env_path};

/// Programs of Kubernetes.
const KUBERNETES_PROGRAMS: [&str; 5] = [
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubelet",
    "kube-proxy",
];
/// Programs to run pods, relative to the node's directory.
const NODE_PROGRAMS: [&str; 7] = [
    "bin/containerd",
    "bin/containerd-shim-runc-v2",
    "bin/ctr",
    "bin/runc",
    "cni/bridge",
    "cni/host-local",
    "cni/loopback",
];
/// Programs of the machine itself.
const HOST_PROGRAMS: [&str; 7] = [
    "conntrack",
    "ip",
    "iptables",
    "mount",
    "nsenter",
    "setsid",
    "unshare",
];
/// The search path of the machine's programs, independent of the caller's PATH.
pub(crate) const HOST_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Why the programs of a cluster are incomplete.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProgramsError {
    /// A program is missing.
    #[error("{} not found; run `make setup`, or set {variable} to its location", path.display())]
    Missing {
        /// The expected path.
        path: PathBuf,
        /// The environment variable that overrides the path.
        variable: &'static str,
    },
    /// A program of the machine is missing.
    #[error("{program} is not installed; run `make setup` as root")]
    MissingOnHost {
        /// Name of the program.
        program: &'static str,
    },
}

/// The programs of a cluster.
#[derive(Clone, Debug)]
pub struct Programs {
    kubernetes: PathBuf,
    node: PathBuf,
    /// Directories of etcd, oldest first, with the variables that override them. The newest always exists.
    etcd_dirs: Vec<(PathBuf, &'static str)>,
    weed: PathBuf,
}

/// Variables that override the directories of etcd, and the default directories. The newest is last.
const ETCD_DIRS: [(&str, &str); 5] = [
    ("MAINSTAY_ETCD_3_4", "etcd/3.4"),
    ("MAINSTAY_ETCD_3_5", "etcd/3.5"),
    ("MAINSTAY_ETCD_3_5_NEW", "etcd/3.5-new"),
    ("MAINSTAY_ETCD_3_6", "etcd/3.6"),
    ("MAINSTAY_ETCD_3_7", "etcd/3.7"),
];

impl Programs {
    /// Finds all programs, provided by `make setup` or by variables.
    pub fn find() -> Result<Self, ProgramsError> {
        let programs = Self::locate();
        programs.check_etcds()?;
        programs.check_programs()?;
        Ok(programs)
    }

    /// Like `find` for an external cluster: only etcd is required.
    pub fn find_etcds() -> Result<Self, ProgramsError> {
        let programs = Self::locate();
        programs.check_etcds()?;
        Ok(programs)
    }

    fn locate() -> Self {
        let place = |variable, default: &str| {
            let default = || cache_dir().unwrap_or_default().join(default);
            env_path(variable).unwrap_or_else(default)
        };
        Self {
            kubernetes: place("MAINSTAY_KUBERNETES", "kubernetes/current/bin"),
            node: place("MAINSTAY_NODE", "node"),
            etcd_dirs: choose_etcds(&ETCD_DIRS.map(|(variable, default)| EtcdLocation {
                path: place(variable, default),
                variable,
                is_required: env_path(variable).is_some(),
            })),
            weed: place("MAINSTAY_WEED", "stores/weed/bin/weed"),
        }
    }

    fn check_etcds(&self) -> Result<(), ProgramsError> {
        let etcds = self.etcd_dirs.iter();
        check_files(etcds.map(|(directory, variable)| (directory.join("etcd"), *variable)))
    }

    /// Fails unless every version of `make setup` exists, for tests that compare versions.
    pub fn check_all_etcds(&self) -> Result<(), ProgramsError> {
        let cache = cache_dir().unwrap_or_default();
        let etcds = ETCD_DIRS.map(|(variable, default)| {
            let directory = env_path(variable).unwrap_or_else(|| cache.join(default));
            (directory.join("etcd"), variable)
        });
        check_files(etcds)
    }

    fn check_programs(&self) -> Result<(), ProgramsError> {
        let kubernetes =
            KUBERNETES_PROGRAMS.map(|name| (self.kubernetes_program(name), "MAINSTAY_KUBERNETES"));
        let node = NODE_PROGRAMS.map(|name| (self.node_file(name), "MAINSTAY_NODE"));
        let weed = (self.weed.clone(), "MAINSTAY_WEED");
        check_files(kubernetes.into_iter().chain(node).chain([weed]))?;
        for program in HOST_PROGRAMS {
            let mut places = HOST_PATH
                .split(':')
                .map(|place| Path::new(place).join(program));
            if !places.any(|path| path.is_file()) {
                return Err(ProgramsError::MissingOnHost { program });
            }
        }
        Ok(())
    }

    /// A program of Kubernetes.
    pub fn kubernetes_program(&self, name: &str) -> PathBuf {
        self.kubernetes.join(name)
    }

    /// A program or file to run pods.
    pub(crate) fn node_file(&self, name: &str) -> PathBuf {
        self.node.join(name)
    }

    /// Directories of etcd, oldest first.
    pub(crate) fn etcd_dirs(&self) -> impl Iterator<Item = &Path> {
        self.etcd_dirs
            .iter()
            .map(|(directory, _)| directory.as_path())
    }

    /// The directory of the newest etcd.
    pub(crate) fn newest_etcd_dir(&self) -> &Path {
        self.etcd_dirs().last().unwrap_or(Path::new(""))
    }

    /// The S3 server.
    pub(crate) fn weed_program(&self) -> &Path {
        &self.weed
    }

    /// Every directory with one of the programs.
    pub(crate) fn directories(&self) -> Vec<PathBuf> {
        let mut all = vec![self.kubernetes.clone(), self.node.clone()];
        all.extend(self.etcd_dirs().map(Path::to_owned));
        // A Python environment: the program needs the whole tree.
        all.extend(self.weed.ancestors().nth(2).map(Path::to_owned));
        all.extend(
            all.clone()
                .iter()
                .filter_map(|path| path.canonicalize().ok()),
        );
        all.sort();
        all.dedup();
        all
    }

    /// The PATH of the cluster's programs.
    pub(crate) fn search_path(&self) -> String {
        format!("{}:{HOST_PATH}", self.node_file("bin").display())
    }
}

/// A possible directory of etcd.
struct EtcdLocation {
    path: PathBuf,
    /// The variable that may override the path.
    variable: &'static str,
    /// Whether the variable is set, so that this etcd must exist.
    is_required: bool,
}

/// The newest etcd, and the older ones that exist or must exist: a demo needs only one version.
fn choose_etcds(places: &[EtcdLocation]) -> Vec<(PathBuf, &'static str)> {
    let newest = places.len().saturating_sub(1);
    let places = places.iter().enumerate();
    let chosen = places.filter(|(number, place)| {
        *number == newest || place.is_required || place.path.join("etcd").is_file()
    });
    let chosen = chosen.map(|(_, place)| (place.path.clone(), place.variable));
    chosen.collect()
}

/// Checks that files exist; each comes with the variable that overrides its path.
fn check_files(
    files: impl IntoIterator<Item = (PathBuf, &'static str)>,
) -> Result<(), ProgramsError> {
    let mut missing = files.into_iter().filter(|(path, _)| !path.is_file());
    match missing.next() {
        Some((path, variable)) => Err(ProgramsError::Missing { path, variable }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn older_etcd_versions_are_optional_and_the_newest_is_required() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        fs::create_dir(path("3.5")).unwrap();
        fs::write(path("3.5/etcd"), "").unwrap();
        let place = |name: &str, variable, is_required| EtcdLocation {
            path: path(name),
            variable,
            is_required,
        };
        let names = |is_required| {
            let places = [
                place("3.4", "OLD", is_required),
                place("3.5", "MIDDLE", false),
                place("new", "NEW", false),
            ];
            let chosen = choose_etcds(&places).into_iter();
            chosen.map(|(_, variable)| variable).collect::<Vec<_>>()
        };
        assert_eq!(names(false), ["MIDDLE", "NEW"]);
        assert_eq!(names(true), ["OLD", "MIDDLE", "NEW"], "its variable is set");
    }
}
