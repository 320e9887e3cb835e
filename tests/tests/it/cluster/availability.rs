//! Checks that clients were served while members were replaced, by the order of events, not by time.

use std::collections::BTreeMap;
use std::pin::pin;

use futures::TryStreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::runtime::watcher::{Config, Event};
use kube::runtime::{WatchStreamExt as _, watcher};
use mainstay_tests::cluster::managed_etcd::ManagedEtcd;
use mainstay_tests::cluster::{AcknowledgedWrites, eventually};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::harness::TestNamespace;

/// The absence of a member, until its replacement was ready.
#[derive(Clone, Debug)]
pub(crate) struct MemberAbsence {
    member: String,
    gone_at: Instant,
    back_at: Instant,
}

/// Watches the pods of an Etcd and records every absence.
pub(crate) struct AbsenceWatch {
    observations: watch::Receiver<PodObservations>,
    task: JoinHandle<()>,
}

#[derive(Debug, Default)]
struct PodObservations {
    /// Whether every initial pod has been observed.
    is_complete: bool,
    members: BTreeMap<String, MemberPresence>,
    absences: Vec<MemberAbsence>,
}

/// A member, with the uid of its last ready pod.
#[derive(Debug)]
struct MemberPresence {
    uid: String,
    gone_at: Option<Instant>,
}

impl AbsenceWatch {
    /// Starts the watch, and returns when the existing pods have been observed.
    pub(crate) async fn start(stage: &TestNamespace, etcd: &ManagedEtcd) -> Self {
        let config = Config::default().labels(&etcd.selector());
        let events = watcher(stage.api::<Pod>(), config).default_backoff();
        let (sender, observations) = watch::channel(PodObservations::default());
        let task = tokio::spawn(async move {
            let mut events = pin!(events);
            loop {
                // The watch continues after an error of the API server.
                if let Ok(Some(event)) = events.try_next().await {
                    sender.send_modify(|observations| {
                        observations.handle_event(event, Instant::now());
                    });
                }
            }
        });
        let this = Self { observations, task };
        let is_complete = async || this.observations.borrow().is_complete.then_some(());
        let complete = eventually("the initial list of pods", is_complete).await;
        complete.unwrap();
        this
    }

    /// Waits until `count` members have been replaced, and asserts that writes were acknowledged during each absence, which
    /// requires a quorum: without one, the next write is acknowledged only after a member is back.
    pub(crate) async fn assert_served(self, count: usize, written: &AcknowledgedWrites) {
        let replaced = async || {
            let absences = self.observations.borrow().absences.clone();
            (absences.len() >= count).then_some(absences)
        };
        let what = format!("{count} replaced members");
        let absences = eventually(&what, replaced).await.unwrap();
        self.task.abort();
        for MemberAbsence {
            member,
            gone_at,
            back_at,
        } in absences
        {
            let count = written.count_between(gone_at, back_at);
            assert_ne!(count, 0, "no acknowledged write while {member} was absent");
        }
    }
}

impl PodObservations {
    fn handle_event(&mut self, event: Event<Pod>, now: Instant) {
        match event {
            Event::Init => {}
            Event::InitDone => self.is_complete = true,
            Event::Delete(pod) => {
                let member = self.members.get_mut(&pod.name_any());
                if let Some(member) =
                    member.filter(|member| Some(&member.uid) == pod.uid().as_ref())
                {
                    member.gone_at.get_or_insert(now);
                }
            }
            Event::Apply(pod) | Event::InitApply(pod) => self.observe_pod(&pod, now),
        }
    }

    fn observe_pod(&mut self, pod: &Pod, now: Instant) {
        let (name, Some(uid)) = (pod.name_any(), pod.uid()) else {
            return;
        };
        let status = pod.status.as_ref();
        let mut conditions = status
            .iter()
            .flat_map(|status| status.conditions.iter().flatten());
        let is_ready =
            conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True");
        match self.members.get_mut(&name) {
            Some(member) if member.uid == uid => {}
            Some(member) => {
                let gone_at = *member.gone_at.get_or_insert(now); // observed late, because the watch was interrupted
                if is_ready {
                    *member = MemberPresence { uid, gone_at: None };
                    self.absences.push(MemberAbsence {
                        member: name,
                        gone_at,
                        back_at: now,
                    });
                }
            }
            None if is_ready => {
                self.members
                    .insert(name, MemberPresence { uid, gone_at: None });
            }
            None => {}
        }
    }
}
