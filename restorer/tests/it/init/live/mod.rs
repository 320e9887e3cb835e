//! Members of a cluster: which one bootstraps, joins or waits.

mod damage;
mod volumes;

use std::fs;
use std::time::{Duration, Instant};

use etcd_client::{Client, Member, MemberAddOptions};
use mainstay_testkit::{EtcdRelease, each_version};
use mainstay_verdict::{BackupSummary, ClusterSummary, DataState, VerificationDepth};
use tokio::time::sleep;

use super::testbed::{EtcdProcess, InitTestbed, TIMEOUT};

const ETCD_VERSION: EtcdRelease = EtcdRelease::NEWEST;
/// The bucket of the fixtures.
const BUCKET_FLAGS: [&str; 2] = ["--store-container=bucket", "--store-prefix=etcd-main"];

async fn put_keys(client: &mut Client, count: usize) {
    for i in 0..count {
        client.put(format!("key-{i}"), "value", None).await.unwrap();
    }
}

async fn count_keys(client: &mut Client) -> usize {
    let options = etcd_client::GetOptions::new().with_prefix();
    client.get("key-", Some(options)).await.unwrap().kvs().len()
}

async fn add_learner(client: &mut Client, url: &str) -> u64 {
    let options = MemberAddOptions::new().with_is_learner();
    let added = client.member_add([url], Some(options)).await.unwrap();
    added.member().unwrap().id()
}

/// Starts a cluster of one member with data.
async fn start_one_member(stage: &InitTestbed) -> (EtcdProcess, Client) {
    stage.write_templates("new", &[0]);
    let etcd = stage.init_and_start(0);
    let mut client = stage.wait_for_client(0).await;
    put_keys(&mut client, 5).await;
    stage.write_templates("existing", &[0]);
    (etcd, client)
}

/// Starts a cluster of three members with data.
async fn start_three_members(stage: &InitTestbed) -> (Vec<EtcdProcess>, Client) {
    stage.write_templates("new", &[0, 1, 2]);
    let members: Vec<EtcdProcess> = (0..3).map(|member| stage.init_and_start(member)).collect();
    let mut client = stage.wait_for_client(0).await;
    put_keys(&mut client, 5).await;
    for member in 1..3 {
        stage.wait_for_client(member).await;
    }
    stage.write_templates("existing", &[0, 1, 2]);
    (members, client)
}

each_version! {
    async fn members_without_data_or_backup_bootstrap_and_restart_a_cluster(version) {
        let stage = InitTestbed::new(version, 3);
        let (members, mut client) = start_three_members(&stage).await;
        let listed = client.member_list().await.unwrap();
        let mut names: Vec<&str> = listed.members().iter().map(Member::name).collect();
        names.sort_unstable();
        assert_eq!(names, ["etcd-0", "etcd-1", "etcd-2"]);
        drop(members);
        let results: Vec<_> = (0..3).map(|member| stage.run_init(member, &[])).collect();
        for init_result in &results {
            assert_eq!(init_result.summary(), (0, "start", ""), "{}", init_result.json);
            assert_eq!(init_result.report().data.verified, Some(VerificationDepth::Full));
        }
        let _members: Vec<_> = (0..3).map(|member| stage.start_etcd(member)).collect();
        assert_eq!(count_keys(&mut stage.wait_for_client(2).await).await, 5);
    }

    async fn a_member_that_was_added_joins_with_the_list_of_the_running_cluster(version) {
        let stage = InitTestbed::new(version, 2);
        let (_first, mut client) = start_one_member(&stage).await;
        let init_result = stage.run_init(1, &[]);
        assert_eq!(init_result.summary(), (41, "wait", "notAdded"), "{}", init_result.json);
        assert_eq!(stage.read_config(1), None);
        let id = add_learner(&mut client, stage.peer_url(1)).await;
        let init_result = stage.run_init(1, &[]);
        assert_eq!(init_result.summary(), (0, "join", ""), "{}", init_result.json);
        let _second = stage.start_etcd(1);
        stage.wait_for_client(1).await;
        // etcd refuses to promote a learner until it has caught up.
        let deadline = Instant::now() + TIMEOUT;
        while let Err(refused) = client.member_promote(id).await {
            assert!(Instant::now() < deadline, "the learner does not catch up: {refused}");
            sleep(Duration::from_millis(200)).await;
        }
        assert_eq!(count_keys(&mut stage.wait_for_client(1).await).await, 5);
        let listed = client.member_list().await.unwrap();
        assert!(listed.members().iter().all(|member| !member.is_learner()));
    }
}

#[tokio::test]
async fn member_waits_until_it_is_added() {
    let stage = InitTestbed::new(ETCD_VERSION, 2);
    let (_first, mut client) = start_one_member(&stage).await;
    let init_result = stage
        .run_init_during(1, "40s", async {
            stage.wait_until_waiting(1).await;
            add_learner(&mut client, stage.peer_url(1)).await;
        })
        .await;
    assert_eq!(
        init_result.summary(),
        (0, "join", ""),
        "{}",
        init_result.json
    );
}

