//! A leader that is cut off from its peers, while its sidecar reaches the store as before.

use std::time::{Duration, Instant};

use steward_testkit::each_version;
use tokio::time::sleep;

use super::{Stage, Writer};

const PACE: Duration = Duration::from_millis(10);
const GENEROUS: Duration = Duration::from_secs(20);
/// Several periods of deltas.
const LONG: Duration = Duration::from_secs(5);

/// Objects a sidecar has stored so far.
async fn stored_by(stage: &Stage, sidecar: usize) -> (u64, u64) {
    let sidecar = &stage.sidecars[sidecar];
    let series = |kind: &str| format!("steward_snapshot_stored_bytes_total{{kind=\"{kind}\"}}");
    (
        sidecar.metric(&series("Full")).await,
        sidecar.metric(&series("Incr")).await,
    )
}

each_version! {
    async fn a_leader_that_is_cut_off_stores_nothing_more(version) {
        let stage = Stage::local(version, 3).await;
        let writer = Writer::start(&stage.client_urls(), 2, PACE, 21);
        let before = stage.settled().await;
        writer.goes_on(50).await;
        stage.stored().await;

        stage.cluster.isolate(before);
        // From here on it can prove nothing, so its fence holds even before it notices by itself.
        let at_the_cut = stored_by(&stage, before).await;
        let cut = Instant::now();
        while stage.sidecars[before].leads().await {
            assert!(cut.elapsed() < GENEROUS, "it leads although it is cut off");
            sleep(Duration::from_millis(50)).await;
        }
        let after = stage.cluster.leader_after(before).await;
        stage.taken_over_by(after).await;
        sleep(LONG).await;
        assert_eq!(stored_by(&stage, before).await, at_the_cut, "it stored something");
        let status = stage.sidecars[before].status().await;
        assert_eq!(status["standing"], "unknown", "{status:#}");
        assert!(stored_by(&stage, after).await.1 > 0, "its successor stores deltas");
        let (code, answer) = stage.sidecars[before].ask("/snapshot/full").await;
        assert_ne!(code, 200, "a snapshot of a member that is cut off: {answer:#}");

        stage.cluster.heal();
        writer.goes_on(50).await;
        let acks = writer.stop().await;
        stage.comes_back_with(&acks, "a leader was cut off").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cut_that_heals_before_anyone_is_elected_changes_nothing() {
    let stage = Stage::local(steward_testkit::EtcdVersion::V3_5New, 3).await;
    let writer = Writer::start(&stage.client_urls(), 2, PACE, 22);
    let leader = stage.settled().await;
    writer.goes_on(50).await;
    for _ in 0..5 {
        stage.cluster.isolate(leader);
        sleep(Duration::from_millis(300)).await;
        stage.cluster.heal();
        writer.goes_on(20).await;
    }
    let acks = writer.stop().await;
    stage.comes_back_with(&acks, "short cuts").await;
}
