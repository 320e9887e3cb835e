//! TLS of peers and clients is switched on and off on a running cluster. The test restarts the etcd server of each replaced pod
//! as the template requires, while a client writes all the time.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::ResourceExt;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use mainstay_testkit::etcd::{EtcdOptions, free_url};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use super::cluster::ProxiedCluster;
use super::fake_kubelet::FakeKubelet;
use super::test_env::TestEnv;

const STAGE_ANNOTATION: &str = "etcd-mainstay.io/peer-tls";
/// Enough for twelve restarts of etcd on a loaded machine.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(200);

/// A CA and one certificate for all members, as files and as Secrets.
struct TestCertificates {
    dir: TempDir,
}

impl TestCertificates {
    fn generate() -> Self {
        Self::generate_for("127.0.0.1")
    }

    /// Issues a certificate for this DNS name or IP address.
    fn generate_for(name: &str) -> Self {
        let mut ca = CertificateParams::default();
        ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let ca = CertifiedIssuer::self_signed(ca, key).unwrap();
        let member = CertificateParams::new([name.to_owned()]).unwrap();
        let key = KeyPair::generate().unwrap();
        let certificate = member.signed_by(&key, &ca).unwrap();
        let dir = TempDir::with_prefix("certificates-").unwrap();
        let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
        write("ca.crt", &ca.pem());
        write("tls.crt", &certificate.pem());
        write("tls.key", &key.serialize_pem());
        Self { dir }
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.dir.path().join(name)).unwrap()
    }

    async fn create_secrets(&self, stage: &TestEnv) {
        self.create_secrets_as(stage, "peer").await;
    }

    async fn create_secrets_as(&self, stage: &TestEnv, prefix: &str) {
        let ca = json!({ "bundle.crt": self.read("ca.crt") });
        let server = json!({ "tls.crt": self.read("tls.crt"), "tls.key": self.read("tls.key") });
        for (name, data) in [("ca", ca), ("server", server)] {
            let name = format!("{prefix}-{name}");
            let secret = json!({ "metadata": { "name": name }, "stringData": data });
            let secret: Secret = serde_json::from_value(secret).unwrap();
            let secrets = stage.api::<Secret>();
            secrets
                .create(&PostParams::default(), &secret)
                .await
                .unwrap();
        }
    }
}

fn peer_tls_spec() -> Value {
    tls_spec("peer")
}

fn tls_spec(prefix: &str) -> Value {
    json!({
        "tlsCASecretRef": { "name": format!("{prefix}-ca"), "dataKey": "bundle.crt" },
        "serverTLSSecretRef": { "name": format!("{prefix}-server") },
    })
}

/// The servers behind the pods, each with a plain and a TLS peer URL.
struct PeerTlsServers {
    proxied: ProxiedCluster,
    tls_urls: Vec<String>,
    certificates: TestCertificates,
    pod_uids: BTreeMap<usize, String>,
    started_stages: Vec<(usize, String)>,
}

impl PeerTlsServers {
    /// Switches peer TLS on or off, and the additional URLs with it.
    fn patch(&self, tls: Option<&Value>) -> Value {
        let urls = match tls {
            Some(_) => &self.tls_urls,
            None => &self.proxied.peer_urls,
        };
        let urls = self.proxied.advertise(urls);
        json!({ "spec": { "etcd": { "peerUrlTls": tls, "additionalAdvertisePeerURLs": urls } } })
    }

