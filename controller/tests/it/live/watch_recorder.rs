//! Records Jobs and pods with watches, so that objects that exist only briefly are counted, too.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::{Arc, Mutex};

use futures::StreamExt;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::watcher::{Config, Event, watcher};
use kube::{Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::task::JoinHandle;

use super::recovery::job_args;
use super::test_env::TestEnv;

pub(super) struct WatchRecorder {
    recorded: Arc<Mutex<RecordedObjects>>,
    watching: [JoinHandle<()>; 2],
}

#[derive(Debug, Default)]
struct RecordedObjects {
    /// Every Job that ever existed, by UID.
    jobs: BTreeMap<String, Job>,
    /// The current pods, by UID.
    pods: BTreeMap<String, Pod>,
    /// Pairs of pods that could write the same volume at the same time.
    volume_conflicts: Vec<String>,
}

impl WatchRecorder {
    /// Records until dropped.
    pub(super) fn start(stage: &TestEnv) -> Self {
        let recorded = Arc::new(Mutex::new(RecordedObjects::default()));
        let watching = [
            spawn_watch(stage, &recorded, RecordedObjects::record_job),
            spawn_watch(stage, &recorded, RecordedObjects::record_pod),
        ];
        Self { recorded, watching }
    }

    /// Number of Jobs of this name so far. Asserts that no attempt had two Jobs and no volume two possible writers.
    pub(super) fn count_jobs(&self, name: &str) -> usize {
        let observed = self.recorded.lock().unwrap();
        assert!(
            observed.volume_conflicts.is_empty(),
            "{:?}",
            observed.volume_conflicts
        );
        let mut attempts = BTreeSet::new();
        for job in observed.jobs.values().filter(|job| job.name_any() == name) {
            let is_new = attempts.insert(attempt_id(job));
            assert!(is_new, "two Jobs for one attempt: {:#?}", observed.jobs);
        }
        attempts.len()
    }
}

impl Drop for WatchRecorder {
    fn drop(&mut self) {
        for task in &self.watching {
            task.abort();
        }
    }
}

fn spawn_watch<K>(
    stage: &TestEnv,
    observed: &Arc<Mutex<RecordedObjects>>,
    record: fn(&mut RecordedObjects, Event<K>),
) -> JoinHandle<()>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + Debug
        + DeserializeOwned
        + Send
        + 'static,
{
    let (api, observed) = (stage.api::<K>(), Arc::clone(observed));
    tokio::spawn(async move {
        let mut events = watcher(api, Config::default()).boxed();
        while let Some(event) = events.next().await {
            if let Ok(event) = event {
                record(&mut observed.lock().unwrap(), event);
            }
        }
    })
}

impl RecordedObjects {
    fn record_job(&mut self, event: Event<Job>) {
        if let Event::Apply(job) | Event::InitApply(job) = event {
            self.jobs.insert(job.uid().unwrap_or_default(), job);
        }
    }

    fn record_pod(&mut self, event: Event<Pod>) {
        match event {
            Event::Init => self.pods.clear(),
            Event::InitDone => {}
            Event::Delete(pod) => {
                self.pods.remove(&pod.uid().unwrap_or_default());
            }
            Event::Apply(pod) | Event::InitApply(pod) => {
                self.pods.insert(pod.uid().unwrap_or_default(), pod);
            }
        }
        let mut volumes = BTreeMap::<&str, &Pod>::new();
        for pod in self.pods.values() {
            let other = writable_pvc(pod).and_then(|volume| volumes.insert(volume, pod));
            if let Some(other) = other {
                let names = (other.name_any(), pod.name_any());
                self.volume_conflicts
                    .push(format!("{names:?} use the same volume"));
            }
        }
    }
}

/// The attempt a Job was started for. The epoch is left out: it may be raised within an attempt.
fn attempt_id(job: &Job) -> Option<String> {
    let flags = job_args(job);
    let fence = flags
        .iter()
        .find_map(|flag| flag.strip_prefix("--fence="))?;
    let (_, attempt) = fence.split_once('/')?;
    Some(attempt.to_owned())
}

/// The PVC a pod may write; `None` once the pod has ended.
fn writable_pvc(pod: &Pod) -> Option<&str> {
    let phase = pod.status.as_ref()?.phase.as_deref();
    if let Some("Succeeded" | "Failed") = phase {
        return None;
    }
    let volumes = pod.spec.as_ref()?.volumes.as_ref()?;
    let pvc = volumes
        .iter()
        .find_map(|volume| volume.persistent_volume_claim.as_ref())?;
    Some(&pvc.claim_name)
}
