//! Guarantees for consumers of the Leases, also under failures of the API server.

use std::collections::BTreeSet;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::api::rbac::v1::{PolicyRule, Role, RoleBinding, RoleRef, Subject};
use kube::Client;
use kube::api::{Api, ObjectMeta, Patch, PatchParams, PostParams};
use mainstay_coordination::{ConfigMapBacking, Coordinator, PinRequest, Purpose};
use mainstay_ids::Revision;
use mainstay_sidecar::kubernetes::{KubeAccess, KubeConnection, PinReader};
use mainstay_sidecar::state::SidecarRole;
use mainstay_testkit::ApiServer;
use serde_json::json;
use tempfile::TempDir;
use tokio::time::{Instant, sleep, timeout};

use super::support::{
    DELTA_LEASE, FULL_LEASE, LeaseRecorder, LeaseSidecar, MEMBER_LEASE, create_leases, empty_lease,
    lease_api, lease_holder, lease_renew_time, wait_for_lease,
};

const NO_HEARTBEAT: Duration = Duration::from_hours(1);
const TIMEOUT: Duration = Duration::from_mins(2);
/// Covers the delay between retries after failures.
const RETRY_TIMEOUT: Duration = Duration::from_mins(2);

const TLS_ANNOTATION: &str = "member.etcd.gardener.cloud/tls-enabled";

#[tokio::test]
async fn lease_change_is_written_immediately() {
    let server = ApiServer::start().await;
    let (client, namespace) = (server.client().await, server.create_namespace().await);
    let api = lease_api(&client, &namespace);
    // The Leases do not exist: the sidecar creates them, because its role allows it.
    let sidecar = LeaseSidecar::with_client(&client, &namespace, NO_HEARTBEAT);
    sidecar.set_role(SidecarRole::Follower);
    wait_for_lease(&api, MEMBER_LEASE, TIMEOUT, |it| {
        lease_holder(it).as_deref() == Some("1a:2b:Member")
    })
    .await;

    sidecar.set_role(SidecarRole::Leader);
    wait_for_lease(&api, MEMBER_LEASE, TIMEOUT, |it| {
        lease_holder(it).as_deref() == Some("1a:2b:Leader")
    })
    .await;

    sidecar.peer_tls.send_replace(Some(true));
    let has_tls = |it: &_| tls_annotation(it) == Some("true");
    wait_for_lease(&api, MEMBER_LEASE, TIMEOUT, has_tls).await;

    sidecar.set_stored_full(41);
    wait_for_lease(&api, FULL_LEASE, TIMEOUT, |it| {
        lease_holder(it).as_deref() == Some("41")
    })
    .await;
    sidecar.set_stored_delta(52);
    wait_for_lease(&api, DELTA_LEASE, TIMEOUT, |it| {
        lease_holder(it).as_deref() == Some("52")
    })
    .await;
    assert_eq!(sidecar.failures.0.load(Ordering::Relaxed), 0);
    sidecar.stop().await;
}

fn tls_annotation(lease: &Lease) -> Option<&str> {
    lease
        .metadata
        .annotations
        .as_ref()?
        .get(TLS_ANNOTATION)
        .map(String::as_str)
}

#[tokio::test]
async fn only_heartbeats_are_written_without_changes() {
    let server = ApiServer::start().await;
    let (client, namespace) = (server.client().await, server.create_namespace().await);
    let api = lease_api(&client, &namespace);
    create_leases(&api).await;
    let witness = LeaseRecorder::start(&api).await;
    let heartbeat = Duration::from_secs(1);
    // Before the first heartbeat, so that no period is missing.
    let started = Instant::now();
    let sidecar = LeaseSidecar::with_client(&client, &namespace, heartbeat);
    sidecar.set_role(SidecarRole::Leader);
    sidecar.set_stored_full(41);
    sidecar.set_stored_delta(52);
    while started.elapsed() < heartbeat * 6 || witness.writes(MEMBER_LEASE).len() < 3 {
        assert!(started.elapsed() < TIMEOUT, "heartbeats stopped");
        // The election updates the state all the time; that alone must not cause writes.
        sidecar.state_tx.send_modify(|state| {
            let member_status = state.member_status.as_mut().unwrap();
            member_status.revision.0 += 1;
            member_status.observed_at = Timestamp::now();
        });
        sleep(Duration::from_millis(20)).await;
    }
    let (beats, periods) = (
        witness.writes(MEMBER_LEASE).len(),
        started.elapsed().as_secs(),
    );
    assert!(
        beats as u64 <= periods + 1,
        "{beats} heartbeats in {periods} periods"
    );
    assert_eq!(witness.writes(FULL_LEASE).len(), 1);
    assert_eq!(witness.writes(DELTA_LEASE).len(), 1);

    // In role Unknown the member Lease is not renewed.
    sidecar.set_role(SidecarRole::Unknown);
    let before = wait_until_idle(&witness, heartbeat * 2).await;
    sleep(heartbeat * 3).await;
    assert_eq!(witness.writes(MEMBER_LEASE).len(), before);
    sidecar.set_role(SidecarRole::Follower);
    let is_back = |it: &_| lease_holder(it).as_deref() == Some("1a:2b:Member");
    wait_for_lease(&api, MEMBER_LEASE, TIMEOUT, is_back).await;
    sidecar.stop().await;
}

