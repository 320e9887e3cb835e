//! Writes to an etcd cluster continuously, also through failures, and records the acknowledged writes.
//!
//! Every write has its own key, so that a lost write is detected. A write without a response may or may not have
//! happened; it is not checked.

use std::collections::BTreeMap;
use std::time::Duration;

use etcd_client::{Client, Error};
use mainstay_ids::Revision;
use mainstay_testkit::Kv;
use tokio::sync::watch;
use tokio::task::{JoinError, JoinHandle};
use tokio::time::{Instant, sleep, timeout};

use super::wait::{WaitTimeout, eventually};

/// Timeout of a write: longer than a healthy cluster needs on a loaded machine.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
/// Pause between two writes: many tests share the machine.
const WRITE_INTERVAL: Duration = Duration::from_millis(10);
/// Pause after a failed write.
const RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// A running writer.
#[derive(Debug)]
pub struct WriteLoad {
    stop: watch::Sender<bool>,
    count: watch::Receiver<u64>,
    task: JoinHandle<AcknowledgedWrites>,
}

impl WriteLoad {
    /// Starts writing below a prefix, with a pause after each write. `connect` is called again after a failed write.
    pub fn start<F>(prefix: &str, connect: impl Fn() -> F + Send + 'static) -> Self
    where
        F: Future<Output = Result<Client, Error>> + Send,
    {
        Self::start_with_interval(prefix, WRITE_INTERVAL, connect)
    }

    /// Like `start`, with another pause.
    pub fn start_with_interval<F>(
        prefix: &str,
        pace: Duration,
        connect: impl Fn() -> F + Send + 'static,
    ) -> Self
    where
        F: Future<Output = Result<Client, Error>> + Send,
    {
        let (stop, stopped) = watch::channel(false);
        let (counted, count) = watch::channel(0);
        let prefix = prefix.to_owned();
        let task = tokio::spawn(async move {
            write_until_stopped((&prefix, pace), connect, &stopped, &counted).await
        });
        Self { stop, count, task }
    }

    /// Waits for `more` acknowledged writes from now on.
    pub async fn wait_for_writes(&self, more: u64) -> Result<(), WaitTimeout> {
        let goal = *self.count.borrow() + more;
        let written = async || (*self.count.borrow() >= goal).then_some(());
        eventually(&format!("{more} acknowledged writes"), written).await
    }

    /// Stops after the current write.
    pub async fn stop(self) -> Result<AcknowledgedWrites, JoinError> {
        // Sending fails only if the writer has ended; joining it reports why.
        self.stop.send(true).ok();
        self.task.await
    }
}

async fn write_until_stopped<F>(
    (prefix, pace): (&str, Duration),
    connect: impl Fn() -> F,
    stopped: &watch::Receiver<bool>,
    counted: &watch::Sender<u64>,
) -> AcknowledgedWrites
where
    F: Future<Output = Result<Client, Error>>,
{
    let mut writes = AcknowledgedWrites::new(Instant::now());
    let mut client = None;
    for number in 0_u64.. {
        if *stopped.borrow() {
            break;
        }
        if client.is_none() {
            client = timeout(REQUEST_TIMEOUT, connect())
                .await
                .ok()
                .and_then(Result::ok);
        }
        let key = format!("{prefix}{number:010}");
        let revision = match &mut client {
            Some(client) => put(client, &key, number).await,
            None => None,
        };
        if let Some(revision) = revision {
            writes.record(key, number, revision, Instant::now());
            counted.send_modify(|count| *count += 1);
            sleep(pace).await;
        } else {
            client = None;
            sleep(RETRY_INTERVAL).await;
        }
    }
    writes.finish(Instant::now());
    writes
}

async fn put(client: &mut Client, key: &str, number: u64) -> Option<Revision> {
    let answer = timeout(REQUEST_TIMEOUT, client.put(key, number.to_string(), None)).await;
    let answer = answer.ok()?.ok()?;
    answer.header().map(|header| Revision(header.revision()))
}

/// The acknowledged writes and their times.
#[derive(Clone, Debug)]
pub struct AcknowledgedWrites {
    writes: BTreeMap<String, (String, Revision)>,
    /// Times of the acknowledgements, in order.
    ack_times: Vec<Instant>,
    last_ack: Instant,
    longest_gap: Duration,
}

impl AcknowledgedWrites {
    fn new(start: Instant) -> Self {
        Self {
            writes: BTreeMap::new(),
            ack_times: Vec::new(),
            last_ack: start,
            longest_gap: Duration::ZERO,
        }
    }

