//! A restored cluster has exactly the given members, and no membership data of the old cluster.

use std::path::Path;

use etcd_client::{AlarmAction, AlarmType, WatchOptions};
use mainstay_ids::Revision;
use mainstay_testkit::etcd::free_url;
use mainstay_testkit::recorder::RecorderCompression;
use mainstay_testkit::{EtcdCluster, EtcdOptions, EtcdRelease, EtcdServer, Recorder, each_version};
use serde_json::Value;
use tempfile::TempDir;

use crate::support::{EtcdState, Fixture, RestorerBackup, assert_same_keys, start_etcd_on};

/// Written by the oldest etcd, so that every version can start on it.
const FIXTURE: &str = "none-3.4.23";
const PREFIX: &str = "etcd-main";

/// The members of a new cluster.
fn initial_members() -> Vec<(String, String)> {
    ["a", "b", "c"]
        .map(|name| (name.to_owned(), free_url()))
        .to_vec()
}

fn format_initial_cluster(initial_members: &[(String, String)]) -> String {
    let pairs: Vec<_> = initial_members
        .iter()
        .map(|(name, url)| format!("{name}={url}"))
        .collect();
    pairs.join(",")
}

async fn start_cluster(
    version: EtcdRelease,
    initial_members: &[(String, String)],
    parent: &Path,
) -> EtcdCluster {
    let members = initial_members.iter().map(|(name, url)| {
        let options = EtcdOptions::new().name(name).peer_url(url);
        (version, options.data_dir(parent.join(name)))
    });
    EtcdCluster::start_members(members.collect()).await
}

/// Name and ID of every member, as etcd reports them.
async fn list_members(etcd: &EtcdServer) -> Vec<(String, String)> {
    let listed = etcd.client().await.member_list().await.unwrap();
    let mut members: Vec<_> = listed
        .members()
        .iter()
        .map(|member| (member.name().to_owned(), format!("{:x}", member.id())))
        .collect();
    members.sort();
    members
}

/// Name and ID of every member, as the restorer reported them.
fn reported_members(report: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let listed = report["members"].as_array().unwrap().iter();
    let mut members: Vec<_> = listed
        .map(|member| (text(&member["name"]), text(&member["id"])))
        .collect();
    members.sort();
    members
}

/// Verifies that every member has the restored state, and that a write through one reaches all.
async fn assert_serves_together(cluster: &EtcdCluster, state: &EtcdState) {
    for member in &cluster.members {
        let context = member.data_dir().display().to_string();
        state.assert_restored(member, &context).await;
    }
    let [first, others @ ..] = cluster.members.as_slice() else {
        panic!("members")
    };
    first
        .client()
        .await
        .put("through", "one", None)
        .await
        .unwrap();
    let expected = EtcdState::read(first).await;
    assert_eq!(expected.revision, state.revision.next());
    for member in others {
        assert_same_keys(&member.all_keys().await, &expected.keys, "another member");
        assert_eq!(member.hash_kv(expected.revision).await, expected.hash);
    }
}