    fn options(&self, ordinal: usize, stage: &str) -> EtcdOptions {
        let initial_cluster = self.proxied.peer_urls.iter().enumerate();
        let initial_cluster: Vec<String> = initial_cluster
            .map(|(n, url)| format!("main-{n}={url}"))
            .collect();
        let options = EtcdOptions::new()
            .name(format!("main-{ordinal}"))
            .peer_url(&self.proxied.peer_urls[ordinal])
            .initial_cluster(initial_cluster.join(","));
        let file = |name: &str| {
            let path: &Path = self.certificates.dir.path();
            path.join(name).display().to_string()
        };
        let with_certificates = |options: EtcdOptions| {
            options
                .flag("peer-cert-file", &file("tls.crt"))
                .flag("peer-key-file", &file("tls.key"))
                .flag("peer-trusted-ca-file", &file("ca.crt"))
                .flag("peer-client-cert-auth", "true")
        };
        match stage {
            "off" => options,
            // The CRD ties the scheme of additional URLs to the spec, which is a stage ahead of the members.
            "prepared" | "on" => {
                let urls = [&self.proxied.peer_urls[ordinal], &self.tls_urls[ordinal]];
                with_certificates(options.peer_listen_url(urls.map(String::as_str).join(",")))
            }
            other => panic!("invalid stage {other}"),
        }
    }

    /// Restarts the server of a new pod with the options of its template. Asserts that pods are replaced one at a time.
    async fn restart_replaced_pod(&mut self, stage: &TestEnv, kubelet: &FakeKubelet) {
        let mut new = Vec::new();
        for ordinal in 0..3 {
            let pod = stage.api::<Pod>().get_opt(&format!("main-{ordinal}")).await;
            let uid = pod.unwrap().and_then(|pod| pod.uid());
            new.extend(
                uid.filter(|uid| self.pod_uids.get(&ordinal) != Some(uid))
                    .map(|uid| (ordinal, uid)),
            );
        }
        assert!(new.len() <= 1, "{new:?} were replaced at once");
        let Some((ordinal, uid)) = new.pop() else {
            return;
        };
        let set = stage.api::<StatefulSet>().get("main").await.unwrap();
        let tls_stage = set.annotations()[STAGE_ANNOTATION].clone();
        let options = self.options(ordinal, &tls_stage);
        let member = &mut self.proxied.cluster.members[ordinal];
        member.kill();
        member.set_options(options);
        member.restart().await;
        self.started_stages.push((ordinal, tls_stage));
        self.pod_uids.insert(ordinal, uid.clone());
        kubelet.configure(|behavior| {
            behavior.started_pods.get_or_insert_default().insert(uid);
        });
    }

    /// Follows new pods until the cluster is settled in a stage. Returns the stages of each member.
    async fn follow_until_settled(
        &mut self,
        stage: &TestEnv,
        kubelet: &FakeKubelet,
        goal: &str,
    ) -> Vec<Vec<String>> {
        let deadline = Instant::now() + SETTLE_TIMEOUT;
        loop {
            self.restart_replaced_pod(stage, kubelet).await;
            let etcd = stage.get_etcd("main").await;
            let set = stage.api::<StatefulSet>().get("main").await.unwrap();
            let status = etcd.status.unwrap_or_default();
            let last = status.last_operation.as_ref();
            let is_done = last
                .is_some_and(|last| last.state == mainstay_crds::OperationState::Succeeded)
                && status.observed_generation == etcd.metadata.generation
                && set.annotations()[STAGE_ANNOTATION] == goal;
            if is_done {
                break;
            }
            assert!(
                Instant::now() < deadline,
                "never {goal}, but {}: {status:?}",
                set.annotations()[STAGE_ANNOTATION]
            );
            sleep(Duration::from_millis(100)).await;
        }
        let started = std::mem::take(&mut self.started_stages);
        let stages_of = |ordinal: usize| {
            let own = started.iter().filter(|(n, _)| *n == ordinal);
            own.map(|(_, tls_stage)| tls_stage.clone()).collect()
        };
        (0..3).map(stages_of).collect()
    }
}

/// A client that writes while the members change.
struct BackgroundWriter {
    stop: Arc<AtomicBool>,
    task: JoinHandle<u32>,
}

