//! Where the programs of a cluster are on this machine.

use std::path::{Path, PathBuf};

use steward_testkit::place::{cache, setting};

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
    etcds: [PathBuf; 3],
    weed: PathBuf,
}

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
            kubernetes: place("STEWARD_KUBERNETES", "kubernetes/current/bin"),
            node: place("STEWARD_NODE", "node"),
            etcds: [
                place("STEWARD_ETCD_3_4", "etcd/3.4"),
                place("STEWARD_ETCD_3_5", "etcd/3.5"),
                place("STEWARD_ETCD_3_5_NEW", "etcd/3.5-new"),
            ],
            weed: place("STEWARD_WEED", "stores/weed/bin/weed"),
        }
    }

    fn check_etcds(&self) -> Result<(), ProgramsError> {
        let variables = [
            "STEWARD_ETCD_3_4",
            "STEWARD_ETCD_3_5",
            "STEWARD_ETCD_3_5_NEW",
        ];
        let programs = self.etcds.iter().map(|directory| directory.join("etcd"));
        are_there(programs.zip(variables))
    }

    fn check(&self) -> Result<(), ProgramsError> {
        let kubernetes = KUBERNETES.map(|name| (self.kubernetes(name), "STEWARD_KUBERNETES"));
        let node = NODE.map(|name| (self.node(name), "STEWARD_NODE"));
        let weed = (self.weed.clone(), "STEWARD_WEED");
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
    pub(crate) fn etcds(&self) -> &[PathBuf; 3] {
        &self.etcds
    }

    /// The S3 server.
    pub(crate) fn weed(&self) -> &Path {
        &self.weed
    }

    /// Every directory that holds one of them.
    pub(crate) fn directories(&self) -> Vec<PathBuf> {
        let mut all = vec![self.kubernetes.clone(), self.node.clone()];
        all.extend(self.etcds.iter().cloned());
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
