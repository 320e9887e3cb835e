//! Fills a live etcd with a random, reproducible history.
//!
//! [`Workload`] draws one step after another: puts, deletes, range deletes, transactions, leases granted, attached and
//! revoked, and compactions on request. Keys come from the pool in `keys`. No choice depends on a response of the server,
//! not even lease IDs, so the same seed on two servers gives the same revisions and the same `HashKV`.

mod keys;

use etcd_client::{
    Client, CompactionOptions, DeleteOptions, LeaseGrantOptions, PutOptions, ResponseHeader, Txn,
    TxnOp,
};
use mainstay_ids::{LeaseId, Revision};
use rand::rngs::StdRng;
use rand::seq::{IndexedRandom, IteratorRandom, SliceRandom};
use rand::{Rng, RngCore, SeedableRng};

use crate::etcd::EtcdServer;
use keys::KeyPool;

/// TTL of every lease. No lease may expire during a test, or the history would depend on time.
const LEASE_SECONDS: i64 = 3600;
/// Number of newest revisions that a compaction keeps.
const KEPT_REVISIONS: i64 = 20;

/// Kinds of steps with their relative frequency.
const STEP_WEIGHTS: [(u32, WorkloadStep); 8] = [
    (48, WorkloadStep::Put),
    (10, WorkloadStep::LeasedPut),
    (12, WorkloadStep::Delete),
    (4, WorkloadStep::DeleteRange),
    (18, WorkloadStep::Transaction),
    (4, WorkloadStep::Grant),
    (2, WorkloadStep::Revoke),
    (2, WorkloadStep::Compact),
];

#[derive(Clone, Copy, Debug)]
enum WorkloadStep {
    Put,
    LeasedPut,
    Delete,
    DeleteRange,
    Transaction,
    Grant,
    Revoke,
    Compact,
}

/// A random history.
#[derive(Debug)]
pub struct Workload {
    random: StdRng,
    pool: KeyPool,
    leases: Vec<LeaseId>,
    compaction_enabled: bool,
    max_value_size: usize,
    max_transaction_ops: usize,
    huge_transactions: u32,
    revision: Revision,
    compacted_revision: Revision,
}

