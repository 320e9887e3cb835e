//! Only the sidecar of the etcd leader takes backups, also through failures of the leader.

use std::time::{Duration, Instant};

use mainstay_testkit::{EtcdOptions, EtcdRelease, SidecarProcess, each_version, newest_version};
use tokio::time::sleep;

use super::{SidecarHarness, WriterPool};

/// For what has no promise.
const TIMEOUT: Duration = Duration::from_mins(2);
const WRITE_INTERVAL: Duration = Duration::from_millis(10);
/// Number of leadership changes, one per second.
const LEADER_CHANGES: usize = 10;

/// Three members under load, with running backups.
async fn start_under_load(version: EtcdRelease, seed: u64) -> (SidecarHarness, WriterPool, usize) {
    let stage = SidecarHarness::start_local(version, 3).await;
    let (writer, leader) = start_load(&stage, seed).await;
    (stage, writer, leader)
}

/// Starts a writer once backups run; returns it and the leader.
async fn start_load(stage: &SidecarHarness, seed: u64) -> (WriterPool, usize) {
    let writer = WriterPool::start(&stage.client_urls(), 2, WRITE_INTERVAL, seed);
    stage.wait_until_settled().await;
    writer.wait_for_writes(50).await;
    stage.wait_until_stored().await;
    (writer, stage.wait_until_settled().await)
}

/// The end of every test: the new leader's sidecar takes over, and nothing is missing.
async fn assert_handover(stage: &SidecarHarness, writer: WriterPool, context: &str) {
    stage.wait_for_single_leader().await;
    writer.wait_for_writes(50).await;
    let acks = writer.stop().await;
    stage.assert_restores_with(&acks, context).await;
    assert_eq!(
        stage
            .sum_metric("mainstay_gaps_total{cause=\"lost\"}")
            .await,
        0
    );
}

each_version! {
    async fn killed_leader_is_followed_by_another(version) {
        let (mut stage, writer, before) = start_under_load(version, 11).await;
        stage.cluster.members[before].kill();
        stage.wait_for_handover(before).await;
        stage.cluster.members[before].restart().await;
        assert_handover(&stage, writer, "a leader was killed").await;
    }
}

