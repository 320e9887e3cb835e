//! Starts a cluster and reports the progress.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::future::try_join3;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::Node as KubernetesNode;
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use reqwest::StatusCode;
use rustix::process::geteuid;
use serde_json::json;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, timeout};

use super::addresses::{FILER_PORT, NODE, NODE_NAME};
use super::certificates::{self, CertificatesError};
use super::components::ClusterComponent;
use super::configuration::{self, ConfigurationError};
use super::discovery::{KubeClientError, connect_client};
use super::down::{DownError, MARKER_FILE, down};
use super::home::ClusterHome;
use super::image::{self, CatalogueError, Image, ImageError};
use super::namespaces::control_groups::{self, ControlGroupError};
use super::namespaces::{self, StartNamespacesError, link};
use super::node_services::volumes::{DISK_CLASS, MEMORY_CLASS, PROVISIONER};
use super::programs::Programs;
use super::run::{RunError, run};

/// Detects a hang: a cold start on a loaded machine takes a fraction of this.
const DEADLINE: Duration = Duration::from_mins(10);
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Number of images imported in parallel.
const CONCURRENT_IMPORTS: usize = 3;
/// The bucket of all tests; each uses its own prefix.
pub const BUCKET: &str = "backups";

/// Why a cluster could not be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UpError {
    /// Creating namespaces needs root.
    #[error(
        "starting a cluster needs root; alternatively set KUBECONFIG to use an existing cluster"
    )]
    NotRoot,
    /// A previous cluster could not be deleted.
    #[error("failed to delete the previous cluster")]
    Leftovers(#[source] DownError),
    /// A file or directory could not be created.
    #[error("failed to create {}", path.display())]
    File {
        /// Affected path.
        path: PathBuf,
        /// Underlying error.
        source: io::Error,
    },
    /// The certificates could not be created.
    #[error(transparent)]
    Certificates(#[from] CertificatesError),
    /// A configuration file could not be written.
    #[error(transparent)]
    Configuration(#[from] ConfigurationError),
    /// The cgroup of pods could not be created.
    #[error(transparent)]
    ControlGroups(#[from] ControlGroupError),
    /// The namespaces could not be created.
    #[error(transparent)]
    Namespaces(#[from] StartNamespacesError),
    /// The network link could not be created.
    #[error("failed to create the network link to the cluster")]
    Link(#[source] RunError),
    /// An image could not be assembled.
    #[error(transparent)]
    Catalogue(#[from] CatalogueError),
    /// An image could not be written.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// containerd rejected an image.
    #[error("failed to import image {image}")]
    Import {
        /// Name of the image.
        image: String,
        /// Underlying error.
        source: RunError,
    },
    /// No client could be created.
    #[error(transparent)]
    Client(#[from] KubeClientError),
    /// A storage class could not be created.
    #[error("failed to create StorageClass {class}")]
    StorageClass {
        /// Name of the storage class.
        class: &'static str,
        /// Underlying error.
        source: Box<kube::Error>,
    },
    /// A component did not become ready.
    #[error("{what} was not ready after {DEADLINE:?}; see {}", log.display())]
    NotReady {
        /// The object.
        what: &'static str,
        /// Path of the log to read.
        log: PathBuf,
    },
}

/// Starts a cluster, after deleting a previous one. `ours` are images of the programs under test.
pub async fn up(
    home: &ClusterHome,
    programs: &Programs,
    ours: Vec<Image>,
    say: &dyn Fn(&str),
) -> Result<(), UpError> {
    if !geteuid().is_root() {
        return Err(UpError::NotRoot);
    }
    down(home).await.map_err(UpError::Leftovers)?;
    prepare_home(home, programs)?;
    say("starting etcd, the control plane, the node and the S3 server");
    let holder = namespaces::start_namespaces(home).await?;
    let first = holder
        .child()
        .ok_or_else(|| not_ready(home, "process 1 of the cluster", ClusterComponent::Etcd))?;
    link::create_link(&first).await.map_err(UpError::Link)?;
    create_file(&home.linked_file())?;
    let client = connect_client(&home.kubeconfig()).await?;
    try_join3(
        import_base_images(home, programs, ours, say),
        wait_for_kubernetes(home, &client, say),
        wait_for_store(home, say),
    )
    .await?;
    Ok(())
}

fn prepare_home(home: &ClusterHome, programs: &Programs) -> Result<(), UpError> {
    for directory in home.directories() {
        let made = fs::create_dir_all(&directory);
        made.map_err(|source| UpError::File {
            path: directory,
            source,
        })?;
    }
    create_file(&home.file(MARKER_FILE))?;
    copy_this_program(&home.cluster_program())?;
    certificates::create_certificates(home)?;
    configuration::write_files(home, programs)?;
    control_groups::create()?;
    Ok(())
}

fn create_file(path: &Path) -> Result<(), UpError> {
    let made = File::create(path);
    made.map_err(|source| UpError::File {
        path: path.to_owned(),
        source,
    })?;
    Ok(())
}

/// Process 1 runs a copy, so that a rebuild does not replace its program.
fn copy_this_program(to: &Path) -> Result<(), UpError> {
    let copied = std::env::current_exe().and_then(|this| fs::copy(this, to));
    copied.map_err(|source| UpError::File {
        path: to.to_owned(),
        source,
    })?;
    Ok(())
}

fn not_ready(home: &ClusterHome, what: &'static str, component: ClusterComponent) -> UpError {
    UpError::NotReady {
        what,
        log: home.log_file(component),
    }
}

/// Polls until `is_ready` returns true.
async fn wait_until<F: Future<Output = bool>>(
    home: &ClusterHome,
    (what, component): (&'static str, ClusterComponent),
    mut is_ready: impl FnMut() -> F,
) -> Result<(), UpError> {
    let deadline = Instant::now() + DEADLINE;
    while !timeout(DEADLINE, is_ready()).await.unwrap_or(false) {
        if Instant::now() > deadline {
            return Err(not_ready(home, what, component));
        }
        sleep(POLL_INTERVAL).await;
    }
    Ok(())
}

async fn import_base_images(
    home: &ClusterHome,
    programs: &Programs,
    ours: Vec<Image>,
    say: &dyn Fn(&str),
) -> Result<(), UpError> {
    let mut images = image::build_base_images(programs).await?;
    images.extend(ours);
    let ctr = Ctr::new(home, programs);
    wait_until(
        home,
        ("containerd", ClusterComponent::Containerd),
        || async { ctr.run(&["version"]).await.is_ok() },
    )
    .await?;
    ctr.import_all(home, &images).await?;
    report_images(&images, say);
    Ok(())
}

fn report_images(images: &[Image], say: &dyn Fn(&str)) {
    let names: Vec<&str> = images.iter().map(Image::name).collect();
    say(&format!("images imported: {}", names.join(", ")));
}

/// Imports images into a running cluster; an image of the same name is replaced for new pods.
pub async fn import(
    home: &ClusterHome,
    programs: &Programs,
    images: &[Image],
) -> Result<(), UpError> {
    Ctr::new(home, programs).import_all(home, images).await
}

/// `ctr`, the client of containerd.
struct Ctr {
    program: String,
    socket: String,
}

impl Ctr {
    fn new(home: &ClusterHome, programs: &Programs) -> Self {
        Self {
            program: programs.node_file("bin/ctr").display().to_string(),
            socket: home.containerd_socket().display().to_string(),
        }
    }

    async fn run(&self, arguments: &[&str]) -> Result<String, RunError> {
        let common = ["--address", &self.socket, "--namespace", "k8s.io"];
        run(&self.program, &[&common, arguments].concat()).await
    }

    /// In parallel: one image is written while another is unpacked.
    async fn import_all(&self, home: &ClusterHome, images: &[Image]) -> Result<(), UpError> {
        let imports = stream::iter(images).map(|image| self.import(home, image));
        imports
            .buffer_unordered(CONCURRENT_IMPORTS)
            .try_collect()
            .await
    }

    async fn import(&self, home: &ClusterHome, image: &Image) -> Result<(), UpError> {
        let path = home
            .images_dir()
            .join(format!("{}.tar", image.name().replace(['/', ':'], "-")));
        write_image(image.clone(), path.clone()).await?;
        let imported = self
            .run(&["images", "import", &path.display().to_string()])
            .await;
        imported.map_err(|source| UpError::Import {
            image: image.name().to_owned(),
            source,
        })?;
        fs::remove_file(&path).map_err(|source| UpError::File { path, source })
    }
}

/// Writes an image in a blocking thread.
async fn write_image(image: Image, path: PathBuf) -> Result<(), UpError> {
    let name = image.name().to_owned();
    let written = spawn_blocking(move || image.write(&path)).await;
    written.map_err(|error| ImageError::Write {
        image: name,
        source: io::Error::other(error),
    })??;
    Ok(())
}

async fn wait_for_kubernetes(
    home: &ClusterHome,
    client: &Client,
    say: &dyn Fn(&str),
) -> Result<(), UpError> {
    wait_until(
        home,
        ("the API server", ClusterComponent::ApiServer),
        || async { client.apiserver_version().await.is_ok() },
    )
    .await?;
    say("API server is ready");
    wait_until(
        home,
        ("the API server", ClusterComponent::ApiServer),
        || async { create_storage_classes(client).await.is_ok() },
    )
    .await?;
    let nodes = Api::<KubernetesNode>::all(client.clone());
    wait_until(home, ("the node", ClusterComponent::Kubelet), || async {
        nodes.get(NODE_NAME).await.as_ref().is_ok_and(is_node_ready)
    })
    .await?;
    say("node is ready");
    Ok(())
}

fn is_node_ready(node: &KubernetesNode) -> bool {
    let conditions = node
        .status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten());
    let mut ready = conditions.filter(|condition| condition.type_ == "Ready");
    ready.any(|condition| condition.status == "True")
}

async fn create_storage_classes(client: &Client) -> Result<(), UpError> {
    let classes = Api::<StorageClass>::all(client.clone());
    for (class, is_default) in [(DISK_CLASS, "true"), (MEMORY_CLASS, "false")] {
        let desired = json!({
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {
                "name": class,
                "annotations": {"storageclass.kubernetes.io/is-default-class": is_default},
            },
            "provisioner": PROVISIONER,
            "allowVolumeExpansion": true,
        });
        let manager = PatchParams::apply("mainstay-cluster");
        let applied = classes.patch(class, &manager, &Patch::Apply(desired)).await;
        applied.map_err(|source| UpError::StorageClass {
            class,
            source: Box::new(source),
        })?;
    }
    Ok(())
}

/// Creates the bucket, a directory of the SeaweedFS filer, and waits for the S3 server.
async fn wait_for_store(home: &ClusterHome, say: &dyn Fn(&str)) -> Result<(), UpError> {
    let http = reqwest::Client::new();
    let bucket = format!("http://{NODE}:{FILER_PORT}/buckets/{BUCKET}/");
    let health = super::addresses::s3_url() + "/healthz";
    wait_until(home, ("the S3 server", ClusterComponent::Store), || async {
        let made = http.post(&bucket).send().await;
        let answer = http.get(&health).send().await;
        // A conflict means that an earlier attempt created it.
        let is_made = made
            .is_ok_and(|made| made.status().is_success() || made.status() == StatusCode::CONFLICT);
        is_made && answer.is_ok_and(|answer| answer.status().is_success())
    })
    .await?;
    say("S3 server is ready");
    Ok(())
}
