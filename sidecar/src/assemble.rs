//! From flags to parts that are joined and have not started yet.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use mainstay_store::Environment;
use tokio::sync::{Semaphore, watch};

use crate::args::SidecarArgs;
use crate::bucket::Bucket;
use crate::care::Care;
use crate::election::{Cadence, Election, Fence};
use crate::etcd::Etcd;
use crate::http::{Delegation, HttpArgs, HttpConfig};
use crate::kubernetes::{
    Connection, FullTold, Heartbeat, LeaseMetrics, PeerTls, PinReader, Settings,
};
use crate::maintenance::Connect;
use crate::maintenance::aside::AsideKeeper;
use crate::maintenance::defragment::Defragmenter;
use crate::metrics::Metrics;
use crate::retention::args::RetentionArgs;
use crate::retention::{Pins, StaticPins};
use crate::session::{Duty, Handle, Leader, Line, SessionConfig};
use crate::state::{Board, State, View};
use crate::wiring::{ConfigMapPins, LeaderAt, RetentionDuty, Ways};

/// Threads that compress a full snapshot, at most: etcd needs processors, too.
const MOST_COMPRESSORS: usize = 4;

/// Everything that runs.
pub(crate) struct Parts {
    pub(crate) election: Election<Leader>,
    pub(crate) server: Server,
    pub(crate) care: Care,
    pub(crate) defragmenter: Defragmenter,
    pub(crate) heartbeat: Option<Heartbeat>,
    pub(crate) view: View,
    pub(crate) is_peer_tls: PeerTls,
}

/// The HTTP server and what it answers from.
pub(crate) struct Server {
    pub(crate) config: HttpConfig,
    pub(crate) handle: Arc<Handle>,
    pub(crate) leader: Arc<LeaderAt>,
    pub(crate) metrics: Metrics,
}

/// What several parts share.
struct Shared {
    etcd: Etcd,
    bucket: Option<Bucket>,
    metrics: Metrics,
    board: Board,
    view: View,
    /// Requests for snapshots, from HTTP to the leader.
    line: Line,
    /// The newest full snapshot of anybody, from its Lease to the leader.
    full_told: FullTold,
    cadence: Cadence,
    /// Held by whoever must not be disturbed: a full snapshot, a defragmentation.
    quiet: Arc<Semaphore>,
}

/// The namespace this sidecar lives in, and the way there.
type Home = (Settings, Arc<Connection>);

impl Parts {
    /// Joins the parts the flags describe. Nothing is connected, nothing runs.
    pub(crate) fn from_args(args: SidecarArgs, has_store: bool) -> anyhow::Result<Self> {
        let etcd = Etcd::new(args.etcd.into_config()?);
        let bucket = has_store
            .then(|| args.store.into_config())
            .transpose()?
            .map(|config| Bucket::new(config, Environment::ambient()));
        let (board, view) = watch::channel(State {
            has_store,
            ..State::default()
        });
        let reelection = args.snapshots.reelection();
        let shared = Shared {
            cadence: Cadence::from_period(reelection, etcd.config().question_timeout),
            etcd,
            bucket,
            metrics: Metrics::new().context("set up the metrics")?,
            board,
            view,
            line: Line::default(),
            full_told: FullTold::default(),
            quiet: Arc::new(Semaphore::new(1)),
        };
        let prefix = args.member.member_name_prefix.as_deref();
        let home = args.kubernetes.settings(prefix)?.map(|settings| {
            let connection = Arc::new(Connection::new(settings.access.clone()));
            (settings, connection)
        });
        let timeout = shared.etcd.config().snapshot_timeout;
        let config = args.snapshots.session(timeout, compressors());
        let session = shared.session(config, shared.duties(args.retention, home.as_ref()));
        let ways: Arc<dyn Connect> = Arc::new(Ways(shared.etcd.clone()));
        let (peer_tls, is_peer_tls) = watch::channel(None);
        let keep_aside = args.member.set_aside_retention;
        let keep_aside = Duration::try_from(keep_aside).unwrap_or_default();
        Ok(Self {
            election: shared.election(session),
            server: shared.server(args.http)?,
            care: Care {
                etcd: shared.etcd.clone(),
                ways: Arc::clone(&ways),
                peer_urls: args.member.member_peer_urls,
                peer_tls,
                view: shared.view.clone(),
                metrics: shared.metrics.clone(),
                aside: AsideKeeper::new(args.stop.data_dir, keep_aside),
            },
            defragmenter: Defragmenter::new(
                ways,
                Arc::clone(&shared.quiet),
                args.defragmentation.into_config(),
                Arc::new(shared.metrics.clone()),
            )
            .flushing(Arc::new(shared.handle())),
            heartbeat: home.map(|home| shared.heartbeat(home)),
            view: shared.view,
            is_peer_tls,
        })
    }
}