each_version! {
    async fn data_directories_of_one_restore_form_one_cluster(version) {
        let fixture = Fixture::open(FIXTURE);
        let (parent, initial_members) = (TempDir::new().unwrap(), initial_members());
        let arguments = ["--all-members", "--initial-cluster", &format_initial_cluster(&initial_members)];
        let report = fixture.backup().restore(parent.path(), &arguments);
        let cluster = start_cluster(version, &initial_members, parent.path()).await;
        assert_serves_together(&cluster, &fixture.state).await;
        assert_eq!(list_members(&cluster.members[0]).await, reported_members(&report));
    }

    async fn directories_of_several_runs_with_one_token_are_one_cluster(version) {
        let fixture = Fixture::open(FIXTURE);
        let (parent, initial_members) = (TempDir::new().unwrap(), initial_members());
        let all = format_initial_cluster(&initial_members);
        let mut ids = Vec::new();
        for (name, url) in &initial_members {
            let arguments = [
                "--name", name, "--initial-advertise-peer-urls", url, "--initial-cluster", &all,
                "--initial-cluster-token", "the-same-for-all",
            ];
            let report = fixture.backup().restore(&parent.path().join(name), &arguments);
            ids.extend(reported_members(&report));
        }
        let cluster = start_cluster(version, &initial_members, parent.path()).await;
        assert_serves_together(&cluster, &fixture.state).await;
        assert_eq!(list_members(&cluster.members[0]).await, ids);
    }

    async fn alarms_and_members_of_the_source_do_not_survive(version) {
        let options = EtcdOptions::new().quota_bytes(4 << 20);
        let source = EtcdCluster::start(version, 3, &options).await;
        let etcd = &source.members[0];
        fill_quota(etcd).await;
        assert!(list_alarms(etcd).await.contains(&AlarmType::Nospace));
        let home = TempDir::new().unwrap();
        let container = RestorerBackup::container_dir(&home);
        Recorder::start(etcd, &container, PREFIX, RecorderCompression::Gzip).await;
        let state = EtcdState::read(etcd).await;

        let data_dir = home.path().join("restored");
        let report = RestorerBackup::local(home.path(), PREFIX).restore(&data_dir, &[]);
        let restored = start_etcd_on(version, &data_dir).await;
        state.assert_restored(&restored, "a cluster over its quota").await;
        assert_eq!(list_alarms(&restored).await, []);
        assert_eq!(list_members(&restored).await, reported_members(&report));
        assert_eq!(list_members(&restored).await.len(), 1);
        restored.client().await.put("room", "again", None).await.unwrap();
    }

    async fn a_member_that_was_removed_is_back_under_its_old_identity(version) {
        // Peers reject a member that their database lists as removed.
        // Otherwise etcd refuses to remove a member that has been connected only for a few seconds.
        // A follower, so that no election is needed, also on a busy machine.
        let options = EtcdOptions::new().long_election_timeout().flag("strict-reconfig-check", "false");
        let mut source = EtcdCluster::start(version, 3, &options).await;
        let initial_members: Vec<_> = source
            .members
            .iter()
            .zip(["m0", "m1", "m2"])
            .map(|(member, name)| (name.to_owned(), member.peer_url().to_owned()))
            .collect();
        let before = list_members(&source.members[0]).await;
        let (removed, id) = remove_follower(&mut source).await;
        let etcd = &source.members[0];
        etcd.client().await.member_remove(id).await.unwrap();
        etcd.client().await.put("k", "v", None).await.unwrap();
        assert_eq!(list_members(etcd).await.len(), 2);
        let home = TempDir::new().unwrap();
        let container = RestorerBackup::container_dir(&home);
        Recorder::start(etcd, &container, PREFIX, RecorderCompression::Gzip).await;
        let state = EtcdState::read(etcd).await;
        drop((source, removed));

        let cluster = format_initial_cluster(&initial_members);
        let token = ["--initial-cluster-token", "etcd-cluster"];
        let arguments = [&["--all-members", "--initial-cluster", &cluster], &token[..]].concat();
        let parent = home.path().join("restored");
        RestorerBackup::local(home.path(), PREFIX).restore(&parent, &arguments);
        let restored = start_cluster(version, &initial_members, &parent).await;
        assert_eq!(list_members(&restored.members[0]).await, before);
        assert_serves_together(&restored, &state).await;
    }

    async fn old_watches_are_told_to_start_over_after_a_bump(version) {
        let fixture = Fixture::open(FIXTURE);
        let directory = TempDir::new().unwrap();
        let data_dir = directory.path().join("data");
        let report =
            fixture.backup().restore(&data_dir, &["--bump-revision", "1000000", "--mark-compacted"]);
        let bumped = Revision(fixture.state.revision.0 + 1_000_000);
        assert_eq!(report["revision"], fixture.state.revision.0, "{report:#}");
        assert_eq!(report["startRevision"], bumped.0, "{report:#}");

        let mut etcd = start_etcd_on(version, &data_dir).await;
        assert_eq!(etcd.revision().await, bumped);
        assert_same_keys(&etcd.all_keys().await, &fixture.state.keys, "bumped");
        for revision in [Revision(2), fixture.state.revision, fixture.state.revision.next()] {
            assert_eq!(compacted_watch_revision(&etcd, revision).await, Some(bumped), "watch from {revision}");
        }
        etcd.client().await.put("k", "v", None).await.unwrap();
        assert_eq!(etcd.revision().await, bumped.next());
        etcd.stop().await;
        etcd.restart().await;
        assert_eq!(etcd.revision().await, bumped.next());
    }
}

#[tokio::test]
async fn two_restores_have_different_cluster_ids() {
    let fixture = Fixture::open(FIXTURE);
    let directory = TempDir::new().unwrap();
    let mut identities = Vec::new();
    for name in ["one", "other"] {
        let data_dir = directory.path().join(name);
        let report = fixture.backup().restore(&data_dir, &[]);
        let etcd = start_etcd_on(EtcdRelease::NEWEST, &data_dir).await;
        let status = etcd.status().await;
        let cluster = format!("{:x}", status.header().unwrap().cluster_id());
        assert_eq!(report["clusterId"], cluster.as_str(), "{report:#}");
        assert_eq!(list_members(&etcd).await, reported_members(&report));
        identities.push((cluster, reported_members(&report).remove(0).1));
    }
    let (one, other) = (&identities[0], &identities[1]);
    assert!(one.0 != other.0 && one.1 != other.1, "{identities:?}");
}

/// A member whose removal needs no election, and its ID.
async fn remove_follower(cluster: &mut EtcdCluster) -> (EtcdServer, u64) {
    for index in 0..cluster.members.len() {
        let status = cluster.members[index].status().await;
        let id = status.header().unwrap().member_id();
        if status.leader() != id {
            return (cluster.members.remove(index), id);
        }
    }
    panic!("every member is the leader")
}

/// Writes until the server raises the NOSPACE alarm.
async fn fill_quota(etcd: &EtcdServer) {
    let mut client = etcd.client().await;
    for number in 0..200 {
        let put = client
            .put(format!("fill-{number:03}"), vec![7; 100_000], None)
            .await;
        if let Err(refused) = put {
            assert!(refused.to_string().contains("space exceeded"), "{refused}");
            return;
        }
    }
    panic!("the quota has no effect");
}

async fn list_alarms(etcd: &EtcdServer) -> Vec<AlarmType> {
    let mut client = etcd.client().await;
    let listed = client
        .alarm(AlarmAction::Get, AlarmType::None, None)
        .await
        .unwrap();
    listed
        .alarms()
        .iter()
        .map(etcd_client::AlarmMember::alarm)
        .collect()
}

/// The compact revision with which a watch from this revision is cancelled.
async fn compacted_watch_revision(etcd: &EtcdServer, from: Revision) -> Option<Revision> {
    let options = WatchOptions::new()
        .with_all_keys()
        .with_start_revision(from.0);
    let mut stream = etcd.client().await.watch("", Some(options)).await.unwrap();
    while let Some(answer) = stream.message().await.unwrap() {
        if answer.canceled() {
            return Some(Revision(answer.compact_revision()));
        }
        assert!(answer.events().is_empty(), "{answer:?}");
    }
    None
}
