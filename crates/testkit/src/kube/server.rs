//! An API server, started, stopped and asked for clients.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use ::kube::api::{Api, DynamicObject, ListParams, ObjectMeta, PostParams};
use ::kube::config::{KubeConfigOptions, Kubeconfig};
use ::kube::core::{ApiResource, GroupVersionKind};
use ::kube::{Client, Config};
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use rustls::crypto::{CryptoProvider, ring};
use tempfile::TempDir;
use tokio::time::{sleep, timeout};

use super::binaries::minor_version;
use super::pki::Pki;
use super::process::Process;
use crate::etcd::{Etcd, EtcdOptions, EtcdVersion, free_url};

/// A cold start on a loaded machine takes a fraction of this; a server that needs more is stuck.
const START_DEADLINE: Duration = Duration::from_mins(2);
const POLL: Duration = Duration::from_millis(50);

/// A Kubernetes API server with an etcd of its own. Dropping it kills both and removes what they wrote.
///
/// Service accounts get no tokens and pods need none; nothing runs pods.
#[derive(Debug)]
pub struct ApiServer {
    controllers: Option<Process>,
    server: Option<Process>,
    etcd: Etcd,
    home: TempDir,
    pki: Pki,
    url: String,
    kubeconfig: PathBuf,
    namespaces: AtomicU32,
}

impl ApiServer {
    /// Starts a server and waits until it is ready.
    ///
    /// # Panics
    /// With the server's log when it does not come up.
    pub async fn start() -> Self {
        // Two crates of the test's graph bring a provider each, so none is the default by itself. Somebody
        // else may have chosen already, which is as good.
        if CryptoProvider::get_default().is_none() {
            ring::default_provider().install_default().ok();
        }
        let etcd = Etcd::start(EtcdVersion::V3_5New, EtcdOptions::new()).await;
        let home = TempDir::with_prefix("kubernetes-").expect("a temporary directory");
        let pki = Pki::create(home.path().join("pki"));
        let kubeconfig = home.path().join("kubeconfig");
        let mut this = Self {
            controllers: None,
            server: None,
            etcd,
            home,
            pki,
            url: String::new(),
            kubeconfig,
            namespaces: AtomicU32::new(0),
        };
        for _ in 0..5 {
            this.url = free_url().replace("http://", "https://");
            this.pki.write_kubeconfig(&this.url, &this.kubeconfig);
            this.launch();
            if this.is_ready_in_time().await {
                return this;
            }
        }
        panic!("five times in a row somebody took the port chosen for the API server")
    }

    /// Starts the controllers as well: namespaces, garbage collection, workloads, Jobs and so on, but none that binds
    /// claims to volumes.
    ///
    /// # Panics
    /// With their log when they do not come up.
    pub async fn with_controllers(mut self) -> Self {
        let url = free_url();
        let port = port_of(&url);
        let mut flags = vec![
            format!("--kubeconfig={}", self.kubeconfig.display()),
            format!(
                "--service-account-private-key-file={}",
                self.file("accounts.key")
            ),
            format!("--root-ca-file={}", self.file("ca.crt")),
            format!("--secure-port={port}"),
            "--bind-address=127.0.0.1".to_owned(),
            "--leader-elect=false".to_owned(),
            // There are no volumes: claims, like pods, are as a test leaves them.
            "--controllers=*,-persistentvolume-binder,-persistentvolume-expander".to_owned(),
        ];
        if minor_version("kube-controller-manager") < 24 {
            flags.push("--port=0".to_owned()); // the insecure one, always the same
        }
        let process = Process::start("kube-controller-manager", &flags, self.home.path());
        let process = self.controllers.insert(process);
        let accounts = Api::<ServiceAccount>::namespaced(client(&self.kubeconfig).await, "default");
        let deadline = Instant::now() + START_DEADLINE;
        while accounts.get("default").await.is_err() {
            let ended = process.exit_status();
            assert!(
                ended.is_none() && Instant::now() < deadline,
                "the controllers do not work ({ended:?}); their log:\n{}",
                process.log()
            );
            sleep(POLL).await;
        }
        self
    }

    /// Ends the server at once; its data stays.
    pub fn stop(&mut self) {
        self.server = None;
    }

    /// Starts a stopped server again: same address, same data.
    ///
    /// # Panics
    /// With the server's log when it does not come up, and when it already runs.
    pub async fn restart(&mut self) {
        assert!(self.server.is_none(), "the API server runs already");
        self.launch();
        assert!(
            self.is_ready_in_time().await,
            "somebody took the port of the API server"
        );
    }

