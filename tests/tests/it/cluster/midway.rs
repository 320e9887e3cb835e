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
use mainstay_tests::cluster::managed::Managed;
use mainstay_tests::cluster::member::Member;
use mainstay_tests::cluster::{ELECTION_LEASE, NAMESPACE, eventually};
use tokio::sync::watch;
use tokio::task::JoinHandle;

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

/// Which process leads the controllers; `None` when that cannot be read.
async fn leader(stage: &Stage) -> Option<String> {
    let leases = Api::<Lease>::namespaced(stage.cluster.client(), NAMESPACE);
    leases.get(ELECTION_LEASE).await.ok()?.spec?.holder_identity
}

/// Kills every controller and waits until another one leads.
pub(crate) async fn replace_controllers(stage: &Stage) {
    let old = eventually("a controller that leads", async || leader(stage).await);
    let old = old.await.unwrap();
    kill_controllers(stage).await;
    let is_another = async || leader(stage).await.filter(|new| *new != old);
    eventually("another controller that leads", is_another)
        .await
        .unwrap();
}

/// Names of all Jobs of a namespace since the watch began: one that is gone again is not missed.
pub(crate) struct Jobs {
    names: watch::Receiver<BTreeSet<String>>,
    watching: JoinHandle<()>,
}

impl Jobs {
    /// Starts. Begin it before what makes the Job.
    pub(crate) async fn watch(stage: &Stage) -> Self {
        let events = watcher(stage.api::<Job>(), Config::default()).default_backoff();
        let (sender, names) = watch::channel(BTreeSet::new());
        let (ready, is_ready) = watch::channel(false);
        let watching = tokio::spawn(async move {
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
        Self { names, watching }
    }

    /// Kills the controllers once there was a Job whose name begins so.
    pub(crate) async fn kill_controllers_at(&self, stage: &Stage, name: &str) {
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

impl Drop for Jobs {
    fn drop(&mut self) {
        self.watching.abort();
    }
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
