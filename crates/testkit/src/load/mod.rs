//! Fills a live etcd with a random history that a seed repeats.
//!
//! [`Load`] draws one step after another: puts, deletes, ranges of deletes, transactions, leases
//! granted, attached and revoked, and compactions when asked for. Keys come from the pool in `keys`.
//! No choice depends on an answer of the server, lease ids included, so the same seed on two
//! servers gives the same revisions and the same `HashKV`.

mod keys;

use etcd_client::{
    Client, CompactionOptions, DeleteOptions, LeaseGrantOptions, PutOptions, ResponseHeader, Txn,
    TxnOp,
};
use mainstay_ids::{LeaseId, Revision};
use rand::rngs::StdRng;
use rand::seq::{IndexedRandom, IteratorRandom, SliceRandom};
use rand::{Rng, RngCore, SeedableRng};

use crate::etcd::Etcd;
use keys::KeyPool;

/// Granted to every lease: none may expire while a test runs, or the history would depend on time.
const LEASE_SECONDS: i64 = 3600;
/// History kept behind the newest revision by a compaction.
const KEPT_REVISIONS: i64 = 20;

/// One kind of change, with how often it is drawn.
const STEPS: [(u32, Step); 8] = [
    (48, Step::Put),
    (10, Step::LeasedPut),
    (12, Step::Delete),
    (4, Step::DeleteRange),
    (18, Step::Transaction),
    (4, Step::Grant),
    (2, Step::Revoke),
    (2, Step::Compact),
];

#[derive(Clone, Copy, Debug)]
enum Step {
    Put,
    LeasedPut,
    Delete,
    DeleteRange,
    Transaction,
    Grant,
    Revoke,
    Compact,
}

/// A random history in the making.
#[derive(Debug)]
pub struct Load {
    random: StdRng,
    pool: KeyPool,
    leases: Vec<LeaseId>,
    compacts: bool,
    largest_value: usize,
    transaction_ops: usize,
    huge_transactions: u32,
    revision: Revision,
    compacted: Revision,
}

