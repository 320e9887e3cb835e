//! How an etcd is started: everything has a default, a test states its one difference.

use std::path::PathBuf;

/// Options of one member. The default is a new single-member cluster in a directory of its own.
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

    /// The member's name, `default` unless told.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Serves this directory, which may exist already and stays when the server is dropped.
    #[must_use]
    pub fn data_dir(mut self, directory: impl Into<PathBuf>) -> Self {
        self.data_dir = Some(directory.into());
        self
    }

    /// Listens for peers here and tells them so.
    #[must_use]
    pub fn peer_url(mut self, url: impl Into<String>) -> Self {
        self.peer_url = Some(url.into());
        self
    }

    /// Listens for peers here, while they are told the [`peer_url`](Self::peer_url): something between
    /// the two passes connections on.
    #[must_use]
    pub fn peer_listen_url(mut self, url: impl Into<String>) -> Self {
        self.peer_listen_url = Some(url.into());
        self
    }

    /// The members that found the cluster together, `name=url,name=url`.
    #[must_use]
    pub fn initial_cluster(mut self, members: impl Into<String>) -> Self {
        self.initial_cluster = Some(members.into());
        self
    }

    /// Joins an existing cluster instead of founding one.
    #[must_use]
    pub fn join_existing(self) -> Self {
        self.flag("initial-cluster-state", "existing")
    }

    /// The token that tells clusters apart.
    #[must_use]
    pub fn token(self, token: &str) -> Self {
        self.flag("initial-cluster-token", token)
    }

    /// Refuses writes once the database is this large.
    #[must_use]
    pub fn quota_bytes(self, bytes: u64) -> Self {
        self.flag("quota-backend-bytes", &bytes.to_string())
    }

    /// Accepts transactions with this many operations.
    #[must_use]
    pub fn max_txn_ops(self, operations: usize) -> Self {
        self.flag("max-txn-ops", &operations.to_string())
    }

    /// Accepts requests of this size.
    #[must_use]
    pub fn max_request_bytes(self, bytes: usize) -> Self {
        self.flag("max-request-bytes", &bytes.to_string())
    }

    /// Writes a raft snapshot, and so a `.snap` file, after this many entries.
    #[must_use]
    pub fn snapshot_count(self, entries: u64) -> Self {
        self.flag("snapshot-count", &entries.to_string())
    }

    /// Takes a leader for lost after five seconds of silence instead of one, so that a busy machine alone causes no
    /// election. A request gets 5 s and twice that time: 15 s instead of 7.
    #[must_use]
    pub fn long_election_timeout(self) -> Self {
        self.flag("heartbeat-interval", "500")
            .flag("election-timeout", "5000")
    }

    /// Accepts transactions of 10 000 operations and 64 MiB, the largest the product promises, and gives them time.
    #[must_use]
    pub fn huge_transactions(self) -> Self {
        // Keys, lengths and the request around the values come on top of the 64 MiB.
        self.long_election_timeout()
            .max_txn_ops(10_000)
            .max_request_bytes(72 << 20)
            .quota_bytes(8 << 30)
    }

    /// Syncs what it writes, as in production. Tests that pull no plug do without.
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
