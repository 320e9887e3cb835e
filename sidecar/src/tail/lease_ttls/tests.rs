use etcd_client::proto::PbEvent;

use super::*;

const LEASE: LeaseId = LeaseId(7);

fn watch_event(is_put: bool, key: &str, lease: LeaseId) -> etcd_client::Event {
    let mut event = etcd_client::Event(PbEvent::default());
    event.0.r#type = i32::from(!is_put);
    let mut kv = event.0.kv.take().unwrap_or_default();
    kv.key = key.into();
    kv.lease = lease.to_signed();
    event.0.kv = Some(kv);
    event
}

fn put_event(key: &str) -> etcd_client::Event {
    watch_event(true, key, LEASE)
}

fn delete_event(key: &str) -> etcd_client::Event {
    watch_event(false, key, LeaseId::NONE)
}

/// A cache with one lease, granted for a minute, and one key on it.
fn cached_ttls() -> LeaseTtls {
    let mut leases = LeaseTtls::default();
    assert_eq!(leases.find_unknown(&[put_event("a")]), [LEASE]);
    leases.insert(LEASE, Some(60));
    leases
}

#[tokio::test(start_paused = true)]
async fn lease_ttl_is_cached_and_refreshed_later() {
    let mut leases = cached_ttls();
    assert_eq!(leases.find_unknown(&[put_event("a"), put_event("b")]), []);
    tokio::time::advance(REFRESH_AFTER).await;
    assert_eq!(leases.find_unknown(&[put_event("a")]), [LEASE]);
    leases.insert(LEASE, Some(90));
    assert_eq!(leases.granted_ttl(LEASE), Some(90));
}

#[tokio::test(start_paused = true)]
async fn lease_granted_again_with_the_same_id_is_looked_up_again() {
    let mut leases = cached_ttls();
    // Revoking a lease deletes its keys.
    assert_eq!(leases.find_unknown(&[delete_event("a")]), []);
    assert_eq!(
        leases.granted_ttl(LEASE),
        Some(60),
        "earlier events keep the TTL"
    );
    assert_eq!(leases.find_unknown(&[put_event("c")]), [LEASE]);

    let mut leases = cached_ttls();
    assert_eq!(
        leases.find_unknown(&[delete_event("a"), put_event("a")]),
        [LEASE]
    );
}

#[tokio::test(start_paused = true)]
async fn deletes_of_unrelated_keys_cause_no_lookup() {
    let mut leases = cached_ttls();
    assert_eq!(
        leases.find_unknown(&[delete_event("b"), put_event("a")]),
        []
    );
    let off_the_lease = watch_event(true, "a", LeaseId::NONE);
    assert_eq!(
        leases.find_unknown(&[off_the_lease, delete_event("a"), put_event("b")]),
        []
    );
}

#[test]
fn events_with_unknown_leases_are_counted() {
    let mut leases = LeaseTtls::default();
    let events = [
        put_event("a"),
        put_event("b"),
        watch_event(true, "c", LeaseId::NONE),
    ];
    assert_eq!(leases.count_unknown(&events), 2);
    leases.insert(LEASE, None);
    assert_eq!(
        leases.count_unknown(&events),
        0,
        "the lease is known to be revoked"
    );
}
