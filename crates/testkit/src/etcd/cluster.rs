//! Several members of one cluster on this machine.

use std::time::{Duration, Instant};

use mainstay_ids::MemberId;
use tokio::time::{sleep, timeout};

use super::process::free_url;
use super::wires::PeerProxies;
use super::{EtcdServer, EtcdOptions, EtcdRelease};

/// How long an election may take on a loaded machine.
const ELECTION_DEADLINE: Duration = Duration::from_mins(2);
/// A member that does not answer within this is paused, cut off or gone.
const ANSWER_DEADLINE: Duration = Duration::from_secs(2);
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Members that founded a cluster together, `m0`, `m1`, and so on.
#[derive(Debug)]
pub struct EtcdCluster {
    /// The members, in the order of their names.
    pub members: Vec<EtcdServer>,
    proxies: Option<PeerProxies>,
}

impl EtcdCluster {
    /// Starts `size` members of a new cluster, each with these options, and waits for all.
    ///
    /// # Panics
    /// With a member's log when it does not come up.
    pub async fn start(version: EtcdRelease, size: usize, options: &EtcdOptions) -> Self {
        let founders: Vec<_> = (0..size).map(|i| (format!("m{i}"), free_url())).collect();
        let members = founders
            .iter()
            .map(|(name, url)| (version, options.clone().name(name).peer_url(url)))
            .collect();
        Self::start_members(members).await
    }

    /// As [`start`](Self::start), with wires between the members that can be cut.
    ///
    /// # Panics
    /// With a member's log when it does not come up.
    pub async fn start_with_proxies(version: EtcdRelease, size: usize, options: &EtcdOptions) -> Self {
        let listening: Vec<String> = (0..size).map(|_| free_url()).collect();
        let wires = PeerProxies::start(&listening);
        let ends = wires.urls().iter().zip(&listening).enumerate();
        let members = ends.map(|(i, (told, listens))| {
            let options = options.clone().name(format!("m{i}"));
            (version, options.peer_url(told).peer_listen_url(listens))
        });
        let mut cluster = Self::start_members(members.collect()).await;
        for (index, member) in cluster.members.iter().enumerate() {
            wires.register_member(member.member_id().await, index);
        }
        cluster.proxies = Some(wires);
        cluster
    }

    /// Starts members with options of their own, for directories a restore laid out. Each option
    /// set needs a name and a peer URL; the list of founders follows from them.
    ///
    /// # Panics
    /// With a member's log when it does not come up.
    pub async fn start_members(members: Vec<(EtcdRelease, EtcdOptions)>) -> Self {
        let founders: Vec<String> = members
            .iter()
            .map(|(_, options)| {
                let name = options.name.as_deref().expect("a member's name");
                format!(
                    "{name}={}",
                    options.peer_url.as_deref().expect("a member's peer URL")
                )
            })
            .collect();
        let founders = founders.join(",");
        // All are started before any is waited for: alone, none has a quorum.
        let mut members: Vec<EtcdServer> = members
            .into_iter()
            .map(|(version, options)| EtcdServer::spawn(version, options.initial_cluster(&founders)))
            .collect();
        for member in &mut members {
            member
                .wait_until_healthy()
                .await
                .unwrap_or_else(|error| panic!("{error}"));
        }
        Self::from_members(members)
    }

    /// Members that were started one by one.
    pub fn from_members(members: Vec<EtcdServer>) -> Self {
        Self {
            members,
            proxies: None,
        }
    }

    /// Cuts every connection between this member and the others, both ways. Its clients still
    /// reach it. Needs [`start_with_proxies`](Self::start_wired).
    pub fn isolate(&self, member: usize) {
        self.proxies.as_ref().expect("wires").isolate(member);
    }

    /// Members reach each other again.
    pub fn heal(&self) {
        self.proxies.as_ref().expect("wires").heal();
    }

    /// The member that a majority follows.
    ///
    /// # Panics
    /// When there is none after two minutes.
    pub async fn leader(&self) -> usize {
        self.wait_for_leader(None).await
    }

    /// The member that a majority follows, once that is not the one that led before.
    ///
    /// # Panics
    /// When there is none after two minutes.
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
                "no member leads after {ELECTION_DEADLINE:?}"
            );
            sleep(POLL_INTERVAL).await;
        }
    }

    /// The member that a majority follows now. Members that do not answer have no voice.
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

    /// The member behind another one in the order of names; the first is behind the last.
    pub fn next_member(&self, member: usize) -> usize {
        (member + 1) % self.members.len()
    }
}

/// Who a member is and whom it follows; `None` when it does not say.
async fn query_leader(member: &EtcdServer) -> Option<(MemberId, MemberId)> {
    if !member.is_running() {
        return None;
    }
    let asked = async {
        let status = member.try_client().await.ok()?.status().await.ok()?;
        let own = status.header()?.member_id();
        Some((MemberId(own), MemberId(status.leader())))
    };
    timeout(ANSWER_DEADLINE, asked).await.ok().flatten()
}
