//! `make soak`: the tests that `make test` runs with a few kills, here with a kill after every few writes.

use super::fault_injection::KillRate::High;
use super::{
    adoption, faults, job_failover, leader_election, loss_detection, pins, scale_out,
    volume_expansion,
};

#[tokio::test]
async fn adopters_that_are_killed_between_any_two_writes_replace_each_pod_once() {
    Box::pin(adoption::adopt_three(High)).await;
}

#[tokio::test]
async fn a_single_member_is_restored_by_one_job_for_each_attempt() {
    job_failover::restore_single_member(High).await;
}

#[tokio::test]
async fn a_lost_quorum_is_recovered_by_one_job_for_each_volume() {
    job_failover::recover_quorum(High).await;
}

#[tokio::test]
async fn a_task_goes_back_to_a_moment_by_one_job() {
    job_failover::restore_by_task(High).await;
}

#[tokio::test]
async fn a_task_recovers_a_quorum_by_one_job_for_each_volume() {
    job_failover::recover_quorum_by_task(High).await;
}

#[tokio::test]
async fn deltas_are_folded_by_one_job_whose_outcome_is_told_before_it_goes() {
    job_failover::compact_deltas(High).await;
}

#[tokio::test]
async fn a_restore_is_rehearsed_by_one_job_whose_outcome_is_told_before_it_goes() {
    Box::pin(job_failover::run_restore_drill(High)).await;
}

#[tokio::test]
async fn controllers_that_are_killed_between_any_two_writes_get_there_together() {
    faults::run_full_lifecycle(High).await;
}

#[tokio::test]
async fn so_do_they_when_members_are_replaced_and_when_they_leave() {
    faults::roll_and_scale_in(High).await;
}

#[tokio::test]
async fn a_cluster_grows_by_one_member_after_the_other_whoever_is_killed() {
    scale_out::scale_out_to_three(High).await;
}

#[tokio::test]
async fn a_copy_is_pinned_for_as_long_as_its_job_is_there_whoever_is_killed() {
    pins::copy_with_pin(High).await;
}

#[tokio::test]
async fn what_a_verification_found_is_told_whoever_is_killed_before() {
    pins::verify_with_pin(High).await;
}

#[tokio::test]
async fn a_claim_whose_volume_is_gone_is_given_up_and_the_new_one_is_restored() {
    loss_detection::replace_lost_pvc(High).await;
}

#[tokio::test]
async fn nor_do_pods_notice_when_controllers_are_killed_between_any_two_writes_of_it() {
    Box::pin(volume_expansion::expand_volumes(High)).await;
}

#[tokio::test]
async fn never_do_two_act_whoever_believes_to_have_the_lease() {
    leader_election::contend_for_lease(4).await;
}
