//! Clients that write through all failures and record the acknowledged writes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use etcd_client::{
    Client, ConnectOptions, DeleteOptions, Error, LeaseGrantOptions, PutOptions, Txn, TxnOp,
};
use mainstay_ids::Revision;
use rand::rngs::StdRng;
use rand::{Rng, RngCore, SeedableRng};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::AckedWrites;

/// Timeout after which a client switches to the next member.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
/// Detects a hang of the writers.
const HANG_TIMEOUT: Duration = Duration::from_mins(2);
/// Pause before the next member is tried.
const RETRY_INTERVAL: Duration = Duration::from_millis(50);
/// In seconds: no lease may expire during a test.
const LEASE_SECONDS: i64 = 3600;
/// Number of leases of a client.
const MAX_LEASES: usize = 8;

/// Clients that write until they are stopped.
pub(crate) struct WriterPool {
    stop: Arc<AtomicBool>,
    clients: Vec<JoinHandle<()>>,
    pub(crate) acks: AckedWrites,
}

impl WriterPool {
    /// Starts clients that pause between writes.
    pub(crate) fn start(urls: &[String], clients: usize, pace: Duration, seed: u64) -> Self {
        let (stop, acks) = (Arc::new(AtomicBool::new(false)), AckedWrites::default());
        let clients = (0..clients).map(|number| {
            let hand = WriterClient {
                number,
                urls: urls.to_vec(),
                next_url: number,
                random: StdRng::seed_from_u64(seed + number as u64),
                written: 0,
                own_keys: Vec::new(),
                leases: Vec::new(),
                acks: acks.clone(),
            };
            tokio::spawn(hand.run(pace, Arc::clone(&stop)))
        });
        let clients = clients.collect();
        Self {
            stop,
            clients,
            acks,
        }
    }

    /// Waits for `writes` more acknowledged writes, which shows that the cluster works.
    pub(crate) async fn wait_for_writes(&self, writes: usize) {
        let target = self.acks.count() + writes;
        let acked = async {
            while self.acks.count() < target {
                sleep(RETRY_INTERVAL).await;
            }
        };
        timeout(HANG_TIMEOUT, acked).await.unwrap_or_else(|_| {
            panic!(
                "{} of {target} writes after {HANG_TIMEOUT:?}",
                self.acks.count()
            )
        });
    }

    /// Stops the clients; returns the acknowledged writes.
    pub(crate) async fn stop(self) -> AckedWrites {
        self.stop.store(true, Ordering::SeqCst);
        for client in self.clients {
            client.await.unwrap();
        }
        self.acks
    }
}

/// One client.
struct WriterClient {
    number: usize,
    urls: Vec<String>,
    next_url: usize,
    random: StdRng,
    written: u64,
    /// Its acknowledged keys, which may be deleted later.
    own_keys: Vec<Vec<u8>>,
    leases: Vec<i64>,
    acks: AckedWrites,
}

impl WriterClient {
    async fn run(mut self, pace: Duration, stop: Arc<AtomicBool>) {
        let mut client = None;
        while !stop.load(Ordering::SeqCst) {
            if client.is_none() {
                client = self.connect().await;
            }
            let Some(connected) = &mut client else {
                sleep(RETRY_INTERVAL).await;
                continue;
            };
            if self.write_once(connected).await.is_err() {
                client = None;
            }
            sleep(pace).await;
        }
    }

    async fn connect(&mut self) -> Option<Client> {
        self.next_url += 1;
        let url = &self.urls[self.next_url % self.urls.len()];
        let options = ConnectOptions::new().with_connect_timeout(REQUEST_TIMEOUT);
        let connecting = Client::connect([url], Some(options));
        timeout(REQUEST_TIMEOUT, connecting).await.ok()?.ok()
    }

    /// One write; an error means that its outcome is unknown.
    async fn write_once(&mut self, client: &mut Client) -> Result<(), ()> {
        match self.random.random_range(0..100) {
            0..45 => self.put(client).await,
            45..65 => self.write_transaction(client).await,
            65..75 => self.delete(client).await,
            75..88 => self.leased_put(client).await,
            88..94 => self.rotate_lease(client).await,
            _ => self.delete_range(client).await,
        }
    }

