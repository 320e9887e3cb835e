//! Brings a cluster up, step by step, telling each.

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
use super::attend::volumes::{DISK_CLASS, MEMORY_CLASS, PROVISIONER};
use super::certificates::{self, CertificatesError};
use super::components::ClusterComponent;
use super::configuration::{self, ConfigurationError};
use super::down::{DownError, MARKER_FILE, down};
use super::find::{KubeClientError, connect_client};
use super::home::ClusterHome;
use super::image::{self, CatalogueError, Image, ImageError};
use super::programs::Programs;
use super::run::{RunError, run};
use super::world::control_groups::{self, ControlGroupError};
use super::world::{self, StartNamespacesError, link};

/// A cold start on a loaded machine takes a fraction of this.
const DEADLINE: Duration = Duration::from_mins(10);
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// How many images are imported at the same time.
const CONCURRENT_IMPORTS: usize = 3;
/// The bucket every test may use, below a prefix of its own.
pub const BUCKET: &str = "backups";

/// Why there is no cluster.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UpError {
    /// Only root makes worlds.
    #[error("a cluster of your own needs root; or let KUBECONFIG name one that is there")]
    NotRoot,
    /// What an earlier one left does not go.
    #[error("remove what an earlier cluster left")]
    Leftovers(#[source] DownError),
    /// A file or directory could not be made.
    #[error("prepare {}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// There are no certificates.
    #[error(transparent)]
    Certificates(#[from] CertificatesError),
    /// A configuration could not be written.
    #[error(transparent)]
    Configuration(#[from] ConfigurationError),
    /// There is no control group for pods.
    #[error(transparent)]
    ControlGroups(#[from] ControlGroupError),
    /// Its world did not begin.
    #[error(transparent)]
    Namespaces(#[from] StartNamespacesError),
    /// The machine has no link to it.
    #[error("link the cluster to this machine")]
    Link(#[source] RunError),
    /// An image could not be put together.
    #[error(transparent)]
    Catalogue(#[from] CatalogueError),
    /// An image could not be written.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// An image was refused.
    #[error("import image {image}")]
    Import {
        /// Which.
        image: String,
        /// Why.
        source: RunError,
    },
    /// There is no client.
    #[error(transparent)]
    Client(#[from] KubeClientError),
    /// A storage class was refused.
    #[error("make storage class {class}")]
    StorageClass {
        /// Which.
        class: &'static str,
        /// Why.
        source: Box<kube::Error>,
    },
    /// Something did not become ready.
    #[error("{what} was not ready after {DEADLINE:?}; see {}", log.display())]
    NotReady {
        /// What.
        what: &'static str,
        /// Who may know why.
        log: PathBuf,
    },
}

/// Brings it up, after removing what an earlier one left. `ours` are images of the programs under test.
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
    say("starting etcd, the control plane, the node, an S3 server");
    let holder = world::start_namespaces(home).await?;
    let first = holder
        .child()
        .ok_or_else(|| not_ready(home, "the world", ClusterComponent::Etcd))?;
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

/// Process 1 is this program as it is now, whatever is built meanwhile.
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

/// Asks until the answer is yes.
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
    wait_until(home, ("containerd", ClusterComponent::Containerd), || async {
        ctr.run(&["version"]).await.is_ok()
    })
    .await?;
    ctr.import_all(home, &images).await?;
    report_images(&images, say);
    Ok(())
}

fn report_images(images: &[Image], say: &dyn Fn(&str)) {
    let names: Vec<&str> = images.iter().map(Image::name).collect();
    say(&format!("images: {}", names.join(", ")));
}

/// Imports images into a running cluster; one of the same name is replaced for pods to come.
pub async fn import(home: &ClusterHome, programs: &Programs, images: &[Image]) -> Result<(), UpError> {
    Ctr::new(home, programs).import_all(home, images).await
}

/// containerd's own client.
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

    async fn run(&self, words: &[&str]) -> Result<String, RunError> {
        let common = ["--address", &self.socket, "--namespace", "k8s.io"];
        run(&self.program, &[&common, words].concat()).await
    }

    /// Some at a time: one is written while another is unpacked.
    async fn import_all(&self, home: &ClusterHome, images: &[Image]) -> Result<(), UpError> {
        let imports = stream::iter(images).map(|image| self.import(home, image));
        imports.buffer_unordered(CONCURRENT_IMPORTS).try_collect().await
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

/// Away from the threads that wait for answers.
async fn write_image(image: Image, path: PathBuf) -> Result<(), UpError> {
    let name = image.name().to_owned();
    let written = spawn_blocking(move || image.write(&path)).await;
    written.map_err(|error| ImageError::Write {
        image: name,
        source: io::Error::other(error),
    })??;
    Ok(())
}

async fn wait_for_kubernetes(home: &ClusterHome, client: &Client, say: &dyn Fn(&str)) -> Result<(), UpError> {
    wait_until(home, ("the API server", ClusterComponent::ApiServer), || async {
        client.apiserver_version().await.is_ok()
    })
    .await?;
    say("the API server answers");
    wait_until(home, ("the API server", ClusterComponent::ApiServer), || async {
        create_storage_classes(client).await.is_ok()
    })
    .await?;
    let nodes = Api::<KubernetesNode>::all(client.clone());
    wait_until(home, ("the node", ClusterComponent::Kubelet), || async {
        nodes.get(NODE_NAME).await.as_ref().is_ok_and(is_node_ready)
    })
    .await?;
    say("the node is ready");
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
        let wanted = json!({
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
        let applied = classes.patch(class, &manager, &Patch::Apply(wanted)).await;
        applied.map_err(|source| UpError::StorageClass {
            class,
            source: Box::new(source),
        })?;
    }
    Ok(())
}

/// A bucket is a directory of the server's files.
async fn wait_for_store(home: &ClusterHome, say: &dyn Fn(&str)) -> Result<(), UpError> {
    let http = reqwest::Client::new();
    let bucket = format!("http://{NODE}:{FILER_PORT}/buckets/{BUCKET}/");
    let health = super::addresses::s3_url() + "/healthz";
    wait_until(home, ("the S3 server", ClusterComponent::Store), || async {
        let made = http.post(&bucket).send().await;
        let answer = http.get(&health).send().await;
        // The second time it is there already.
        let is_made = made
            .is_ok_and(|made| made.status().is_success() || made.status() == StatusCode::CONFLICT);
        is_made && answer.is_ok_and(|answer| answer.status().is_success())
    })
    .await?;
    say("the S3 server answers");
    Ok(())
}