impl BackgroundWriter {
    fn start(behind: &ProxiedCluster) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let members = behind.cluster.members.iter();
        let urls = members
            .map(|member| member.client_url().to_owned())
            .collect();
        let task = tokio::spawn(write_continuously(urls, Arc::clone(&stop)));
        Self { stop, task }
    }

    /// Stops it. Asserts that writes never failed for long.
    async fn stop(self) {
        self.stop.store(true, Ordering::Release);
        assert!(self.task.await.expect("quorum was never lost") > 0);
    }
}

/// Writes through any serving member, one write after the other, until stopped. Returns the number of writes.
async fn write_continuously(urls: Vec<String>, stop: Arc<AtomicBool>) -> u32 {
    let written = AtomicU32::new(0);
    while !stop.load(Ordering::Acquire) {
        let one = async {
            for url in urls.iter().cycle() {
                let put = async {
                    let mut client = etcd_client::Client::connect([url], None).await.ok()?;
                    client.put("key", "value", None).await.ok()
                };
                if let Ok(Some(_)) = timeout(Duration::from_secs(5), put).await {
                    return;
                }
            }
        };
        let in_time = timeout(Duration::from_mins(1), one).await;
        assert!(
            in_time.is_ok(),
            "no member accepted a write: quorum was lost"
        );
        written.fetch_add(1, Ordering::Relaxed);
        sleep(Duration::from_millis(20)).await;
    }
    written.into_inner()
}

#[tokio::test]
async fn peer_tls_is_switched_on_and_off_without_losing_quorum() {
    let stage = TestEnv::start().await;
    let kubelet = FakeKubelet::start(&stage);
    let certificates = TestCertificates::generate();
    certificates.create_secrets(&stage).await;
    let proxied = ProxiedCluster::start("main", 3, 3).await;
    proxied.register_pods(&kubelet).await;
    let tls_urls: Vec<String> = (0..3)
        .map(|_| free_url().replace("http:", "https:"))
        .collect();
    let controller = stage.start_controller().await;
    stage.create_etcd("main", proxied.spec(3)).await;
    stage.wait_settled("main").await;
    let mut servers = PeerTlsServers {
        proxied,
        tls_urls,
        certificates,
        pod_uids: BTreeMap::new(),
        started_stages: Vec::new(),
    };
    for ordinal in 0..3 {
        let pod = stage.api::<Pod>().get(&format!("main-{ordinal}")).await;
        servers
            .pod_uids
            .insert(ordinal, pod.unwrap().uid().unwrap());
    }
    let known = servers.pod_uids.values().cloned().collect();
    kubelet.configure(|behavior| behavior.started_pods = Some(known));
    let writer = BackgroundWriter::start(&servers.proxied);

    stage
        .patch_etcd("main", servers.patch(Some(&peer_tls_spec())))
        .await;
    let stages = servers.follow_until_settled(&stage, &kubelet, "on").await;
    assert_eq!(stages, vec![["prepared", "on"]; 3]);
    let status = stage.get_etcd("main").await.status.unwrap();
    assert_eq!(status.peer_url_tls_enabled, Some(true));

    stage.patch_etcd("main", servers.patch(None)).await;
    let stages = servers.follow_until_settled(&stage, &kubelet, "off").await;
    assert_eq!(stages, vec![["prepared", "off"]; 3]);
    writer.stop().await;
    drop(kubelet);
    controller.stop().await;
}

