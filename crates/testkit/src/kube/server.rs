//! A Kubernetes API server for tests.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ::kube::api::{Api, DynamicObject, ListParams, ObjectMeta, PostParams};
use ::kube::config::{KubeConfigOptions, Kubeconfig};
use ::kube::core::{ApiResource, GroupVersionKind};
use ::kube::{Client, Config};
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use rustls::crypto::{CryptoProvider, ring};
use sha2::{Digest, Sha256};
use tempfile::TempDir;
use tokio::time::{sleep, timeout};

use super::pki::Pki;
use super::process::KubeProcess;
use crate::etcd::{EtcdOptions, EtcdRelease, EtcdServer, free_url};
use crate::paths::env_path;

/// Environment variable with the directory of an API server that several tests share.
pub const SHARED_API_ENV: &str = "MAINSTAY_SHARED_API";
/// File name of the kubeconfig of the administrator in that directory.
const KUBECONFIG_FILE: &str = "kubeconfig";
/// Annotation with the digest of a CRD before the API server added its defaults.
const DIGEST_ANNOTATION: &str = "tests.mainstay/digest";

/// A cold start on a loaded machine takes a fraction of this time; a server that needs longer is stuck.
const START_DEADLINE: Duration = Duration::from_mins(2);
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// A Kubernetes API server with its own etcd. Dropping it kills both and removes their data.
///
/// Service accounts have no tokens and pods need none; nothing runs pods.
#[derive(Debug)]
pub struct ApiServer {
    /// `None` for a shared server.
    owned: Option<OwnedServer>,
    kubeconfig: PathBuf,
}

/// The processes and files of a server that this process started. They stop in this order.
#[derive(Debug)]
struct OwnedServer {
    controller_manager: Option<KubeProcess>,
    server: Option<KubeProcess>,
    etcd: EtcdServer,
    temp_dir: TempDir,
    pki: Pki,
    url: String,
}

impl ApiServer {
    /// Starts a server and waits until it is ready.
    ///
    /// # Panics
    /// If the server does not become ready, with its log.
    pub async fn start() -> Self {
        install_crypto_provider();
        let etcd = EtcdServer::start(EtcdRelease::NEWEST, EtcdOptions::new()).await;
        let temp_dir = TempDir::with_prefix("kubernetes-").expect("a temporary directory");
        let pki = Pki::create(temp_dir.path().join("pki"));
        let kubeconfig = temp_dir.path().join(KUBECONFIG_FILE);
        let mut owned = OwnedServer {
            controller_manager: None,
            server: None,
            etcd,
            temp_dir,
            pki,
            url: String::new(),
        };
        for _ in 0..5 {
            owned.url = free_url().replace("http://", "https://");
            owned.pki.write_kubeconfig(&owned.url, &kubeconfig);
            owned.launch();
            if owned.wait_until_ready(&kubeconfig).await {
                let owned = Some(owned);
                return Self { owned, kubeconfig };
            }
        }
        panic!("the port for the API server was taken five times in a row")
    }

    /// The shared server in the directory `MAINSTAY_SHARED_API`, which other tests use at the same time and which has
    /// controllers. Without that variable, a new server with controllers.
    ///
    /// For tests that use only their own namespaces. Cluster-wide objects, such as storage classes, need unique names.
    /// Tests need not delete objects: the server stops after all tests, and deletion costs more than leftover objects.
    ///
    /// # Panics
    /// If the server does not become ready, with its log.
    pub async fn shared() -> Self {
        let Some(home) = env_path(SHARED_API_ENV) else {
            return Self::start().await.with_controllers().await;
        };
        install_crypto_provider();
        Self {
            owned: None,
            kubeconfig: home.join(KUBECONFIG_FILE),
        }
    }

    /// Value of `MAINSTAY_SHARED_API` that shares this server.
    ///
    /// # Panics
    /// If the server is already shared.
    pub fn shared_dir(&self) -> &Path {
        self.owned().temp_dir.path()
    }

    fn owned(&self) -> &OwnedServer {
        let own = self.owned.as_ref();
        own.expect("a server that ApiServer::start created, not a shared one")
    }

    fn owned_mut(&mut self) -> &mut OwnedServer {
        let own = self.owned.as_mut();
        own.expect("a server that ApiServer::start created, not a shared one")
    }

