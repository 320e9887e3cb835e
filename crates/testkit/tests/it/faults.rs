//! Injected faults take effect, and everything works again afterwards.

use std::time::{Duration, Instant};

use etcd_client::GetOptions;
use mainstay_ids::Revision;
use mainstay_testkit::{
    EtcdCluster, EtcdOptions, EtcdRelease, EtcdServer, FaultProxy, ProxyMode, each_version,
};
use tokio::time::{sleep, timeout};

/// Timeout of a read that needs quorum; without quorum a longer timeout does not help.
const READ_TIMEOUT: Duration = Duration::from_secs(3);

/// Whether a quorum answers through this member.
async fn has_quorum(member: &EtcdServer) -> bool {
    let mut client = member.client().await;
    let read = timeout(READ_TIMEOUT, client.get("k", None)).await;
    read.is_ok_and(|answer| answer.is_ok())
}

async fn wait_until_following(cluster: &EtcdCluster, member: usize) {
    let deadline = Instant::now() + Duration::from_mins(2);
    while !has_quorum(&cluster.members[member]).await {
        assert!(
            Instant::now() < deadline,
            "m{member} does not rejoin the quorum"
        );
        sleep(Duration::from_millis(100)).await;
    }
}

each_version! {
    async fn isolated_member_has_no_quorum_but_serves_serializable_reads(version) {
        // Long timeouts keep the new leader elected on a busy machine.
        let options = EtcdOptions::new().flag("heartbeat-interval", "200").flag("election-timeout", "3000");
        let cluster = EtcdCluster::start_with_proxies(version, 3, &options).await;
        let before = cluster.leader().await;
        cluster.members[before].client().await.put("k", "1", None).await.unwrap();
        cluster.isolate(before);
        let after = cluster.wait_for_new_leader(before).await;
        cluster.members[after].client().await.put("k", "2", None).await.unwrap();
        let isolated = &cluster.members[before];
        assert!(!has_quorum(isolated).await);
        let serializable = GetOptions::new().with_serializable();
        let answer = isolated.client().await.get("k", Some(serializable)).await.unwrap();
        assert_eq!(answer.kvs()[0].value(), b"1", "the isolated member has the old value");
        cluster.heal();
        wait_until_following(&cluster, before).await;
        assert_eq!(cluster.members[before].revision().await, Revision(3));
    }
}

#[tokio::test]
async fn paused_leader_is_replaced_and_follows_after_resuming() {
    let options = EtcdOptions::new().long_election_timeout();
    let cluster = EtcdCluster::start(EtcdRelease::NEWEST, 3, &options).await;
    let before = cluster.leader().await;
    cluster.members[before].pause();
    let after = cluster.wait_for_new_leader(before).await;
    cluster.members[before].resume();
    wait_until_following(&cluster, before).await;
    assert_eq!(cluster.leader().await, after);
}

#[tokio::test]
async fn leadership_moves_to_the_requested_member() {
    let options = EtcdOptions::new().long_election_timeout();
    let cluster = EtcdCluster::start(EtcdRelease::V3_5, 3, &options).await;
    let before = cluster.leader().await;
    let to = cluster.next_member(before);
    let members = &cluster.members;
    members[before].move_leader_to(&members[to]).await;
    assert_eq!(cluster.wait_for_new_leader(before).await, to);
}

#[tokio::test]
async fn fault_proxy_closes_answers_stalls_and_opens_again() {
    let etcd = EtcdServer::start(EtcdRelease::NEWEST, EtcdOptions::new()).await;
    let proxy = FaultProxy::start(etcd.client_url());
    let http = reqwest::Client::new();
    let health = || http.get(format!("{}/health", proxy.url())).send();
    let health_with_timeout = || {
        let asked = http.get(format!("{}/health", proxy.url()));
        asked.timeout(READ_TIMEOUT).send()
    };
    assert_eq!(health().await.unwrap().status(), 200);
    proxy.set_mode(ProxyMode::Closed);
    assert!(!health().await.unwrap_err().is_timeout());
    proxy.set_mode(ProxyMode::RespondWith(503));
    assert_eq!(health().await.unwrap().status(), 503);
    proxy.set_mode(ProxyMode::Unresponsive);
    assert!(health_with_timeout().await.unwrap_err().is_timeout());
    assert!(proxy.fault_count() >= 3, "{proxy:?}");
    proxy.set_mode(ProxyMode::Slow(20_000));
    assert_eq!(health().await.unwrap().status(), 200);
    proxy.set_mode(ProxyMode::Open);
    assert_eq!(health().await.unwrap().status(), 200);
}

#[tokio::test]
async fn fault_proxy_cuts_one_long_response_and_no_short_one() {
    let etcd = EtcdServer::start(EtcdRelease::NEWEST, EtcdOptions::new()).await;
    let proxy = FaultProxy::start(etcd.client_url());
    let http = reqwest::Client::new();
    let fetch = |path: &str| http.get(format!("{}{path}", proxy.url())).send();
    proxy.set_mode(ProxyMode::CutAfter(4096));
    assert_eq!(fetch("/health").await.unwrap().status(), 200);
    let long = async { fetch("/metrics").await?.text().await };
    assert!(long.await.is_err(), "metrics are longer than the cut");
    assert_eq!(proxy.fault_count(), 1);
    assert!(fetch("/metrics").await.unwrap().text().await.is_ok());
}