#[tokio::test]
async fn ca_renewed_in_the_same_secret_is_rolled_out() {
    let stage = TestEnv::start().await;
    let kubelet = FakeKubelet::start(&stage);
    TestCertificates::generate().create_secrets(&stage).await;
    let controller = stage.start_controller().await;
    let tls = json!({ "replicas": 1, "etcd": { "peerUrlTls": peer_tls_spec() } });
    stage.create_etcd("main", tls).await;
    let before = stage.wait_settled("main").await;
    let ca_fingerprint = |set: &StatefulSet| {
        let pod = set
            .spec
            .as_ref()
            .unwrap()
            .template
            .metadata
            .as_ref()
            .unwrap();
        pod.annotations.as_ref().unwrap()["etcd-mainstay.io/authorities"].clone()
    };
    let old = ca_fingerprint(&stage.wait_for_replicas("main", 1).await);

    let renewed = json!({ "stringData": { "bundle.crt": "another" } });
    let secrets = stage.api::<Secret>();
    secrets
        .patch("peer-ca", &PatchParams::default(), &Patch::Merge(&renewed))
        .await
        .unwrap();
    // Requests a reconcile instead of waiting for the next periodic one.
    let request =
        json!({ "metadata": { "annotations": { "druid.gardener.cloud/operation": "reconcile" } } });
    stage.patch_etcd("main", request).await;
    let set = stage
        .wait_for("main", "annotated with the new CA", |set: &StatefulSet| {
            ca_fingerprint(set) != old
        })
        .await;
    assert_eq!(
        before.metadata.generation,
        stage.get_etcd("main").await.metadata.generation
    );

    secrets
        .delete("peer-ca", &DeleteParams::default())
        .await
        .unwrap();
    let request =
        json!({ "metadata": { "annotations": { "druid.gardener.cloud/operation": "reconcile" } } });
    stage.patch_etcd("main", request).await;
    stage
        .wait_for("main", "reconciled", |etcd: &mainstay_crds::Etcd| {
            !etcd
                .annotations()
                .contains_key("druid.gardener.cloud/operation")
        })
        .await;
    let now = stage.api::<StatefulSet>().get("main").await.unwrap();
    assert_eq!(
        ca_fingerprint(&now),
        ca_fingerprint(&set),
        "a missing Secret must not restart pods"
    );
    drop(kubelet);
    controller.stop().await;
}

/// Servers behind the pods that listen for plain clients, and for TLS clients with the certificates their pod mounts.
struct ClientTlsServers {
    proxied: ProxiedCluster,
    tls_urls: Vec<String>,
    /// By the name of the Secret with the server certificate.
    certificates: BTreeMap<&'static str, TestCertificates>,
    pod_uids: BTreeMap<usize, String>,
}

impl ClientTlsServers {
    /// Name of the Secret with the server certificate that a pod mounts.
    fn server_secret(pod: &Pod) -> Option<String> {
        let volumes = pod.spec.as_ref()?.volumes.as_ref()?;
        let volume = volumes.iter().find(|one| one.name == "etcd-server-tls")?;
        volume.secret.as_ref()?.secret_name.clone()
    }

    fn options(&self, ordinal: usize, secret: Option<&str>) -> EtcdOptions {
        let initial_cluster = self.proxied.peer_urls.iter().enumerate();
        let initial_cluster: Vec<String> = initial_cluster
            .map(|(n, url)| format!("main-{n}={url}"))
            .collect();
        let options = EtcdOptions::new()
            .name(format!("main-{ordinal}"))
            .peer_url(&self.proxied.peer_urls[ordinal])
            .initial_cluster(initial_cluster.join(","));
        let Some(secret) = secret else {
            return options;
        };
        let file = |name: &str| {
            let path: &Path = self.certificates[secret].dir.path();
            path.join(name).display().to_string()
        };
        let plain = self.proxied.cluster.members[ordinal].client_url();
        let both = format!("{plain},{}", self.tls_urls[ordinal]);
        options
            .flag("listen-client-urls", &both)
            .flag("cert-file", &file("tls.crt"))
            .flag("key-file", &file("tls.key"))
            .flag("trusted-ca-file", &file("ca.crt"))
            .flag("client-cert-auth", "true")
    }

