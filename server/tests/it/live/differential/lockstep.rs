//! Sends one request and describes the response, without ids.

use std::fmt::Debug;
use std::sync::LazyLock;

use etcd_client::{Client, Error, LeaseGrantOptions, LeaseTimeToLiveOptions, WatchOptions};
use regex::Regex;

use super::generate::Step;

static IDS: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"(cluster_id|member_id|raft_term): \d+").expect("a valid expression")
});

fn describe<T: Debug>(response: Result<T, Error>) -> String {
    match response {
        Ok(response) => IDS
            .replace_all(&format!("{response:?}"), "$1: _")
            .into_owned(),
        Err(Error::GRpcStatus(status)) => {
            format!("error {:?}: {}", status.code(), status.message())
        }
        Err(error) => unreachable!("the server cannot be reached: {error}"),
    }
}

pub(super) async fn answer(client: &mut Client, step: &Step) -> String {
    match step.clone() {
        Step::Get(key, options) => describe(client.get(key, Some(options)).await),
        Step::Put(key, value, options) => describe(client.put(key, value, Some(options)).await),
        Step::Delete(key, options) => describe(client.delete(key, Some(options)).await),
        Step::Txn(txn) => describe(client.txn(txn).await),
        Step::Compact(revision) => describe(client.compact(revision, None).await),
        Step::Grant(id) => {
            let options = LeaseGrantOptions::new().with_id(id);
            describe(client.lease_grant(600 + id, Some(options)).await)
        }
        Step::Revoke(id) => describe(client.lease_revoke(id).await),
        Step::TimeToLive(id) => {
            let options = LeaseTimeToLiveOptions::new().with_keys();
            let answer = client.lease_time_to_live(id, Some(options)).await;
            describe(answer.map(|lease| {
                let mut keys = lease.keys().to_vec();
                keys.sort();
                // The remaining time depends on the clock, unless the lease is missing.
                (lease.granted_ttl(), lease.ttl() < 0, keys)
            }))
        }
        Step::Watch(prefix, start) => watch(client, &prefix, start).await,
    }
}

/// Collects the events of a prefix until one that is written for it.
async fn watch(client: &mut Client, prefix: &str, start: i64) -> String {
    let last = format!("{prefix}~last");
    let put = client
        .put(last, "", None)
        .await
        .expect("write the last event");
    let revision = put.header().expect("a header").revision();
    let options = WatchOptions::new()
        .with_prefix()
        .with_prev_key()
        .with_start_revision(start);
    let mut stream = client.watch(prefix, Some(options)).await.expect("watch");
    let mut events = Vec::new();
    loop {
        let message = stream.message().await.expect("read").expect("a message");
        if message.canceled() {
            return format!("cancelled, compacted at {}", message.compact_revision());
        }
        for event in message.events() {
            events.push(format!("{event:?}"));
            if event.kv().is_some_and(|kv| kv.mod_revision() == revision) {
                return format!("{events:#?}");
            }
        }
    }
}
