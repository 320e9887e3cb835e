//! A leader that is cut off from its peers, while its sidecar reaches the store as before.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use mainstay_testkit::{EtcdOptions, EtcdVersion, newest_version};
use tokio::time::sleep;

use super::{Stage, Writer};

const PACE: Duration = Duration::from_millis(10);
const GENEROUS: Duration = Duration::from_mins(2);
/// A delta a second: several periods.
const SEVERAL: usize = 4;

/// Which sidecars tell of having stored each object that came since.
fn writers_since(stage: &Stage, before: &[String]) -> BTreeMap<String, Vec<usize>> {
    let names = stage.backup().names().into_iter();
    let new: Vec<String> = names.filter(|name| !before.contains(name)).collect();
    let stored: Vec<_> = (0..stage.sidecars.len())
        .map(|i| stage.stored_by(i))
        .collect();
    let writers = |name: &String| {
        (0..stored.len())
            .filter(|i| stored[*i].contains(name))
            .collect()
    };
    new.into_iter()
        .map(|name| (name.clone(), writers(&name)))
        .collect()
}

/// The same, once deltas came and somebody tells of each object: a log tells of what a listing shows a moment later.
async fn several_since(stage: &Stage, before: &[String]) -> BTreeMap<String, Vec<usize>> {
    let deadline = Instant::now() + GENEROUS;
    loop {
        let writers = writers_since(stage, before);
        if writers.len() >= SEVERAL && writers.values().all(|tell| !tell.is_empty()) {
            return writers;
        }
        assert!(
            Instant::now() < deadline,
            "whoever follows stores deltas, and tells: {writers:?}"
        );
        sleep(Duration::from_millis(300)).await;
    }
}

newest_version! {
    async fn a_leader_that_is_cut_off_stores_nothing_more(version) {
        let stage = Stage::local(version, 3).await;
        let writer = Writer::start(&stage.client_urls(), 2, PACE, 21);
        stage.settled().await;
        writer.goes_on(50).await;
        stage.stored().await;
        let before = stage.settled().await;

        stage.cluster.isolate(before);
        // What passed the fence before the cut may still be on its way, until the session has ended.
        stage.session_over(before).await;
        let at_the_cut = stage.backup().names();
        stage.handed_over(before).await;
        for (name, writers) in several_since(&stage, &at_the_cut).await {
            assert!(!writers.contains(&before), "the one that is cut off stored {name}");
        }
        let status = stage.sidecars[before].status().await;
        assert_eq!(status["standing"], "unknown", "{status:#}");
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
    // A cut of this length does not lead to an election, even on a busy machine.
    let options = EtcdOptions::new().patient();
    let stage = Stage::local_with(EtcdVersion::V3_5New, 3, &options, &[]).await;
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
