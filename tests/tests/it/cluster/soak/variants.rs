//! Variants of what one test claims already.

use super::super::encryption::every_combination;
use super::super::lifecycle::{Kills, sleep_and_wake};
use super::super::recoveries::undo_a_delete;
use super::super::stage::on_stage;

#[tokio::test(flavor = "multi_thread")]
async fn three_members_serve_and_are_backed_up_whichever_of_their_connections_are_encrypted() {
    on_stage("tls3", async |stage| every_combination(stage, 3, 2).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_sleeps_and_wakes_though_controllers_are_killed_at_every_step() {
    on_stage("sleep", async |stage| {
        sleep_and_wake(stage, Kills::AtEveryStep).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_delete_of_three_members_is_undone_twice() {
    on_stage("undo", async |stage| undo_a_delete(stage, 3).await).await;
}
