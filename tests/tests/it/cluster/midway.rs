//! The middle of something, and controllers that are killed then.
//!
//! The next ones act once the Lease of the killed has run out, so every other test is delayed, and bears it.

use std::collections::BTreeSet;
use std::pin::pin;

use futures::TryStreamExt as _;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams};
use kube::runtime::watcher::{Config, Event};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, ResourceExt};
use mainstay_tests::cluster::managed::ManagedEtcd;
use mainstay_tests::cluster::member::MemberPod;
use mainstay_tests::cluster::{ELECTION_LEASE, CONTROLLER_NAMESPACE, eventually};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::stage::TestNamespace;

/// How the names of Jobs that restore begin.
pub(crate) const RESTORE_JOB_PREFIX: &str = "main-restore-";

/// The identities of the controllers' pods.
pub(crate) async fn controller_uids(stage: &TestNamespace) -> Vec<String> {
    let controllers = Api::<Pod>::namespaced(stage.cluster.client(), CONTROLLER_NAMESPACE);
    let list = controllers.list(&ListParams::default()).await.unwrap();
    list.iter().filter_map(ResourceExt::uid).collect()
}

/// Kills every controller there is; others take their place.
pub(crate) async fn kill_controllers(stage: &TestNamespace) {
    let controllers = Api::<Pod>::namespaced(stage.cluster.client(), CONTROLLER_NAMESPACE);
    let concurrently = DeleteParams::default().grace_period(0);
    let all = ListParams::default();
    controllers.delete_collection(&concurrently, &all).await.unwrap();
}

/// Which process leads the controllers; `None` when that cannot be read.
async fn leader_identity(stage: &TestNamespace) -> Option<String> {
    let leases = Api::<Lease>::namespaced(stage.cluster.client(), CONTROLLER_NAMESPACE);
    leases.get(ELECTION_LEASE).await.ok()?.spec?.holder_identity
}

/// Kills every controller and waits until another one leads.
pub(crate) async fn replace_controllers(stage: &TestNamespace) {
    let old = eventually("a controller that leads", async || leader_identity(stage).await);
    let old = old.await.unwrap();
    kill_controllers(stage).await;
    let is_another = async || leader_identity(stage).await.filter(|new| *new != old);
    eventually("another controller that leads", is_another)
        .await
        .unwrap();
}

/// Names of all Jobs of a namespace since the watch began: one that is gone again is not missed.
pub(crate) struct JobWatch {
    names: watch::Receiver<BTreeSet<String>>,
    task: JoinHandle<()>,
}

impl JobWatch {
    /// Starts. Begin it before what makes the Job.
    pub(crate) async fn start(stage: &TestNamespace) -> Self {
        let events = watcher(stage.api::<Job>(), Config::default()).default_backoff();
        let (sender, names) = watch::channel(BTreeSet::new());
        let (ready, is_ready) = watch::channel(false);
        let task = tokio::spawn(async move {
            let mut events = pin!(events);
            loop {
                match events.try_next().await {
                    Ok(Some(Event::Apply(job) | Event::InitApply(job))) => {
                        sender.send_modify(|names| {
                            names.insert(job.name_any());
                        });
                    }
                    Ok(Some(Event::InitDone)) => {
                        ready.send_replace(true);
                    }
                    _ => {} // after an error of the API server the watch goes on
                }
            }
        });
        let begun = async || is_ready.borrow().then_some(());
        eventually("the list of Jobs to watch", begun)
            .await
            .unwrap();
        Self { names, task }
    }

    /// Kills the controllers once there was a Job whose name begins so.
    pub(crate) async fn kill_controllers_on_job(&self, stage: &TestNamespace, name: &str) {
        let was_there = async || {
            let names = self.names.borrow();
            let mut names = names.iter();
            names.any(|one| one.starts_with(name)).then_some(())
        };
        eventually(&format!("a Job {name}"), was_there)
            .await
            .unwrap();
        kill_controllers(stage).await;
    }
}

impl Drop for JobWatch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Waits until there are so many pods.
pub(crate) async fn wait_for_pods(etcd: &ManagedEtcd, count: usize) {
    let more = async || (etcd.list_pods().await.ok()?.len() >= count).then_some(());
    eventually(&format!("{count} pods"), more).await.unwrap();
}

/// Waits until so many of these members have other pods.
pub(crate) async fn wait_until_replaced(etcd: &ManagedEtcd, members: &[MemberPod], count: usize) {
    let is_done = async || {
        let pods = etcd.list_pods().await.ok()?;
        let uids: Vec<_> = pods.iter().filter_map(ResourceExt::uid).collect();
        let gone = members.iter().filter(|member| !uids.contains(&member.uid));
        (gone.count() >= count).then_some(())
    };
    let what = format!("{count} replaced members");
    eventually(&what, is_done).await.unwrap();
}
