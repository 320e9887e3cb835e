//! Variants of other tests.

use super::super::encryption::check_all_combinations;
use super::super::harness::with_namespace;
use super::super::lifecycle::{KillSchedule, hibernate_and_wake};
use super::super::recoveries::undo_delete;

#[tokio::test(flavor = "multi_thread")]
async fn three_members_work_with_all_combinations_of_encryption() {
    with_namespace("tls3", async |stage| {
        check_all_combinations(stage, 3, 2).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cluster_hibernates_and_wakes_up_despite_controller_kills() {
    with_namespace("hibernate", async |stage| {
        hibernate_and_wake(stage, KillSchedule::EveryStep).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn accidental_delete_on_three_members_is_undone_twice() {
    with_namespace("undo", async |stage| undo_delete(stage, 3).await).await;
}
