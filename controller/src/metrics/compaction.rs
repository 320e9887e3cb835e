//! Metrics of backup compaction. Names and labels (per namespace) are etcd-druid's, because dashboards use them. The series
//! of a namespace are removed with the last Etcd in it.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use prometheus::{
    HistogramOpts, HistogramVec, IntCounterVec, IntGaugeVec, Opts, Registry, exponential_buckets,
};

use super::register;
use crate::model::{EtcdKey, FailureClass, JobState};

#[derive(Debug)]
pub(super) struct CompactionMetrics {
    jobs: IntCounterVec,
    fallback_snapshots: IntCounterVec,
    running: IntGaugeVec,
    job_seconds: HistogramVec,
    delta_events: IntGaugeVec,
    etcds: Mutex<DeltaEventsByEtcd>,
}

/// Existing Etcds by namespace and name, with the events since their last full snapshot; `None` when unknown.
type DeltaEventsByEtcd = BTreeMap<String, BTreeMap<String, Option<i64>>>;

const SUCCEEDED_VALUES: [&str; 2] = ["true", "false"];
/// `failureReason` of succeeded Jobs.
const NO_FAILURE: &str = "none";

fn build_job_seconds() -> Result<HistogramVec, prometheus::Error> {
    let help = "Duration of compaction Jobs in seconds, by outcome.";
    let opts = HistogramOpts::new("etcddruid_compaction_job_duration_seconds", help)
        .buckets(exponential_buckets(15.0, 2.0, 11)?);
    HistogramVec::new(opts, &["succeeded", "etcd_namespace"])
}

impl CompactionMetrics {
    pub(super) fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let counters = |name: &str, help: &str, labels: &[&str]| {
            register(registry, IntCounterVec::new(Opts::new(name, help), labels))
        };
        let gauges = |name: &str, help: &str| {
            let opts = Opts::new(name, help);
            register(registry, IntGaugeVec::new(opts, &["etcd_namespace"]))
        };
        Ok(Self {
            jobs: counters(
                "etcddruid_compaction_jobs_total",
                "Finished compaction Jobs, by outcome.",
                &["succeeded", "failureReason", "etcd_namespace"],
            )?,
            fallback_snapshots: counters(
                "etcddruid_compaction_full_snapshot_triggered_total",
                "Full snapshots requested instead of a compaction, by outcome.",
                &["succeeded", "etcd_namespace"],
            )?,
            running: gauges(
                "etcddruid_compaction_jobs_current",
                "Running compaction Jobs.",
            )?,
            job_seconds: register(registry, build_job_seconds())?,
            delta_events: gauges(
                "etcddruid_compaction_num_delta_events",
                "Events since the last full snapshot; the maximum over the Etcds of a namespace.",
            )?,
            etcds: Mutex::default(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, DeltaEventsByEtcd> {
        // No code panics while it holds the lock, so a poisoned map is consistent.
        self.etcds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add_etcd(&self, key: &EtcdKey) {
        let mut etcds_by_namespace = self.lock();
        let etcds = etcds_by_namespace.entry(key.namespace.clone()).or_default();
        etcds.entry(key.name.clone()).or_default();
    }

    pub(super) fn set_delta_events(&self, key: &EtcdKey, events: Option<i64>) {
        let mut etcds_by_namespace = self.lock();
        let etcds = etcds_by_namespace.entry(key.namespace.clone()).or_default();
        etcds.insert(key.name.clone(), events);
        self.update_max_events(&key.namespace, etcds);
    }

    /// Exports the maximum of the known values; removes the series when none is known.
    fn update_max_events(&self, namespace: &str, etcds: &BTreeMap<String, Option<i64>>) {
        match etcds.values().flatten().max() {
            Some(max) => self.delta_events.with_label_values(&[namespace]).set(*max),
            None => drop(self.delta_events.remove_label_values(&[namespace])),
        }
    }

    pub(super) fn record_job_end(
        &self,
        key: &EtcdKey,
        state: &JobState,
        duration: Option<Duration>,
    ) {
        let (succeeded, reason) = match state {
            JobState::Running => return,
            JobState::Succeeded { .. } => ("true", NO_FAILURE),
            JobState::Failed { failure, .. } => ("false", failure.class.label()),
        };
        self.add_etcd(key);
        let namespace = key.namespace.as_str();
        self.jobs
            .with_label_values(&[succeeded, reason, namespace])
            .inc();
        if let Some(duration) = duration {
            self.job_seconds
                .with_label_values(&[succeeded, namespace])
                .observe(duration.as_secs_f64());
        }
    }

    pub(super) fn set_running(&self, key: &EtcdKey, jobs: usize) {
        self.add_etcd(key);
        self.running
            .with_label_values(&[key.namespace.as_str()])
            .set(i64::try_from(jobs).unwrap_or(i64::MAX));
    }

    /// Not counted after the last Etcd of the namespace was deleted: nothing would remove the series again.
    pub(super) fn record_fallback_snapshot(&self, key: &EtcdKey, succeeded: bool) {
        let etcds_by_namespace = self.lock();
        if etcds_by_namespace.contains_key(&key.namespace) {
            let succeeded = if succeeded { "true" } else { "false" };
            self.fallback_snapshots
                .with_label_values(&[succeeded, &key.namespace])
                .inc();
        }
    }

    pub(super) fn remove_etcd(&self, key: &EtcdKey) {
        let namespace = key.namespace.as_str();
        let mut etcds_by_namespace = self.lock();
        let Some(etcds) = etcds_by_namespace.get_mut(namespace) else {
            return;
        };
        etcds.remove(&key.name);
        self.update_max_events(namespace, etcds);
        // Counters of the namespace serve the remaining Etcds, so they stay until the last one.
        if etcds.is_empty() {
            etcds_by_namespace.remove(namespace);
            self.remove_namespace(namespace);
        }
    }

    fn remove_namespace(&self, namespace: &str) {
        self.running.remove_label_values(&[namespace]).ok();
        let failures = FailureClass::ALL.map(FailureClass::label);
        for succeeded in SUCCEEDED_VALUES {
            let labels = [succeeded, namespace];
            self.fallback_snapshots.remove_label_values(&labels).ok();
            self.job_seconds.remove_label_values(&labels).ok();
            for reason in failures.into_iter().chain([NO_FAILURE]) {
                let labels = [succeeded, reason, namespace];
                self.jobs.remove_label_values(&labels).ok();
            }
        }
    }
}

#[cfg(test)]
mod tests;