    /// Also starts the kube-controller-manager: namespaces, garbage collection, workloads, Jobs and so on, but no
    /// controller that binds PVCs.
    ///
    /// # Panics
    /// If the controllers do not start, with their log.
    pub async fn with_controllers(mut self) -> Self {
        let url = free_url();
        let port = parse_port(&url);
        let kubeconfig = self.kubeconfig.clone();
        let own = self.owned_mut();
        let flags = [
            format!("--kubeconfig={}", kubeconfig.display()),
            format!(
                "--service-account-private-key-file={}",
                own.pki_file("accounts.key")
            ),
            format!("--root-ca-file={}", own.pki_file("ca.crt")),
            format!("--secure-port={port}"),
            "--bind-address=127.0.0.1".to_owned(),
            "--leader-elect=false".to_owned(),
            // Tests run in parallel and would slow each other down at the default of 20 requests per second.
            "--kube-api-qps=200".to_owned(),
            "--kube-api-burst=400".to_owned(),
            // There are no volumes: PVCs, like pods, stay as a test leaves them.
            "--controllers=*,-persistentvolume-binder,-persistentvolume-expander".to_owned(),
        ];
        let process = KubeProcess::start("kube-controller-manager", &flags, own.temp_dir.path());
        let process = own.controller_manager.insert(process);
        let accounts = Api::<ServiceAccount>::namespaced(connect(&kubeconfig).await, "default");
        let deadline = Instant::now() + START_DEADLINE;
        while accounts.get("default").await.is_err() {
            let exited = process.exit_status();
            assert!(
                exited.is_none() && Instant::now() < deadline,
                "the controllers did not start ({exited:?}); log:\n{}",
                process.read_log()
            );
            sleep(POLL_INTERVAL).await;
        }
        self
    }

    /// Kills the server; its data is kept.
    ///
    /// # Panics
    /// If the server is shared, like all methods that affect more than the namespaces of one test.
    pub fn stop(&mut self) {
        self.owned_mut().server = None;
    }

    /// Starts a stopped server again, with the same URL and data.
    ///
    /// # Panics
    /// If the server does not become ready, with its log, or if it is already running.
    pub async fn restart(&mut self) {
        let kubeconfig = self.kubeconfig.clone();
        let own = self.owned_mut();
        assert!(own.server.is_none(), "the API server is already running");
        own.launch();
        assert!(
            own.wait_until_ready(&kubeconfig).await,
            "another process took the port of the API server"
        );
    }

    /// A client with all permissions.
    pub async fn client(&self) -> Client {
        connect(&self.kubeconfig).await
    }

    /// A client that impersonates a user, who has only the permissions that a test grants.
    pub async fn client_as(&self, user: &str) -> Client {
        let mut config = load_config(&self.kubeconfig).await;
        config.auth_info.impersonate = Some(user.to_owned());
        Client::try_from(config).expect("create a client")
    }

    /// The etcd of the server.
    pub fn etcd(&self) -> &EtcdServer {
        &self.owned().etcd
    }

    /// Kubeconfig of the administrator; removed when this value is dropped.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// URL for clients.
    pub fn url(&self) -> &str {
        &self.owned().url
    }

    /// Creates a namespace with a unique name; returns the name.
    pub async fn create_namespace(&self) -> String {
        let namespace = Namespace {
            metadata: ObjectMeta {
                generate_name: Some("test-".to_owned()),
                ..ObjectMeta::default()
            },
            ..Namespace::default()
        };
        let created = Api::all(self.client().await)
            .create(&PostParams::default(), &namespace)
            .await
            .unwrap_or_else(|error| panic!("create a namespace: {error}"));
        created
            .metadata
            .name
            .expect("the server generates the name")
    }

    /// Installs CRDs and waits until the server serves them. Another test may have installed them already.
    ///
    /// # Panics
    /// If the server rejects a CRD or has a different CRD of that name.
    pub async fn create_crds(
        &self,
        definitions: impl IntoIterator<Item = CustomResourceDefinition>,
    ) {
        let client = self.client().await;
        let known = Api::<CustomResourceDefinition>::all(client.clone());
        for mut definition in definitions {
            let name = definition.metadata.name.clone().unwrap_or_default();
            let (annotation, digest) = (DIGEST_ANNOTATION.to_owned(), hash_crd(&definition));
            let annotations = definition.metadata.annotations.get_or_insert_default();
            annotations.insert(annotation, digest.clone());
            match known.create(&PostParams::default(), &definition).await {
                Ok(_) => {}
                Err(::kube::Error::Api(status)) if status.code == 409 => {
                    let installed = known.get(&name).await.expect("read the CRD");
                    let annotations = installed.metadata.annotations.unwrap_or_default();
                    let is_same = annotations.get(DIGEST_ANNOTATION) == Some(&digest);
                    assert!(is_same, "another test installed a different CRD {name}");
                }
                Err(error) => panic!("install CRD {name}: {error}"),
            }
            let deadline = Instant::now() + START_DEADLINE;
            while !is_served(&client, &definition).await {
                assert!(Instant::now() < deadline, "{name} is not served");
                sleep(POLL_INTERVAL).await;
            }
        }
    }

