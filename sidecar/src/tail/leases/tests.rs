use etcd_client::proto::PbEvent;

use super::*;

const LEASE: LeaseId = LeaseId(7);

fn event(is_put: bool, key: &str, lease: LeaseId) -> etcd_client::Event {
    let mut event = etcd_client::Event(PbEvent::default());
    event.0.r#type = i32::from(!is_put);
    let mut kv = event.0.kv.take().unwrap_or_default();
    kv.key = key.into();
    kv.lease = lease.to_signed();
    event.0.kv = Some(kv);
    event
}

fn put(key: &str) -> etcd_client::Event {
    event(true, key, LEASE)
}

fn delete(key: &str) -> etcd_client::Event {
    event(false, key, LeaseId::NONE)
}

/// One key is on the lease, which was granted for a minute.
fn known() -> LeaseTtls {
    let mut leases = LeaseTtls::default();
    assert_eq!(leases.unknown(&[put("a")]), [LEASE]);
    leases.remember(LEASE, Some(60));
    leases
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_asked_about_once_and_again_after_a_while() {
    let mut leases = known();
    assert_eq!(leases.unknown(&[put("a"), put("b")]), []);
    tokio::time::advance(FRESH).await;
    assert_eq!(leases.unknown(&[put("a")]), [LEASE]);
    leases.remember(LEASE, Some(90));
    assert_eq!(leases.granted(LEASE), Some(90));
}

#[tokio::test(start_paused = true)]
async fn a_lease_granted_again_under_its_number_is_asked_about_again() {
    let mut leases = known();
    // Its keys go with it when it is revoked.
    assert_eq!(leases.unknown(&[delete("a")]), []);
    assert_eq!(
        leases.granted(LEASE),
        Some(60),
        "events before that have it"
    );
    assert_eq!(leases.unknown(&[put("c")]), [LEASE]);

    let mut leases = known();
    assert_eq!(leases.unknown(&[delete("a"), put("a")]), [LEASE]);
}

#[tokio::test(start_paused = true)]
async fn deletes_of_other_keys_cost_no_question() {
    let mut leases = known();
    assert_eq!(leases.unknown(&[delete("b"), put("a")]), []);
    let off_the_lease = event(true, "a", LeaseId::NONE);
    assert_eq!(leases.unknown(&[off_the_lease, delete("a"), put("b")]), []);
}

#[test]
fn events_on_leases_that_nobody_told_about_are_counted() {
    let mut leases = LeaseTtls::default();
    let events = [put("a"), put("b"), event(true, "c", LeaseId::NONE)];
    assert_eq!(leases.untold(&events), 2);
    leases.remember(LEASE, None);
    assert_eq!(leases.untold(&events), 0, "it is known to be gone");
}
