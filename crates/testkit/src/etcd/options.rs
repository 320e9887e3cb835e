//! Options of an etcd process. Everything has a default; a test sets only what differs.

use std::path::PathBuf;

/// Options of one member. Default: a new single-member cluster in a temporary directory.
#[derive(Clone, Debug, Default)]
pub struct EtcdOptions {
    pub(crate) name: Option<String>,
    pub(crate) data_dir: Option<PathBuf>,
    pub(crate) peer_url: Option<String>,
    pub(crate) peer_listen_url: Option<String>,
    pub(crate) initial_cluster: Option<String>,
    pub(crate) fsync: bool,
    pub(crate) flags: Vec<String>,
}

impl EtcdOptions {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Name of the member. Default: `default`.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Data directory. It may exist already and is kept when the server is dropped.
    #[must_use]
    pub fn data_dir(mut self, directory: impl Into<PathBuf>) -> Self {
        self.data_dir = Some(directory.into());
        self
    }

    /// Peer URL that the member listens on and advertises.
    #[must_use]
    pub fn peer_url(mut self, url: impl Into<String>) -> Self {
        self.peer_url = Some(url.into());
        self
    }

    /// Peer URL that the member listens on, if a proxy serves the advertised [`peer_url`](Self::peer_url).
    #[must_use]
    pub fn peer_listen_url(mut self, url: impl Into<String>) -> Self {
        self.peer_listen_url = Some(url.into());
        self
    }

    /// Members that bootstrap the cluster together: `name=url,name=url`.
    #[must_use]
    pub fn initial_cluster(mut self, members: impl Into<String>) -> Self {
        self.initial_cluster = Some(members.into());
        self
    }

    /// Joins an existing cluster instead of bootstrapping one.
    #[must_use]
    pub fn join_existing(self) -> Self {
        self.flag("initial-cluster-state", "existing")
    }

    /// Cluster token, from which etcd derives the cluster ID.
    #[must_use]
    pub fn token(self, token: &str) -> Self {
        self.flag("initial-cluster-token", token)
    }

    /// Database size in bytes above which etcd rejects writes.
    #[must_use]
    pub fn quota_bytes(self, bytes: u64) -> Self {
        self.flag("quota-backend-bytes", &bytes.to_string())
    }

    /// Maximum number of operations per transaction.
    #[must_use]
    pub fn max_txn_ops(self, operations: usize) -> Self {
        self.flag("max-txn-ops", &operations.to_string())
    }

    /// Maximum size of a request in bytes.
    #[must_use]
    pub fn max_request_bytes(self, bytes: usize) -> Self {
        self.flag("max-request-bytes", &bytes.to_string())
    }

    /// Number of raft entries after which etcd writes a raft snapshot, a `.snap` file.
    #[must_use]
    pub fn snapshot_count(self, entries: u64) -> Self {
        self.flag("snapshot-count", &entries.to_string())
    }

    /// Election timeout of 5 s instead of 1 s, so that a busy machine alone causes no election. etcd times a
    /// request out after 5 s plus twice the election timeout: 15 s instead of 7 s.
    #[must_use]
    pub fn long_election_timeout(self) -> Self {
        self.flag("heartbeat-interval", "500")
            .flag("election-timeout", "5000")
    }

    /// Accepts transactions of 10 000 operations and 64 MiB, the largest that the product supports, with long
    /// timeouts.
    #[must_use]
    pub fn huge_transactions(self) -> Self {
        // The 64 MiB are values only; keys and encoding need additional space.
        self.long_election_timeout()
            .max_txn_ops(10_000)
            .max_request_bytes(72 << 20)
            .quota_bytes(8 << 30)
    }

    /// Enables fsync, as in production. It is needed only by tests that simulate a power loss.
    #[must_use]
    pub fn with_fsync(mut self) -> Self {
        self.fsync = true;
        self
    }

    /// Any other flag, without its dashes.
    #[must_use]
    pub fn flag(mut self, flag: &str, value: &str) -> Self {
        self.flags.push(format!("--{flag}={value}"));
        self
    }
}
