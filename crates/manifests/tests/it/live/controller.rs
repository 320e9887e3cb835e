//! The controller with only the permissions of the chart.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Client;
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use mainstay_crds::Etcd;
use mainstay_testkit::ApiServer;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::sleep;

use super::rbac::{SERVICE_ACCOUNT, create_etcd, install_roles};

const TIMEOUT: Duration = Duration::from_mins(2);

/// A running controller; killed when dropped.
struct RestrictedController {
    child: Child,
    temp_dir: TempDir,
}

impl Drop for RestrictedController {
    fn drop(&mut self) {
        self.child.kill().ok(); // fails if it has already exited
        self.child.wait().ok();
    }
}

/// Cargo builds tests into `deps` and programs one level above it.
fn controller_binary() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let path = test.ancestors().nth(2).unwrap().join("mainstay-controller");
    assert!(
        path.is_file(),
        "{} does not exist: run `make test-live`, or `cargo build -p mainstay-controller` first",
        path.display()
    );
    path
}

impl RestrictedController {
    /// Starts the controller as the service account of the chart.
    fn start(server: &ApiServer, flags: &[&str]) -> Self {
        let temp_dir = TempDir::new().unwrap();
        let kubeconfig = fs::read(server.kubeconfig()).unwrap();
        let mut kubeconfig: Value = serde_json::from_slice(&kubeconfig).unwrap();
        kubeconfig["users"][0]["user"]["as"] = SERVICE_ACCOUNT.into();
        let path = temp_dir.path().join("kubeconfig");
        fs::write(&path, kubeconfig.to_string()).unwrap();
        let log = File::create(temp_dir.path().join("log")).unwrap();
        let child = Command::new(controller_binary())
            .arg(format!("--kubeconfig={}", path.display()))
            .args([
                "--enable-leader-election",
                "--enable-etcd-spec-auto-reconcile",
                "--metrics-bind-address=127.0.0.1",
                "--metrics-port=0",
                "--pod-name=mainstay-0",
                "--pod-namespace=garden",
            ])
            .args(flags)
            .env_clear()
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn();
        Self {
            child: child.unwrap(),
            temp_dir,
        }
    }

    fn read_log(&self) -> String {
        fs::read_to_string(Path::new(self.temp_dir.path()).join("log")).unwrap()
    }

    /// Waits until a condition is true.
    async fn wait_until<F: Future<Output = bool>>(
        &self,
        what: &str,
        mut is_met: impl FnMut() -> F,
    ) {
        let deadline = Instant::now() + TIMEOUT;
        while !is_met().await {
            assert!(
                Instant::now() < deadline,
                "{what}; log of the controller:\n{}",
                self.read_log()
            );
            sleep(Duration::from_millis(200)).await;
        }
    }
}

/// Creates, changes and deletes an Etcd, and checks that no request was forbidden.
async fn exercise_etcd_lifecycle(
    controller: &RestrictedController,
    admin: &Client,
    server: &ApiServer,
) {
    create_etcd(server, "shoot").await;
    let etcds = Api::<Etcd>::namespaced(admin.clone(), "shoot");
    let sets = Api::<StatefulSet>::namespaced(admin.clone(), "shoot");
    controller
        .wait_until("StatefulSet was not created", || async {
            sets.get_opt("etcd-main").await.unwrap().is_some()
        })
        .await;
    controller
        .wait_until("status has no conditions", || async {
            let status = etcds.get_status("etcd-main").await.unwrap().status;
            status.is_some_and(|status| status.conditions.is_some_and(|all| !all.is_empty()))
        })
        .await;
    let labels = Patch::Merge(json!({"spec": {"labels": {"more": "labels"}}}));
    let params = PatchParams::default();
    etcds.patch("etcd-main", &params, &labels).await.unwrap();
    controller
        .wait_until("spec change was not applied", || async {
            let set = sets.get("etcd-main").await.unwrap();
            let pod = set.spec.unwrap().template.metadata.unwrap();
            pod.labels.unwrap().contains_key("more")
        })
        .await;
    let params = DeleteParams::default();
    etcds.delete("etcd-main", &params).await.unwrap();
    controller
        .wait_until("Etcd was not deleted", || async {
            etcds.get_opt("etcd-main").await.unwrap().is_none()
        })
        .await;
    let leases = Api::<Lease>::namespaced(admin.clone(), "garden");
    let lease = leases.get("druid-leader-election").await.unwrap();
    let holder = lease.spec.unwrap().holder_identity.unwrap();
    assert!(holder.starts_with("mainstay-0_"), "{holder}");
    let log = controller.read_log();
    assert!(!log.to_lowercase().contains("forbidden"), "{log}");
}

#[tokio::test]
async fn controller_has_every_permission_it_uses() {
    let (server, _) = install_roles(&[]).await;
    let admin = server.client().await;
    let controller = RestrictedController::start(&server, &[]);
    exercise_etcd_lifecycle(&controller, &admin, &server).await;
}

#[tokio::test]
async fn single_namespace_controller_has_every_permission_it_uses() {
    let (server, _) = install_roles(&[r#"watchNamespace="shoot""#]).await;
    let admin = server.client().await;
    let controller = RestrictedController::start(&server, &["--namespace=shoot"]);
    exercise_etcd_lifecycle(&controller, &admin, &server).await;
}
