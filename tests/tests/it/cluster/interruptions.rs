//! Waits for the middle of an operation and kills controllers there.
//!
//! The next controller acts when the Lease of the killed one has expired, so all other tests are delayed, which they
//! tolerate.

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
use mainstay_tests::cluster::managed_etcd::ManagedEtcd;
use mainstay_tests::cluster::member::MemberPod;
use mainstay_tests::cluster::{CONTROLLER_NAMESPACE, ELECTION_LEASE, eventually};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::harness::TestNamespace;

/// Prefix of the names of restore Jobs.
pub(crate) const RESTORE_JOB_PREFIX: &str = "main-restore-";

/// uids of the controllers' pods.
pub(crate) async fn controller_uids(stage: &TestNamespace) -> Vec<String> {
    let controllers = Api::<Pod>::namespaced(stage.cluster.client(), CONTROLLER_NAMESPACE);
    let list = controllers.list(&ListParams::default()).await.unwrap();
    list.iter().filter_map(ResourceExt::uid).collect()
}

/// Kills every controller; Kubernetes starts new ones.
pub(crate) async fn kill_controllers(stage: &TestNamespace) {
    let controllers = Api::<Pod>::namespaced(stage.cluster.client(), CONTROLLER_NAMESPACE);
    let concurrently = DeleteParams::default().grace_period(0);
    let all = ListParams::default();
    controllers
        .delete_collection(&concurrently, &all)
        .await
        .unwrap();
}

/// The holder of the controllers' Lease; `None` if it cannot be read.
async fn leader_identity(stage: &TestNamespace) -> Option<String> {
    let leases = Api::<Lease>::namespaced(stage.cluster.client(), CONTROLLER_NAMESPACE);
    leases.get(ELECTION_LEASE).await.ok()?.spec?.holder_identity
}

/// Kills every controller and waits for another leader.
pub(crate) async fn replace_controllers(stage: &TestNamespace) {
    let old = eventually("a leader of the controllers", async || {
        leader_identity(stage).await
    });
    let old = old.await.unwrap();
    kill_controllers(stage).await;
    let is_another = async || leader_identity(stage).await.filter(|new| *new != old);
    eventually("another leader of the controllers", is_another)
        .await
        .unwrap();
}

/// Names of all Jobs of a namespace since the start of the watch, including Jobs that are already deleted.
pub(crate) struct JobWatch {
    names: watch::Receiver<BTreeSet<String>>,
    task: JoinHandle<()>,
}

impl JobWatch {
    /// Starts the watch. Call it before the operation that creates the Job.
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
                    _ => {} // the watch continues after an error of the API server
                }
            }
        });
        let begun = async || is_ready.borrow().then_some(());
        eventually("the initial list of Jobs", begun).await.unwrap();
        Self { names, task }
    }

    /// Kills the controllers once a Job with this name prefix was created.
    pub(crate) async fn kill_controllers_on_job(&self, stage: &TestNamespace, name: &str) {
        let was_there = async || {
            let names = self.names.borrow();
            let mut names = names.iter();
            names.any(|one| one.starts_with(name)).then_some(())
        };
        eventually(&format!("Job {name}* to be created"), was_there)
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

/// Waits for at least `count` pods.
pub(crate) async fn wait_for_pods(etcd: &ManagedEtcd, count: usize) {
    let more = async || (etcd.list_pods().await.ok()?.len() >= count).then_some(());
    eventually(&format!("at least {count} pods"), more)
        .await
        .unwrap();
}

/// Waits until `count` of these members have new pods.
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
