//! Maintenance of real etcd clusters.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use etcd_client::{Client, ConnectOptions};
use mainstay_archive::catalogue::Catalogue;
use mainstay_ids::MemberId;
use mainstay_sidecar::maintenance::{
    Connect, EtcdConnectError, MaintenanceMetrics, MaintenanceOutcome,
};
use mainstay_sidecar::snapshotter::{Finality, SnapshotRequestError, Snapshotter};
use mainstay_sidecar::state::StoredSnapshot;

/// Client URLs of the members of a test.
struct TestConnector {
    own: String,
    cluster: Vec<String>,
}

impl TestConnector {
    async fn connect(urls: &[String]) -> Result<Client, EtcdConnectError> {
        let options = ConnectOptions::new().with_connect_timeout(Duration::from_secs(5));
        Client::connect(urls, Some(options))
            .await
            .map_err(|source| EtcdConnectError {
                endpoint: urls.join(","),
                source,
            })
    }
}

#[async_trait]
impl Connect for TestConnector {
    async fn connect_own(&self) -> Result<Client, EtcdConnectError> {
        self.connect_to(&self.own).await
    }

    async fn connect_to(&self, url: &str) -> Result<Client, EtcdConnectError> {
        Self::connect(&[url.to_owned()]).await
    }

    async fn connect_cluster(&self) -> Result<Client, EtcdConnectError> {
        Self::connect(&self.cluster).await
    }
}

/// Records the reported metrics.
#[derive(Default)]
struct RecordedMetrics {
    defragmented: Mutex<Vec<(String, MaintenanceOutcome)>>,
    promoted: Mutex<Vec<MaintenanceOutcome>>,
}

impl MaintenanceMetrics for RecordedMetrics {
    fn record_defragmentation(&self, endpoint: &str, outcome: MaintenanceOutcome, _: Duration) {
        self.defragmented
            .lock()
            .unwrap()
            .push((endpoint.to_owned(), outcome));
    }

    fn record_promotion(&self, outcome: MaintenanceOutcome, _: Duration) {
        self.promoted.lock().unwrap().push(outcome);
    }
}

/// Records the leader at each request for a delta.
struct RecordingSnapshotter {
    connector: Arc<TestConnector>,
    leaders: Mutex<Vec<MemberId>>,
}

#[async_trait]
impl Snapshotter for RecordingSnapshotter {
    async fn take_full(&self, _: Finality) -> Result<StoredSnapshot, SnapshotRequestError> {
        Err(SnapshotRequestError::NoStore)
    }

    async fn take_delta(&self) -> Result<Option<StoredSnapshot>, SnapshotRequestError> {
        let status = self
            .connector
            .connect_own()
            .await
            .unwrap()
            .status()
            .await
            .unwrap();
        let leader = MemberId(status.leader());
        self.leaders.lock().unwrap().push(leader);
        Ok(None)
    }

    async fn list_snapshots(&self) -> Result<Catalogue, SnapshotRequestError> {
        Err(SnapshotRequestError::NoStore)
    }
}

mod live {
    use std::collections::BTreeSet;
    use std::time::Instant;

    use etcd_client::{MemberAddOptions, Txn, TxnOp};
    use jiff::{SignedDuration, Timestamp};
    use mainstay_ids::Revision;
    use mainstay_sidecar::maintenance::alarms::{ClusterAlarm, ClusterAlarmKind, list_alarms};
    use mainstay_sidecar::maintenance::defragment::decision::{
        DefragmentRefusal, DefragmentTrigger, Threshold,
    };
    use mainstay_sidecar::maintenance::defragment::observation::{
        MemberRole, ObservedCluster, VoterStatus, observe_cluster,
    };
    use mainstay_sidecar::maintenance::defragment::{
        DefragmentConfig, DefragmentError, Defragmenter,
    };
    use mainstay_sidecar::maintenance::learner::{PromotionOutcome, promote, promote_until_voter};
    use mainstay_sidecar::maintenance::peer_url::{PeerUrlOutcome, reconcile_peer_urls};
    use mainstay_sidecar::state::{SidecarRole, SidecarState};
    use mainstay_testkit::etcd::free_url;
    use mainstay_testkit::{EtcdCluster, EtcdOptions, EtcdRelease, EtcdServer};
    use tokio::sync::{Semaphore, watch};
    use tokio_util::sync::CancellationToken;
    use tokio_util::task::AbortOnDropHandle;