impl Workload {
    /// A history for this seed: values up to 4 KiB, transactions up to 40 operations, no compactions.
    pub fn new(seed: u64) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        let pool = KeyPool::new(&mut random);
        Self {
            random,
            pool,
            leases: Vec::new(),
            compaction_enabled: false,
            max_value_size: 4096,
            max_transaction_ops: 40,
            huge_transactions: 0,
            revision: Revision::EMPTY,
            compacted_revision: Revision::EMPTY,
        }
    }

    /// Also compacts at random, keeping the newest revisions.
    #[must_use]
    pub fn with_compactions(mut self) -> Self {
        self.compaction_enabled = true;
        self
    }

    /// Maximum size of values in bytes.
    #[must_use]
    pub fn with_values_up_to(mut self, bytes: usize) -> Self {
        self.max_value_size = bytes;
        self
    }

    /// Maximum number of operations per transaction. A transaction uses each of the few hundred keys of the
    /// pool at most once.
    #[must_use]
    pub fn with_transactions_up_to(mut self, operations: usize) -> Self {
        self.max_transaction_ops = operations;
        self
    }

    /// Revision after the last step.
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// Last compacted revision; [`Revision::EMPTY`] if there was none.
    pub fn compacted_revision(&self) -> Revision {
        self.compacted_revision
    }

    /// Granted and not revoked leases, in the order they were granted.
    pub fn leases(&self) -> &[LeaseId] {
        &self.leases
    }

    /// Runs this many steps; returns the last revision. A step that deletes nothing creates no revision, so
    /// there are fewer revisions than steps.
    pub async fn run(&mut self, etcd: &EtcdServer, steps: usize) -> Revision {
        let mut client = etcd.client().await;
        for number in 0..steps {
            let step = self.pick_step();
            self.apply_step(&mut client, step)
                .await
                .unwrap_or_else(|error| panic!("load step {number}, {step:?}: {error}"));
        }
        self.revision
    }

    /// Runs one transaction of this many operations with this total size of values. A tenth of the operations deletes
    /// keys of the previous huge transaction.
    ///
    /// The server must accept transactions of this size, see
    /// [`EtcdOptions::huge_transactions`](crate::EtcdOptions::huge_transactions).
    pub async fn run_huge_transaction(
        &mut self,
        etcd: &EtcdServer,
        operations: usize,
        bytes: usize,
    ) -> Revision {
        let (before, now) = (self.huge_transactions, self.huge_transactions + 1);
        let puts = operations - operations / 10;
        let size = bytes / puts.max(1);
        let operations: Vec<TxnOp> = (0..operations)
            .map(|i| match i % 10 {
                9 => TxnOp::delete(format!("/huge/{before}/{:05}", i - 1), None),
                _ => TxnOp::put(format!("/huge/{now}/{i:05}"), self.random_bytes(size), None),
            })
            .collect();
        let mut kv = etcd.kv_client().await;
        let response = kv.txn(Txn::new().and_then(operations)).await;
        let response = response.unwrap_or_else(|error| panic!("huge transaction {now}: {error}"));
        self.huge_transactions = now;
        self.record_revision(response.header());
        self.revision
    }

    /// Enables authentication with the user `root` and a user who may read the registry. `etcd` is logged in as
    /// root afterwards.
    pub async fn enable_auth(&mut self, etcd: &mut EtcdServer) {
        let mut client = etcd.client().await;
        set_up_auth(&mut client)
            .await
            .unwrap_or_else(|error| panic!("enable authentication: {error}"));
        etcd.login("root", ROOT_PASSWORD);
    }

    fn pick_step(&mut self) -> WorkloadStep {
        let drawn = STEP_WEIGHTS.choose_weighted(&mut self.random, |(weight, _)| *weight);
        let (_, step) = drawn.expect("weights above zero");
        match step {
            WorkloadStep::LeasedPut | WorkloadStep::Revoke if self.leases.is_empty() => {
                WorkloadStep::Grant
            }
            WorkloadStep::Compact if !self.compaction_enabled => WorkloadStep::Put,
            step => *step,
        }
    }

    async fn apply_step(
        &mut self,
        client: &mut Client,
        step: WorkloadStep,
    ) -> Result<(), etcd_client::Error> {
        match step {
            WorkloadStep::Put => {
                let (key, value) = (
                    self.pool.pick_key(&mut self.random).to_vec(),
                    self.random_value(),
                );
                self.record_revision(client.put(key, value, None).await?.header());
            }
            WorkloadStep::LeasedPut => {
                let lease = *self.leases.choose(&mut self.random).expect("a lease");
                let (key, value) = (
                    self.pool.pick_key(&mut self.random).to_vec(),
                    self.random_value(),
                );
                let options = PutOptions::new().with_lease(lease.to_signed());
                self.record_revision(client.put(key, value, Some(options)).await?.header());
            }
            WorkloadStep::Delete => {
                let key = self.pool.pick_key(&mut self.random).to_vec();
                self.record_revision(client.delete(key, None).await?.header());
            }
            WorkloadStep::DeleteRange => {
                let prefix = KeyPool::pick_group(&mut self.random);
                let options = DeleteOptions::new().with_prefix();
                self.record_revision(client.delete(prefix, Some(options)).await?.header());
            }
            WorkloadStep::Transaction => {
                let operations = self.build_transaction();
                self.record_revision(client.txn(Txn::new().and_then(operations)).await?.header());
            }
            WorkloadStep::Grant => self.grant_lease(client).await?,
            WorkloadStep::Revoke => {
                let index = self.random.random_range(0..self.leases.len());
                let lease = self.leases.swap_remove(index);
                self.record_revision(client.lease_revoke(lease.to_signed()).await?.header());
            }
            WorkloadStep::Compact => self.compact(client).await?,
        }
        Ok(())
    }

    async fn grant_lease(&mut self, client: &mut Client) -> Result<(), etcd_client::Error> {
        // Positive, like the IDs of etcd; with zero the server would choose the ID.
        let id = self.random.random_range(1..i64::MAX);
        let options = LeaseGrantOptions::new().with_id(id);
        client.lease_grant(LEASE_SECONDS, Some(options)).await?;
        self.leases.push(LeaseId::from_signed(id));
        Ok(())
    }

    async fn compact(&mut self, client: &mut Client) -> Result<(), etcd_client::Error> {
        let newest = Revision(self.revision.0 - KEPT_REVISIONS);
        if newest <= self.compacted_revision {
            return Ok(());
        }
        let at = Revision(
            self.random
                .random_range(self.compacted_revision.next().0..=newest.0),
        );
        client
            .compact(at.0, Some(CompactionOptions::new().with_physical()))
            .await?;
        self.compacted_revision = at;
        Ok(())
    }

    /// Puts and deletes of distinct keys (etcd rejects duplicate keys), and sometimes a range delete over a
    /// group that no other operation touches.
    fn build_transaction(&mut self) -> Vec<TxnOp> {
        let count = self
            .random
            .random_range(2..=self.max_transaction_ops.max(2));
        let excluded = KeyPool::pick_group(&mut self.random);
        let keys = self.pool.all().filter(|key| !key.starts_with(&excluded));
        let mut keys = keys.cloned().choose_multiple(&mut self.random, count - 1);
        keys.shuffle(&mut self.random);
        let mut operations: Vec<TxnOp> = keys
            .into_iter()
            .map(|key| match self.random.random_range(0..4) {
                0 => TxnOp::delete(key, None),
                _ => TxnOp::put(key, self.random_value(), None),
            })
            .collect();
        if self.random.random_range(0..4) == 0 {
            operations.push(TxnOp::delete(
                excluded,
                Some(DeleteOptions::new().with_prefix()),
            ));
        }
        operations
    }

    /// Mostly small values, sometimes empty, sometimes up to the maximum size.
    fn random_value(&mut self) -> Vec<u8> {
        let size = match self.random.random_range(0..20) {
            0 => 0,
            1 => self.random.random_range(0..=self.max_value_size),
            _ => self
                .random
                .random_range(1..=200.min(self.max_value_size.max(1))),
        };
        self.random_bytes(size)
    }

    fn random_bytes(&mut self, size: usize) -> Vec<u8> {
        let mut bytes = vec![0; size];
        self.random.fill_bytes(&mut bytes);
        bytes
    }

    fn record_revision(&mut self, header: Option<&ResponseHeader>) {
        self.revision = Revision(header.expect("response header").revision());
    }
}

/// Password of `root` after [`Workload::enable_auth`].
pub const ROOT_PASSWORD: &str = "root-secret";

async fn set_up_auth(client: &mut Client) -> Result<(), etcd_client::Error> {
    use etcd_client::{Permission, PermissionType};
    client.role_add("root").await?;
    client.user_add("root", ROOT_PASSWORD, None).await?;
    client.user_grant_role("root", "root").await?;
    client.role_add("reader").await?;
    let registry = Permission::new(PermissionType::Read, "/registry/").with_prefix();
    client.role_grant_permission("reader", registry).await?;
    client.user_add("reader", "reader-secret", None).await?;
    client.user_grant_role("reader", "reader").await?;
    client.auth_enable().await?;
    Ok(())
}
