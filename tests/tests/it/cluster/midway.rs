//! The middle of something, and controllers that are killed then.
//!
//! The next ones act once the Lease of the killed has run out, so every other test is delayed, and bears it.

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams};
use kube::{Api, ResourceExt};
use steward_tests::cluster::managed::Managed;
use steward_tests::cluster::member::Member;
use steward_tests::cluster::{NAMESPACE, eventually};

use super::stage::Stage;

/// How the names of Jobs that restore begin.
pub(crate) const RESTORES: &str = "main-restore-";

/// The identities of the controllers' pods.
pub(crate) async fn controllers(stage: &Stage) -> Vec<String> {
    let controllers = Api::<Pod>::namespaced(stage.cluster.client(), NAMESPACE);
    let list = controllers.list(&ListParams::default()).await.unwrap();
    list.iter().filter_map(ResourceExt::uid).collect()
}

/// Kills every controller there is; others take their place.
pub(crate) async fn kill_controllers(stage: &Stage) {
    let controllers = Api::<Pod>::namespaced(stage.cluster.client(), NAMESPACE);
    let at_once = DeleteParams::default().grace_period(0);
    let all = ListParams::default();
    controllers.delete_collection(&at_once, &all).await.unwrap();
}

/// Kills them once there is a Job whose name begins so.
pub(crate) async fn kill_controllers_at_job(stage: &Stage, name: &str) {
    let jobs = stage.api::<Job>();
    let is_there = async || {
        let jobs = jobs.list(&ListParams::default()).await.ok()?.items;
        let mut names = jobs.iter().map(ResourceExt::name_any);
        names.any(|one| one.starts_with(name)).then_some(())
    };
    eventually(&format!("a Job {name}"), is_there)
        .await
        .unwrap();
    kill_controllers(stage).await;
}

/// Waits until there are so many pods.
pub(crate) async fn pods(etcd: &Managed, count: usize) {
    let more = async || (etcd.pods().await.ok()?.len() >= count).then_some(());
    eventually(&format!("{count} pods"), more).await.unwrap();
}

/// Waits until so many of these members have other pods.
pub(crate) async fn replaced(etcd: &Managed, members: &[Member], count: usize) {
    let is_done = async || {
        let pods = etcd.pods().await.ok()?;
        let uids: Vec<_> = pods.iter().filter_map(ResourceExt::uid).collect();
        let gone = members.iter().filter(|member| !uids.contains(&member.uid));
        (gone.count() >= count).then_some(())
    };
    let what = format!("{count} replaced members");
    eventually(&what, is_done).await.unwrap();
}