    fn record(&mut self, key: String, number: u64, revision: Revision, at: Instant) {
        self.longest_gap = self.longest_gap.max(at - self.last_ack);
        self.last_ack = at;
        self.ack_times.push(at);
        self.writes.insert(key, (number.to_string(), revision));
    }

    /// The end of the load; no write was acknowledged between the last one and it.
    fn finish(&mut self, at: Instant) {
        self.longest_gap = self.longest_gap.max(at - self.last_ack);
    }

    /// Number of acknowledged writes.
    pub fn count(&self) -> usize {
        self.writes.len()
    }

    /// Number of writes acknowledged in a period.
    pub fn count_between(&self, from: Instant, to: Instant) -> usize {
        let since = self.ack_times.partition_point(|at| *at < from);
        let until = self.ack_times.partition_point(|at| *at <= to);
        until.saturating_sub(since)
    }

    /// The longest time without an acknowledged write.
    pub fn longest_gap(&self) -> Duration {
        self.longest_gap
    }

    /// The newest acknowledged revision; `None` without writes.
    pub fn newest_revision(&self) -> Option<Revision> {
        self.writes.values().map(|(_, revision)| *revision).max()
    }

    /// Keys written up to a revision that are missing or differ in `keys`.
    pub fn missing_from(&self, keys: &[Kv], up_to: Revision) -> Vec<&str> {
        self.find_missing(keys, |revision| revision <= up_to)
    }

    /// Keys that are missing or differ in `keys`, except for writes between two revisions.
    pub fn missing_outside(&self, keys: &[Kv], after: Revision, before: Revision) -> Vec<&str> {
        self.find_missing(keys, |revision| revision <= after || revision >= before)
    }

    fn find_missing(&self, keys: &[Kv], counts: impl Fn(Revision) -> bool) -> Vec<&str> {
        let stored: BTreeMap<&[u8], &[u8]> = keys
            .iter()
            .map(|kv| (kv.key.as_slice(), kv.value.as_slice()))
            .collect();
        let expected = self
            .writes
            .iter()
            .filter(|(_, (_, revision))| counts(*revision));
        expected
            .filter(|(key, (value, _))| stored.get(key.as_bytes()) != Some(&value.as_bytes()))
            .map(|(key, _)| key.as_str())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use mainstay_ids::LeaseId;

    use super::*;

    fn stored_kv(key: &str, value: &str) -> Kv {
        Kv {
            key: key.into(),
            value: value.into(),
            create_revision: Revision(1),
            mod_revision: Revision(1),
            version: 1,
            lease: LeaseId::NONE,
        }
    }

    fn three_writes() -> AcknowledgedWrites {
        let start = Instant::now();
        let mut writes = AcknowledgedWrites::new(start);
        let moments = [1, 2, 7].map(|seconds| start + Duration::from_secs(seconds));
        for (number, at) in (0_u64..).zip(moments) {
            let revision = Revision(10 + i64::try_from(number).unwrap());
            writes.record(format!("k{number}"), number, revision, at);
        }
        writes
    }

    #[test]
    fn lost_or_changed_write_is_missing() {
        let keys = [stored_kv("k0", "0"), stored_kv("k1", "something else")];
        assert_eq!(
            three_writes().missing_from(&keys, Revision(12)),
            ["k1", "k2"]
        );
    }

    #[test]
    fn write_after_the_limit_can_be_missing() {
        let keys = [stored_kv("k0", "0"), stored_kv("k1", "1")];
        assert!(three_writes().missing_from(&keys, Revision(11)).is_empty());
        assert_eq!(three_writes().newest_revision(), Some(Revision(12)));
    }

    #[test]
    fn only_writes_between_the_two_revisions_can_be_missing() {
        let keys = [stored_kv("k0", "0")];
        let written = three_writes();
        let missing = written.missing_outside(&keys, Revision(10), Revision(12));
        assert_eq!(missing, ["k2"]);
    }

    #[test]
    fn longest_gap_is_measured_between_acknowledgements() {
        assert_eq!(three_writes().longest_gap(), Duration::from_secs(5));
    }

    #[test]
    fn writes_are_counted_between_two_times() {
        let written = three_writes();
        let at = |seconds: u64| written.last_ack - Duration::from_secs(7 - seconds);
        assert_eq!(written.count_between(at(1), at(2)), 2);
        assert_eq!(written.count_between(at(3), at(6)), 0);
        assert_eq!(written.count_between(at(3), at(7)), 1);
    }

    #[test]
    fn longest_gap_includes_the_time_after_the_last_write() {
        let mut written = three_writes();
        written.finish(written.last_ack + Duration::from_secs(9));
        assert_eq!(written.longest_gap(), Duration::from_secs(9));
    }
}
