//! Care of real clusters.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use etcd_client::{Client, ConnectOptions};
use mainstay_archive::catalogue::Catalogue;
use mainstay_ids::MemberId;
use mainstay_sidecar::ask::{AskError, Finality, Snapshots};
use mainstay_sidecar::maintenance::{Connect, ConnectError, MaintenanceMetrics, Outcome};
use mainstay_sidecar::state::Stored;

/// Ways to the members of a test.
struct Links {
    own: String,
    cluster: Vec<String>,
}

impl Links {
    async fn connect(urls: &[String]) -> Result<Client, ConnectError> {
        let options = ConnectOptions::new().with_connect_timeout(Duration::from_secs(5));
        Client::connect(urls, Some(options))
            .await
            .map_err(|source| ConnectError {
                endpoint: urls.join(","),
                source,
            })
    }
}

#[async_trait]
impl Connect for Links {
    async fn own(&self) -> Result<Client, ConnectError> {
        self.to(&self.own).await
    }

    async fn to(&self, url: &str) -> Result<Client, ConnectError> {
        Self::connect(&[url.to_owned()]).await
    }

    async fn cluster(&self) -> Result<Client, ConnectError> {
        Self::connect(&self.cluster).await
    }
}

/// Remembers what it was told.
#[derive(Default)]
struct Told {
    defragmented: Mutex<Vec<(String, Outcome)>>,
    promoted: Mutex<Vec<Outcome>>,
}

impl MaintenanceMetrics for Told {
    fn defragmented(&self, endpoint: &str, outcome: Outcome, _: Duration) {
        self.defragmented
            .lock()
            .unwrap()
            .push((endpoint.to_owned(), outcome));
    }

    fn promoted(&self, outcome: Outcome, _: Duration) {
        self.promoted.lock().unwrap().push(outcome);
    }
}

/// Notes who led when a delta was asked for.
struct Asked {
    links: Arc<Links>,
    leaders: Mutex<Vec<MemberId>>,
}

#[async_trait]
impl Snapshots for Asked {
    async fn full(&self, _: Finality) -> Result<Stored, AskError> {
        Err(AskError::NoStore)
    }

    async fn delta(&self) -> Result<Option<Stored>, AskError> {
        let status = self.links.own().await.unwrap().status().await.unwrap();
        let leader = MemberId(status.leader());
        self.leaders.lock().unwrap().push(leader);
        Ok(None)
    }

    async fn list(&self) -> Result<Catalogue, AskError> {
        Err(AskError::NoStore)
    }
}

mod live {
    use std::collections::BTreeSet;
    use std::time::Instant;

    use etcd_client::{MemberAddOptions, Txn, TxnOp};
    use jiff::{SignedDuration, Timestamp};
    use mainstay_ids::Revision;
    use mainstay_sidecar::maintenance::alarms::{Alarm, AlarmKind, alarms};
    use mainstay_sidecar::maintenance::defragment::decide::{Refusal, Threshold, Trigger};
    use mainstay_sidecar::maintenance::defragment::observe::{Observed, Role, Vitals, observe};
    use mainstay_sidecar::maintenance::defragment::{
        DefragmentConfig, DefragmentError, Defragmenter,
    };
    use mainstay_sidecar::maintenance::learner::{Promotion, promote, until_voter};
    use mainstay_sidecar::maintenance::peer_url::{PeerUrls, reconcile};
    use mainstay_sidecar::state::{Standing, State};
    use mainstay_testkit::etcd::free_url;
    use mainstay_testkit::{Etcd, EtcdCluster, EtcdOptions, EtcdVersion};
    use tokio::sync::{Semaphore, watch};
    use tokio_util::sync::CancellationToken;
    use tokio_util::task::AbortOnDropHandle;

    use super::*;

    const AIR: usize = 12 << 20;

    fn links(members: &[Etcd], own: usize) -> Arc<Links> {
        let cluster: Vec<String> = members.iter().map(|m| m.client_url().to_owned()).collect();
        let own = cluster[own].clone();
        Arc::new(Links { own, cluster })
    }

    /// Writes much, overwrites it, and forgets the history: the file stays large, and most of it is free.
    async fn fill_with_air(etcd: &Etcd) {
        let mut client = etcd.client().await;
        let value = vec![7_u8; 64 << 10];
        for round in 0..AIR / (16 * value.len()) {
            let puts = (0..16).map(|key| TxnOp::put(format!("air/{key}"), value.clone(), None));
            let txn = Txn::new().and_then(puts.collect::<Vec<_>>());
            client
                .txn(txn)
                .await
                .unwrap_or_else(|e| panic!("round {round}: {e}"));
        }
        etcd.compact(etcd.revision().await).await;
    }

