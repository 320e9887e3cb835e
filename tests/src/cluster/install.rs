//! Installs the chart, as a person would: with Helm.

use std::path::{Path, PathBuf};

use mainstay_testkit::place::{cache_dir, env_path};

use super::image::{CatalogueError, DEV_TAG, ETCD_IMAGE, read_etcd_versions};
use super::programs::Programs;
use super::run::{RunError, run};

/// Where the controller lives.
pub const CONTROLLER_NAMESPACE: &str = "etcd-mainstay";
/// The Lease of the controller that leads, which the chart names.
pub const ELECTION_LEASE: &str = "druid-leader-election";

/// Why the controller is not installed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InstallError {
    /// The images to install are not known.
    #[error(transparent)]
    Catalogue(#[from] CatalogueError),
    /// Helm failed.
    #[error("install the chart")]
    Helm(#[source] RunError),
}

/// Installs the chart of this checkout into the cluster of a kubeconfig, with the images `up` imports, and waits
/// until the controller is ready. Changed specs are acted on at once.
pub async fn install(kubeconfig: &Path, programs: &Programs) -> Result<(), InstallError> {
    let newest = read_etcd_versions(programs).await?.pop().unwrap_or_default();
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
    let mut words = vec![
        "upgrade".to_owned(),
        "--install".to_owned(),
        format!("--kubeconfig={}", kubeconfig.display()),
        format!("--namespace={CONTROLLER_NAMESPACE}"),
        "--create-namespace".to_owned(),
        "--wait".to_owned(),
        "--timeout=10m".to_owned(),
        // Kubernetes before 1.25 drops rules of definitions it does not know; Helm would refuse to send them.
        "--server-side=false".to_owned(),
        "--disable-openapi-validation".to_owned(),
    ];
    words.extend(values.map(|value| format!("--set={value}")));
    words.extend(["etcd-mainstay".to_owned(), chart_dir().display().to_string()]);
    let installed = run(&helm.display().to_string(), &words).await;
    installed.map_err(InstallError::Helm)?;
    Ok(())
}

/// The chart of this checkout.
fn chart_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../charts/etcd-mainstay")
}
