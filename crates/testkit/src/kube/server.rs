//! An API server, started, stopped and asked for clients.

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

use super::binaries::minor_version;
use super::pki::Pki;
use super::process::KubeProcess;
use crate::etcd::{EtcdServer, EtcdOptions, EtcdRelease, free_url};
use crate::place::env_path;

/// Names the directory of a server that several tests share.
pub const SHARED_API_ENV: &str = "MAINSTAY_SHARED_API";
/// The administrator's, in that directory.
const KUBECONFIG_FILE: &str = "kubeconfig";
/// Says what a definition was before the server added its defaults.
const DIGEST_ANNOTATION: &str = "tests.mainstay/digest";

/// A cold start on a loaded machine takes a fraction of this; a server that needs more is stuck.
const START_DEADLINE: Duration = Duration::from_mins(2);
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// A Kubernetes API server with an etcd of its own. Dropping it kills both and removes what they wrote.
///
/// Service accounts get no tokens and pods need none; nothing runs pods.
#[derive(Debug)]
pub struct ApiServer {
    /// Nothing of a server that others use, too.
    owned: Option<OwnedServer>,
    kubeconfig: PathBuf,
}

/// What belongs to this process alone. It ends in this order.
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
    /// With the server's log when it does not come up.
    pub async fn start() -> Self {
        install_crypto_provider();
        let etcd = EtcdServer::start(EtcdRelease::V3_5New, EtcdOptions::new()).await;
        let home = TempDir::with_prefix("kubernetes-").expect("a temporary directory");
        let pki = Pki::create(home.path().join("pki"));
        let kubeconfig = home.path().join(KUBECONFIG_FILE);
        let mut own = OwnedServer {
            controller_manager: None,
            server: None,
            etcd,
            temp_dir: home,
            pki,
            url: String::new(),
        };
        for _ in 0..5 {
            own.url = free_url().replace("http://", "https://");
            own.pki.write_kubeconfig(&own.url, &kubeconfig);
            own.launch();
            if own.wait_until_ready(&kubeconfig).await {
                let own = Some(own);
                return Self { owned: own, kubeconfig };
            }
        }
        panic!("five times in a row somebody took the port chosen for the API server")
    }

    /// The server of the directory `MAINSTAY_SHARED_API` names, which others use at the same time and which has controllers; without
    /// that variable, one of this test's own with controllers.
    ///
    /// For tests that keep to namespaces of their own. What is cluster-wide, such as a storage class, needs a name nobody else
    /// uses. Nothing has to be deleted: the server ends with all tests, and until then objects that are left alone cost
    /// less than their deletion.
    ///
    /// # Panics
    /// With the server's log when it does not come up.
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

    /// The directory that `MAINSTAY_SHARED_API` has to name for this server to be shared.
    ///
    /// # Panics
    /// When it is shared already.
    pub fn shared_dir(&self) -> &Path {
        self.owned().temp_dir.path()
    }

    fn owned(&self) -> &OwnedServer {
        let own = self.owned.as_ref();
        own.expect("a server of the test's own, made by ApiServer::start")
    }

    fn owned_mut(&mut self) -> &mut OwnedServer {
        let own = self.owned.as_mut();
        own.expect("a server of the test's own, made by ApiServer::start")
    }

    /// Starts the controllers as well: namespaces, garbage collection, workloads, Jobs and so on, but none that binds
    /// claims to volumes.
    ///
    /// # Panics
    /// With their log when they do not come up.
    pub async fn with_controllers(mut self) -> Self {
        let url = free_url();
        let port = parse_port(&url);
        let kubeconfig = self.kubeconfig.clone();
        let own = self.owned_mut();
        let mut flags = vec![
            format!("--kubeconfig={}", kubeconfig.display()),
            format!(
                "--service-account-private-key-file={}",
                own.pki_file("accounts.key")
            ),
            format!("--root-ca-file={}", own.pki_file("ca.crt")),
            format!("--secure-port={port}"),
            "--bind-address=127.0.0.1".to_owned(),
            "--leader-elect=false".to_owned(),
            // Several tests at a time: a limit of 20 requests a second would make them wait for each other.
            "--kube-api-qps=200".to_owned(),
            "--kube-api-burst=400".to_owned(),
            // There are no volumes: claims, like pods, are as a test leaves them.
            "--controllers=*,-persistentvolume-binder,-persistentvolume-expander".to_owned(),
        ];
        if minor_version("kube-controller-manager") < 24 {
            flags.push("--port=0".to_owned()); // the insecure one, always the same
        }
        let process = KubeProcess::start("kube-controller-manager", &flags, own.temp_dir.path());
        let process = own.controller_manager.insert(process);
        let accounts = Api::<ServiceAccount>::namespaced(connect(&kubeconfig).await, "default");
        let deadline = Instant::now() + START_DEADLINE;
        while accounts.get("default").await.is_err() {
            let ended = process.exit_status();
            assert!(
                ended.is_none() && Instant::now() < deadline,
                "the controllers do not work ({ended:?}); their log:\n{}",
                process.read_log()
            );
            sleep(POLL_INTERVAL).await;
        }
        self
    }

    /// Ends the server at once; its data stays.
    ///
    /// # Panics
    /// When others use it, too. So does everything else that concerns more than namespaces of the test's own.
    pub fn stop(&mut self) {
        self.owned_mut().server = None;
    }

    /// Starts a stopped server again: same address, same data.
    ///
    /// # Panics
    /// With the server's log when it does not come up, and when it already runs.
    pub async fn restart(&mut self) {
        let kubeconfig = self.kubeconfig.clone();
        let own = self.owned_mut();
        assert!(own.server.is_none(), "the API server runs already");
        own.launch();
        assert!(
            own.wait_until_ready(&kubeconfig).await,
            "somebody took the port of the API server"
        );
    }

    /// A client with all rights.
    pub async fn client(&self) -> Client {
        connect(&self.kubeconfig).await
    }

    /// A client that acts as a user, who has no rights but those a test grants.
    pub async fn client_as(&self, user: &str) -> Client {
        let mut config = load_config(&self.kubeconfig).await;
        config.auth_info.impersonate = Some(user.to_owned());
        Client::try_from(config).expect("a client")
    }

    /// Where it keeps what it knows.
    pub fn etcd(&self) -> &EtcdServer {
        &self.owned().etcd
    }

    /// The administrator's kubeconfig; it goes when this value goes.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// Where clients connect.
    pub fn url(&self) -> &str {
        &self.owned().url
    }

    /// Makes a namespace nobody used before and returns its name.
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
            .expect("a name of the server's choice")
    }

    /// Teaches the server custom resources and waits until it serves them. Another test may have done so already.
    ///
    /// # Panics
    /// When it refuses one, or knows another definition of that name.
    pub async fn create_crds(&self, definitions: impl IntoIterator<Item = CustomResourceDefinition>) {
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
                    let there = known.get(&name).await.expect("the definition");
                    let its = there.metadata.annotations.unwrap_or_default();
                    let is_same = its.get(DIGEST_ANNOTATION) == Some(&digest);
                    assert!(is_same, "{name} is defined differently by another test");
                }
                Err(error) => panic!("define {name}: {error}"),
            }
            let deadline = Instant::now() + START_DEADLINE;
            while !is_served(&client, &definition).await {
                assert!(Instant::now() < deadline, "{name} is not served");
                sleep(POLL_INTERVAL).await;
            }
        }
    }

    /// All the server wrote, over all its starts; empty while it is stopped.
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
            format!("--service-account-key-file={}", self.pki_file("accounts.pub")),
            format!(
                "--service-account-signing-key-file={}",
                self.pki_file("accounts.key")
            ),
            "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
            "--service-cluster-ip-range=10.96.0.0/16".to_owned(),
            "--authorization-mode=RBAC".to_owned(),
            "--disable-admission-plugins=ServiceAccount".to_owned(),
            // Loopback is no address for an endpoint, and nobody here asks for one.
            "--endpoint-reconciler-type=none".to_owned(),
        ];
        self.server = Some(KubeProcess::start("kube-apiserver", &flags, self.temp_dir.path()));
    }

    /// Whether it became ready; `false` when it ended because its port was taken meanwhile.
    async fn wait_until_ready(&mut self, kubeconfig: &Path) -> bool {
        let client = connect(kubeconfig).await;
        let deadline = Instant::now() + START_DEADLINE;
        loop {
            if is_ready(&client).await {
                return true;
            }
            let server = self.server.as_mut().expect("a server that was started");
            if let Some(status) = server.exit_status() {
                let log = server.read_log();
                assert!(
                    log.contains("address already in use"),
                    "the API server ended with {status} before it was ready; its log:\n{log}"
                );
                return false;
            }
            assert!(
                Instant::now() < deadline,
                "the API server was not ready after {START_DEADLINE:?}; its log:\n{}",
                server.read_log()
            );
            sleep(POLL_INTERVAL).await;
        }
    }

    fn pki_file(&self, name: &str) -> String {
        self.pki.path(name).display().to_string()
    }
}

