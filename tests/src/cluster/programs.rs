//! Where the programs of a cluster are on this machine.

use std::path::{Path, PathBuf};

use mainstay_testkit::place::{cache, setting};

use super::run::{RunError, run};

/// What is needed of Kubernetes.
const KUBERNETES: [&str; 5] = [
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubelet",
    "kube-proxy",
];
/// What is needed to run pods, below the node's directory.
const NODE: [&str; 7] = [
    "bin/containerd",
    "bin/containerd-shim-runc-v2",
    "bin/ctr",
    "bin/runc",
    "cni/bridge",
    "cni/host-local",
    "cni/loopback",
];
/// What is needed of the machine itself.
const MACHINE: [&str; 7] = [
    "conntrack",
    "ip",
    "iptables",
    "mount",
    "nsenter",
    "setsid",
    "unshare",
];
/// Where the machine keeps programs, whoever asks.
pub(crate) const MACHINE_PATH: &str =
    "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Why a cluster cannot be made of what this machine has.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProgramsError {
    /// A program is not where it should be.
    #[error("{} is not there: run `make setup`, or point {variable} at another one", path.display())]
    Missing {
        /// Where it was looked for.
        path: PathBuf,
        /// The variable that says where to look.
        variable: &'static str,
    },
    /// The machine lacks a program of its own.
    #[error("this machine has no {program}: run `make setup` as root")]
    OfTheMachine {
        /// Its name.
        program: &'static str,
    },
    /// The kubelet does not run.
    #[error("ask the kubelet for its version")]
    Version(#[source] RunError),
    /// The kubelet's answer is no version.
    #[error("the kubelet tells no version: {answer}")]
    NoVersion {
        /// What it said.
        answer: String,
    },
}

/// Directories and programs.
#[derive(Clone, Debug)]
pub struct Programs {
    kubernetes: PathBuf,
    node: PathBuf,
    /// From the oldest to the newest, which is always there, with the variables that name their directories.
    etcds: Vec<(PathBuf, &'static str)>,
    weed: PathBuf,
}

/// Etcds by the variables that name their directories, and where they are otherwise. The newest is the last.
const ETCDS: [(&str, &str); 3] = [
    ("MAINSTAY_ETCD_3_4", "etcd/3.4"),
    ("MAINSTAY_ETCD_3_5", "etcd/3.5"),
    ("MAINSTAY_ETCD_3_5_NEW", "etcd/3.5-new"),
];

impl Programs {
    /// Those `make setup` provided, or variables name, all of them there.
    pub fn find() -> Result<Self, ProgramsError> {
        let programs = Self::places();
        programs.check_etcds()?;
        programs.check()?;
        Ok(programs)
    }

    /// The same for a cluster of somebody else: only the etcds are sure to be there.
    pub fn of_etcd() -> Result<Self, ProgramsError> {
        let programs = Self::places();
        programs.check_etcds()?;
        Ok(programs)
    }

    fn places() -> Self {
        let place = |variable, default: &str| {
            let default = || cache().unwrap_or_default().join(default);
            setting(variable).unwrap_or_else(default)
        };
        Self {
            kubernetes: place("MAINSTAY_KUBERNETES", "kubernetes/current/bin"),
            node: place("MAINSTAY_NODE", "node"),
            etcds: chosen(&ETCDS.map(|(variable, default)| Place {
                path: place(variable, default),
                variable,
                is_named: setting(variable).is_some(),
            })),
            weed: place("MAINSTAY_WEED", "stores/weed/bin/weed"),
        }
    }

    fn check_etcds(&self) -> Result<(), ProgramsError> {
        let etcds = self.etcds.iter();
        are_there(etcds.map(|(directory, variable)| (directory.join("etcd"), *variable)))
    }

    /// Fails unless every version that `make setup` provides is there, for tests that compare versions.
    pub fn every_etcd(&self) -> Result<(), ProgramsError> {
        let cache = cache().unwrap_or_default();
        let etcds = ETCDS.map(|(variable, default)| {
            let directory = setting(variable).unwrap_or_else(|| cache.join(default));
            (directory.join("etcd"), variable)
        });
        are_there(etcds)
    }

