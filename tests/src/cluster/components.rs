//! The programs of a cluster and how each is started.

use std::path::PathBuf;

use super::addresses::{API_PORT, FILER_PORT, NODE, NODE_NAME, S3_PORT, SERVICES};
use super::home::Home;
use super::programs::Programs;

/// A program that runs as long as the cluster does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Component {
    /// The API server's etcd.
    Etcd,
    /// The API server.
    ApiServer,
    /// The controllers every cluster has.
    ControllerManager,
    /// The scheduler.
    Scheduler,
    /// What runs containers.
    Containerd,
    /// What runs pods.
    Kubelet,
    /// What gives services addresses.
    Proxy,
    /// The S3 server.
    Store,
    /// Names and volumes, by this program.
    Attendant,
}

/// How a program is started.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Launch {
    pub(crate) program: PathBuf,
    pub(crate) flags: Vec<String>,
}

impl Component {
    /// All of them. The order does not matter: who misses another tries again.
    pub const ALL: [Self; 9] = [
        Self::Etcd,
        Self::ApiServer,
        Self::Containerd,
        Self::ControllerManager,
        Self::Scheduler,
        Self::Kubelet,
        Self::Proxy,
        Self::Store,
        Self::Attendant,
    ];

    /// The program's name, which its log has too.
    pub fn name(self) -> &'static str {
        match self {
            Self::Etcd => "etcd",
            Self::ApiServer => "kube-apiserver",
            Self::ControllerManager => "kube-controller-manager",
            Self::Scheduler => "kube-scheduler",
            Self::Containerd => "containerd",
            Self::Kubelet => "kubelet",
            Self::Proxy => "kube-proxy",
            Self::Store => "s3",
            Self::Attendant => "attendant",
        }
    }

    /// How it is started by Kubernetes 1.`minor`.
    pub(crate) fn launch(self, home: &Home, programs: &Programs, minor: u32) -> Launch {
        let (program, flags) = match self {
            Self::Etcd => (programs.newest_etcd().join("etcd"), etcd(home)),
            Self::ApiServer => (programs.kubernetes(self.name()), api_server(home)),
            Self::ControllerManager => (programs.kubernetes(self.name()), controllers(home)),
            Self::Scheduler => (programs.kubernetes(self.name()), scheduler(home)),
            Self::Containerd => (
                programs.node("bin/containerd"),
                vec![format!(
                    "--config={}",
                    home.file("containerd.toml").display()
                )],
            ),
            Self::Kubelet => (programs.kubernetes(self.name()), kubelet(home, minor)),
            Self::Proxy => (programs.kubernetes(self.name()), proxy(home)),
            Self::Store => (programs.weed().to_owned(), store(home)),
            Self::Attendant => (
                home.program(),
                vec![
                    format!("--home={}", home.path().display()),
                    "attend".to_owned(),
                ],
            ),
        };
        Launch { program, flags }
    }
}

fn owned<const N: usize>(flags: [&str; N]) -> impl Iterator<Item = String> {
    flags.map(str::to_owned).into_iter()
}

/// What is lost when the machine stops is a test's cluster.
fn etcd(home: &Home) -> Vec<String> {
    let data = format!("--data-dir={}", home.file("etcd").display());
    let fixed = owned([
        "--unsafe-no-fsync",
        "--listen-client-urls=http://127.0.0.1:2379",
        "--advertise-client-urls=http://127.0.0.1:2379",
        "--listen-peer-urls=http://127.0.0.1:2380",
    ]);
    [data].into_iter().chain(fixed).collect()
}