    async fn put(&mut self, client: &mut Client) -> Result<(), ()> {
        let (key, value) = (self.next_key(), self.random_value());
        let answer = with_timeout(client.put(key.clone(), value.clone(), None)).await?;
        let revision = Revision(answer.header().unwrap().revision());
        self.acks.record_put(revision, key.clone(), value);
        self.own_keys.push(key);
        Ok(())
    }

    async fn write_transaction(&mut self, client: &mut Client) -> Result<(), ()> {
        let count = self.random.random_range(1..20);
        let puts: Vec<_> = (0..count)
            .map(|_| (self.next_key(), self.random_value()))
            .collect();
        let gone = self.take_own_key();
        let mut operations: Vec<TxnOp> = puts
            .iter()
            .map(|(key, value)| TxnOp::put(key.clone(), value.clone(), None))
            .collect();
        operations.extend(gone.iter().map(|key| TxnOp::delete(key.clone(), None)));
        operations.push(TxnOp::put(self.hot_key(), self.random_value(), None));
        let answer = with_timeout(client.txn(Txn::new().and_then(operations))).await;
        let Ok(answer) = answer else {
            if let Some(key) = gone {
                self.acks.record_uncertain_delete(key);
            }
            return Err(());
        };
        let revision = Revision(answer.header().unwrap().revision());
        for (key, value) in puts {
            self.acks.record_put(revision, key.clone(), value);
            self.own_keys.push(key);
        }
        if let Some(key) = gone {
            self.acks.record_delete(revision, key);
        }
        Ok(())
    }

    async fn delete(&mut self, client: &mut Client) -> Result<(), ()> {
        let Some(key) = self.take_own_key() else {
            return Ok(());
        };
        let Ok(answer) = with_timeout(client.delete(key.clone(), None)).await else {
            self.acks.record_uncertain_delete(key);
            return Err(());
        };
        let revision = Revision(answer.header().unwrap().revision());
        self.acks.record_delete(revision, key);
        Ok(())
    }

    async fn leased_put(&mut self, client: &mut Client) -> Result<(), ()> {
        let Some(lease) = self.leases.last() else {
            return self.rotate_lease(client).await;
        };
        let options = PutOptions::new().with_lease(*lease);
        let (key, value) = (self.hot_key(), self.random_value());
        with_timeout(client.put(key, value, Some(options))).await?;
        Ok(())
    }

    async fn rotate_lease(&mut self, client: &mut Client) -> Result<(), ()> {
        if self.leases.len() >= MAX_LEASES {
            let lease = self.leases.remove(0);
            with_timeout(client.lease_revoke(lease)).await?;
        }
        let id = self.random.random_range(1..i64::MAX);
        let options = LeaseGrantOptions::new().with_id(id);
        with_timeout(client.lease_grant(LEASE_SECONDS, Some(options))).await?;
        self.leases.push(id);
        Ok(())
    }

    async fn delete_range(&mut self, client: &mut Client) -> Result<(), ()> {
        let prefix = format!("/hot/{}/{}", self.number, self.random.random_range(0..4));
        let options = DeleteOptions::new().with_prefix();
        with_timeout(client.delete(prefix, Some(options))).await?;
        Ok(())
    }

    /// A new key.
    fn next_key(&mut self) -> Vec<u8> {
        self.written += 1;
        format!("/acked/{}/{:08}", self.number, self.written).into_bytes()
    }

    /// A key that is overwritten repeatedly.
    fn hot_key(&mut self) -> Vec<u8> {
        format!(
            "/hot/{}/{:02}",
            self.number,
            self.random.random_range(0..40)
        )
        .into_bytes()
    }

    fn take_own_key(&mut self) -> Option<Vec<u8>> {
        let count = self.own_keys.len();
        (count > 10).then(|| {
            self.own_keys
                .swap_remove(self.random.random_range(0..count))
        })
    }

    fn random_value(&mut self) -> Vec<u8> {
        let size = match self.random.random_range(0..50) {
            0 => 0,
            1 => self.random.random_range(2_000..20_000),
            _ => self.random.random_range(10..300),
        };
        let mut bytes = vec![0; size];
        self.random.fill_bytes(&mut bytes);
        bytes
    }
}

/// The answer; an error after the timeout.
async fn with_timeout<T>(asked: impl Future<Output = Result<T, Error>>) -> Result<T, ()> {
    timeout(REQUEST_TIMEOUT, asked)
        .await
        .map_err(drop)?
        .map_err(drop)
}