/// Two crates of the test's graph bring a provider each, so none is the default by itself. Somebody else may have chosen already,
/// which is as good.
fn install_crypto_provider() {
    if CryptoProvider::get_default().is_none() {
        ring::default_provider().install_default().ok();
    }
}

fn hash_crd(definition: &CustomResourceDefinition) -> String {
    let text = serde_json::to_vec(definition).expect("a definition");
    hex::encode(Sha256::digest(text))
}

/// Ready to serve, which includes the roles and namespaces every cluster starts with.
async fn is_ready(client: &Client) -> bool {
    let request = hyper::Request::get("/readyz")
        .body(Vec::new())
        .expect("a request");
    let answer = timeout(Duration::from_secs(5), client.request_text(request)).await;
    let is_up = answer.is_ok_and(|answer| answer.is_ok_and(|text| text == "ok"));
    is_up
        && Api::<Namespace>::all(client.clone())
            .get("default")
            .await
            .is_ok()
}

/// Whether resources of a definition can be listed, in each version: that comes a moment after the server calls it
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
    Client::try_from(load_config(kubeconfig).await).expect("a client")
}

async fn load_config(kubeconfig: &Path) -> Config {
    let file = Kubeconfig::read_from(kubeconfig).expect("the kubeconfig just written");
    let mut config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default())
        .await
        .expect("a configuration");
    // A test that waits for a server wants to know at once that it is not there.
    config.default_retry = false;
    config
}

fn parse_port(url: &str) -> &str {
    url.rsplit_once(':').expect("a URL with a port").1
}
