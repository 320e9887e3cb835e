//! Whoever leads etcd backs it up, and nobody else, whatever happens to the leader.

use std::time::{Duration, Instant};

use mainstay_testkit::{EtcdOptions, EtcdVersion, SidecarProcess, each_version, newest_version};
use tokio::time::sleep;

use super::{Stage, Writer};

/// For what has no promise.
const GENEROUS: Duration = Duration::from_mins(2);
const PACE: Duration = Duration::from_millis(10);
/// Of leadership, a second after each other.
const CHANGES: usize = 10;

/// Three members under load, with backups going on.
async fn under_load(version: EtcdVersion, seed: u64) -> (Stage, Writer, usize) {
    let stage = Stage::local(version, 3).await;
    let (writer, leader) = load(&stage, seed).await;
    (stage, writer, leader)
}

/// Writes, once backups go on; who leads.
async fn load(stage: &Stage, seed: u64) -> (Writer, usize) {
    let writer = Writer::start(&stage.client_urls(), 2, PACE, seed);
    stage.settled().await;
    writer.goes_on(50).await;
    stage.stored().await;
    (writer, stage.settled().await)
}

/// The rest of every story: the new leader's sidecar takes over, and nothing is missing.
async fn goes_well(stage: &Stage, writer: Writer, context: &str) {
    stage.taken_over().await;
    writer.goes_on(50).await;
    let acks = writer.stop().await;
    stage.comes_back_with(&acks, context).await;
    assert_eq!(stage.metric("mainstay_gaps_total{cause=\"lost\"}").await, 0);
}

each_version! {
    async fn a_killed_leader_is_followed_by_another(version) {
        let (mut stage, writer, before) = under_load(version, 11).await;
        stage.cluster.members[before].kill();
        stage.handed_over(before).await;
        stage.cluster.members[before].restart().await;
        goes_well(&stage, writer, "a leader was killed").await;
    }
}

