//! Installs the chart with Helm, as a user does.

use std::path::{Path, PathBuf};

use mainstay_testkit::paths::{cache_dir, env_path};

use super::image::{CatalogueError, DEV_TAG, ETCD_IMAGE, read_etcd_versions};
use super::programs::Programs;
use super::run::{RunError, run};

/// Namespace of the controller.
pub const CONTROLLER_NAMESPACE: &str = "etcd-mainstay";
/// The leader election Lease of the controller, as the chart names it.
pub const ELECTION_LEASE: &str = "druid-leader-election";

/// Why the controller could not be installed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InstallError {
    /// The image tags could not be determined.
    #[error(transparent)]
    Catalogue(#[from] CatalogueError),
    /// Helm failed.
    #[error("failed to install the Helm chart etcd-mainstay")]
    Helm(#[source] RunError),
}

/// Installs the chart of this checkout into the cluster of a kubeconfig, with the images `up` imports, and waits
/// until the controller is ready. Spec changes are reconciled without annotation.
pub async fn install(kubeconfig: &Path, programs: &Programs) -> Result<(), InstallError> {
    let newest = read_etcd_versions(programs)
        .await?
        .pop()
        .unwrap_or_default();
    let values = [
        format!("image.tag={DEV_TAG}"),
        format!("images.sidecar.tag={DEV_TAG}"),
        format!("images.restorer.tag={DEV_TAG}"),
        format!("images.etcd={ETCD_IMAGE}:{newest}"),
        "images.imagePullPolicy=Never".to_owned(),
        "operatorConfig.controllers.etcd.enableEtcdSpecAutoReconcile=true".to_owned(),
    ];
    let helm = env_path("MAINSTAY_HELM");
    let helm = helm.unwrap_or_else(|| cache_dir().unwrap_or_default().join("helm/4/helm"));
    let mut arguments = vec![
        "upgrade".to_owned(),
        "--install".to_owned(),
        format!("--kubeconfig={}", kubeconfig.display()),
        format!("--namespace={CONTROLLER_NAMESPACE}"),
        "--create-namespace".to_owned(),
        "--wait".to_owned(),
        "--timeout=10m".to_owned(),
    ];
    arguments.extend(values.map(|value| format!("--set={value}")));
    arguments.extend([
        "etcd-mainstay".to_owned(),
        chart_dir().display().to_string(),
    ]);
    let installed = run(&helm.display().to_string(), &arguments).await;
    installed.map_err(InstallError::Helm)?;
    Ok(())
}

/// The chart of this checkout.
fn chart_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../charts/etcd-mainstay")
}
