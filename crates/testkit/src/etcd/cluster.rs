//! Several members of one cluster on this machine.

use std::time::{Duration, Instant};

use mainstay_ids::MemberId;
use tokio::time::{sleep, timeout};

use super::peer_proxy::PeerProxies;
use super::process::free_url;
use super::{EtcdOptions, EtcdRelease, EtcdServer};

/// Time limit of an election on a loaded machine.
const ELECTION_DEADLINE: Duration = Duration::from_mins(2);
/// A member that does not answer within this time is paused, isolated or stopped.
const ANSWER_DEADLINE: Duration = Duration::from_secs(2);
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Members that bootstrapped a cluster together: `m0`, `m1`, and so on.
#[derive(Debug)]
pub struct EtcdCluster {
    /// The members, ordered by name.
    pub members: Vec<EtcdServer>,
    proxies: Option<PeerProxies>,
}

impl EtcdCluster {
    /// Bootstraps a cluster of `size` members with these options and waits until all are healthy.
    ///
    /// # Panics
    /// If a member does not become healthy, with its log.
    pub async fn start(version: EtcdRelease, size: usize, options: &EtcdOptions) -> Self {
        let initial_cluster: Vec<_> = (0..size).map(|i| (format!("m{i}"), free_url())).collect();
        let members = initial_cluster
            .iter()
            .map(|(name, url)| (version, options.clone().name(name).peer_url(url)))
            .collect();
        Self::start_members(members).await
    }

    /// As [`start`](Self::start), with proxies between the members that can be cut.
    ///
    /// # Panics
    /// If a member does not become healthy, with its log.
    pub async fn start_with_proxies(
        version: EtcdRelease,
        size: usize,
        options: &EtcdOptions,
    ) -> Self {
        let listening: Vec<String> = (0..size).map(|_| free_url()).collect();
        let wires = PeerProxies::start(&listening);
        let ends = wires.urls().iter().zip(&listening).enumerate();
        let members = ends.map(|(i, (advertised, listen))| {
            let options = options.clone().name(format!("m{i}"));
            (
                version,
                options.peer_url(advertised).peer_listen_url(listen),
            )
        });
        let mut cluster = Self::start_members(members.collect()).await;
        for (index, member) in cluster.members.iter().enumerate() {
            wires.register_member(member.member_id().await, index);
        }
        cluster.proxies = Some(wires);
        cluster
    }

    /// Starts members with individual options, for restored data directories. The options of each must contain a name
    /// and a peer URL, from which the initial cluster is built.
    ///
    /// # Panics
    /// If a member does not become healthy, with its log.
    pub async fn start_members(members: Vec<(EtcdRelease, EtcdOptions)>) -> Self {
        let initial_cluster: Vec<String> = members
            .iter()
            .map(|(_, options)| {
                let name = options.name.as_deref().expect("a member's name");
                format!(
                    "{name}={}",
                    options.peer_url.as_deref().expect("a member's peer URL")
                )
            })
            .collect();
        let initial_cluster = initial_cluster.join(",");
        // Start all before waiting for any: a single member has no quorum and never becomes healthy.
        let mut members: Vec<EtcdServer> = members
            .into_iter()
            .map(|(version, options)| {
                EtcdServer::spawn(version, options.initial_cluster(&initial_cluster))
            })
            .collect();
        for member in &mut members {
            member
                .wait_until_healthy()
                .await
                .unwrap_or_else(|error| panic!("{error}"));
        }
        Self::from_members(members)
    }

    /// A cluster of members that were started one by one.
    pub fn from_members(members: Vec<EtcdServer>) -> Self {
        Self {
            members,
            proxies: None,
        }
    }

    /// Cuts all connections between this member and the others, in both directions. Clients still reach it. Requires
    /// [`start_with_proxies`](Self::start_with_proxies).
    pub fn isolate(&self, member: usize) {
        self.proxies
            .as_ref()
            .expect("a cluster with proxies")
            .isolate(member);
    }

    /// Restores all connections between members.
    pub fn heal(&self) {
        self.proxies
            .as_ref()
            .expect("a cluster with proxies")
            .heal();
    }

    /// Index of the leader that a majority follows.
    ///
    /// # Panics
    /// If there is none after two minutes.
    pub async fn leader(&self) -> usize {
        self.wait_for_leader(None).await
    }

    /// Waits until a majority follows another leader than `before`; returns its index.
    ///
    /// # Panics
    /// If there is none after two minutes.
    pub async fn wait_for_new_leader(&self, before: usize) -> usize {
        self.wait_for_leader(Some(before)).await
    }

    async fn wait_for_leader(&self, before: Option<usize>) -> usize {
        let deadline = Instant::now() + ELECTION_DEADLINE;
        loop {
            let leader = self.find_leader().await;
            if let Some(leader) = leader.filter(|leader| Some(*leader) != before) {
                return leader;
            }
            assert!(
                Instant::now() < deadline,
                "no leader after {ELECTION_DEADLINE:?}"
            );
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Index of the leader that a majority follows now. Members that do not answer are not counted.
    pub async fn find_leader(&self) -> Option<usize> {
        let mut views = Vec::new();
        for (index, member) in self.members.iter().enumerate() {
            if let Some((own, followed)) = query_leader(member).await {
                views.push((index, own, followed));
            }
        }
        let majority = self.members.len() / 2 + 1;
        let (leader, ..) = views.iter().find(|(_, own, _)| {
            let followers = views.iter().filter(|(.., followed)| followed == own);
            followers.count() >= majority
        })?;
        Some(*leader)
    }

    /// The next member in the order of names; the first follows the last.
    pub fn next_member(&self, member: usize) -> usize {
        (member + 1) % self.members.len()
    }
}

/// ID of a member and of the leader that it follows; `None` if it does not answer.
async fn query_leader(member: &EtcdServer) -> Option<(MemberId, MemberId)> {
    if !member.is_running() {
        return None;
    }
    let status_request = async {
        let status = member.try_client().await.ok()?.status().await.ok()?;
        let own = status.header()?.member_id();
        Some((MemberId(own), MemberId(status.leader())))
    };
    timeout(ANSWER_DEADLINE, status_request)
        .await
        .ok()
        .flatten()
}
