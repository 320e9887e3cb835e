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
use super::attend::volumes::{DISK, MEMORY, PROVISIONER};
use super::certificates::{self, CertificatesError};
use super::components::Component;
use super::configuration::{self, ConfigurationError};
use super::down::{DownError, MARK, down};
use super::find::{ClientError, client};
use super::home::Home;
use super::image::{self, CatalogueError, Image, ImageError};
use super::programs::Programs;
use super::run::{RunError, run};
use super::world::control_groups::{self, ControlGroupError};
use super::world::{self, StartError, link};

/// A cold start on a loaded machine takes a fraction of this.
const DEADLINE: Duration = Duration::from_mins(10);
const POLL: Duration = Duration::from_millis(200);
/// How many images are imported at the same time.
const AT_ONCE: usize = 3;
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
    World(#[from] StartError),
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
    Client(#[from] ClientError),
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
    home: &Home,
    programs: &Programs,
    ours: Vec<Image>,
    say: &dyn Fn(&str),
) -> Result<(), UpError> {
    if !geteuid().is_root() {
        return Err(UpError::NotRoot);
    }
    down(home).await.map_err(UpError::Leftovers)?;
    prepare(home, programs)?;
    say("starting etcd, the control plane, the node, an S3 server");
    let holder = world::start(home).await?;
    let first = holder
        .child()
        .ok_or_else(|| not_ready(home, "the world", Component::Etcd))?;
    link::lay(&first).await.map_err(UpError::Link)?;
    make_file(&home.linked())?;
    let client = client(&home.kubeconfig()).await?;
    try_join3(
        load_images(home, programs, ours, say),
        kubernetes(home, &client, say),
        store(home, say),
    )
    .await?;
    Ok(())
}

fn prepare(home: &Home, programs: &Programs) -> Result<(), UpError> {
    for directory in home.directories() {
        let made = fs::create_dir_all(&directory);
        made.map_err(|source| UpError::File {
            path: directory,
            source,
        })?;
    }
    make_file(&home.file(MARK))?;
    copy_this_program(&home.program())?;
    certificates::create(home)?;
    configuration::write(home, programs)?;
    control_groups::make()?;
    Ok(())
}

fn make_file(path: &Path) -> Result<(), UpError> {
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

fn not_ready(home: &Home, what: &'static str, component: Component) -> UpError {
    UpError::NotReady {
        what,
        log: home.log(component),
    }
}

/// Asks until the answer is yes.
async fn until<F: Future<Output = bool>>(
    home: &Home,
    (what, component): (&'static str, Component),
    mut is_ready: impl FnMut() -> F,
) -> Result<(), UpError> {
    let deadline = Instant::now() + DEADLINE;
    while !timeout(DEADLINE, is_ready()).await.unwrap_or(false) {
        if Instant::now() > deadline {
            return Err(not_ready(home, what, component));
        }
        sleep(POLL).await;
    }
    Ok(())
}

async fn load_images(
    home: &Home,
    programs: &Programs,
    ours: Vec<Image>,
    say: &dyn Fn(&str),
) -> Result<(), UpError> {
    let mut images = image::base(programs).await?;
    images.extend(ours);
    let ctr = Ctr::of(home, programs);
    until(home, ("containerd", Component::Containerd), || async {
        ctr.run(&["version"]).await.is_ok()
    })
    .await?;
    ctr.import_all(home, &images).await?;
    say_images(&images, say);
    Ok(())
}

fn say_images(images: &[Image], say: &dyn Fn(&str)) {
    let names: Vec<&str> = images.iter().map(Image::name).collect();
    say(&format!("images: {}", names.join(", ")));
}

/// Imports images into a running cluster; one of the same name is replaced for pods to come.
pub async fn import(home: &Home, programs: &Programs, images: &[Image]) -> Result<(), UpError> {
    Ctr::of(home, programs).import_all(home, images).await
}

/// containerd's own client.
struct Ctr {
    program: String,
    socket: String,
}

impl Ctr {
    fn of(home: &Home, programs: &Programs) -> Self {
        Self {
            program: programs.node("bin/ctr").display().to_string(),
            socket: home.socket().display().to_string(),
        }
    }

    async fn run(&self, words: &[&str]) -> Result<String, RunError> {
        let common = ["--address", &self.socket, "--namespace", "k8s.io"];
        run(&self.program, &[&common, words].concat()).await
    }

    /// Some at a time: one is written while another is unpacked.
    async fn import_all(&self, home: &Home, images: &[Image]) -> Result<(), UpError> {
        let imports = stream::iter(images).map(|image| self.import(home, image));
        imports.buffer_unordered(AT_ONCE).try_collect().await
    }

    async fn import(&self, home: &Home, image: &Image) -> Result<(), UpError> {
        let path = home
            .images()
            .join(format!("{}.tar", image.name().replace(['/', ':'], "-")));
        write(image.clone(), path.clone()).await?;
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
async fn write(image: Image, path: PathBuf) -> Result<(), UpError> {
    let name = image.name().to_owned();
    let written = spawn_blocking(move || image.write(&path)).await;
    written.map_err(|error| ImageError::Write {
        image: name,
        source: io::Error::other(error),
    })??;
    Ok(())
}

async fn kubernetes(home: &Home, client: &Client, say: &dyn Fn(&str)) -> Result<(), UpError> {
    until(home, ("the API server", Component::ApiServer), || async {
        client.apiserver_version().await.is_ok()
    })
    .await?;
    say("the API server answers");
    until(home, ("the API server", Component::ApiServer), || async {
        make_classes(client).await.is_ok()
    })
    .await?;
    let nodes = Api::<KubernetesNode>::all(client.clone());
    until(home, ("the node", Component::Kubelet), || async {
        nodes.get(NODE_NAME).await.as_ref().is_ok_and(is_ready)
    })
    .await?;
    say("the node is ready");
    Ok(())
}

fn is_ready(node: &KubernetesNode) -> bool {
    let conditions = node
        .status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten());
    let mut ready = conditions.filter(|condition| condition.type_ == "Ready");
    ready.any(|condition| condition.status == "True")
}

async fn make_classes(client: &Client) -> Result<(), UpError> {
    let classes = Api::<StorageClass>::all(client.clone());
    for (class, is_default) in [(DISK, "true"), (MEMORY, "false")] {
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
async fn store(home: &Home, say: &dyn Fn(&str)) -> Result<(), UpError> {
    let http = reqwest::Client::new();
    let bucket = format!("http://{NODE}:{FILER_PORT}/buckets/{BUCKET}/");
    let health = super::addresses::s3_url() + "/healthz";
    until(home, ("the S3 server", Component::Store), || async {
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