    use super::*;

    const GARBAGE_BYTES: usize = 12 << 20;

    fn build_connector(members: &[EtcdServer], own: usize) -> Arc<TestConnector> {
        let cluster: Vec<String> = members.iter().map(|m| m.client_url().to_owned()).collect();
        let own = cluster[own].clone();
        Arc::new(TestConnector { own, cluster })
    }

    /// Writes, overwrites and compacts: the database file stays large, and most of its pages are free.
    async fn fill_with_garbage(etcd: &EtcdServer) {
        let mut client = etcd.client().await;
        let value = vec![7_u8; 64 << 10];
        for round in 0..GARBAGE_BYTES / (16 * value.len()) {
            let puts = (0..16).map(|key| TxnOp::put(format!("air/{key}"), value.clone(), None));
            let txn = Txn::new().and_then(puts.collect::<Vec<_>>());
            client
                .txn(txn)
                .await
                .unwrap_or_else(|e| panic!("round {round}: {e}"));
        }
        etcd.compact(etcd.revision().await).await;
    }

    /// Status of all voters.
    async fn voter_statuses(links: &TestConnector) -> Vec<(MemberId, VoterStatus)> {
        let observed: ObservedCluster = observe_cluster(links).await.unwrap();
        let vitals = |role| match role {
            MemberRole::Voter(Ok(vitals)) => vitals,
            other => panic!("{other:?}"),
        };
        let members = observed.members.into_iter();
        members
            .map(|member| (member.id, vitals(member.role)))
            .collect()
    }