impl Load {
    /// A history that this seed repeats: values up to 4 KiB, transactions up to 40 operations,
    /// no compaction.
    pub fn new(seed: u64) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        let pool = KeyPool::new(&mut random);
        Self {
            random,
            pool,
            leases: Vec::new(),
            compacts: false,
            largest_value: 4096,
            transaction_ops: 40,
            huge_transactions: 0,
            revision: Revision::EMPTY,
            compacted: Revision::EMPTY,
        }
    }

    /// Compacts now and then, keeping the newest revisions.
    #[must_use]
    pub fn with_compactions(mut self) -> Self {
        self.compacts = true;
        self
    }

    /// Draws values up to this size.
    #[must_use]
    pub fn with_values_up_to(mut self, bytes: usize) -> Self {
        self.largest_value = bytes;
        self
    }

    /// Draws transactions up to this many operations. The pool holds a few hundred keys, and a
    /// transaction takes each at most once.
    #[must_use]
    pub fn with_transactions_up_to(mut self, operations: usize) -> Self {
        self.transaction_ops = operations;
        self
    }

    /// The revision after the last step.
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// The last compaction; [`Revision::EMPTY`] when there was none.
    pub fn compacted(&self) -> Revision {
        self.compacted
    }

    /// Leases granted and not revoked, in the order they were granted.
    pub fn leases(&self) -> &[LeaseId] {
        &self.leases
    }

    /// Takes this many steps; returns the revision reached. A step that finds nothing to delete
    /// makes no revision, so there are fewer revisions than steps.
    pub async fn run(&mut self, etcd: &Etcd, steps: usize) -> Revision {
        let mut client = etcd.client().await;
        for number in 0..steps {
            let step = self.draw();
            self.take(&mut client, step)
                .await
                .unwrap_or_else(|error| panic!("step {number} of the load, {step:?}: {error}"));
        }
        self.revision
    }

    /// One transaction of this many operations, whose values have this many bytes together. A tenth
    /// of the operations deletes keys of the huge transaction before.
    ///
    /// The server must have been started with room for it, see
    /// [`EtcdOptions::huge_transactions`](crate::EtcdOptions::huge_transactions).
    pub async fn huge_transaction(
        &mut self,
        etcd: &Etcd,
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
        let mut kv = etcd.kv().await;
        let answer = kv.txn(Txn::new().and_then(operations)).await;
        let answer = answer.unwrap_or_else(|error| panic!("huge transaction {now}: {error}"));
        self.huge_transactions = now;
        self.reached(answer.header());
        self.revision
    }

    /// Turns authentication on: `root`, and a user who may read the registry. The server value is
    /// logged in as root afterwards; what the load does next, it does as root.
    pub async fn enable_auth(&mut self, etcd: &mut Etcd) {
        let mut client = etcd.client().await;
        turn_on_auth(&mut client)
            .await
            .unwrap_or_else(|error| panic!("enable authentication: {error}"));
        etcd.login("root", ROOT_PASSWORD);
    }

    fn draw(&mut self) -> Step {
        let drawn = STEPS.choose_weighted(&mut self.random, |(weight, _)| *weight);
        let (_, step) = drawn.expect("weights above zero");
        match step {
            Step::LeasedPut | Step::Revoke if self.leases.is_empty() => Step::Grant,
            Step::Compact if !self.compacts => Step::Put,
            step => *step,
        }
    }

    async fn take(&mut self, client: &mut Client, step: Step) -> Result<(), etcd_client::Error> {
        match step {
            Step::Put => {
                let (key, value) = (self.pool.any(&mut self.random).to_vec(), self.value());
                self.reached(client.put(key, value, None).await?.header());
            }
            Step::LeasedPut => {
                let lease = *self.leases.choose(&mut self.random).expect("a lease");
                let (key, value) = (self.pool.any(&mut self.random).to_vec(), self.value());
                let options = PutOptions::new().with_lease(lease.to_signed());
                self.reached(client.put(key, value, Some(options)).await?.header());
            }
            Step::Delete => {
                let key = self.pool.any(&mut self.random).to_vec();
                self.reached(client.delete(key, None).await?.header());
            }
            Step::DeleteRange => {
                let prefix = KeyPool::group(&mut self.random);
                let options = DeleteOptions::new().with_prefix();
                self.reached(client.delete(prefix, Some(options)).await?.header());
            }
            Step::Transaction => {
                let operations = self.transaction();
                self.reached(client.txn(Txn::new().and_then(operations)).await?.header());
            }
            Step::Grant => self.grant(client).await?,
            Step::Revoke => {
                let index = self.random.random_range(0..self.leases.len());
                let lease = self.leases.swap_remove(index);
                self.reached(client.lease_revoke(lease.to_signed()).await?.header());
            }
            Step::Compact => self.compact(client).await?,
        }
        Ok(())
    }

    async fn grant(&mut self, client: &mut Client) -> Result<(), etcd_client::Error> {
        // Positive, as etcd's own are; zero would ask the server to choose.
        let id = self.random.random_range(1..i64::MAX);
        let options = LeaseGrantOptions::new().with_id(id);
        client.lease_grant(LEASE_SECONDS, Some(options)).await?;
        self.leases.push(LeaseId::from_signed(id));
        Ok(())
    }

    async fn compact(&mut self, client: &mut Client) -> Result<(), etcd_client::Error> {
        let newest = Revision(self.revision.0 - KEPT_REVISIONS);
        if newest <= self.compacted {
            return Ok(());
        }
        let at = Revision(self.random.random_range(self.compacted.next().0..=newest.0));
        client
            .compact(at.0, Some(CompactionOptions::new().with_physical()))
            .await?;
        self.compacted = at;
        Ok(())
    }

    /// Puts and deletes of different keys (etcd refuses to touch a key twice), and sometimes a range of
    /// deletes over a group that no other operation touches.
    fn transaction(&mut self) -> Vec<TxnOp> {
        let count = self.random.random_range(2..=self.transaction_ops.max(2));
        let spared = KeyPool::group(&mut self.random);
        let keys = self.pool.all().filter(|key| !key.starts_with(&spared));
        let mut keys = keys.cloned().choose_multiple(&mut self.random, count - 1);
        keys.shuffle(&mut self.random);
        let mut operations: Vec<TxnOp> = keys
            .into_iter()
            .map(|key| match self.random.random_range(0..4) {
                0 => TxnOp::delete(key, None),
                _ => TxnOp::put(key, self.value(), None),
            })
            .collect();
        if self.random.random_range(0..4) == 0 {
            operations.push(TxnOp::delete(
                spared,
                Some(DeleteOptions::new().with_prefix()),
            ));
        }
        operations
    }

    /// Mostly small, sometimes empty, now and then as large as allowed.
    fn value(&mut self) -> Vec<u8> {
        let size = match self.random.random_range(0..20) {
            0 => 0,
            1 => self.random.random_range(0..=self.largest_value),
            _ => self
                .random
                .random_range(1..=200.min(self.largest_value.max(1))),
        };
        self.random_bytes(size)
    }

    fn random_bytes(&mut self, size: usize) -> Vec<u8> {
        let mut bytes = vec![0; size];
        self.random.fill_bytes(&mut bytes);
        bytes
    }

    fn reached(&mut self, header: Option<&ResponseHeader>) {
        self.revision = Revision(header.expect("a response header").revision());
    }
}

/// The password of `root` after [`Load::enable_auth`].
pub const ROOT_PASSWORD: &str = "root-secret";

async fn turn_on_auth(client: &mut Client) -> Result<(), etcd_client::Error> {
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