    fn check(&self) -> Result<(), ProgramsError> {
        let kubernetes = KUBERNETES.map(|name| (self.kubernetes(name), "MAINSTAY_KUBERNETES"));
        let node = NODE.map(|name| (self.node(name), "MAINSTAY_NODE"));
        let weed = (self.weed.clone(), "MAINSTAY_WEED");
        are_there(kubernetes.into_iter().chain(node).chain([weed]))?;
        for program in MACHINE {
            let mut places = MACHINE_PATH
                .split(':')
                .map(|place| Path::new(place).join(program));
            if !places.any(|path| path.is_file()) {
                return Err(ProgramsError::OfTheMachine { program });
            }
        }
        Ok(())
    }

    /// A program of Kubernetes.
    pub fn kubernetes(&self, name: &str) -> PathBuf {
        self.kubernetes.join(name)
    }

    /// A file of what runs pods.
    pub(crate) fn node(&self, name: &str) -> PathBuf {
        self.node.join(name)
    }

    /// Directories of etcd, from the oldest to the newest.
    pub(crate) fn etcds(&self) -> impl Iterator<Item = &Path> {
        self.etcds.iter().map(|(directory, _)| directory.as_path())
    }

    /// The directory of the newest etcd.
    pub(crate) fn newest_etcd(&self) -> &Path {
        self.etcds().last().unwrap_or(Path::new(""))
    }

    /// The S3 server.
    pub(crate) fn weed(&self) -> &Path {
        &self.weed
    }

    /// Every directory that holds one of them.
    pub(crate) fn directories(&self) -> Vec<PathBuf> {
        let mut all = vec![self.kubernetes.clone(), self.node.clone()];
        all.extend(self.etcds().map(Path::to_owned));
        // A Python environment: the program finds its parts from the tree's root.
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

    /// What a program of the cluster finds without a path.
    pub(crate) fn search_path(&self) -> String {
        format!("{}:{MACHINE_PATH}", self.node("bin").display())
    }

    /// The 20 of `Kubernetes v1.20.2`: flags come and go.
    pub(crate) async fn minor_version(&self) -> Result<u32, ProgramsError> {
        let kubelet = self.kubernetes("kubelet").display().to_string();
        let answer = run(&kubelet, &["--version"])
            .await
            .map_err(ProgramsError::Version)?;
        let minor = answer
            .split('.')
            .nth(1)
            .and_then(|minor| minor.parse().ok());
        minor.ok_or(ProgramsError::NoVersion { answer })
    }
}

/// Where an etcd may be.
struct Place {
    path: PathBuf,
    /// Which may name the path.
    variable: &'static str,
    /// Whether it does, so that the etcd has to be there.
    is_named: bool,
}

/// The newest etcd, and the older ones that are there or have to be: a demo needs one version only.
fn chosen(places: &[Place]) -> Vec<(PathBuf, &'static str)> {
    let newest = places.len().saturating_sub(1);
    let places = places.iter().enumerate();
    let chosen = places.filter(|(number, place)| {
        *number == newest || place.is_named || place.path.join("etcd").is_file()
    });
    let chosen = chosen.map(|(_, place)| (place.path.clone(), place.variable));
    chosen.collect()
}

/// Files, each with the variable that says where to look for it.
fn are_there(
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
    fn older_etcds_are_used_where_they_are_and_the_newest_is_required() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        fs::create_dir(path("3.5")).unwrap();
        fs::write(path("3.5/etcd"), "").unwrap();
        let place = |name: &str, variable, is_named| Place {
            path: path(name),
            variable,
            is_named,
        };
        let names = |is_named| {
            let places = [
                place("3.4", "OLD", is_named),
                place("3.5", "MIDDLE", false),
                place("new", "NEW", false),
            ];
            let chosen = chosen(&places).into_iter();
            chosen.map(|(_, variable)| variable).collect::<Vec<_>>()
        };
        assert_eq!(names(false), ["MIDDLE", "NEW"]);
        assert_eq!(
            names(true),
            ["OLD", "MIDDLE", "NEW"],
            "a variable asks for it"
        );
    }
}
