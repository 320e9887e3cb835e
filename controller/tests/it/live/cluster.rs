//! Real etcd servers behind pod addresses: each pod has a loopback address with a TCP proxy to its server.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use etcd_client::Member;
use mainstay_testkit::etcd::{EtcdCluster, EtcdOptions, EtcdRelease, EtcdServer, free_url};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::fake_kubelet::FakeKubelet;
use super::test_env::{RunningController, TestEnv};

/// The release line of the default image: on newer members, that image would be a refused downgrade.
const ETCD_VERSION: EtcdRelease = EtcdRelease::V3_5New;
/// Time a cluster may be without a leader while its members change.
const LEADER_TIMEOUT: Duration = Duration::from_mins(2);

pub(super) struct ProxiedCluster {
    pub(super) name: String,
    pub(super) cluster: EtcdCluster,
    /// Peer URL of each member, also of members that do not run yet.
    pub(super) peer_urls: Vec<String>,
    client_port: u16,
    proxies: JoinSet<()>,
    /// Target of each proxy.
    proxy_targets: Vec<Arc<Mutex<SocketAddr>>>,
}

/// Starts three members and waits until their cluster is settled.
pub(super) async fn start_settled_three(
    stage: &TestEnv,
) -> (FakeKubelet, ProxiedCluster, RunningController) {
    let kubelet = FakeKubelet::start(stage);
    let proxied = ProxiedCluster::start("main", 3, 3).await;
    proxied.register_pods(&kubelet).await;
    let controller = stage.start_controller().await;
    stage.create_etcd("main", proxied.spec(3)).await;
    stage.wait_settled("main").await;
    (kubelet, proxied, controller)
}

impl ProxiedCluster {
    /// Starts `size` members of cluster `name`, with peer URLs for `room` members.
    pub(super) async fn start(name: &str, size: usize, room: usize) -> Self {
        Self::start_with_options(&EtcdOptions::new(), name, size, room).await
    }

    /// Like [`ProxiedCluster::start`], with options for all members.
    pub(super) async fn start_with_options(
        options: &EtcdOptions,
        name: &str,
        size: usize,
        room: usize,
    ) -> Self {
        let peer_urls: Vec<String> = (0..room).map(|_| free_url()).collect();
        let members = peer_urls.iter().take(size).enumerate();
        let members = members.map(|(n, url)| {
            let options = options.clone().name(format!("{name}-{n}"));
            (ETCD_VERSION, options.peer_url(url))
        });
        let cluster = EtcdCluster::start_members(members.collect()).await;
        let free = free_url();
        let client_port = free
            .rsplit(':')
            .next()
            .and_then(|client_port| client_port.parse().ok())
            .expect("a port");
        let mut proxied = Self {
            name: name.to_owned(),
            cluster,
            peer_urls,
            client_port,
            proxies: JoinSet::new(),
            proxy_targets: Vec::new(),
        };
        for ordinal in 0..size {
            proxied.start_proxy(ordinal).await;
        }
        proxied
    }

    /// The spec that leads the controller to the proxies and peer URLs. The CRD allows URLs of existing members only.
    pub(super) fn spec(&self, replicas: usize) -> Value {
        json!({
            "replicas": replicas,
            "etcd": {
                "clientPort": self.client_port,
                "additionalAdvertisePeerURLs": self.advertise(&self.peer_urls[..replicas]),
            },
        })
    }

    /// `additionalAdvertisePeerURLs` with one URL for each of the first members.
    pub(super) fn advertise(&self, urls: &[String]) -> Value {
        let urls = urls.iter().enumerate();
        urls.map(|(n, url)| json!({ "memberName": format!("{}-{n}", self.name), "urls": [url] }))
            .collect()
    }

    /// Sets the pod addresses and Lease holders of the running members.
    pub(super) async fn register_pods(&self, kubelet: &FakeKubelet) {
        let leader = self.cluster.leader().await;
        for (ordinal, member) in self.cluster.members.iter().enumerate() {
            if !member.is_running() {
                continue;
            }
            let role = if ordinal == leader {
                "Leader"
            } else {
                "Member"
            };
            let holder = format!("{}:c1:{role}", member.member_id().await);
            let pod = format!("{}-{ordinal}", self.name);
            let address = pod_address(ordinal);
            kubelet.configure(|behavior| {
                behavior.pod_addresses.insert(pod.clone(), address);
                behavior.lease_holders.insert(pod, holder);
            });
        }
    }