/// Waits until the member Lease was not written for `quiet_period`, so that no write is in flight. Returns the number of writes.
async fn wait_until_idle(witness: &LeaseRecorder, quiet_period: Duration) -> usize {
    let started = Instant::now();
    loop {
        let before = witness.writes(MEMBER_LEASE).len();
        sleep(quiet_period).await;
        let now = witness.writes(MEMBER_LEASE).len();
        if now == before {
            return now;
        }
        assert!(
            started.elapsed() < TIMEOUT,
            "still writing after {now} writes"
        );
    }
}

#[tokio::test]
async fn delta_period_without_a_delta_updates_only_the_time() {
    let server = ApiServer::start().await;
    let (client, namespace) = (server.client().await, server.create_namespace().await);
    let api = lease_api(&client, &namespace);
    let sidecar = LeaseSidecar::with_client(&client, &namespace, NO_HEARTBEAT);
    sidecar.set_role(SidecarRole::Leader);
    let checked = Timestamp::now();
    sidecar
        .state_tx
        .send_modify(|state| state.delta_checked_at = Some(checked));
    let is_zero = |it: &_| lease_holder(it).as_deref() == Some("0");
    wait_for_lease(&api, DELTA_LEASE, TIMEOUT, is_zero).await;
    sidecar.set_stored_delta(52);
    wait_for_lease(&api, DELTA_LEASE, TIMEOUT, |it| {
        lease_holder(it).as_deref() == Some("52")
    })
    .await;
    let later = Timestamp::now();
    sidecar
        .state_tx
        .send_modify(|state| state.delta_checked_at = Some(later));
    let is_newer = |it: &_| {
        lease_renew_time(it).map(Timestamp::as_microsecond) == Some(later.as_microsecond())
    };
    wait_for_lease(&api, DELTA_LEASE, TIMEOUT, is_newer).await;
    assert_eq!(
        lease_holder(&api.get(DELTA_LEASE).await.unwrap()).as_deref(),
        Some("52")
    );
    sidecar.stop().await;
}