newest_version! {
    async fn a_sidecar_that_dies_and_comes_back_goes_on_without_a_hole(version) {
        let (mut stage, writer, leader) = under_load(version, 12).await;
        for _ in 0..3 {
            stage.sidecars[leader].kill();
            writer.goes_on(30).await;
            stage.sidecars[leader].restart().await;
            stage.stored().await;
        }
        goes_well(&stage, writer, "a sidecar was killed").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_leader_hands_over_and_follows_when_it_goes_on() {
    let (stage, writer, before) = under_load(EtcdVersion::V3_4, 13).await;
    stage.cluster.members[before].pause();
    stage.handed_over(before).await;
    writer.goes_on(50).await;
    stage.cluster.members[before].resume();
    // It leads for itself until it hears otherwise; nothing it captured meanwhile may be stored twice.
    stage.has_looked(before, 2).await;
    goes_well(&stage, writer, "a leader was paused").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_sidecar_that_wakes_up_as_a_follower_harms_nothing() {
    // Nobody but this test moves leadership: a busy machine must not move it back to the member whose sidecar is paused.
    let options = EtcdOptions::new().patient();
    let stage = Stage::local_with(EtcdVersion::V3_5New, 3, &options, &[]).await;
    let (writer, before) = load(&stage, 14).await;
    stage.sidecars[before].pause();
    stage.move_leader_from(before).await;
    stage.handed_over(before).await;
    writer.goes_on(50).await;
    // Its successor has stored deltas by now.
    stage.stored().await;
    stage.sidecars[before].resume();
    goes_well(&stage, writer, "a sidecar was paused").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn backups_follow_a_leader_that_is_moved() {
    let (stage, writer, before) = under_load(EtcdVersion::V3_5, 15).await;
    stage.move_leader_from(before).await;
    stage.handed_over(before).await;
    goes_well(&stage, writer, "leadership was moved").await;
}

/// Deltas are an hour apart, so whatever is stored is stored because leadership goes.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_captured_is_stored_when_leadership_is_moved() {
    let flags = [("delta-snapshot-period", "1h")];
    let version = EtcdVersion::V3_5New;
    let options = EtcdOptions::new().patient();
    let stage = Stage::local_with(version, 3, &options, &flags).await;
    let before = stage.settled().await;
    stage.stored().await;
    let writer = Writer::start(&stage.client_urls(), 2, PACE, 19);
    writer.goes_on(100).await;
    let acks = writer.stop().await;
    stage.captured(acks.newest()).await;

    stage.move_leader_from(before).await;
    stage.handed_over(before).await;
    let deadline = Instant::now() + GENEROUS;
    while stage.backup().verify() < acks.newest() {
        assert!(Instant::now() < deadline, "{:?}", stage.backup().names());
        sleep(Duration::from_millis(200)).await;
    }
    // A log tells of what a listing shows a moment later.
    let names = stage.backup().names();
    let deadline = Instant::now() + GENEROUS;
    while let by_the_old_one = stage.stored_by(before)
        && let Some(name) = names.iter().find(|name| !by_the_old_one.contains(*name))
    {
        assert!(Instant::now() < deadline, "who stored {name}?");
        sleep(Duration::from_millis(100)).await;
    }
    let leader = stage.settled().await;
    let writer = Writer::start(&stage.client_urls(), 2, PACE, 20);
    writer.goes_on(50).await;
    let acks = writer.stop().await;
    // Also while the new leader still finds out what the old one stored.
    let (status, told) = stage.sidecars[leader].ask("/snapshot/delta").await;
    assert_eq!(status, 200, "{told}");
    stage.comes_back_with(&acks, "behind a farewell").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_changes_every_second_leaves_a_whole_chain() {
    let (stage, writer, mut leader) = under_load(EtcdVersion::V3_5New, 16).await;
    for _ in 0..CHANGES {
        stage.move_leader_from(leader).await;
        sleep(Duration::from_secs(1)).await;
        leader = stage.cluster.leader().await;
    }
    goes_well(&stage, writer, "leadership changed every second").await;
}

/// Two sidecars beside one member both lead, for longer than any change of leadership lasts.
#[tokio::test(flavor = "multi_thread")]
async fn two_that_lead_at_once_leave_a_whole_chain() {
    let mut stage = Stage::local(EtcdVersion::V3_5New, 1).await;
    let other = Stage::options(stage.cluster.members[0].client_url(), &stage.place);
    stage.sidecars.push(SidecarProcess::start(other).await);
    let writer = Writer::start(&stage.client_urls(), 2, Duration::from_millis(2), 18);
    for round in 0..10 {
        writer.goes_on(150).await;
        // Each comes back to a store that grows while it looks.
        let sidecar = &mut stage.sidecars[round % 2];
        if round % 3 == 0 {
            sidecar.stop().await;
        } else {
            sidecar.kill();
        }
        sidecar.restart().await;
        if round % 4 == 0 {
            stage.sidecars[1 - round % 2].ask("/snapshot/full").await;
        }
    }
    for sidecar in &stage.sidecars {
        let deadline = Instant::now() + GENEROUS;
        while !sidecar.leads().await {
            assert!(Instant::now() < deadline, "only one leads");
            sleep(Duration::from_millis(50)).await;
        }
    }
    let acks = writer.stop().await;
    stage.comes_back_with(&acks, "two leaders").await;
}

/// It captured what the other one stored, and more, and etcd has compacted that since: nobody could capture it again.
#[tokio::test(flavor = "multi_thread")]
async fn what_one_of_two_captured_is_not_dropped_when_etcd_has_compacted_it() {
    let flags = [("delta-snapshot-period", "1h")];
    let version = EtcdVersion::V3_5New;
    let mut stage = Stage::local_with(version, 1, &EtcdOptions::new(), &flags).await;
    stage.settled().await;
    stage.stored().await;
    let other = Stage::options(stage.cluster.members[0].client_url(), &stage.place).flags(&flags);
    stage.sidecars.push(SidecarProcess::start(other).await);
    let mut client = stage.cluster.members[0].client().await;
    for (key, by) in [("both", 1), ("one", 0)] {
        client.put(key, "v", None).await.unwrap();
        let newest = stage.cluster.members[0].revision().await;
        for sidecar in &stage.sidecars {
            let deadline = Instant::now() + GENEROUS;
            while sidecar.status().await["captured"].as_i64() < Some(newest.0) {
                assert!(Instant::now() < deadline, "{newest} is not captured");
                sleep(Duration::from_millis(50)).await;
            }
        }
        if key == "one" {
            stage.cluster.members[0].compact(newest).await;
        }
        let (status, told) = stage.sidecars[by].ask("/snapshot/delta").await;
        assert_eq!(status, 200, "{told}");
    }
    let newest = stage.cluster.members[0].revision().await;
    assert_eq!(stage.backup().verify(), newest);
    let names = stage.backup().names();
    assert_eq!(stage.backup().restorable().len(), 1, "a hole: {names:?}");
    assert_eq!(
        stage
            .metric("mainstay_gaps_total{cause=\"compacted\"}")
            .await,
        0
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_quorum_nobody_leads_and_with_it_backups_go_on() {
    let (mut stage, writer, leader) = under_load(EtcdVersion::V3_5, 17).await;
    let others = [stage.cluster.next_to(leader), (leader + 2) % 3];
    for other in others {
        stage.cluster.members[other].kill();
    }
    stage.session_over(leader).await;
    let before = stage.backup().names();
    stage.has_looked(leader, 3).await;
    for path in ["/snapshot/full", "/snapshot/delta"] {
        let (code, answer) = stage.sidecars[leader].ask(path).await;
        assert_ne!(code, 200, "{path} without a quorum: {answer:#}");
    }
    assert_eq!(
        stage.backup().names(),
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
    goes_well(&stage, writer, "a quorum was lost").await;
}
