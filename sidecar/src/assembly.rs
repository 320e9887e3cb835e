//! Builds the parts of the sidecar from the flags and connects them. Nothing runs yet.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use mainstay_store::Environment;
use tokio::sync::{Semaphore, watch};

use crate::adapters::{ConfigMapPins, EtcdConnector, LeaderFinder, RetentionTask};
use crate::args::SidecarArgs;
use crate::backup_store::BackupStore;
use crate::election::{BackupElection, ElectionTiming, LeaderFence};
use crate::etcd::EtcdClient;
use crate::http::{HttpArgs, HttpConfig, LeaderTlsFiles};
use crate::kubernetes::{
    Heartbeat, KubeConnection, KubernetesSettings, LeaseMetrics, NewestFullSender, PeerTlsReceiver,
    PinReader,
};
use crate::maintenance::Connect;
use crate::maintenance::defragment::Defragmenter;
use crate::maintenance::previous_data::PreviousDataCleaner;
use crate::metrics::SidecarMetrics;
use crate::own_member::MemberReconciler;
use crate::retention::args::RetentionArgs;
use crate::retention::{PinSource, SessionScope, StaticPins};
use crate::schedule::Schedule;
use crate::session::{BackupLeader, LeaderTask, SessionConfig, SnapshotHandle, SnapshotQueue};
use crate::state::{SidecarState, StateReceiver, StateSender};

/// Maximum threads that compress a full snapshot: etcd on the same node needs CPU as well.
const MAX_COMPRESSION_THREADS: usize = 4;

/// The parts that run.
pub(crate) struct SidecarTasks {
    pub(crate) election: BackupElection<BackupLeader>,
    pub(crate) server: HttpServerParts,
    pub(crate) own_member: MemberReconciler,
    pub(crate) defragmenter: Defragmenter,
    pub(crate) heartbeat: Option<Heartbeat>,
    pub(crate) state_rx: StateReceiver,
    pub(crate) peer_tls: PeerTlsReceiver,
}

/// The HTTP server and its dependencies.
pub(crate) struct HttpServerParts {
    pub(crate) config: HttpConfig,
    pub(crate) handle: Arc<SnapshotHandle>,
    pub(crate) leader: Arc<LeaderFinder>,
    pub(crate) metrics: SidecarMetrics,
}

/// Dependencies that several parts share.
struct SharedResources {
    etcd: EtcdClient,
    store: Option<BackupStore>,
    metrics: SidecarMetrics,
    state_tx: StateSender,
    state_rx: StateReceiver,
    /// Requests for on-demand snapshots, from HTTP to the session.
    snapshot_queue: SnapshotQueue,
    /// Revision of the latest full snapshot by its Lease, for the session.
    newest_full: NewestFullSender,
    timing: ElectionTiming,
    /// Makes full snapshots and defragmentations exclusive: a defragmentation blocks the member, and so the snapshot.
    maintenance_lock: Arc<Semaphore>,
}

/// Kubernetes settings and connection.
type NamespaceConnection = (KubernetesSettings, Arc<KubeConnection>);

impl SidecarTasks {
    /// Validates the flags and builds the parts. Does not connect or start anything.
    pub(crate) fn from_args(args: SidecarArgs, has_store: bool) -> anyhow::Result<Self> {
        let etcd = EtcdClient::new(args.etcd.into_config()?);
        let store = has_store
            .then(|| args.store.into_config())
            .transpose()?
            .map(|config| BackupStore::new(config, Environment::from_process()));
        let (state_tx, state_rx) = watch::channel(SidecarState {
            has_store,
            ..SidecarState::default()
        });
        let reelection_interval = args.snapshots.reelection_interval();
        let shared = SharedResources {
            timing: ElectionTiming::from_period(reelection_interval, etcd.config().request_timeout),
            etcd,
            store,
            metrics: SidecarMetrics::new().context("failed to register metrics")?,
            state_tx,
            state_rx,
            snapshot_queue: SnapshotQueue::default(),
            newest_full: NewestFullSender::default(),
            maintenance_lock: Arc::new(Semaphore::new(1)),
        };
        let prefix = args.member.member_name_prefix.as_deref();
        let kubernetes = args.kubernetes.into_settings(prefix)?.map(|settings| {
            let connection = Arc::new(KubeConnection::new(settings.access.clone()));
            (settings, connection)
        });
        let timeout = shared.etcd.config().snapshot_timeout;
        let threads = compression_threads();
        let config = args.snapshots.into_session_config(timeout, threads);
        let schedule = config.schedule.clone();
        let tasks = shared.build_leader_tasks(args.retention, schedule, kubernetes.as_ref());
        let session = shared.build_leader(config, tasks);
        let connector: Arc<dyn Connect> = Arc::new(EtcdConnector(shared.etcd.clone()));
        let (peer_tls, is_peer_tls) = watch::channel(None);
        let aside_retention = args.member.set_aside_retention;
        let aside_retention = Duration::try_from(aside_retention).unwrap_or_default();
        Ok(Self {
            election: shared.build_election(session),
            server: shared.build_server(args.http)?,
            own_member: MemberReconciler {
                etcd: shared.etcd.clone(),
                connector: Arc::clone(&connector),
                peer_urls: args.member.member_peer_urls,
                peer_tls,
                state_rx: shared.state_rx.clone(),
                metrics: shared.metrics.clone(),
                previous_data: PreviousDataCleaner::new(args.stop.data_dir, aside_retention),
            },
            defragmenter: Defragmenter::new(
                connector,
                Arc::clone(&shared.maintenance_lock),
                args.defragmentation.into_config(),
                Arc::new(shared.metrics.clone()),
            )
            .with_snapshotter(Arc::new(shared.build_handle())),
            heartbeat: kubernetes.map(|kubernetes| shared.build_heartbeat(kubernetes)),
            state_rx: shared.state_rx,
            peer_tls: is_peer_tls,
        })
    }
}

