//! A sidecar that only renews Leases, and a recorder of all writes to them.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use kube::Client;
use kube::api::{Api, ListParams, ObjectMeta, PostParams, WatchEvent, WatchParams};
use mainstay_archive::compression::Compression;
use mainstay_archive::name::SnapshotName;
use mainstay_ids::{ClusterId, MemberId, Revision};
use mainstay_sidecar::kubernetes::{
    Heartbeat, KubeAccess, KubeConnection, LeaseConfig, LeaseKind, LeaseMetrics, NewestFullSender,
};
use mainstay_sidecar::state::{
    MemberStatus, SidecarRole, SidecarState, StateSender, StoredSnapshot,
};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

pub(crate) const MEMBER_LEASE: &str = "etcd-main-0";
pub(crate) const FULL_LEASE: &str = "etcd-main-full-snap";
pub(crate) const DELTA_LEASE: &str = "etcd-main-delta-snap";

/// Counts failed updates.
#[derive(Default)]
pub(crate) struct FailureCounter(pub(crate) AtomicUsize);

impl LeaseMetrics for FailureCounter {
    fn record_lease_update(&self, _lease: LeaseKind, succeeded: bool) {
        if !succeeded {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Renews Leases until it is stopped.
pub(crate) struct LeaseSidecar {
    pub(crate) state_tx: StateSender,
    pub(crate) peer_tls: watch::Sender<Option<bool>>,
    pub(crate) failures: Arc<FailureCounter>,
    /// Revision of the latest full snapshot by its Lease.
    pub(crate) newest_full: watch::Receiver<Option<Revision>>,
    cancel: CancellationToken,
    task: JoinHandle<()>,
}

impl LeaseSidecar {
    pub(crate) fn start(access: KubeAccess, namespace: &str, heartbeat_interval: Duration) -> Self {
        let leases = LeaseConfig {
            member: Some(MEMBER_LEASE.to_owned()),
            full: Some(FULL_LEASE.to_owned()),
            delta: Some(DELTA_LEASE.to_owned()),
            heartbeat_interval,
        };
        let (state_tx, view) = watch::channel(SidecarState::default());
        let (peer_tls, tls_view) = watch::channel(None);
        let (failures, cancel) = (
            Arc::new(FailureCounter::default()),
            CancellationToken::new(),
        );
        let metrics: Arc<dyn LeaseMetrics> = failures.clone();
        let connection = Arc::new(KubeConnection::new(access));
        let newest_full = NewestFullSender::default();
        let newest_full_view = newest_full.subscribe();
        let heartbeat_interval =
            Heartbeat::new(leases, namespace, &connection, &metrics, &newest_full);
        let task = tokio::spawn(heartbeat_interval.run(view, tls_view, cancel.clone()));
        Self {
            state_tx,
            peer_tls,
            failures,
            newest_full: newest_full_view,
            cancel,
            task,
        }
    }

    pub(crate) fn with_client(client: &Client, namespace: &str, heartbeat: Duration) -> Self {
        Self::start(KubeAccess::Client(client.clone()), namespace, heartbeat)
    }

    pub(crate) fn with_kubeconfig(path: PathBuf, namespace: &str, heartbeat: Duration) -> Self {
        Self::start(KubeAccess::Kubeconfig(path), namespace, heartbeat)
    }

    /// Sets the role of the member.
    pub(crate) fn set_role(&self, standing: SidecarRole) {
        self.state_tx.send_modify(|state| {
            state.role = standing;
            state.member_status = Some(member_status());
        });
    }

    /// Records a stored full snapshot of this revision.
    pub(crate) fn set_stored_full(&self, revision: i64) {
        let now = Timestamp::now().as_second();
        let name = SnapshotName::full(Revision(revision), now, Compression::Gzip);
        self.state_tx
            .send_modify(|state| state.last_full = Some(stored_snapshot(name)));
    }

    /// Records a stored delta up to this revision.
    pub(crate) fn set_stored_delta(&self, revision: i64) {
        let now = Timestamp::now();
        let (start, last) = (Revision(1), Revision(revision));
        let name = SnapshotName::delta(start, last, now.as_second(), Compression::Gzip);
        self.state_tx.send_modify(|state| {
            state.last_delta = Some(stored_snapshot(name));
            state.delta_checked_at = Some(now);
        });
    }

    /// Stops the loops; one that ignores its cancellation fails the test.
    pub(crate) async fn stop(self) {
        self.cancel.cancel();
        tokio::time::timeout(Duration::from_mins(1), self.task)
            .await
            .unwrap()
            .unwrap();
    }
}

fn stored_snapshot(name: SnapshotName) -> StoredSnapshot {
    StoredSnapshot {
        key: format!("v2/{name}"),
        name,
        size: 1,
    }
}

fn member_status() -> MemberStatus {
    MemberStatus {
        member: MemberId(0x1a),
        cluster: ClusterId(0x2b),
        revision: Revision(5),
        observed_at: Timestamp::now(),
        ..MemberStatus::default()
    }
}

pub(crate) fn lease_api(client: &Client, namespace: &str) -> Api<Lease> {
    Api::namespaced(client.clone(), namespace)
}

pub(crate) fn empty_lease(name: &str) -> Lease {
    let metadata = ObjectMeta {
        name: Some(name.to_owned()),
        ..ObjectMeta::default()
    };
    Lease {
        metadata,
        spec: Some(LeaseSpec::default()),
    }
}

/// Creates the Leases as the controller does.
pub(crate) async fn create_leases(api: &Api<Lease>) {
    for name in [MEMBER_LEASE, FULL_LEASE, DELTA_LEASE] {
        api.create(&PostParams::default(), &empty_lease(name))
            .await
            .unwrap();
    }
}

pub(crate) fn lease_holder(lease: &Lease) -> Option<String> {
    lease.spec.as_ref()?.holder_identity.clone()
}

pub(crate) fn lease_renew_time(lease: &Lease) -> Option<Timestamp> {
    Some(lease.spec.as_ref()?.renew_time.as_ref()?.0)
}

/// Waits until a Lease meets the condition; returns how long that took.
pub(crate) async fn wait_for_lease(
    api: &Api<Lease>,
    name: &str,
    limit: Duration,
    condition: impl Fn(&Lease) -> bool,
) -> Duration {
    let started = Instant::now();
    loop {
        let found = api.get_opt(name).await;
        match &found {
            Ok(Some(lease)) if condition(lease) => return started.elapsed(),
            _ if started.elapsed() > limit => panic!("{name} after {limit:?}: {found:?}"),
            _ => sleep(Duration::from_millis(25)).await,
        }
    }
}

/// Records all writes to the Leases of a namespace, in order: a watch from a resourceVersion misses none.
pub(crate) struct LeaseRecorder {
    writes: Arc<Mutex<Vec<Lease>>>,
    task: JoinHandle<()>,
}

impl LeaseRecorder {
    pub(crate) async fn start(api: &Api<Lease>) -> Self {
        let list = api.list(&ListParams::default()).await.unwrap();
        let since = list.metadata.resource_version.unwrap();
        let writes = Arc::new(Mutex::new(Vec::new()));
        let (api, recorded) = (api.clone(), Arc::clone(&writes));
        let task = tokio::spawn(async move {
            let params = WatchParams::default().timeout(290);
            let mut events = api.watch(&params, &since).await.unwrap().boxed();
            while let Some(event) = events.next().await {
                match event.unwrap() {
                    WatchEvent::Added(lease) | WatchEvent::Modified(lease) => {
                        recorded.lock().unwrap().push(lease);
                    }
                    other => panic!("the watch failed: {other:?}"),
                }
            }
        });
        Self { writes, task }
    }

    /// Writes to one Lease so far.
    pub(crate) fn writes(&self, name: &str) -> Vec<Lease> {
        assert!(!self.task.is_finished(), "the recorder ended");
        let writes = self.writes.lock().unwrap();
        writes
            .iter()
            .filter(|lease| lease.metadata.name.as_deref() == Some(name))
            .cloned()
            .collect()
    }
}

impl Drop for LeaseRecorder {
    fn drop(&mut self) {
        self.task.abort();
    }
}