    /// What the voters say once each of them has dropped the history.
    async fn vitals(links: &Links) -> Vec<(MemberId, Vitals)> {
        let seen: Observed = observe(links).await.unwrap();
        let vitals = |role| match role {
            Role::Voter(Ok(vitals)) => vitals,
            other => panic!("{other:?}"),
        };
        let members = seen.members.into_iter();
        members
            .map(|member| (member.id, vitals(member.role)))
            .collect()
    }

    /// A member counts pages as free when it commits again, so there is a little to commit all the time.
    async fn until_airy(links: &Links) -> Vec<(MemberId, Vitals)> {
        let mut client = Client::connect([&links.own], None).await.unwrap();
        let deadline = Instant::now() + PATIENCE;
        loop {
            client.put("still here", "", None).await.unwrap();
            let found = vitals(links).await;
            if found.iter().all(|(_, vitals)| vitals.free_percent() >= 60) {
                return found;
            }
            assert!(
                Instant::now() < deadline,
                "the history is still there: {found:?}"
            );
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    fn defragmenter(links: &Arc<Links>, told: &Arc<Told>, threshold: u64) -> Defragmenter {
        let config = DefragmentConfig {
            schedule: Some("* * * * *".parse().unwrap()),
            threshold: Some(Threshold {
                free_percent: threshold,
                minimum_bytes: 1 << 20,
            }),
            timeout: Duration::from_mins(1),
        };
        let quiet = Arc::new(Semaphore::new(1));
        Defragmenter::new(links.clone(), quiet, config, told.clone())
    }

    /// etcd answers a write that was dropped while leadership moved after 5 s and two election timeouts.
    const PATIENCE: Duration = Duration::from_mins(3);

    /// A client that goes on writing, and what it was told to be stored.
    struct Writer {
        stop: CancellationToken,
        stored: watch::Receiver<usize>,
        task: AbortOnDropHandle<usize>,
    }

    impl Writer {
        async fn start(links: &Links) -> Self {
            let mut client = links.cluster().await.unwrap();
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
                        assert!(start.elapsed() < PATIENCE, "nobody answers");
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

        /// Waits until so many more writes are acknowledged.
        async fn goes_on(&mut self, writes: usize) {
            let wanted = *self.stored.borrow() + writes;
            let acked = self.stored.wait_for(|stored| *stored >= wanted);
            let acked = tokio::time::timeout(PATIENCE, acked).await;
            acked.expect("nobody writes").unwrap();
        }

        /// How many writes were acknowledged.
        async fn stop(self) -> usize {
            self.stop.cancel();
            self.task.await.unwrap()
        }
    }

    async fn every_member_is_defragmented_the_leader_last(version: EtcdVersion) {
        let cluster = EtcdCluster::start(version, 3, &EtcdOptions::new().patient()).await;
        fill_with_air(&cluster.members[0]).await;
        let links = links(&cluster.members, 0);
        let before = until_airy(&links).await;
        let leader = before[0].1.leader;
        let mut writer = Writer::start(&links).await;
        writer.goes_on(1).await;

        let told = Arc::new(Told::default());
        let mut done = BTreeSet::new();
        let asked = Arc::new(Asked {
            links: links.clone(),
            leaders: Mutex::default(),
        });
        let pass = defragmenter(&links, &told, 50).flushing(asked.clone());
        pass.pass(Trigger::Schedule, &mut done).await.unwrap();

        writer.goes_on(10).await;
        let stored = writer.stop().await;
        let after = vitals(&links).await;
        for ((member, before), (_, after)) in before.iter().zip(&after) {
            assert!(
                after.db_bytes < before.db_bytes / 2,
                "{member}: {before:?} {after:?}"
            );
        }
        assert_eq!(done.len(), 3);
        assert_ne!(after[0].1.leader, leader, "leadership was moved away");
        let asked = asked.leaders.lock().unwrap().clone();
        assert_eq!(asked, [leader], "a delta is stored before it is moved");
        let (_, leader) = before.iter().find(|(id, _)| *id == leader).unwrap();
        let turns = told.defragmented.lock().unwrap().clone();
        assert_eq!(turns.len(), 3, "{turns:?}");
        assert_eq!(turns[2], (leader.url.clone(), Outcome::Succeeded));

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
        every_member_is_defragmented_the_leader_last(EtcdVersion::V3_4).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn every_member_is_defragmented_the_leader_last_on_3_5_new() {
        every_member_is_defragmented_the_leader_last(EtcdVersion::V3_5New).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_threshold_defragments_who_is_above_it_and_then_nobody() {
        let version = EtcdVersion::V3_5New;
        let cluster = EtcdCluster::start(version, 3, &EtcdOptions::new().patient()).await;
        fill_with_air(&cluster.members[0]).await;
        let links = links(&cluster.members, 0);
        let before = until_airy(&links).await;
        // One member has been taken care of already.
        let leader = before[0].1.leader;
        let (_, early) = before.iter().find(|(id, _)| *id != leader).unwrap();
        links
            .to(&early.url)
            .await
            .unwrap()
            .defragment()
            .await
            .unwrap();

        let told = Arc::new(Told::default());
        let pass = defragmenter(&links, &told, 50);
        pass.pass(Trigger::Threshold, &mut BTreeSet::new())
            .await
            .unwrap();
        let turns = told.defragmented.lock().unwrap().clone();
        assert_eq!(turns.len(), 2, "{turns:?}");
        assert!(turns.iter().all(|(url, _)| *url != early.url), "{turns:?}");
        pass.pass(Trigger::Threshold, &mut BTreeSet::new())
            .await
            .unwrap();
        assert_eq!(told.defragmented.lock().unwrap().len(), 2);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn nobody_is_defragmented_while_a_member_is_away() {
        let version = EtcdVersion::V3_5New;
        let options = EtcdOptions::new().patient();
        let mut cluster = EtcdCluster::start(version, 3, &options).await;
        // A follower is killed: without a leader not even the members could be listed.
        let own = cluster.leader().await;
        let links = links(&cluster.members, own);
        let away = cluster.next_to(own);
        cluster.members[away].kill();
        let told = Arc::new(Told::default());
        let pass = defragmenter(&links, &told, 50);
        let error = pass.pass(Trigger::Schedule, &mut BTreeSet::new()).await;
        let error = error.unwrap_err();
        let refused = matches!(error, DefragmentError::Refused(Refusal::Unhealthy { .. }));
        assert!(refused, "{error:?}");
        assert!(told.defragmented.lock().unwrap().is_empty());
    }

    /// A sidecar in this standing that defragments every minute, unless somebody holds the permit. By its clock a minute
    /// begins soon.
    fn every_minute(links: &Arc<Links>, standing: Standing, quiet: &Arc<Semaphore>) -> Sidecar {
        let now = Timestamp::now();
        let minute = Timestamp::from_second(now.as_second() / 60 * 60).unwrap();
        let ahead = minute + SignedDuration::from_secs(59) - now;
        let minute = minute + SignedDuration::from_mins(1);
        let (told_the_time, minute_came) = watch::channel(false);
        let clock = move || {
            let now = Timestamp::now() + ahead;
            told_the_time.send_if_modified(|came| now >= minute && !std::mem::replace(came, true));
            now
        };
        let told = Arc::new(Told::default());
        let config = DefragmentConfig {
            schedule: Some("* * * * *".parse().unwrap()),
            threshold: None,
            timeout: Duration::from_mins(1),
        };
        let defragmenter = Defragmenter::new(links.clone(), quiet.clone(), config, told.clone());
        let defragmenter = defragmenter.by_clock(clock);
        let state = State {
            standing,
            ..State::default()
        };
        let (board, view) = watch::channel(state);
        let cancel = CancellationToken::new();
        let task = tokio::spawn(defragmenter.run(view, cancel.clone()));
        Sidecar {
            told,
            minute_came,
            cancel,
            task,
            _board: board,
        }
    }

    struct Sidecar {
        told: Arc<Told>,
        /// Whether it has read from its clock that the minute began.
        minute_came: watch::Receiver<bool>,
        cancel: CancellationToken,
        task: tokio::task::JoinHandle<()>,
        _board: watch::Sender<State>,
    }

    impl Sidecar {
        fn turns(&self) -> usize {
            self.told.defragmented.lock().unwrap().len()
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn on_schedule_the_leader_begins_and_waits_for_a_snapshot_under_way() {
        let etcd = [Etcd::start(EtcdVersion::V3_4, EtcdOptions::new()).await];
        let links = links(&etcd, 0);
        let quiet = Arc::new(Semaphore::new(1));
        let snapshot = quiet.clone().acquire_owned().await.unwrap();
        let mut leader = every_minute(&links, Standing::Leader, &quiet);
        let free = Arc::new(Semaphore::new(1));
        let mut follower = every_minute(&links, Standing::Follower, &free);

        for sidecar in [&mut leader, &mut follower] {
            let came = sidecar.minute_came.wait_for(|came| *came);
            tokio::time::timeout(PATIENCE, came).await.unwrap().unwrap();
        }
        // Time for one that does not wait to begin.
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!((leader.turns(), follower.turns()), (0, 0));
        drop(snapshot);
        let deadline = Instant::now() + PATIENCE;
        while leader.turns() == 0 {
            assert!(Instant::now() < deadline, "nobody is defragmented");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert_eq!((leader.turns(), follower.turns()), (1, 0));
        for sidecar in [leader, follower] {
            sidecar.cancel.cancel();
            sidecar.task.await.unwrap();
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_full_database_raises_an_alarm_and_may_be_defragmented() {
        let options = EtcdOptions::new().quota_bytes(4 << 20);
        let etcd = [Etcd::start(EtcdVersion::V3_5New, options).await];
        let links = links(&etcd, 0);
        assert_eq!(alarms(links.as_ref()).await.unwrap().0, []);
        let mut client = etcd[0].client().await;
        while client.put("k", vec![7_u8; 256 << 10], None).await.is_ok() {}
        let found = alarms(links.as_ref()).await.unwrap();
        let member = MemberId(etcd[0].status().await.header().unwrap().member_id());
        let kind = AlarmKind::NoSpace;
        assert_eq!(found.0, [Alarm { kind, member }]);
        assert!(found.has(AlarmKind::NoSpace) && !found.has(AlarmKind::Corrupt));

        let Revision(now) = etcd[0].revision().await;
        etcd[0].compact(Revision(now)).await;
        let before = vitals(&links).await[0].1.db_bytes;
        let told = Arc::new(Told::default());
        let pass = defragmenter(&links, &told, 1);
        let alone = pass.pass(Trigger::Threshold, &mut BTreeSet::new()).await;
        let refused = matches!(alone, Err(DefragmentError::Refused(Refusal::Alone)));
        assert!(refused, "{alone:?}");
        pass.pass(Trigger::Schedule, &mut BTreeSet::new())
            .await
            .unwrap();
        let after = vitals(&links).await[0].1.db_bytes;
        assert!(after < before / 2, "{before} {after}");
    }

    async fn a_learner_becomes_a_voter(version: EtcdVersion) {
        let (first, second) = (free_url(), free_url());
        let options = EtcdOptions::new().name("m0").peer_url(&first);
        let founder = Etcd::start(version, options.initial_cluster(format!("m0={first}"))).await;
        let mut client = founder.client().await;
        let as_learner = Some(MemberAddOptions::new().with_is_learner());
        client.member_add([&second], as_learner).await.unwrap();
        let options = EtcdOptions::new().name("m1").peer_url(&second).joining();
        let options = options.initial_cluster(format!("m0={first},m1={second}"));
        let joined = Etcd::start(version, options).await;
        let links = Links {
            own: joined.client_url().to_owned(),
            cluster: vec![founder.client_url().to_owned()],
        };
        let told = Told::default();
        assert!(joined.status().await.is_learner());
        let cancel = CancellationToken::new();
        let wait = until_voter(&links, &told, &cancel);
        assert!(tokio::time::timeout(PATIENCE, wait).await.unwrap());
        // The founder has agreed; the new voter hears of it a moment later.
        let heard = async {
            while joined.status().await.is_learner() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(PATIENCE, heard)
            .await
            .expect("it is still a learner");
        assert_eq!(*told.promoted.lock().unwrap(), [Outcome::Succeeded]);
        assert_eq!(promote(&links, &told).await.unwrap(), Promotion::Voter);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_learner_becomes_a_voter_on_3_4() {
        Box::pin(a_learner_becomes_a_voter(EtcdVersion::V3_4)).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_learner_becomes_a_voter_on_3_5_new() {
        Box::pin(a_learner_becomes_a_voter(EtcdVersion::V3_5New)).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn peer_urls_are_updated_where_they_differ() {
        for version in [EtcdVersion::V3_4, EtcdVersion::V3_5New] {
            let etcd = [Etcd::start(version, EtcdOptions::new()).await];
            let links = links(&etcd, 0);
            let before = vec![etcd[0].peer_url().to_owned()];
            let check = async |configured: &[String]| reconcile(links.as_ref(), configured).await;
            assert_eq!(check(&before).await.unwrap(), PeerUrls::Right);
            assert_eq!(check(&[]).await.unwrap(), PeerUrls::Right);
            let (one, other) = (free_url(), free_url());
            let updated = check(&[one.clone(), other.clone()]).await.unwrap();
            assert_eq!(updated, PeerUrls::Updated { before });
            assert_eq!(check(&[other, one]).await.unwrap(), PeerUrls::Right);
        }
    }
}
