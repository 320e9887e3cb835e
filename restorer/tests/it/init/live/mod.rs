//! Members among others: who begins a cluster, who joins one, who waits.

mod damage;
mod volumes;

use std::fs;
use std::time::{Duration, Instant};

use etcd_client::{Client, Member, MemberAddOptions};
use mainstay_testkit::{EtcdVersion, each_version};
use mainstay_verdict::{Backup, Cluster, DataState, Thoroughness};
use tokio::time::sleep;

use super::stage::{PATIENCE, Running, Stage};

const NEW: EtcdVersion = EtcdVersion::V3_5New;
/// The bucket of the fixtures.
const BUCKET: [&str; 2] = ["--store-container=bucket", "--store-prefix=etcd-main"];

async fn put(client: &mut Client, count: usize) {
    for i in 0..count {
        client.put(format!("key-{i}"), "value", None).await.unwrap();
    }
}

async fn keys(client: &mut Client) -> usize {
    let options = etcd_client::GetOptions::new().with_prefix();
    client.get("key-", Some(options)).await.unwrap().kvs().len()
}

async fn add_learner(client: &mut Client, url: &str) -> u64 {
    let options = MemberAddOptions::new().with_is_learner();
    let added = client.member_add([url], Some(options)).await.unwrap();
    added.member().unwrap().id()
}

/// A cluster of one that has data and runs.
async fn one_running(stage: &Stage) -> (Running, Client) {
    stage.configure("new", &[0]);
    let etcd = stage.start(0);
    let mut client = stage.client(0).await;
    put(&mut client, 5).await;
    stage.configure("existing", &[0]);
    (etcd, client)
}

/// A cluster of three that has data and runs.
async fn three_running(stage: &Stage) -> (Vec<Running>, Client) {
    stage.configure("new", &[0, 1, 2]);
    let members: Vec<Running> = (0..3).map(|member| stage.start(member)).collect();
    let mut client = stage.client(0).await;
    put(&mut client, 5).await;
    for member in 1..3 {
        stage.client(member).await;
    }
    stage.configure("existing", &[0, 1, 2]);
    (members, client)
}

each_version! {
    async fn members_without_data_or_backup_begin_a_cluster_and_go_on_with_it_later(version) {
        let stage = Stage::of(version, 3);
        let (members, mut client) = three_running(&stage).await;
        let listed = client.member_list().await.unwrap();
        let mut names: Vec<&str> = listed.members().iter().map(Member::name).collect();
        names.sort_unstable();
        assert_eq!(names, ["etcd-0", "etcd-1", "etcd-2"]);
        drop(members);
        let said: Vec<_> = (0..3).map(|member| stage.init(member, &[])).collect();
        for said in &said {
            assert_eq!(said.brief(), (0, "start", ""), "{}", said.json);
            assert_eq!(said.report().data.verified, Some(Thoroughness::Full));
        }
        let _members: Vec<_> = (0..3).map(|member| stage.launch(member)).collect();
        assert_eq!(keys(&mut stage.client(2).await).await, 5);
    }

    async fn a_member_that_was_added_joins_with_the_list_of_the_running_cluster(version) {
        let stage = Stage::of(version, 2);
        let (_first, mut client) = one_running(&stage).await;
        let said = stage.init(1, &[]);
        assert_eq!(said.brief(), (41, "wait", "notAdded"), "{}", said.json);
        assert_eq!(stage.written(1), None);
        let id = add_learner(&mut client, stage.peer_url(1)).await;
        let said = stage.init(1, &[]);
        assert_eq!(said.brief(), (0, "join", ""), "{}", said.json);
        let _second = stage.launch(1);
        stage.client(1).await;
        // Refused until it has caught up.
        let deadline = Instant::now() + PATIENCE;
        while let Err(refused) = client.member_promote(id).await {
            assert!(Instant::now() < deadline, "it does not catch up: {refused}");
            sleep(Duration::from_millis(200)).await;
        }
        assert_eq!(keys(&mut stage.client(1).await).await, 5);
        let listed = client.member_list().await.unwrap();
        assert!(listed.members().iter().all(|member| !member.is_learner()));
    }
}