    /// Log of all starts of the server; empty while it is stopped.
    pub fn read_log(&self) -> String {
        let server = self.owned().server.as_ref();
        server.map(KubeProcess::read_log).unwrap_or_default()
    }
}

impl OwnedServer {
    fn launch(&mut self) {
        let flags = [
            format!("--etcd-servers={}", self.etcd.client_url()),
            format!("--secure-port={}", parse_port(&self.url)),
            "--bind-address=127.0.0.1".to_owned(),
            format!("--cert-dir={}", self.temp_dir.path().display()),
            format!("--tls-cert-file={}", self.pki_file("apiserver.crt")),
            format!("--tls-private-key-file={}", self.pki_file("apiserver.key")),
            format!("--client-ca-file={}", self.pki_file("ca.crt")),
            format!(
                "--service-account-key-file={}",
                self.pki_file("accounts.pub")
            ),
            format!(
                "--service-account-signing-key-file={}",
                self.pki_file("accounts.key")
            ),
            "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
            "--service-cluster-ip-range=10.96.0.0/16".to_owned(),
            "--authorization-mode=RBAC".to_owned(),
            // The plugin rejects pods while the service account of their namespace does not exist.
            "--disable-admission-plugins=ServiceAccount".to_owned(),
            // The API server rejects a loopback address as endpoint, and no test needs the endpoint.
            "--endpoint-reconciler-type=none".to_owned(),
        ];
        self.server = Some(KubeProcess::start(
            "kube-apiserver",
            &flags,
            self.temp_dir.path(),
        ));
    }

    /// `false` if the process exited because its port was taken.
    async fn wait_until_ready(&mut self, kubeconfig: &Path) -> bool {
        let client = connect(kubeconfig).await;
        let deadline = Instant::now() + START_DEADLINE;
        loop {
            if is_ready(&client).await {
                return true;
            }
            let server = self.server.as_mut().expect("the server was started");
            if let Some(status) = server.exit_status() {
                let log = server.read_log();
                assert!(
                    log.contains("address already in use"),
                    "the API server exited with {status} before it became ready; log:\n{log}"
                );
                return false;
            }
            assert!(
                Instant::now() < deadline,
                "the API server is not ready after {START_DEADLINE:?}; log:\n{}",
                server.read_log()
            );
            sleep(POLL_INTERVAL).await;
        }
    }

    fn pki_file(&self, name: &str) -> String {
        self.pki.path(name).display().to_string()
    }
}

/// Two dependencies of the tests bring a crypto provider each, so rustls selects none by default. A provider
/// that is already installed is kept.
fn install_crypto_provider() {
    if CryptoProvider::get_default().is_none() {
        ring::default_provider().install_default().ok();
    }
}

fn hash_crd(definition: &CustomResourceDefinition) -> String {
    let text = serde_json::to_vec(definition).expect("serialize the CRD");
    hex::encode(Sha256::digest(text))
}

/// Whether the server is ready, including the default roles and namespaces.
async fn is_ready(client: &Client) -> bool {
    let request = hyper::Request::get("/readyz")
        .body(Vec::new())
        .expect("build the request");
    let response = timeout(Duration::from_secs(5), client.request_text(request)).await;
    let is_up = response.is_ok_and(|response| response.is_ok_and(|text| text == "ok"));
    is_up
        && Api::<Namespace>::all(client.clone())
            .get("default")
            .await
            .is_ok()
}

/// Whether resources of a CRD can be listed in each version; that is the case shortly after the CRD is
/// established.
async fn is_served(client: &Client, definition: &CustomResourceDefinition) -> bool {
    let spec = &definition.spec;
    for version in spec.versions.iter().filter(|version| version.served) {
        let kind = GroupVersionKind::gvk(&spec.group, &version.name, &spec.names.kind);
        let resource = ApiResource::from_gvk_with_plural(&kind, &spec.names.plural);
        let all = Api::<DynamicObject>::all_with(client.clone(), &resource);
        if all.list(&ListParams::default().limit(1)).await.is_err() {
            return false;
        }
    }
    true
}

async fn connect(kubeconfig: &Path) -> Client {
    Client::try_from(load_config(kubeconfig).await).expect("create a client")
}

async fn load_config(kubeconfig: &Path) -> Config {
    let file = Kubeconfig::read_from(kubeconfig).expect("read the kubeconfig");
    let mut config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default())
        .await
        .expect("load the kubeconfig");
    // Tests poll for a server and need an immediate error while it is down.
    config.default_retry = false;
    config
}

fn parse_port(url: &str) -> &str {
    url.rsplit_once(':').expect("a URL with a port").1
}
