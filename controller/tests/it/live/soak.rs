//! `make soak`: the tests that `make test` runs with a few kills, here with a kill after every few writes.

use super::fault_injection::KillRate::High;
use super::{
    adoption, faults, job_failover, leader_election, loss_detection, pins, scale_out,
    volume_expansion,
};

#[tokio::test]
async fn adoption_replaces_each_pod_once_with_kills_between_any_two_writes() {
    Box::pin(adoption::adopt_three(High)).await;
}

#[tokio::test]
async fn single_member_is_restored_by_one_job_per_attempt() {
    job_failover::restore_single_member(High).await;
}

#[tokio::test]
async fn lost_quorum_is_recovered_by_one_job_per_volume() {
    job_failover::recover_quorum(High).await;
}

#[tokio::test]
async fn task_restores_to_a_point_in_time_by_one_job() {
    job_failover::restore_by_task(High).await;
}

#[tokio::test]
async fn task_recovers_a_quorum_by_one_job_per_volume() {
    job_failover::recover_quorum_by_task(High).await;
}

#[tokio::test]
async fn deltas_are_compacted_by_one_job_deleted_after_its_outcome_report() {
    job_failover::compact_deltas(High).await;
}

#[tokio::test]
async fn restore_drill_is_one_job_deleted_after_its_outcome_report() {
    Box::pin(job_failover::run_restore_drill(High)).await;
}

#[tokio::test]
async fn lifecycle_completes_with_kills_between_any_two_writes() {
    faults::run_full_lifecycle(High).await;
}

#[tokio::test]
async fn rollout_and_scale_in_complete_while_controllers_are_killed() {
    faults::roll_and_scale_in(High).await;
}

#[tokio::test]
async fn cluster_scales_out_one_member_at_a_time_despite_controller_kills() {
    scale_out::scale_out_to_three(High).await;
}

#[tokio::test]
async fn copy_stays_pinned_while_its_job_exists_despite_controller_kills() {
    pins::copy_with_pin(High).await;
}

#[tokio::test]
async fn verification_result_is_reported_despite_controller_kills() {
    pins::verify_with_pin(High).await;
}

#[tokio::test]
async fn pvc_with_a_lost_volume_is_deleted_and_the_new_one_is_restored() {
    loss_detection::replace_lost_pvc(High).await;
}

#[tokio::test]
async fn expansion_keeps_pods_running_with_kills_between_any_two_writes() {
    Box::pin(volume_expansion::expand_volumes(High)).await;
}

#[tokio::test]
async fn two_controllers_never_write_at_the_same_time() {
    leader_election::contend_for_lease(4).await;
}
