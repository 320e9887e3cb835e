//! Termination of a pod: the clean-stop marker that the sidecar writes for the next start of its etcd.

use std::fs;

use mainstay_testkit::{EtcdOptions, EtcdServer, SidecarOptions, SidecarProcess, each_version};
use serde_json::Value;
use tempfile::TempDir;

use crate::support::RestorerBackup;

/// The report of the init container of the next pod.
fn run_init(etcd: &EtcdServer, home: &TempDir) -> Value {
    let template = format!(
        "name: etcd-config\ndata-dir: {}\ninitial-cluster-token: etcd-cluster\n\
         initial-cluster-state: existing\ninitial-cluster: default={peer}\n\
         initial-advertise-peer-urls:\n  default: [\"{peer}\"]\n\
         advertise-client-urls:\n  default: [\"{}\"]\n",
        etcd.data_dir().display(),
        etcd.client_url(),
        peer = etcd.peer_url(),
    );
    let path = |name: &str| home.path().join(name).display().to_string();
    fs::write(path("template"), template).unwrap();
    let flags = [
        "--pod-name=default".to_owned(),
        format!("--config-template={}", path("template")),
        format!("--config-output={}", path("config")),
    ];
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let run = RestorerBackup::local(home.path(), "main").run("init", &flags);
    run.expect_success("ready")["init"].clone()
}

async fn write_keys(etcd: &EtcdServer) {
    let mut client = etcd.client().await;
    for i in 0..20 {
        client.put(format!("key-{i}"), "value", None).await.unwrap();
    }
}

each_version! {
    async fn only_a_clean_shutdown_leads_to_a_quick_verification(version) {
        let home = TempDir::new().unwrap();
        let mut etcd = EtcdServer::start(version, EtcdOptions::new()).await;
        write_keys(&etcd).await;
        let data_dir = etcd.data_dir().display().to_string();
        let options = SidecarOptions::for_member(etcd.client_url())
            .flag("data-dir", &data_dir)
            // etcd may be slow to stop on a busy machine.
            .flag("stop-grace", "1m");
        let mut sidecar = SidecarProcess::start(options).await;
        // The kubelet signals all containers at the same time.
        let ((), status) = tokio::join!(etcd.stop(), sidecar.stop());
        assert!(status.success(), "{status}");
        let report = run_init(&etcd, &home);
        assert_eq!(report["decision"], "start", "{report}");
        assert_eq!(report["data"]["verified"], "quick", "{report}");

        etcd.restart().await;
        sidecar.restart().await;
        write_keys(&etcd).await;
        etcd.kill();
        sidecar.kill();
        let report = run_init(&etcd, &home);
        assert_eq!(report["decision"], "start", "{report}");
        assert_eq!(report["data"]["verified"], "full", "{report}");
        etcd.restart().await;
        assert_eq!(etcd.all_keys().await.len(), 20);
    }
}