newest_version! {
    async fn restarted_sidecar_continues_without_a_gap(version) {
        let (mut stage, writer, leader) = start_under_load(version, 12).await;
        for _ in 0..3 {
            stage.sidecars[leader].kill();
            writer.wait_for_writes(30).await;
            stage.sidecars[leader].restart().await;
            stage.wait_until_stored().await;
        }
        assert_handover(&stage, writer, "a sidecar was killed").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn paused_leader_loses_leadership_and_resumes_as_follower() {
    let (stage, writer, before) = start_under_load(EtcdRelease::V3_4, 13).await;
    stage.cluster.members[before].pause();
    stage.wait_for_handover(before).await;
    writer.wait_for_writes(50).await;
    stage.cluster.members[before].resume();
    // The paused leader believes it is leader until it contacts the others; what it captured must not be stored twice.
    stage.wait_for_leader_checks(before, 2).await;
    assert_handover(&stage, writer, "a leader was paused").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn paused_sidecar_that_resumes_as_follower_does_no_harm() {
    // Only this test moves leadership: an election on a busy machine must not return it to the member whose sidecar is paused.
    let options = EtcdOptions::new().long_election_timeout();
    let stage = SidecarHarness::start_local_with(EtcdRelease::NEWEST, 3, &options, &[]).await;
    let (writer, before) = start_load(&stage, 14).await;
    stage.sidecars[before].pause();
    stage.move_leader_from(before).await;
    stage.wait_for_handover(before).await;
    writer.wait_for_writes(50).await;
    // Its successor has stored deltas by now.
    stage.wait_until_stored().await;
    stage.sidecars[before].resume();
    assert_handover(&stage, writer, "a sidecar was paused").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn backups_follow_transferred_leadership() {
    let (stage, writer, before) = start_under_load(EtcdRelease::V3_5, 15).await;
    stage.move_leader_from(before).await;
    stage.wait_for_handover(before).await;
    assert_handover(&stage, writer, "leadership was moved").await;
}

/// The delta period is one hour, so every delta is stored because of a leadership change.
#[tokio::test(flavor = "multi_thread")]
async fn captured_events_are_stored_when_leadership_is_transferred() {
    let flags = [("delta-snapshot-period", "1h")];
    let version = EtcdRelease::NEWEST;
    let options = EtcdOptions::new().long_election_timeout();
    let stage = SidecarHarness::start_local_with(version, 3, &options, &flags).await;
    let before = stage.wait_until_settled().await;
    stage.wait_until_stored().await;
    let writer = WriterPool::start(&stage.client_urls(), 2, WRITE_INTERVAL, 19);
    writer.wait_for_writes(100).await;
    let acks = writer.stop().await;
    stage.wait_until_captured(acks.newest_revision()).await;

    stage.move_leader_from(before).await;
    stage.wait_for_handover(before).await;
    let deadline = Instant::now() + TIMEOUT;
    while stage.backup().verify() < acks.newest_revision() {
        assert!(
            Instant::now() < deadline,
            "{:?}",
            stage.backup().snapshot_names()
        );
        sleep(Duration::from_millis(200)).await;
    }
    // The log line follows the object in the listing with a delay.
    let names = stage.backup().snapshot_names();
    let deadline = Instant::now() + TIMEOUT;
    while let by_the_old_one = stage.objects_stored_by(before)
        && let Some(name) = names.iter().find(|name| !by_the_old_one.contains(*name))
    {
        assert!(
            Instant::now() < deadline,
            "no sidecar logged that it stored {name}"
        );
        sleep(Duration::from_millis(100)).await;
    }
    let leader = stage.wait_until_settled().await;
    let writer = WriterPool::start(&stage.client_urls(), 2, WRITE_INTERVAL, 20);
    writer.wait_for_writes(50).await;
    let acks = writer.stop().await;
    // Also while the new leader still lists what the old one stored.
    let (status, answer) = stage.sidecars[leader].request("/snapshot/delta").await;
    assert_eq!(status, 200, "{answer}");
    stage
        .assert_restores_with(&acks, "after the final delta of the old leader")
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn leader_changes_every_second_leave_a_complete_chain() {
    let (stage, writer, mut leader) = start_under_load(EtcdRelease::NEWEST, 16).await;
    for _ in 0..LEADER_CHANGES {
        stage.move_leader_from(leader).await;
        sleep(Duration::from_secs(1)).await;
        leader = stage.cluster.leader().await;
    }
    assert_handover(&stage, writer, "leadership changed every second").await;
}

/// Two sidecars of one member are both leaders, for longer than any change of leadership lasts.
#[tokio::test(flavor = "multi_thread")]
async fn two_simultaneous_leaders_leave_a_complete_chain() {
    let mut stage = SidecarHarness::start_local(EtcdRelease::NEWEST, 1).await;
    let other =
        SidecarHarness::sidecar_options(stage.cluster.members[0].client_url(), &stage.store);
    stage.sidecars.push(SidecarProcess::start(other).await);
    let writer = WriterPool::start(&stage.client_urls(), 2, Duration::from_millis(2), 18);
    for round in 0..10 {
        writer.wait_for_writes(150).await;
        // Each lists a store to which the other one is writing.
        let sidecar = &mut stage.sidecars[round % 2];
        if round % 3 == 0 {
            sidecar.stop().await;
        } else {
            sidecar.kill();
        }
        sidecar.restart().await;
        if round % 4 == 0 {
            stage.sidecars[1 - round % 2]
                .request("/snapshot/full")
                .await;
        }
    }
    for sidecar in &stage.sidecars {
        let deadline = Instant::now() + TIMEOUT;
        while !sidecar.is_leader().await {
            assert!(Instant::now() < deadline, "only one sidecar is leader");
            sleep(Duration::from_millis(50)).await;
        }
    }
    let acks = writer.stop().await;
    stage.assert_restores_with(&acks, "two leaders").await;
}

/// A sidecar captured what the other one stored, and more. etcd has compacted it since, so it cannot be captured again.
#[tokio::test(flavor = "multi_thread")]
async fn captured_events_are_not_dropped_after_an_etcd_compaction() {
    let flags = [("delta-snapshot-period", "1h")];
    let version = EtcdRelease::NEWEST;
    let mut stage = SidecarHarness::start_local_with(version, 1, &EtcdOptions::new(), &flags).await;
    stage.wait_until_settled().await;
    stage.wait_until_stored().await;
    let other =
        SidecarHarness::sidecar_options(stage.cluster.members[0].client_url(), &stage.store)
            .flags(&flags);
    stage.sidecars.push(SidecarProcess::start(other).await);
    let mut client = stage.cluster.members[0].client().await;
    for (key, by) in [("both", 1), ("one", 0)] {
        client.put(key, "v", None).await.unwrap();
        let newest = stage.cluster.members[0].revision().await;
        for sidecar in &stage.sidecars {
            let deadline = Instant::now() + TIMEOUT;
            while sidecar.status().await["captured"].as_i64() < Some(newest.0) {
                assert!(Instant::now() < deadline, "{newest} is not captured");
                sleep(Duration::from_millis(50)).await;
            }
        }
        if key == "one" {
            stage.cluster.members[0].compact(newest).await;
        }
        let (status, answer) = stage.sidecars[by].request("/snapshot/delta").await;
        assert_eq!(status, 200, "{answer}");
    }
    let newest = stage.cluster.members[0].revision().await;
    assert_eq!(stage.backup().verify(), newest);
    let names = stage.backup().snapshot_names();
    assert_eq!(
        stage.backup().restorable_ranges().len(),
        1,
        "a gap in {names:?}"
    );
    assert_eq!(
        stage
            .sum_metric("mainstay_gaps_total{cause=\"compacted\"}")
            .await,
        0
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn backups_stop_without_quorum_and_continue_with_it() {
    let (mut stage, writer, leader) = start_under_load(EtcdRelease::V3_5, 17).await;
    let others = [stage.cluster.next_member(leader), (leader + 2) % 3];
    for other in others {
        stage.cluster.members[other].kill();
    }
    stage.wait_for_session_end(leader).await;
    let before = stage.backup().snapshot_names();
    stage.wait_for_leader_checks(leader, 3).await;
    for path in ["/snapshot/full", "/snapshot/delta"] {
        let (code, answer) = stage.sidecars[leader].request(path).await;
        assert_ne!(code, 200, "{path} without a quorum: {answer:#}");
    }
    assert_eq!(
        stage.backup().snapshot_names(),
        before,
        "nothing is written without a quorum"
    );
    for other in others {
        stage.cluster.members[other].relaunch();
    }
    for other in others {
        stage.cluster.members[other]
            .wait_until_healthy()
            .await
            .unwrap();
    }
    assert_handover(&stage, writer, "a quorum was lost").await;
}