    /// Waits until every member reports free pages. A member counts pages as free at its next commit, so the test keeps writing.
    async fn wait_for_free_pages(links: &TestConnector) -> Vec<(MemberId, VoterStatus)> {
        let mut client = Client::connect([&links.own], None).await.unwrap();
        let deadline = Instant::now() + TEST_TIMEOUT;
        loop {
            client.put("still here", "", None).await.unwrap();
            let found = voter_statuses(links).await;
            if found.iter().all(|(_, vitals)| vitals.free_percent() >= 60) {
                return found;
            }
            assert!(
                Instant::now() < deadline,
                "no free pages after the compaction: {found:?}"
            );
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    fn build_defragmenter(
        links: &Arc<TestConnector>,
        metrics: &Arc<RecordedMetrics>,
        threshold: u64,
    ) -> Defragmenter {
        let config = DefragmentConfig {
            schedule: Some("* * * * *".parse().unwrap()),
            threshold: Some(Threshold {
                free_percent: threshold,
                minimum_bytes: 1 << 20,
            }),
            timeout: Duration::from_mins(1),
        };
        let maintenance_lock = Arc::new(Semaphore::new(1));
        Defragmenter::new(links.clone(), maintenance_lock, config, metrics.clone())
    }

    /// Generous: etcd fails a write that was dropped during a leader change only after 5 s plus two election timeouts.
    const TEST_TIMEOUT: Duration = Duration::from_mins(3);

    /// A client that writes continuously and counts acknowledged writes.
    struct ClusterWriter {
        stop: CancellationToken,
        stored: watch::Receiver<usize>,
        task: AbortOnDropHandle<usize>,
    }

    impl ClusterWriter {
        async fn start(links: &TestConnector) -> Self {
            let mut client = links.connect_cluster().await.unwrap();
            let stop = CancellationToken::new();
            let stopped = stop.clone();
            let (count, stored_so_far) = watch::channel(0);
            let task = tokio::spawn(async move {
                let mut stored = 0;
                while !stopped.is_cancelled() {
                    let start = Instant::now();
                    while client
                        .put(format!("write/{stored:08}"), "v", None)
                        .await
                        .is_err()
                    {
                        assert!(start.elapsed() < TEST_TIMEOUT, "no member responds");
                    }
                    stored += 1;
                    count.send_replace(stored);
                }
                stored
            });
            Self {
                stop,
                stored: stored_so_far,
                task: AbortOnDropHandle::new(task),
            }
        }

        /// Waits for `writes` more acknowledged writes.
        async fn wait_for_writes(&mut self, writes: usize) {
            let target = *self.stored.borrow() + writes;
            let acked = self.stored.wait_for(|stored| *stored >= target);
            let acked = tokio::time::timeout(TEST_TIMEOUT, acked).await;
            acked.expect("writes are stuck").unwrap();
        }

        /// Stops the writer; returns the number of acknowledged writes.
        async fn stop(self) -> usize {
            self.stop.cancel();
            self.task.await.unwrap()
        }
    }

    async fn every_member_is_defragmented_the_leader_last(version: EtcdRelease) {
        let cluster =
            EtcdCluster::start(version, 3, &EtcdOptions::new().long_election_timeout()).await;
        fill_with_garbage(&cluster.members[0]).await;
        let links = build_connector(&cluster.members, 0);
        let before = wait_for_free_pages(&links).await;
        let leader = before[0].1.leader;
        let mut writer = ClusterWriter::start(&links).await;
        writer.wait_for_writes(1).await;

        let metrics = Arc::new(RecordedMetrics::default());
        let mut done = BTreeSet::new();
        let snapshotter = Arc::new(RecordingSnapshotter {
            connector: links.clone(),
            leaders: Mutex::default(),
        });
        let pass = build_defragmenter(&links, &metrics, 50).with_snapshotter(snapshotter.clone());
        pass.run_once(DefragmentTrigger::Schedule, &mut done)
            .await
            .unwrap();

        writer.wait_for_writes(10).await;
        let stored = writer.stop().await;
        let after = voter_statuses(&links).await;
        for ((member, before), (_, after)) in before.iter().zip(&after) {
            assert!(
                after.db_bytes < before.db_bytes / 2,
                "{member}: {before:?} {after:?}"
            );
        }
        assert_eq!(done.len(), 3);
        assert_ne!(after[0].1.leader, leader, "leadership was not transferred");
        let leaders = snapshotter.leaders.lock().unwrap().clone();
        assert_eq!(
            leaders,
            [leader],
            "no delta was stored before the leader change"
        );
        let (_, leader) = before.iter().find(|(id, _)| *id == leader).unwrap();
        let defragmentations = metrics.defragmented.lock().unwrap().clone();
        assert_eq!(defragmentations.len(), 3, "{defragmentations:?}");
        assert_eq!(
            defragmentations[2],
            (leader.url.clone(), MaintenanceOutcome::Succeeded)
        );

        for member in &cluster.members {
            let keys = member.all_keys().await;
            let found = keys
                .iter()
                .filter(|kv| kv.key.starts_with(b"write/"))
                .count();
            assert_eq!(found, stored);
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn every_member_is_defragmented_the_leader_last_on_3_4() {
        every_member_is_defragmented_the_leader_last(EtcdRelease::V3_4).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn every_member_is_defragmented_the_leader_last_on_3_7() {
        every_member_is_defragmented_the_leader_last(EtcdRelease::NEWEST).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn threshold_defragments_each_member_above_it_once() {
        let version = EtcdRelease::NEWEST;
        let cluster =
            EtcdCluster::start(version, 3, &EtcdOptions::new().long_election_timeout()).await;
        fill_with_garbage(&cluster.members[0]).await;
        let links = build_connector(&cluster.members, 0);
        let before = wait_for_free_pages(&links).await;
        // One member is already defragmented.
        let leader = before[0].1.leader;
        let (_, early) = before.iter().find(|(id, _)| *id != leader).unwrap();
        links
            .connect_to(&early.url)
            .await
            .unwrap()
            .defragment()
            .await
            .unwrap();

        let metrics = Arc::new(RecordedMetrics::default());
        let pass = build_defragmenter(&links, &metrics, 50);
        pass.run_once(DefragmentTrigger::Threshold, &mut BTreeSet::new())
            .await
            .unwrap();
        let defragmentations = metrics.defragmented.lock().unwrap().clone();
        assert_eq!(defragmentations.len(), 2, "{defragmentations:?}");
        assert!(
            defragmentations.iter().all(|(url, _)| *url != early.url),
            "{defragmentations:?}"
        );
        pass.run_once(DefragmentTrigger::Threshold, &mut BTreeSet::new())
            .await
            .unwrap();
        assert_eq!(metrics.defragmented.lock().unwrap().len(), 2);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn no_member_is_defragmented_while_a_member_is_down() {
        let version = EtcdRelease::NEWEST;
        let options = EtcdOptions::new().long_election_timeout();
        let mut cluster = EtcdCluster::start(version, 3, &options).await;
        // A follower is killed, not the leader: without a leader not even the members can be listed.
        let own = cluster.leader().await;
        let links = build_connector(&cluster.members, own);
        let away = cluster.next_member(own);
        cluster.members[away].kill();
        let metrics = Arc::new(RecordedMetrics::default());
        let pass = build_defragmenter(&links, &metrics, 50);
        let error = pass
            .run_once(DefragmentTrigger::Schedule, &mut BTreeSet::new())
            .await;
        let error = error.unwrap_err();
        let refused = matches!(
            error,
            DefragmentError::Refused(DefragmentRefusal::Unhealthy { .. })
        );
        assert!(refused, "{error:?}");
        assert!(metrics.defragmented.lock().unwrap().is_empty());
    }

    /// A sidecar in this role that defragments every minute, unless the lock is held. Its clock is one second before the next
    /// minute.
    fn start_every_minute(
        links: &Arc<TestConnector>,
        role: SidecarRole,
        maintenance_lock: &Arc<Semaphore>,
    ) -> DefragmentSidecar {
        let now = Timestamp::now();
        let minute = Timestamp::from_second(now.as_second() / 60 * 60).unwrap();
        let ahead = minute + SignedDuration::from_secs(59) - now;
        let minute = minute + SignedDuration::from_mins(1);
        let (minute_tx, minute_started) = watch::channel(false);
        let clock = move || {
            let now = Timestamp::now() + ahead;
            minute_tx
                .send_if_modified(|reached| now >= minute && !std::mem::replace(reached, true));
            now
        };
        let metrics = Arc::new(RecordedMetrics::default());
        let config = DefragmentConfig {
            schedule: Some("* * * * *".parse().unwrap()),
            threshold: None,
            timeout: Duration::from_mins(1),
        };
        let defragmenter = Defragmenter::new(
            links.clone(),
            maintenance_lock.clone(),
            config,
            metrics.clone(),
        );
        let defragmenter = defragmenter.with_clock(clock);
        let state = SidecarState {
            role,
            ..SidecarState::default()
        };
        let (state_tx, view) = watch::channel(state);
        let cancel = CancellationToken::new();
        let task = tokio::spawn(defragmenter.run(view, cancel.clone()));
        DefragmentSidecar {
            metrics,
            minute_started,
            cancel,
            task,
            _state_tx: state_tx,
        }
    }

    struct DefragmentSidecar {
        metrics: Arc<RecordedMetrics>,
        /// Whether its clock has reached the minute.
        minute_started: watch::Receiver<bool>,
        cancel: CancellationToken,
        task: tokio::task::JoinHandle<()>,
        _state_tx: watch::Sender<SidecarState>,
    }

    impl DefragmentSidecar {
        fn count_defragmentations(&self) -> usize {
            self.metrics.defragmented.lock().unwrap().len()
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn scheduled_defragmentation_by_the_leader_waits_for_a_snapshot() {
        let etcd = [EtcdServer::start(EtcdRelease::V3_4, EtcdOptions::new()).await];
        let links = build_connector(&etcd, 0);
        let maintenance_lock = Arc::new(Semaphore::new(1));
        let snapshot = maintenance_lock.clone().acquire_owned().await.unwrap();
        let mut leader = start_every_minute(&links, SidecarRole::Leader, &maintenance_lock);
        let free = Arc::new(Semaphore::new(1));
        let mut follower = start_every_minute(&links, SidecarRole::Follower, &free);

        for sidecar in [&mut leader, &mut follower] {
            let reached = sidecar.minute_started.wait_for(|reached| *reached);
            tokio::time::timeout(TEST_TIMEOUT, reached)
                .await
                .unwrap()
                .unwrap();
        }
        // Time for a sidecar that ignores the lock to start.
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(
            (
                leader.count_defragmentations(),
                follower.count_defragmentations()
            ),
            (0, 0)
        );
        drop(snapshot);
        let deadline = Instant::now() + TEST_TIMEOUT;
        while leader.count_defragmentations() == 0 {
            assert!(Instant::now() < deadline, "no member was defragmented");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(
            (
                leader.count_defragmentations(),
                follower.count_defragmentations()
            ),
            (1, 0)
        );
        for sidecar in [leader, follower] {
            sidecar.cancel.cancel();
            sidecar.task.await.unwrap();
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn full_database_raises_an_alarm_and_can_be_defragmented() {
        let options = EtcdOptions::new().quota_bytes(4 << 20);
        let etcd = [EtcdServer::start(EtcdRelease::NEWEST, options).await];
        let links = build_connector(&etcd, 0);
        assert_eq!(list_alarms(links.as_ref()).await.unwrap().0, []);
        let mut client = etcd[0].client().await;
        while client.put("k", vec![7_u8; 256 << 10], None).await.is_ok() {}
        let found = list_alarms(links.as_ref()).await.unwrap();
        let member = MemberId(etcd[0].status().await.header().unwrap().member_id());
        let kind = ClusterAlarmKind::NoSpace;
        assert_eq!(found.0, [ClusterAlarm { kind, member }]);
        assert!(found.has(ClusterAlarmKind::NoSpace) && !found.has(ClusterAlarmKind::Corrupt));

        let Revision(now) = etcd[0].revision().await;
        etcd[0].compact(Revision(now)).await;
        let before = voter_statuses(&links).await[0].1.db_bytes;
        let metrics = Arc::new(RecordedMetrics::default());
        let pass = build_defragmenter(&links, &metrics, 1);
        let alone = pass
            .run_once(DefragmentTrigger::Threshold, &mut BTreeSet::new())
            .await;
        let refused = matches!(
            alone,
            Err(DefragmentError::Refused(DefragmentRefusal::SingleMember))
        );
        assert!(refused, "{alone:?}");
        pass.run_once(DefragmentTrigger::Schedule, &mut BTreeSet::new())
            .await
            .unwrap();
        let after = voter_statuses(&links).await[0].1.db_bytes;
        assert!(after < before / 2, "{before} {after}");
    }

    async fn a_learner_becomes_a_voter(version: EtcdRelease) {
        let (first, second) = (free_url(), free_url());
        let options = EtcdOptions::new().name("m0").peer_url(&first);
        let first_member =
            EtcdServer::start(version, options.initial_cluster(format!("m0={first}"))).await;
        let mut client = first_member.client().await;
        let as_learner = Some(MemberAddOptions::new().with_is_learner());
        client.member_add([&second], as_learner).await.unwrap();
        let options = EtcdOptions::new()
            .name("m1")
            .peer_url(&second)
            .join_existing();
        let options = options.initial_cluster(format!("m0={first},m1={second}"));
        let joined = EtcdServer::start(version, options).await;
        let links = TestConnector {
            own: joined.client_url().to_owned(),
            cluster: vec![first_member.client_url().to_owned()],
        };
        let metrics = RecordedMetrics::default();
        assert!(joined.status().await.is_learner());
        let cancel = CancellationToken::new();
        let wait = promote_until_voter(&links, &metrics, &cancel);
        assert!(tokio::time::timeout(TEST_TIMEOUT, wait).await.unwrap());
        // The new voter learns of its promotion a moment after the other member.
        let promotion = async {
            while joined.status().await.is_learner() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(TEST_TIMEOUT, promotion)
            .await
            .expect("the member is still a learner");
        assert_eq!(
            *metrics.promoted.lock().unwrap(),
            [MaintenanceOutcome::Succeeded]
        );
        assert_eq!(
            promote(&links, &metrics).await.unwrap(),
            PromotionOutcome::AlreadyVoter
        );
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn learner_becomes_a_voter_on_3_4() {
        Box::pin(a_learner_becomes_a_voter(EtcdRelease::V3_4)).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn learner_becomes_a_voter_on_3_7() {
        Box::pin(a_learner_becomes_a_voter(EtcdRelease::NEWEST)).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn peer_urls_are_updated_where_they_differ() {
        for version in [EtcdRelease::V3_4, EtcdRelease::NEWEST] {
            let etcd = [EtcdServer::start(version, EtcdOptions::new()).await];
            let links = build_connector(&etcd, 0);
            let before = vec![etcd[0].peer_url().to_owned()];
            let check =
                async |configured: &[String]| reconcile_peer_urls(links.as_ref(), configured).await;
            assert_eq!(check(&before).await.unwrap(), PeerUrlOutcome::UpToDate);
            assert_eq!(check(&[]).await.unwrap(), PeerUrlOutcome::UpToDate);
            let (one, other) = (free_url(), free_url());
            let updated = check(&[one.clone(), other.clone()]).await.unwrap();
            assert_eq!(updated, PeerUrlOutcome::Updated { before });
            assert_eq!(
                check(&[other, one]).await.unwrap(),
                PeerUrlOutcome::UpToDate
            );
        }
    }
}