#[tokio::test]
async fn a_member_waits_until_it_is_added() {
    let stage = Stage::of(NEW, 2);
    let (_first, mut client) = one_running(&stage).await;
    let said = stage
        .init_during(1, "40s", async {
            stage.waits(1).await;
            add_learner(&mut client, stage.peer_url(1)).await;
        })
        .await;
    assert_eq!(said.brief(), (0, "join", ""), "{}", said.json);
}

#[tokio::test]
async fn a_late_member_of_a_new_cluster_joins_the_others() {
    let stage = Stage::of(NEW, 3);
    stage.configure("new", &[0, 1, 2]);
    let _early: Vec<_> = (0..2).map(|member| stage.start(member)).collect();
    let mut client = stage.client(0).await;
    stage.configure("existing", &[0, 1, 2]);
    put(&mut client, 5).await;
    let said = stage.init(2, &[]);
    assert_eq!(said.brief(), (0, "join", ""), "{}", said.json);
    let _late = stage.launch(2);
    assert_eq!(keys(&mut stage.client(2).await).await, 5);
}

#[tokio::test]
async fn a_member_whose_volume_is_gone_is_not_started_under_its_old_identity() {
    let stage = Stage::of(NEW, 3);
    let (mut members, _) = three_running(&stage).await;
    members.pop().unwrap().stop();
    fs::remove_dir_all(stage.data_dir(2)).unwrap();
    // At once: waiting would not help, and the controller is to know.
    let said = stage.init_during(2, "10m", async {}).await;
    assert_eq!(said.brief(), (41, "wait", "dataLost"), "{}", said.json);
    // The configuration alone would have let it begin anew.
    stage.configure("new", &[0, 1, 2]);
    assert_eq!(stage.init(2, &[]).brief(), (41, "wait", "dataLost"));
}

#[tokio::test]
async fn without_its_data_and_without_the_others_a_member_waits() {
    let stage = Stage::of(NEW, 3);
    stage.configure("existing", &[0, 1, 2]);
    let said = stage.init(1, &[]);
    assert_eq!(
        said.brief(),
        (41, "wait", "clusterUnreachable"),
        "{}",
        said.json
    );
    // One that is not among those a new cluster begins with does not begin one.
    stage.configure("new", &[0, 1]);
    assert_eq!(stage.init(2, &[]).brief(), (41, "wait", "notListed"));
}

#[tokio::test]
async fn a_removed_member_is_refused() {
    let stage = Stage::of(NEW, 3);
    let (mut members, mut client) = three_running(&stage).await;
    members.pop().unwrap().stop();
    let listed = client.member_list().await.unwrap();
    let gone = listed
        .members()
        .iter()
        .find(|m| m.name() == "etcd-2")
        .unwrap();
    client.member_remove(gone.id()).await.unwrap();
    let said = stage.init(2, &[]);
    assert_eq!(said.brief(), (42, "refuse", "removed"), "{}", said.json);
    assert_eq!(said.report().data.state, DataState::Sound);
}

#[tokio::test]
async fn data_of_another_cluster_is_refused() {
    let old = Stage::of(NEW, 3);
    let (members, _) = three_running(&old).await;
    drop(members);
    // The same addresses and another token: what a recovery makes.
    let new = old.twin();
    new.configure("new", &[0, 1]);
    for member in 0..2 {
        assert_eq!(new.init(member, &[]).code, 0);
        let text = new.written(member).unwrap();
        let text = text.replace("etcd-cluster", "recovered");
        fs::write(new.home.path(&format!("etcd-{member}.conf.yaml")), text).unwrap();
    }
    let _members: Vec<_> = (0..2).map(|member| new.launch(member)).collect();
    new.client(0).await;
    let said = old.init(2, &[]);
    assert_eq!(
        said.brief(),
        (42, "refuse", "otherCluster"),
        "{}",
        said.json
    );
}