#[tokio::test]
async fn late_member_of_a_new_cluster_joins_the_others() {
    let stage = InitTestbed::new(ETCD_VERSION, 3);
    stage.write_templates("new", &[0, 1, 2]);
    let _early: Vec<_> = (0..2).map(|member| stage.init_and_start(member)).collect();
    let mut client = stage.wait_for_client(0).await;
    stage.write_templates("existing", &[0, 1, 2]);
    put_keys(&mut client, 5).await;
    let init_result = stage.run_init(2, &[]);
    assert_eq!(
        init_result.summary(),
        (0, "join", ""),
        "{}",
        init_result.json
    );
    let _late = stage.start_etcd(2);
    assert_eq!(count_keys(&mut stage.wait_for_client(2).await).await, 5);
}

#[tokio::test]
async fn member_with_a_lost_volume_does_not_start_with_its_old_member_id() {
    let stage = InitTestbed::new(ETCD_VERSION, 3);
    let (mut members, _) = start_three_members(&stage).await;
    members.pop().unwrap().stop();
    fs::remove_dir_all(stage.data_dir(2)).unwrap();
    // Reported at once: waiting does not help, and the controller must act.
    let init_result = stage.run_init_during(2, "10m", async {}).await;
    assert_eq!(
        init_result.summary(),
        (41, "wait", "dataLost"),
        "{}",
        init_result.json
    );
    // The configuration alone would allow it to bootstrap a new cluster.
    stage.write_templates("new", &[0, 1, 2]);
    assert_eq!(stage.run_init(2, &[]).summary(), (41, "wait", "dataLost"));
}

#[tokio::test]
async fn member_without_data_waits_while_the_others_are_unreachable() {
    let stage = InitTestbed::new(ETCD_VERSION, 3);
    stage.write_templates("existing", &[0, 1, 2]);
    let init_result = stage.run_init(1, &[]);
    assert_eq!(
        init_result.summary(),
        (41, "wait", "clusterUnreachable"),
        "{}",
        init_result.json
    );
    // A member that initial-cluster does not list does not bootstrap.
    stage.write_templates("new", &[0, 1]);
    assert_eq!(stage.run_init(2, &[]).summary(), (41, "wait", "notListed"));
}

#[tokio::test]
async fn removed_member_is_refused() {
    let stage = InitTestbed::new(ETCD_VERSION, 3);
    let (mut members, mut client) = start_three_members(&stage).await;
    members.pop().unwrap().stop();
    let listed = client.member_list().await.unwrap();
    let removed = listed
        .members()
        .iter()
        .find(|m| m.name() == "etcd-2")
        .unwrap();
    client.member_remove(removed.id()).await.unwrap();
    let init_result = stage.run_init(2, &[]);
    assert_eq!(
        init_result.summary(),
        (42, "refuse", "removed"),
        "{}",
        init_result.json
    );
    assert_eq!(init_result.report().data.state, DataState::Sound);
}

#[tokio::test]
async fn data_of_another_cluster_is_refused() {
    let old = InitTestbed::new(ETCD_VERSION, 3);
    let (members, _) = start_three_members(&old).await;
    drop(members);
    // The same addresses and another token, as after a recovery.
    let new = old.with_same_addresses();
    new.write_templates("new", &[0, 1]);
    for member in 0..2 {
        assert_eq!(new.run_init(member, &[]).code, 0);
        let text = new.read_config(member).unwrap();
        let text = text.replace("etcd-cluster", "recovered");
        fs::write(new.home.path(&format!("etcd-{member}.conf.yaml")), text).unwrap();
    }
    let _members: Vec<_> = (0..2).map(|member| new.start_etcd(member)).collect();
    new.wait_for_client(0).await;
    let init_result = old.run_init(2, &[]);
    assert_eq!(
        init_result.summary(),
        (42, "refuse", "otherCluster"),
        "{}",
        init_result.json
    );
}

#[tokio::test]
async fn single_member_without_data_is_restored_from_its_backup() {
    let stage = InitTestbed::with_fixture(ETCD_VERSION, 1, "gzip-3.5.30");
    stage.write_templates("existing", &[0]);
    let init_result = stage.run_init(0, &BUCKET_FLAGS);
    assert_eq!(
        init_result.summary(),
        (40, "restoreRequired", "dataMissing"),
        "{}",
        init_result.json
    );
    let BackupSummary::Present { newest_revision } = init_result.report().backup else {
        panic!("{}", init_result.json)
    };
    // The backup of an earlier cluster of the same name: a new cluster does not start empty either.
    stage.write_templates("new", &[0]);
    assert_eq!(
        stage.run_init(0, &BUCKET_FLAGS).summary(),
        (40, "restoreRequired", "backupExists")
    );
    assert!(!stage.data_dir(0).exists(), "init must not restore");
    // After a restore the member starts with the data of the backup.
    let target = stage.data_dir(0);
    let url = stage.peer_url(0);
    let restored = std::process::Command::new(env!("CARGO_BIN_EXE_mainstay-restorer"))
        .args(["restore", "--name=etcd-0"])
        .args(BUCKET_FLAGS)
        .arg(format!("--data-dir={}", target.display()))
        .arg(format!("--initial-advertise-peer-urls={url}"))
        .env_clear()
        .env("HOME", stage.home.root())
        .status();
    assert!(restored.unwrap().success());
    let init_result = stage.run_init(0, &BUCKET_FLAGS);
    assert_eq!(
        init_result.summary(),
        (0, "start", ""),
        "{}",
        init_result.json
    );
    let _etcd = stage.start_etcd(0);
    let status = stage.wait_for_client(0).await.status().await.unwrap();
    assert!(status.header().unwrap().revision() >= newest_revision);
}