fn api_server(home: &Home) -> Vec<String> {
    let file = |flag: &str, name: &str| format!("--{flag}={}", home.pki(name).display());
    let computed = [
        format!("--secure-port={API_PORT}"),
        format!("--advertise-address={NODE}"),
        format!("--service-cluster-ip-range={SERVICES}"),
        format!("--cert-dir={}", home.file("pki").display()),
        file("tls-cert-file", "apiserver.crt"),
        file("tls-private-key-file", "apiserver.key"),
        file("client-ca-file", "ca.crt"),
        file("service-account-key-file", "accounts.pub"),
        file("service-account-signing-key-file", "accounts.key"),
        file("kubelet-client-certificate", "admin.crt"),
        file("kubelet-client-key", "admin.key"),
    ];
    let fixed = owned([
        "--etcd-servers=http://127.0.0.1:2379",
        "--service-account-issuer=https://kubernetes.default.svc",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
        "--kubelet-preferred-address-types=InternalIP",
        "--profiling=false",
    ]);
    computed.into_iter().chain(fixed).collect()
}

fn kubeconfig(home: &Home, who: &str) -> String {
    format!("--kubeconfig={}", home.kubeconfig_of(who).display())
}

fn controllers(home: &Home) -> Vec<String> {
    let computed = [
        kubeconfig(home, "kube-controller-manager"),
        format!(
            "--service-account-private-key-file={}",
            home.pki("accounts.key").display()
        ),
        format!("--root-ca-file={}", home.pki("ca.crt").display()),
    ];
    let fixed = owned([
        "--use-service-account-credentials",
        "--leader-elect=false",
        "--profiling=false",
    ]);
    computed.into_iter().chain(fixed).collect()
}

fn scheduler(home: &Home) -> Vec<String> {
    vec![
        kubeconfig(home, "kube-scheduler"),
        "--leader-elect=false".to_owned(),
    ]
}

fn kubelet(home: &Home, minor: u32) -> Vec<String> {
    let mut flags = vec![
        kubeconfig(home, "kubelet"),
        format!("--config={}", home.file("kubelet.json").display()),
        format!(
            "--container-runtime-endpoint=unix://{}",
            home.socket().display()
        ),
        format!("--hostname-override={NODE_NAME}"),
        format!("--node-ip={NODE}"),
        format!("--root-dir={}", home.file("kubelet").display()),
        format!("--volume-plugin-dir={}", home.file("plugins").display()),
        format!("--cert-dir={}", home.file("pki").display()),
    ];
    if minor < 24 {
        flags.push("--container-runtime=remote".to_owned()); // the only kind since
    }
    flags
}

/// The limits of tracked connections are the machine's, which are left as they are.
fn proxy(home: &Home) -> Vec<String> {
    let computed = [
        kubeconfig(home, "kube-proxy"),
        format!("--hostname-override={NODE_NAME}"),
    ];
    let fixed = owned([
        "--proxy-mode=iptables",
        "--iptables-min-sync-period=200ms",
        "--conntrack-max-per-core=0",
        "--conntrack-tcp-timeout-established=0",
        "--conntrack-tcp-timeout-close-wait=0",
        "--oom-score-adj=0",
    ]);
    computed.into_iter().chain(fixed).collect()
}

fn store(home: &Home) -> Vec<String> {
    let computed = [
        format!("-dir={}", home.file("s3").display()),
        format!("-s3.config={}", home.file("s3.json").display()),
        format!("-ip={NODE}"),
        format!("-s3.port={S3_PORT}"),
        format!("-filer.port={FILER_PORT}"),
    ];
    let fixed = owned([
        "-ip.bind=0.0.0.0",
        "-filer",
        "-s3",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        "-master.telemetry=false",
        "-master.volumeSizeLimitMB=128",
        "-volume.max=50",
    ]);
    ["server".to_owned()]
        .into_iter()
        .chain(computed)
        .chain(fixed)
        .collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn old_kubelets_are_told_what_new_ones_refuse_to_hear() {
        let home = Home::at(Path::new("/home-of-a-cluster"));
        let remote = "--container-runtime=remote".to_owned();
        assert!(kubelet(&home, 20).contains(&remote));
        assert!(!kubelet(&home, 31).contains(&remote));
    }

    #[test]
    fn no_two_components_share_a_log() {
        let mut names = Component::ALL.map(Component::name).to_vec();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Component::ALL.len());
    }
}