fn lease_revision(lease: &Lease) -> Option<i64> {
    lease_holder(lease).map(|holder| holder.parse().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn revisions_never_decrease_with_concurrent_writers() {
    let server = ApiServer::start().await;
    let (client, namespace) = (server.client().await, server.create_namespace().await);
    let api = lease_api(&client, &namespace);
    create_leases(&api).await;
    let witness = LeaseRecorder::start(&api).await;
    // Two sidecars that both believe they lead, one lagging, and a compaction that writes in between.
    let ahead = LeaseSidecar::with_client(&client, &namespace, NO_HEARTBEAT);
    let behind = LeaseSidecar::with_client(&client, &namespace, NO_HEARTBEAT);
    ahead.set_role(SidecarRole::Leader);
    behind.set_role(SidecarRole::Leader);
    for step in 1..=60 {
        ahead.set_stored_full(step * 10);
        ahead.set_stored_delta(step * 10 + 5);
        behind.set_stored_full(step * 7);
        behind.set_stored_delta(step * 9);
        if step == 30 {
            let patch = json!({ "spec": { "holderIdentity": "450" } });
            api.patch(FULL_LEASE, &PatchParams::default(), &Patch::Merge(&patch))
                .await
                .unwrap();
        }
        sleep(Duration::from_millis(20)).await;
        // Often enough for many writes, rarely enough for some to be outdated.
        if step % 4 == 0 {
            wait_for_lease(&api, FULL_LEASE, TIMEOUT, |it| {
                lease_revision(it) >= Some(step * 10)
            })
            .await;
            wait_for_lease(&api, DELTA_LEASE, TIMEOUT, |it| {
                lease_revision(it) >= Some(step * 10 + 5)
            })
            .await;
        }
    }
    wait_for_lease(&api, FULL_LEASE, TIMEOUT, |it| {
        lease_revision(it) == Some(600)
    })
    .await;
    wait_for_lease(&api, DELTA_LEASE, TIMEOUT, |it| {
        lease_revision(it) == Some(605)
    })
    .await;
    for name in [FULL_LEASE, DELTA_LEASE] {
        let revisions: Vec<i64> = witness
            .writes(name)
            .iter()
            .filter_map(lease_revision)
            .collect();
        assert!(revisions.len() > 10, "{name}: {revisions:?}");
        assert!(revisions.is_sorted(), "{name}: {revisions:?}");
    }
    ahead.stop().await;
    behind.stop().await;
}

#[tokio::test]
async fn newer_full_snapshot_in_the_lease_is_published() {
    let server = ApiServer::start().await;
    let (client, namespace) = (server.client().await, server.create_namespace().await);
    let api = lease_api(&client, &namespace);
    let first = LeaseSidecar::with_client(&client, &namespace, NO_HEARTBEAT);
    first.set_role(SidecarRole::Leader);
    first.set_stored_full(41);
    wait_for_lease(&api, FULL_LEASE, TIMEOUT, |it| {
        lease_holder(it).as_deref() == Some("41")
    })
    .await;
    first.stop().await;
    let compacted = json!({ "spec": { "holderIdentity": "120" } });
    api.patch(
        FULL_LEASE,
        &PatchParams::default(),
        &Patch::Merge(&compacted),
    )
    .await
    .unwrap();

    let mut sidecar = LeaseSidecar::with_client(&client, &namespace, NO_HEARTBEAT);
    sidecar.set_role(SidecarRole::Leader);
    sidecar.set_stored_full(41);
    let newer = sidecar
        .newest_full
        .wait_for(|revision| *revision == Some(Revision(120)));
    timeout(RETRY_TIMEOUT, newer).await.unwrap().unwrap();
    sidecar.stop().await;
}

#[tokio::test]
async fn api_server_outage_delays_only_the_leases() {
    let mut server = ApiServer::start().await;
    let (client, namespace) = (server.client().await, server.create_namespace().await);
    let api = lease_api(&client, &namespace);
    let heartbeat = Duration::from_secs(1);
    let sidecar = LeaseSidecar::with_client(&client, &namespace, heartbeat);
    sidecar.set_role(SidecarRole::Follower);
    wait_for_lease(&api, MEMBER_LEASE, TIMEOUT, |it| {
        lease_holder(it).as_deref() == Some("1a:2b:Member")
    })
    .await;

    let started = Instant::now();
    server.stop();
    sidecar.set_role(SidecarRole::Leader);
    sidecar.set_stored_full(41);
    sidecar.set_stored_delta(52);
    let failures = || sidecar.failures.0.load(Ordering::Relaxed);
    while failures() < 9 {
        assert!(started.elapsed() < TIMEOUT, "{} attempts", failures());
        sleep(heartbeat / 10).await;
    }
    // Three Leases, at least half a second between two attempts each.
    let (found, max_total) = (failures(), 3 * (started.elapsed().as_millis() / 500 + 1));
    assert!(
        found as u128 <= max_total,
        "{found} attempts, at most {max_total}"
    );

    server.restart().await;
    wait_for_lease(&api, MEMBER_LEASE, RETRY_TIMEOUT, |it| {
        lease_holder(it).as_deref() == Some("1a:2b:Leader")
    })
    .await;
    wait_for_lease(&api, FULL_LEASE, RETRY_TIMEOUT, |it| {
        lease_holder(it).as_deref() == Some("41")
    })
    .await;
    wait_for_lease(&api, DELTA_LEASE, RETRY_TIMEOUT, |it| {
        lease_holder(it).as_deref() == Some("52")
    })
    .await;
    let beat = lease_renew_time(&api.get(MEMBER_LEASE).await.unwrap()).unwrap();
    wait_for_lease(&api, MEMBER_LEASE, RETRY_TIMEOUT, |it| {
        lease_renew_time(it).unwrap() > beat
    })
    .await;
    sidecar.stop().await;
}

#[tokio::test]
async fn kubeconfig_created_later_is_read() {
    let server = ApiServer::start().await;
    let (client, namespace) = (server.client().await, server.create_namespace().await);
    let home = TempDir::new().unwrap();
    let path = home.path().join("kubeconfig");
    let sidecar = LeaseSidecar::with_kubeconfig(path.clone(), &namespace, Duration::from_secs(1));
    sidecar.set_role(SidecarRole::Follower);
    while sidecar.failures.0.load(Ordering::Relaxed) == 0 {
        sleep(Duration::from_millis(10)).await;
    }
    fs::copy(server.kubeconfig(), &path).unwrap();
    let api = lease_api(&client, &namespace);
    wait_for_lease(&api, MEMBER_LEASE, TIMEOUT, |it| {
        lease_holder(it).as_deref() == Some("1a:2b:Member")
    })
    .await;
    sidecar.stop().await;
}

/// Permissions as etcd-druid grants them: Leases may be read and written, not created.
async fn grant_existing_leases(client: &Client, namespace: &str, user: &str) {
    let metadata = ObjectMeta {
        name: Some("leases".to_owned()),
        ..ObjectMeta::default()
    };
    let strings = |values: &[&str]| values.iter().map(ToString::to_string).collect::<Vec<_>>();
    let permission = PolicyRule {
        api_groups: Some(strings(&["coordination.k8s.io"])),
        resources: Some(strings(&["leases"])),
        verbs: strings(&["get", "list", "patch", "update", "watch"]),
        ..PolicyRule::default()
    };
    let role = Role {
        metadata: metadata.clone(),
        rules: Some(vec![permission]),
    };
    let roles = Api::<Role>::namespaced(client.clone(), namespace);
    roles.create(&PostParams::default(), &role).await.unwrap();
    let binding = RoleBinding {
        metadata,
        role_ref: RoleRef {
            api_group: Some("rbac.authorization.k8s.io".to_owned()),
            kind: "Role".to_owned(),
            name: "leases".to_owned(),
        },
        subjects: Some(vec![Subject {
            kind: "User".to_owned(),
            name: user.to_owned(),
            ..Subject::default()
        }]),
    };
    let bindings = Api::<RoleBinding>::namespaced(client.clone(), namespace);
    bindings
        .create(&PostParams::default(), &binding)
        .await
        .unwrap();
}

#[tokio::test]
async fn sidecar_waits_for_a_lease_that_it_cannot_create() {
    let server = ApiServer::start().await;
    let (client, namespace) = (server.client().await, server.create_namespace().await);
    grant_existing_leases(&client, &namespace, "sidecar").await;
    let own = server.client_as("sidecar").await;
    let sidecar = LeaseSidecar::with_client(&own, &namespace, Duration::from_secs(1));
    sidecar.set_role(SidecarRole::Follower);
    while sidecar.failures.0.load(Ordering::Relaxed) < 2 {
        sleep(Duration::from_millis(10)).await;
    }
    let api = lease_api(&client, &namespace);
    assert!(api.get_opt(MEMBER_LEASE).await.unwrap().is_none());
    api.create(&PostParams::default(), &empty_lease(MEMBER_LEASE))
        .await
        .unwrap();
    wait_for_lease(&api, MEMBER_LEASE, TIMEOUT, |it| {
        lease_holder(it).as_deref() == Some("1a:2b:Member")
    })
    .await;
    sidecar.stop().await;
}

#[tokio::test]
async fn pins_are_read_and_an_unreachable_api_server_is_an_error() {
    let mut server = ApiServer::start().await;
    let (client, namespace) = (server.client().await, server.create_namespace().await);
    let connection = Arc::new(KubeConnection::new(KubeAccess::Client(client.clone())));
    let reader = PinReader::new(connection, &namespace, "etcd-main-coordination");
    let listing = ["v2/a", "v2/b"];
    assert_eq!(
        reader.read_pinned_keys(listing).await.unwrap(),
        BTreeSet::new()
    );
    let maps = Api::<ConfigMap>::namespaced(client.clone(), &namespace);
    let found = maps.get_opt("etcd-main-coordination").await.unwrap();
    assert!(found.is_none(), "reading created the ConfigMap");

    let backing = ConfigMapBacking::new(client, &namespace, "etcd-main-coordination");
    let compaction = Coordinator::new(Arc::new(backing));
    let pin_request = PinRequest {
        name: "compaction".to_owned(),
        holder: "job-1".to_owned(),
        purpose: Purpose::Compact,
        keys: BTreeSet::from(["v2/b".to_owned()]),
        revisions: None,
        ttl: Duration::from_mins(5),
    };
    let pin = compaction.create_pin(&pin_request).await.unwrap();
    let pinned = reader.read_pinned_keys(listing).await.unwrap();
    assert_eq!(pinned, BTreeSet::from(["v2/b".to_owned()]));
    pin.remove().await.unwrap();
    assert_eq!(
        reader.read_pinned_keys(listing).await.unwrap(),
        BTreeSet::new()
    );

    server.stop();
    assert!(reader.read_pinned_keys(listing).await.is_err());
}