#[tokio::test]
async fn single_member_with_another_history_than_its_backup_is_not_restored() {
    let stage = InitTestbed::with_fixture(ETCD_VERSION, 1, "gzip-3.5.30");
    let (etcd, _) = start_one_member(&stage).await;
    etcd.stop();
    let init_result = stage.run_init(0, &BUCKET_FLAGS);
    assert_eq!(
        init_result.summary(),
        (42, "refuse", "historyDiverged"),
        "{}",
        init_result.json
    );
    // Without a backup to compare with, the member starts.
    assert_eq!(stage.run_init(0, &[]).summary(), (0, "start", ""));
}

/// Restores the fixture up to a revision into the data directory of the only member.
fn restore_up_to(stage: &InitTestbed, revision: &str) {
    let restored = std::process::Command::new(env!("CARGO_BIN_EXE_mainstay-restorer"))
        .args(["restore", "--name=etcd-0", "--to-revision", revision])
        .args(BUCKET_FLAGS)
        .arg(format!("--data-dir={}", stage.data_dir(0).display()))
        .arg(format!(
            "--initial-advertise-peer-urls={}",
            stage.peer_url(0)
        ))
        .env_clear()
        .env("HOME", stage.home.root())
        .status();
    assert!(restored.unwrap().success());
}

#[test]
fn single_member_behind_its_own_backup_is_restored() {
    let stage = InitTestbed::with_fixture(ETCD_VERSION, 1, "gzip-3.5.30");
    stage.write_templates("existing", &[0]);
    restore_up_to(&stage, "1200");
    let init_result = stage.run_init(0, &BUCKET_FLAGS);
    assert_eq!(
        init_result.summary(),
        (40, "restoreRequired", "dataBehindBackup"),
        "{}",
        init_result.json
    );
}

#[test]
fn stray_object_does_not_stop_a_member_with_current_data() {
    let stage = InitTestbed::with_fixture(ETCD_VERSION, 1, "gzip-3.5.30");
    stage.write_templates("existing", &[0]);
    restore_up_to(&stage, "2385");
    let stray = "bucket/etcd-main/v2/Full-00000000-99999999-1794799999.gz";
    fs::write(stage.home.path(stray), "not a snapshot").unwrap();
    let init_result = stage.run_init(0, &BUCKET_FLAGS);
    assert_eq!(
        init_result.summary(),
        (0, "start", ""),
        "{}",
        init_result.json
    );
}

#[tokio::test]
async fn unreachable_store_is_not_empty_and_does_not_stop_existing_data() {
    let stage = InitTestbed::new(ETCD_VERSION, 1);
    let store = [
        "--storage-provider=S3",
        "--store-container=bucket",
        "--store-endpoint-override=http://127.0.0.1:1",
        "--store-list-timeout=2s",
    ];
    for state in ["new", "existing"] {
        stage.write_templates(state, &[0]);
        let init_result = stage.run_init(0, &store);
        assert_eq!(
            init_result.summary(),
            (41, "wait", "storeUnreachable"),
            "{}",
            init_result.json
        );
    }
    let (etcd, _) = start_one_member(&stage).await;
    etcd.stop();
    let init_result = stage.run_init(0, &store);
    assert_eq!(
        init_result.summary(),
        (0, "start", ""),
        "{}",
        init_result.json
    );
    assert_eq!(init_result.report().backup, BackupSummary::Unreachable);
}

#[tokio::test]
async fn lost_single_member_without_a_backup_does_not_start_empty() {
    let stage = InitTestbed::new(ETCD_VERSION, 1);
    stage.write_templates("existing", &[0]);
    let init_result = stage.run_init(0, &[]);
    assert_eq!(
        init_result.summary(),
        (42, "refuse", "nothingToRestore"),
        "{}",
        init_result.json
    );
    assert_eq!(init_result.report().cluster, ClusterSummary::Unreachable);
}

#[tokio::test]
async fn dry_run_reports_the_decision_and_changes_nothing() {
    let stage = InitTestbed::new(ETCD_VERSION, 1);
    stage.write_templates("new", &[0]);
    let init_result = stage.run_init(0, &["--dry-run"]);
    assert_eq!(
        init_result.summary(),
        (0, "bootstrap", ""),
        "{}",
        init_result.json
    );
    assert_eq!(stage.read_config(0), None);
    assert!(!stage.volume(0).join("safe_guard").exists());
}