    /// Starts the server of the next member if it was added as a member, and lets its pod become ready.
    pub(super) async fn start_added_member(&mut self, kubelet: &FakeKubelet) {
        let ordinal = self.cluster.members.len();
        let Some(listen_url) = self.peer_urls.get(ordinal).cloned() else {
            return;
        };
        let list = self.list_members().await;
        let is_next =
            |one: &&Member| one.name().is_empty() && one.peer_urls().contains(&listen_url);
        let Some(added) = list.members().iter().find(is_next) else {
            return;
        };
        let pod = format!("{}-{ordinal}", self.name);
        let entries = list.members().iter().flat_map(|member| {
            let is_added = member.id() == added.id();
            let name = if is_added { &pod } else { member.name() };
            member
                .peer_urls()
                .iter()
                .map(move |url| format!("{name}={url}"))
        });
        let options = EtcdOptions::new()
            .name(&pod)
            .peer_url(added.peer_urls().join(","))
            .peer_listen_url(&listen_url)
            .initial_cluster(entries.collect::<Vec<_>>().join(","))
            .join_existing();
        let server = EtcdServer::start(ETCD_VERSION, options).await;
        self.cluster.members.push(server);
        self.start_proxy(ordinal).await;
        self.register_pods(kubelet).await;
        kubelet.configure(|behavior| {
            behavior.ignored_pods.remove(&pod);
        });
    }

    async fn start_proxy(&mut self, ordinal: usize) {
        let member = &self.cluster.members[ordinal];
        let end = Arc::new(Mutex::new(parse_address(member.client_url())));
        self.proxy_targets.push(Arc::clone(&end));
        let listener = TcpListener::bind((pod_address(ordinal), self.client_port))
            .await
            .expect("the pod address is free");
        self.proxies.spawn(async move {
            while let Ok((mut from, _)) = listener.accept().await {
                let to = *end.lock().expect("no panic");
                tokio::spawn(async move {
                    if let Ok(mut to) = TcpStream::connect(to).await {
                        tokio::io::copy_bidirectional(&mut from, &mut to).await.ok();
                    }
                });
            }
        });
    }

    /// Redirects the proxy of a pod to this listener of its server.
    pub(super) fn set_proxy_target(&self, ordinal: usize, url: &str) {
        *self.proxy_targets[ordinal].lock().expect("no panic") = parse_address(url);
    }

    /// Lists the members as a serving member reports them.
    async fn list_members(&self) -> etcd_client::MemberListResponse {
        let deadline = Instant::now() + LEADER_TIMEOUT;
        loop {
            for member in self.cluster.members.iter().filter(|one| one.is_running()) {
                let Ok(mut client) = member.try_client().await else {
                    continue;
                };
                let request = async {
                    client.get("-", None).await.ok()?; // linearizable: a lagging member answers once it has caught up
                    client.member_list().await.ok()
                };
                if let Ok(Some(list)) = timeout(LEADER_TIMEOUT / 8, request).await {
                    return list;
                }
            }
            assert!(Instant::now() < deadline, "no member lists the members");
            sleep(Duration::from_millis(100)).await;
        }
    }

    /// Names of the voting members and of the learners, sorted.
    pub(super) async fn member_names(&self) -> (Vec<String>, Vec<String>) {
        let list = self.list_members().await;
        let name = |member: &Member| member.name().to_owned();
        let (learners, voters): (Vec<_>, Vec<_>) = list
            .members()
            .iter()
            .partition(|member| member.is_learner());
        let sorted = |members: Vec<&Member>| {
            let mut names: Vec<String> = members.into_iter().map(name).collect();
            names.sort();
            names
        };
        (sorted(voters), sorted(learners))
    }
}

fn parse_address(url: &str) -> SocketAddr {
    let (_, address) = url.split_once("://").expect("a URL");
    address.parse().expect("an address")
}

pub(super) fn pod_address(ordinal: usize) -> String {
    format!("127.0.0.{}", 11 + ordinal)
}
