//! Writes the configuration files of the node's programs.

use std::fs;
use std::io;
use std::path::PathBuf;

use serde_json::{Value, json};

use super::addresses::{DOMAIN, NODE, PODS};
use super::home::ClusterHome;
use super::image::PAUSE_IMAGE;
use super::programs::Programs;

/// The cgroup of all pods.
pub(crate) const CONTROL_GROUP: &str = "mainstay-cluster";

/// A configuration file could not be written.
#[derive(Debug, thiserror::Error)]
#[error("failed to write {}", path.display())]
pub struct ConfigurationError {
    path: PathBuf,
    source: io::Error,
}

/// Writes all configuration files.
pub(super) fn write_files(
    home: &ClusterHome,
    programs: &Programs,
) -> Result<(), ConfigurationError> {
    let files = [
        (
            home.file("containerd.toml"),
            containerd_config(home, programs),
        ),
        (home.file("cni/pods.conflist"), cni_config().to_string()),
        (home.file("kubelet.json"), kubelet_config(home).to_string()),
        (home.file("s3.json"), s3_config().to_string()),
        // An empty resolv.conf: pods resolve only names of the cluster.
        (home.file("resolv.conf"), String::new()),
    ];
    for (path, text) in files {
        fs::write(&path, text).map_err(|source| ConfigurationError { path, source })?;
    }
    Ok(())
}

/// Containerd must not lower OOM scores: nested virtual machines may lack the privilege, and test pods do not need it.
fn containerd_config(home: &ClusterHome, programs: &Programs) -> String {
    format!(
        r#"version = 2
root = "{home}/containerd"
state = "/run/mainstay-containerd"
[grpc]
  address = "{socket}"
[plugins."io.containerd.grpc.v1.cri"]
  restrict_oom_score_adj = true
  sandbox_image = "{PAUSE_IMAGE}"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{plugins}"
    conf_dir = "{home}/cni"
"#,
        home = home.path().display(),
        socket = home.containerd_socket().display(),
        plugins = programs.node_file("cni").display(),
    )
}

/// All pods are on one bridge without masquerading: a receiver sees the pod's own address.
fn cni_config() -> Value {
    json!({
        "cniVersion": "0.4.0",
        "name": "pods",
        "plugins": [{
            "type": "bridge",
            "bridge": "pods",
            "isGateway": true,
            "hairpinMode": true,
            "ipam": {
                "type": "host-local",
                "dataDir": "/run/mainstay-addresses",
                "ranges": [[{"subnet": PODS}]],
                "routes": [{"dst": "0.0.0.0/0"}],
            },
        }],
    })
}

/// Images cannot be pulled again, so image garbage collection is off; a full disk of the machine must not evict pods.
fn kubelet_config(home: &ClusterHome) -> Value {
    let file = |name| home.pki_file(name).display().to_string();
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": false},
            "x509": {"clientCAFile": file("ca.crt")},
        },
        "authorization": {"mode": "AlwaysAllow"},
        "tlsCertFile": file("kubelet.crt"),
        "tlsPrivateKeyFile": file("kubelet.key"),
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": format!("/{CONTROL_GROUP}"),
        "clusterDNS": [NODE],
        "clusterDomain": DOMAIN,
        "resolvConf": home.file("resolv.conf"),
        "evictionHard": {},
        // Build machines still have version 1, which Kubernetes refuses by default since 1.35.
        "failCgroupV1": false,
        "failSwapOn": false,
        "imageGCHighThresholdPercent": 100,
        "oomScoreAdj": 0,
        "syncFrequency": "10s",
    })
}

/// Access key of the S3 server.
pub const S3_KEY_ID: &str = "AKIDMAINSTAYCLUSTER";
/// Secret key of the S3 server.
pub const S3_SECRET: &str = "mainstay-cluster-secret";

fn s3_config() -> Value {
    json!({"identities": [{
        "name": "mainstay",
        "credentials": [{"accessKey": S3_KEY_ID, "secretKey": S3_SECRET}],
        "actions": ["Admin", "Read", "List", "Tagging", "Write"],
    }]})
}
