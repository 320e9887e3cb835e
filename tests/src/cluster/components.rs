//! The programs of a cluster and their command lines.

use std::path::PathBuf;

use super::addresses::{API_PORT, FILER_PORT, NODE, NODE_NAME, S3_PORT, SERVICES};
use super::home::ClusterHome;
use super::programs::Programs;

/// A program that runs as long as the cluster does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClusterComponent {
    /// The etcd of the API server.
    Etcd,
    /// kube-apiserver.
    ApiServer,
    /// kube-controller-manager.
    ControllerManager,
    /// kube-scheduler.
    Scheduler,
    /// containerd.
    Containerd,
    /// kubelet.
    Kubelet,
    /// kube-proxy.
    Proxy,
    /// The S3 server.
    Store,
    /// DNS server and volume provisioner, a command of this program.
    NodeServices,
}

/// The command line of a program.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct LaunchCommand {
    pub(crate) program: PathBuf,
    pub(crate) flags: Vec<String>,
}

impl ClusterComponent {
    /// All components. The order does not matter: each retries until the others respond.
    pub const ALL: [Self; 9] = [
        Self::Etcd,
        Self::ApiServer,
        Self::Containerd,
        Self::ControllerManager,
        Self::Scheduler,
        Self::Kubelet,
        Self::Proxy,
        Self::Store,
        Self::NodeServices,
    ];

    /// Name of the program and of its log.
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
            Self::NodeServices => "attendant",
        }
    }

    pub(crate) fn launch_command(self, home: &ClusterHome, programs: &Programs) -> LaunchCommand {
        let (program, flags) = match self {
            Self::Etcd => (programs.newest_etcd_dir().join("etcd"), etcd_flags(home)),
            Self::ApiServer => (
                programs.kubernetes_program(self.name()),
                api_server_flags(home),
            ),
            Self::ControllerManager => (
                programs.kubernetes_program(self.name()),
                controller_manager_flags(home),
            ),
            Self::Scheduler => (
                programs.kubernetes_program(self.name()),
                scheduler_flags(home),
            ),
            Self::Containerd => (
                programs.node_file("bin/containerd"),
                vec![format!(
                    "--config={}",
                    home.file("containerd.toml").display()
                )],
            ),
            Self::Kubelet => (
                programs.kubernetes_program(self.name()),
                kubelet_flags(home),
            ),
            Self::Proxy => (programs.kubernetes_program(self.name()), proxy_flags(home)),
            Self::Store => (programs.weed_program().to_owned(), store_flags(home)),
            Self::NodeServices => (
                home.cluster_program(),
                vec![
                    format!("--home={}", home.path().display()),
                    "attend".to_owned(),
                ],
            ),
        };
        LaunchCommand { program, flags }
    }
}

fn to_strings<const N: usize>(flags: [&str; N]) -> impl Iterator<Item = String> {
    flags.map(str::to_owned).into_iter()
}

/// Without fsync: a crash of the machine loses only a test cluster.
fn etcd_flags(home: &ClusterHome) -> Vec<String> {
    let data = format!("--data-dir={}", home.file("etcd").display());
    let fixed = to_strings([
        "--unsafe-no-fsync",
        "--listen-client-urls=http://127.0.0.1:2379",
        "--advertise-client-urls=http://127.0.0.1:2379",
        "--listen-peer-urls=http://127.0.0.1:2380",
    ]);
    [data].into_iter().chain(fixed).collect()
}

fn api_server_flags(home: &ClusterHome) -> Vec<String> {
    let file = |flag: &str, name: &str| format!("--{flag}={}", home.pki_file(name).display());
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
    let fixed = to_strings([
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

fn kubeconfig_flag(home: &ClusterHome, who: &str) -> String {
    format!("--kubeconfig={}", home.component_kubeconfig(who).display())
}

fn controller_manager_flags(home: &ClusterHome) -> Vec<String> {
    let computed = [
        kubeconfig_flag(home, "kube-controller-manager"),
        format!(
            "--service-account-private-key-file={}",
            home.pki_file("accounts.key").display()
        ),
        format!("--root-ca-file={}", home.pki_file("ca.crt").display()),
    ];
    let fixed = to_strings([
        "--use-service-account-credentials",
        "--leader-elect=false",
        "--profiling=false",
    ]);
    computed.into_iter().chain(fixed).collect()
}

fn scheduler_flags(home: &ClusterHome) -> Vec<String> {
    vec![
        kubeconfig_flag(home, "kube-scheduler"),
        "--leader-elect=false".to_owned(),
    ]
}

fn kubelet_flags(home: &ClusterHome) -> Vec<String> {
    vec![
        kubeconfig_flag(home, "kubelet"),
        format!("--config={}", home.file("kubelet.json").display()),
        format!(
            "--container-runtime-endpoint=unix://{}",
            home.containerd_socket().display()
        ),
        format!("--hostname-override={NODE_NAME}"),
        format!("--node-ip={NODE}"),
        format!("--root-dir={}", home.file("kubelet").display()),
        format!("--volume-plugin-dir={}", home.file("plugins").display()),
        format!("--cert-dir={}", home.file("pki").display()),
    ]
}

/// 0 leaves the conntrack limits alone: they belong to the whole machine.
fn proxy_flags(home: &ClusterHome) -> Vec<String> {
    let computed = [
        kubeconfig_flag(home, "kube-proxy"),
        format!("--hostname-override={NODE_NAME}"),
    ];
    let fixed = to_strings([
        "--proxy-mode=iptables",
        "--iptables-min-sync-period=200ms",
        "--conntrack-max-per-core=0",
        "--conntrack-tcp-timeout-established=0",
        "--conntrack-tcp-timeout-close-wait=0",
        "--oom-score-adj=0",
    ]);
    computed.into_iter().chain(fixed).collect()
}

fn store_flags(home: &ClusterHome) -> Vec<String> {
    let computed = [
        format!("-dir={}", home.file("s3").display()),
        format!("-s3.config={}", home.file("s3.json").display()),
        format!("-ip={NODE}"),
        format!("-s3.port={S3_PORT}"),
        format!("-filer.port={FILER_PORT}"),
    ];
    let fixed = to_strings([
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
    use super::*;

    #[test]
    fn no_two_components_share_a_log() {
        let mut names = ClusterComponent::ALL.map(ClusterComponent::name).to_vec();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ClusterComponent::ALL.len());
    }
}
