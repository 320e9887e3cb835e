//! Variants of other tests.

use super::super::encryption::check_all_combinations;
use super::super::harness::with_namespace;
use super::super::lifecycle::{KillSchedule, hibernate_and_wake};
use super::super::recoveries::undo_delete;

#[tokio::test(flavor = "multi_thread")]
async fn three_members_serve_and_are_backed_up_whichever_of_their_connections_are_encrypted() {
    with_namespace("tls3", async |stage| {
        check_all_combinations(stage, 3, 2).await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_sleeps_and_wakes_though_controllers_are_killed_at_every_step() {
    with_namespace("hibernate", async |stage| {
        hibernate_and_wake(stage, KillSchedule::EveryStep).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_delete_of_three_members_is_undone_twice() {
    with_namespace("undo", async |stage| undo_delete(stage, 3).await).await;
}