    fn launch(&mut self) {
        let flags = [
            format!("--etcd-servers={}", self.etcd.client_url()),
            format!("--secure-port={}", port_of(&self.url)),
            "--bind-address=127.0.0.1".to_owned(),
            format!("--cert-dir={}", self.home.path().display()),
            format!("--tls-cert-file={}", self.file("apiserver.crt")),
            format!("--tls-private-key-file={}", self.file("apiserver.key")),
            format!("--client-ca-file={}", self.file("ca.crt")),
            format!("--service-account-key-file={}", self.file("accounts.pub")),
            format!(
                "--service-account-signing-key-file={}",
                self.file("accounts.key")
            ),
            "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
            "--service-cluster-ip-range=10.96.0.0/16".to_owned(),
            "--authorization-mode=RBAC".to_owned(),
            "--disable-admission-plugins=ServiceAccount".to_owned(),
            // Loopback is no address for an endpoint, and nobody here asks for one.
            "--endpoint-reconciler-type=none".to_owned(),
        ];
        self.server = Some(Process::start("kube-apiserver", &flags, self.home.path()));
    }

    /// Whether it became ready; `false` when it ended because its port was taken meanwhile.
    async fn is_ready_in_time(&mut self) -> bool {
        let client = client(&self.kubeconfig).await;
        let deadline = Instant::now() + START_DEADLINE;
        loop {
            if is_ready(&client).await {
                return true;
            }
            let server = self.server.as_mut().expect("a server that was started");
            if let Some(status) = server.exit_status() {
                let log = server.log();
                assert!(
                    log.contains("address already in use"),
                    "the API server ended with {status} before it was ready; its log:\n{log}"
                );
                return false;
            }
            assert!(
                Instant::now() < deadline,
                "the API server was not ready after {START_DEADLINE:?}; its log:\n{}",
                server.log()
            );
            sleep(POLL).await;
        }
    }

    /// A client with all rights.
    pub async fn client(&self) -> Client {
        client(&self.kubeconfig).await
    }

    /// A client that acts as a user, who has no rights but those a test grants.
    pub async fn client_as(&self, user: &str) -> Client {
        let mut config = config(&self.kubeconfig).await;
        config.auth_info.impersonate = Some(user.to_owned());
        Client::try_from(config).expect("a client")
    }

    /// Where it keeps what it knows.
    pub fn etcd(&self) -> &Etcd {
        &self.etcd
    }

    /// The administrator's kubeconfig; it goes when this value goes.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// Where clients connect.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Makes a namespace nobody used before and returns its name.
    pub async fn namespace(&self) -> String {
        let number = self.namespaces.fetch_add(1, Ordering::Relaxed);
        let name = format!("test-{number}");
        let namespace = Namespace {
            metadata: ObjectMeta {
                name: Some(name.clone()),
                ..ObjectMeta::default()
            },
            ..Namespace::default()
        };
        Api::all(self.client().await)
            .create(&PostParams::default(), &namespace)
            .await
            .unwrap_or_else(|error| panic!("create namespace {name}: {error}"));
        name
    }

    /// Teaches the server custom resources and waits until it serves them.
    ///
    /// # Panics
    /// When it refuses one.
    pub async fn define(&self, definitions: impl IntoIterator<Item = CustomResourceDefinition>) {
        let client = self.client().await;
        let known = Api::<CustomResourceDefinition>::all(client.clone());
        for definition in definitions {
            let name = definition.metadata.name.clone().unwrap_or_default();
            let created = known.create(&PostParams::default(), &definition).await;
            created.unwrap_or_else(|error| panic!("define {name}: {error}"));
            let deadline = Instant::now() + START_DEADLINE;
            while !is_served(&client, &definition).await {
                assert!(Instant::now() < deadline, "{name} is not served");
                sleep(POLL).await;
            }
        }
    }

    /// All the server wrote, over all its starts; empty while it is stopped.
    pub fn log(&self) -> String {
        self.server.as_ref().map(Process::log).unwrap_or_default()
    }

    fn file(&self, name: &str) -> String {
        self.pki.path(name).display().to_string()
    }
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

async fn client(kubeconfig: &Path) -> Client {
    Client::try_from(config(kubeconfig).await).expect("a client")
}

async fn config(kubeconfig: &Path) -> Config {
    let file = Kubeconfig::read_from(kubeconfig).expect("the kubeconfig just written");
    let mut config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default())
        .await
        .expect("a configuration");
    // A test that waits for a server wants to know at once that it is not there.
    config.default_retry = false;
    config
}

fn port_of(url: &str) -> &str {
    url.rsplit_once(':').expect("a URL with a port").1
}