    /// Restarts the servers of new pods with the certificates they mount.
    async fn restart_replaced_pods(&mut self, stage: &TestEnv, kubelet: &FakeKubelet) {
        for ordinal in 0..3 {
            let pod = stage.api::<Pod>().get_opt(&format!("main-{ordinal}")).await;
            let Some(pod) = pod.unwrap() else {
                continue;
            };
            let uid = pod.uid().unwrap();
            if self.pod_uids.get(&ordinal) == Some(&uid) {
                continue;
            }
            let secret = Self::server_secret(&pod);
            let options = self.options(ordinal, secret.as_deref());
            let member = &mut self.proxied.cluster.members[ordinal];
            member.kill();
            member.set_options(options);
            member.restart().await;
            let plain = member.client_url().to_owned();
            let url = secret.map_or(plain, |_| self.tls_urls[ordinal].clone());
            self.proxied.set_proxy_target(ordinal, &url);
            self.pod_uids.insert(ordinal, uid.clone());
            kubelet.configure(|behavior| {
                behavior.started_pods.get_or_insert_default().insert(uid);
            });
        }
    }

    /// Follows new pods until the cluster is settled and every pod mounts this Secret.
    async fn follow_until_settled(
        &mut self,
        stage: &TestEnv,
        kubelet: &FakeKubelet,
        goal: Option<&str>,
    ) {
        let deadline = Instant::now() + SETTLE_TIMEOUT;
        loop {
            self.restart_replaced_pods(stage, kubelet).await;
            let etcd = stage.get_etcd("main").await;
            let status = etcd.status.unwrap_or_default();
            let last = status.last_operation.as_ref();
            let is_settled = last
                .is_some_and(|last| last.state == mainstay_crds::OperationState::Succeeded)
                && status.observed_generation == etcd.metadata.generation;
            let pods = stage.api::<Pod>().list(&ListParams::default()).await;
            let pods = pods.unwrap().items;
            let are_there = pods.len() == 3
                && pods
                    .iter()
                    .all(|pod| Self::server_secret(pod).as_deref() == goal);
            if is_settled && are_there {
                return;
            }
            assert!(Instant::now() < deadline, "never {goal:?}: {status:?}");
            sleep(Duration::from_millis(100)).await;
        }
    }
}

#[tokio::test]
async fn client_tls_is_added_rotated_and_removed_while_a_quorum_serves() {
    let stage = TestEnv::start().await;
    let kubelet = FakeKubelet::start(&stage);
    let name = format!("*.main-peer.{}.svc", stage.namespace);
    let certificates = BTreeMap::from([
        ("one-server", TestCertificates::generate_for(&name)),
        ("two-server", TestCertificates::generate_for(&name)),
    ]);
    for prefix in ["one", "two"] {
        let certificates = &certificates[format!("{prefix}-server").as_str()];
        certificates.create_secrets_as(&stage, prefix).await;
    }
    let proxied = ProxiedCluster::start("main", 3, 3).await;
    proxied.register_pods(&kubelet).await;
    let controller = stage.start_controller().await;
    stage.create_etcd("main", proxied.spec(3)).await;
    stage.wait_settled("main").await;
    let mut servers = ClientTlsServers {
        proxied,
        tls_urls: (0..3)
            .map(|_| free_url().replace("http:", "https:"))
            .collect(),
        certificates,
        pod_uids: BTreeMap::new(),
    };
    for ordinal in 0..3 {
        let pod = stage.api::<Pod>().get(&format!("main-{ordinal}")).await;
        servers
            .pod_uids
            .insert(ordinal, pod.unwrap().uid().unwrap());
    }
    let known = servers.pod_uids.values().cloned().collect();
    kubelet.configure(|behavior| behavior.started_pods = Some(known));

    let writer = BackgroundWriter::start(&servers.proxied);
    for prefix in ["one", "two"] {
        let on = json!({ "spec": { "etcd": { "clientUrlTls": tls_spec(prefix) } } });
        stage.patch_etcd("main", on).await;
        let goal = format!("{prefix}-server");
        servers
            .follow_until_settled(&stage, &kubelet, Some(&goal))
            .await;
    }
    let off = json!({ "spec": { "etcd": { "clientUrlTls": null } } });
    stage.patch_etcd("main", off).await;
    servers.follow_until_settled(&stage, &kubelet, None).await;
    writer.stop().await;
    drop(kubelet);
    controller.stop().await;
}