impl Shared {
    /// What the backup leader does.
    fn session(&self, config: SessionConfig, duties: Vec<Arc<dyn Duty>>) -> Leader {
        Leader {
            config,
            etcd: self.etcd.clone(),
            bucket: self.bucket.clone(),
            fence: Fence::new(self.etcd.clone(), self.cadence.patience),
            board: self.board.clone(),
            metrics: self.metrics.clone(),
            line: self.line.clone(),
            full_told: self.full_told.subscribe(),
            quiet: Arc::clone(&self.quiet),
            duties,
        }
    }

    fn election(&self, session: Leader) -> Election<Leader> {
        Election {
            etcd: self.etcd.clone(),
            cadence: self.cadence,
            board: self.board.clone(),
            session,
            metrics: self.metrics.clone(),
        }
    }

    /// What the leader does besides snapshots.
    fn duties(&self, retention: RetentionArgs, home: Option<&Home>) -> Vec<Arc<dyn Duty>> {
        let Some(bucket) = &self.bucket else {
            return Vec::new();
        };
        let coordination = home.and_then(|(settings, connection)| {
            let name = settings.coordination.as_ref()?;
            let reader = PinReader::new(Arc::clone(connection), &settings.namespace, name);
            Some(ConfigMapPins {
                reader,
                bucket: bucket.clone(),
                name: name.clone(),
            })
        });
        let pins: Arc<dyn Pins> = match coordination {
            Some(pins) => Arc::new(pins),
            None => Arc::new(StaticPins::default()),
        };
        vec![Arc::new(RetentionDuty {
            bucket: bucket.clone(),
            config: retention.into_config(),
            pins,
            metrics: self.metrics.clone(),
        })]
    }

    /// Where the session is asked for snapshots.
    fn handle(&self) -> Handle {
        Handle {
            line: self.line.clone(),
            bucket: self.bucket.clone(),
            view: self.view.clone(),
        }
    }

    fn server(&self, http: HttpArgs) -> anyhow::Result<Server> {
        let tls = &self.etcd.config().tls;
        let delegation = Delegation {
            ca: tls.ca.clone(),
            identity: tls.identity.clone(),
        };
        Ok(Server {
            config: HttpConfig {
                delegation,
                ..http.into_config()?
            },
            handle: Arc::new(self.handle()),
            leader: Arc::new(LeaderAt {
                etcd: self.etcd.clone(),
                patience: self.cadence.patience,
            }),
            metrics: self.metrics.clone(),
        })
    }

    fn heartbeat(&self, (settings, connection): Home) -> Heartbeat {
        let counted: Arc<dyn LeaseMetrics> = Arc::new(self.metrics.clone());
        Heartbeat::new(
            settings.leases,
            &settings.namespace,
            &connection,
            &counted,
            &self.full_told,
        )
    }
}

fn compressors() -> NonZeroUsize {
    let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    NonZeroUsize::new(cores.min(MOST_COMPRESSORS)).unwrap_or(NonZeroUsize::MIN)
}