#[tokio::test]
async fn the_only_member_is_restored_when_it_has_nothing_and_the_backup_has() {
    let stage = Stage::with_fixture(NEW, 1, "gzip-3.5.30");
    stage.configure("existing", &[0]);
    let said = stage.init(0, &BUCKET);
    assert_eq!(
        said.brief(),
        (40, "restoreRequired", "dataMissing"),
        "{}",
        said.json
    );
    let Backup::Present { newest_revision } = said.report().backup else {
        panic!("{}", said.json)
    };
    // A former cluster of this name: not even a new one begins empty.
    stage.configure("new", &[0]);
    assert_eq!(
        stage.init(0, &BUCKET).brief(),
        (40, "restoreRequired", "backupExists")
    );
    assert!(!stage.data_dir(0).exists(), "init restores nothing itself");
    // Restored, it starts and has what the backup had.
    let target = stage.data_dir(0);
    let url = stage.peer_url(0);
    let restored = std::process::Command::new(env!("CARGO_BIN_EXE_mainstay-restorer"))
        .args(["restore", "--name=etcd-0"])
        .args(BUCKET)
        .arg(format!("--data-dir={}", target.display()))
        .arg(format!("--initial-advertise-peer-urls={url}"))
        .env_clear()
        .env("HOME", stage.home.root())
        .status();
    assert!(restored.unwrap().success());
    let said = stage.init(0, &BUCKET);
    assert_eq!(said.brief(), (0, "start", ""), "{}", said.json);
    let _etcd = stage.launch(0);
    let status = stage.client(0).await.status().await.unwrap();
    assert!(status.header().unwrap().revision() >= newest_revision);
}

#[tokio::test]
async fn the_only_member_is_restored_when_it_is_behind_its_backup() {
    let stage = Stage::with_fixture(NEW, 1, "gzip-3.5.30");
    let (etcd, _) = one_running(&stage).await;
    etcd.stop();
    let said = stage.init(0, &BUCKET);
    assert_eq!(
        said.brief(),
        (40, "restoreRequired", "dataBehindBackup"),
        "{}",
        said.json
    );
    // Without a backup to compare with it starts.
    assert_eq!(stage.init(0, &[]).brief(), (0, "start", ""));
}

#[tokio::test]
async fn a_store_that_does_not_answer_is_not_empty_and_stops_nobody_with_data() {
    let stage = Stage::of(NEW, 1);
    let store = [
        "--storage-provider=S3",
        "--store-container=bucket",
        "--store-endpoint-override=http://127.0.0.1:1",
        "--store-list-timeout=2s",
    ];
    for state in ["new", "existing"] {
        stage.configure(state, &[0]);
        let said = stage.init(0, &store);
        assert_eq!(
            said.brief(),
            (41, "wait", "storeUnreachable"),
            "{}",
            said.json
        );
    }
    let (etcd, _) = one_running(&stage).await;
    etcd.stop();
    let said = stage.init(0, &store);
    assert_eq!(said.brief(), (0, "start", ""), "{}", said.json);
    assert_eq!(said.report().backup, Backup::Unreachable);
}

#[tokio::test]
async fn a_lost_only_member_without_a_backup_is_not_replaced_by_an_empty_one() {
    let stage = Stage::of(NEW, 1);
    stage.configure("existing", &[0]);
    let said = stage.init(0, &[]);
    assert_eq!(
        said.brief(),
        (42, "refuse", "nothingToRestore"),
        "{}",
        said.json
    );
    assert_eq!(said.report().cluster, Cluster::Unreachable);
}

#[tokio::test]
async fn a_dry_run_says_what_would_be_decided_and_changes_nothing() {
    let stage = Stage::of(NEW, 1);
    stage.configure("new", &[0]);
    let said = stage.init(0, &["--dry-run"]);
    assert_eq!(said.brief(), (0, "bootstrap", ""), "{}", said.json);
    assert_eq!(stage.written(0), None);
    assert!(!stage.volume(0).join("safe_guard").exists());
}