impl SharedResources {
    /// The session that runs while this sidecar leads.
    fn build_leader(&self, config: SessionConfig, tasks: Vec<Arc<dyn LeaderTask>>) -> BackupLeader {
        BackupLeader {
            config,
            etcd: self.etcd.clone(),
            store: self.store.clone(),
            fence: LeaderFence::new(self.etcd.clone(), self.timing.timeout),
            state_tx: self.state_tx.clone(),
            metrics: self.metrics.clone(),
            snapshot_queue: self.snapshot_queue.clone(),
            newest_full: self.newest_full.subscribe(),
            maintenance_lock: Arc::clone(&self.maintenance_lock),
            tasks,
        }
    }

    fn build_election(&self, session: BackupLeader) -> BackupElection<BackupLeader> {
        BackupElection {
            etcd: self.etcd.clone(),
            timing: self.timing,
            state_tx: self.state_tx.clone(),
            session,
            metrics: self.metrics.clone(),
        }
    }

    /// Tasks of the leader besides snapshots.
    fn build_leader_tasks(
        &self,
        retention: RetentionArgs,
        schedule: Schedule,
        kubernetes: Option<&NamespaceConnection>,
    ) -> Vec<Arc<dyn LeaderTask>> {
        let Some(bucket) = &self.store else {
            return Vec::new();
        };
        let coordination = kubernetes.and_then(|(settings, connection)| {
            let name = settings.coordination.as_ref()?;
            let reader = PinReader::new(Arc::clone(connection), &settings.namespace, name);
            Some(ConfigMapPins {
                reader,
                store: bucket.clone(),
                name: name.clone(),
            })
        });
        let pins: Arc<dyn PinSource> = match coordination {
            Some(pins) => Arc::new(pins),
            None => Arc::new(StaticPins::default()),
        };
        vec![Arc::new(RetentionTask {
            store: bucket.clone(),
            config: retention.into_config(),
            scope: Arc::new(SessionScope {
                state_rx: self.state_rx.clone(),
                schedule,
            }),
            pins,
            metrics: self.metrics.clone(),
        })]
    }

    /// Sends requests for on-demand snapshots to the session.
    fn build_handle(&self) -> SnapshotHandle {
        SnapshotHandle {
            queue: self.snapshot_queue.clone(),
            store: self.store.clone(),
            state_rx: self.state_rx.clone(),
        }
    }

    fn build_server(&self, http: HttpArgs) -> anyhow::Result<HttpServerParts> {
        let tls = &self.etcd.config().tls;
        let leader_tls = LeaderTlsFiles {
            ca: tls.ca.clone(),
            identity: tls.identity.clone(),
        };
        Ok(HttpServerParts {
            config: HttpConfig {
                leader_tls,
                ..http.into_config()?
            },
            handle: Arc::new(self.build_handle()),
            leader: Arc::new(LeaderFinder {
                etcd: self.etcd.clone(),
                timeout: self.timing.timeout,
            }),
            metrics: self.metrics.clone(),
        })
    }

    fn build_heartbeat(&self, (settings, connection): NamespaceConnection) -> Heartbeat {
        let lease_metrics: Arc<dyn LeaseMetrics> = Arc::new(self.metrics.clone());
        Heartbeat::new(
            settings.leases,
            &settings.namespace,
            &connection,
            &lease_metrics,
            &self.newest_full,
        )
    }
}

fn compression_threads() -> NonZeroUsize {
    let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    NonZeroUsize::new(cores.min(MAX_COMPRESSION_THREADS)).unwrap_or(NonZeroUsize::MIN)
}
