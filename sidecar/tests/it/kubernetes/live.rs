//! What consumers of the leases rely on, and what may go wrong with the API server meanwhile.

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
use mainstay_coordination::{ConfigMapBacking, Coordinator, PinWish, Purpose};
use mainstay_ids::Revision;
use mainstay_sidecar::kubernetes::{Access, Connection, PinReader};
use mainstay_sidecar::state::Standing;
use mainstay_testkit::ApiServer;
use serde_json::json;
use tempfile::TempDir;
use tokio::time::{Instant, sleep, timeout};

use super::world::{
    DELTA, FULL, MEMBER, Sidecar, Witness, create_leases, empty_lease, eventually, holder, leases,
    renewed,
};

const NEVER: Duration = Duration::from_hours(1);
const SOON: Duration = Duration::from_mins(2);
/// After failures a lease is not written at once.
const AFTER_A_PAUSE: Duration = Duration::from_mins(2);

const TLS: &str = "member.etcd.gardener.cloud/tls-enabled";

#[tokio::test]
async fn a_change_is_written_at_once() {
    let server = ApiServer::start().await;
    let (client, namespace) = (server.client().await, server.namespace().await);
    let api = leases(&client, &namespace);
    // The leases do not exist: they are created, since nothing forbids it.
    let sidecar = Sidecar::with_client(&client, &namespace, NEVER);
    sidecar.stands(Standing::Follower);
    eventually(&api, MEMBER, SOON, |it| {
        holder(it).as_deref() == Some("1a:2b:Member")
    })
    .await;

    sidecar.stands(Standing::Leader);
    eventually(&api, MEMBER, SOON, |it| {
        holder(it).as_deref() == Some("1a:2b:Leader")
    })
    .await;

    sidecar.peer_tls.send_replace(Some(true));
    let says_tls = |it: &_| annotation(it) == Some("true");
    eventually(&api, MEMBER, SOON, says_tls).await;

    sidecar.stored_full(41);
    eventually(&api, FULL, SOON, |it| holder(it).as_deref() == Some("41")).await;
    sidecar.stored_delta(52);
    eventually(&api, DELTA, SOON, |it| holder(it).as_deref() == Some("52")).await;
    assert_eq!(sidecar.failures.0.load(Ordering::Relaxed), 0);
    sidecar.stop().await;
}

fn annotation(lease: &Lease) -> Option<&str> {
    lease
        .metadata
        .annotations
        .as_ref()?
        .get(TLS)
        .map(String::as_str)
}

#[tokio::test]
async fn at_rest_only_heartbeats_are_written() {
    let server = ApiServer::start().await;
    let (client, namespace) = (server.client().await, server.namespace().await);
    let api = leases(&client, &namespace);
    create_leases(&api).await;
    let witness = Witness::of(&api).await;
    let heartbeat = Duration::from_secs(1);
    // Before the first heartbeat, so that no period is missing.
    let began = Instant::now();
    let sidecar = Sidecar::with_client(&client, &namespace, heartbeat);
    sidecar.stands(Standing::Leader);
    sidecar.stored_full(41);
    sidecar.stored_delta(52);
    while began.elapsed() < heartbeat * 6 || witness.writes(MEMBER).len() < 3 {
        assert!(began.elapsed() < SOON, "no heartbeat goes on");
        // etcd is asked all the time, and what it answers goes to the board.
        sidecar.board.send_modify(|state| {
            let sighting = state.sighting.as_mut().unwrap();
            sighting.revision.0 += 1;
            sighting.at = Timestamp::now();
        });
        sleep(Duration::from_millis(20)).await;
    }
    let (beats, periods) = (witness.writes(MEMBER).len(), began.elapsed().as_secs());
    assert!(
        beats as u64 <= periods + 1,
        "{beats} heartbeats in {periods} periods"
    );
    assert_eq!(witness.writes(FULL).len(), 1);
    assert_eq!(witness.writes(DELTA).len(), 1);

    // A member that does not know where it stands says nothing.
    sidecar.stands(Standing::Unknown);
    let before = at_rest(&witness, heartbeat * 2).await;
    sleep(heartbeat * 3).await;
    assert_eq!(witness.writes(MEMBER).len(), before);
    sidecar.stands(Standing::Follower);
    let is_back = |it: &_| holder(it).as_deref() == Some("1a:2b:Member");
    eventually(&api, MEMBER, SOON, is_back).await;
    sidecar.stop().await;
}

/// Waits until the member's lease was not written for a while: what was under way has arrived. Tells how often it was
/// written before.
async fn at_rest(witness: &Witness, lasts: Duration) -> usize {
    let began = Instant::now();
    loop {
        let before = witness.writes(MEMBER).len();
        sleep(lasts).await;
        let now = witness.writes(MEMBER).len();
        if now == before {
            return now;
        }
        assert!(began.elapsed() < SOON, "{now} writes, and no rest");
    }
}

#[tokio::test]
async fn a_delta_period_without_a_delta_moves_the_time_only() {
    let server = ApiServer::start().await;
    let (client, namespace) = (server.client().await, server.namespace().await);
    let api = leases(&client, &namespace);
    let sidecar = Sidecar::with_client(&client, &namespace, NEVER);
    sidecar.stands(Standing::Leader);
    let checked = Timestamp::now();
    sidecar
        .board
        .send_modify(|state| state.delta_checked_at = Some(checked));
    let is_zero = |it: &_| holder(it).as_deref() == Some("0");
    eventually(&api, DELTA, SOON, is_zero).await;
    sidecar.stored_delta(52);
    eventually(&api, DELTA, SOON, |it| holder(it).as_deref() == Some("52")).await;
    let later = Timestamp::now();
    sidecar
        .board
        .send_modify(|state| state.delta_checked_at = Some(later));
    let is_later =
        |it: &_| renewed(it).map(Timestamp::as_microsecond) == Some(later.as_microsecond());
    eventually(&api, DELTA, SOON, is_later).await;
    assert_eq!(
        holder(&api.get(DELTA).await.unwrap()).as_deref(),
        Some("52")
    );
    sidecar.stop().await;
}

fn revision(lease: &Lease) -> Option<i64> {
    holder(lease).map(|holder| holder.parse().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn revisions_never_decrease_under_several_writers() {
    let server = ApiServer::start().await;
    let (client, namespace) = (server.client().await, server.namespace().await);
    let api = leases(&client, &namespace);
    create_leases(&api).await;
    let witness = Witness::of(&api).await;
    // Two that believe to lead, one behind the other, and a compaction that writes in between.
    let ahead = Sidecar::with_client(&client, &namespace, NEVER);
    let behind = Sidecar::with_client(&client, &namespace, NEVER);
    ahead.stands(Standing::Leader);
    behind.stands(Standing::Leader);
    for step in 1..=60 {
        ahead.stored_full(step * 10);
        ahead.stored_delta(step * 10 + 5);
        behind.stored_full(step * 7);
        behind.stored_delta(step * 9);
        if step == 30 {
            let patch = json!({ "spec": { "holderIdentity": "450" } });
            api.patch(FULL, &PatchParams::default(), &Patch::Merge(&patch))
                .await
                .unwrap();
        }
        sleep(Duration::from_millis(20)).await;
        // Often enough for many writes, seldom enough for some to come too late.
        if step % 4 == 0 {
            eventually(&api, FULL, SOON, |it| revision(it) >= Some(step * 10)).await;
            eventually(&api, DELTA, SOON, |it| revision(it) >= Some(step * 10 + 5)).await;
        }
    }
    eventually(&api, FULL, SOON, |it| revision(it) == Some(600)).await;
    eventually(&api, DELTA, SOON, |it| revision(it) == Some(605)).await;
    for name in [FULL, DELTA] {
        let revisions: Vec<i64> = witness.writes(name).iter().filter_map(revision).collect();
        assert!(revisions.len() > 10, "{name}: {revisions:?}");
        assert!(revisions.is_sorted(), "{name}: {revisions:?}");
    }
    ahead.stop().await;
    behind.stop().await;
}

#[tokio::test]
async fn a_newer_full_snapshot_of_somebody_else_is_made_known() {
    let server = ApiServer::start().await;
    let (client, namespace) = (server.client().await, server.namespace().await);
    let api = leases(&client, &namespace);
    let first = Sidecar::with_client(&client, &namespace, NEVER);
    first.stands(Standing::Leader);
    first.stored_full(41);
    eventually(&api, FULL, SOON, |it| holder(it).as_deref() == Some("41")).await;
    first.stop().await;
    let folded = json!({ "spec": { "holderIdentity": "120" } });
    api.patch(FULL, &PatchParams::default(), &Patch::Merge(&folded))
        .await
        .unwrap();

    let mut sidecar = Sidecar::with_client(&client, &namespace, NEVER);
    sidecar.stands(Standing::Leader);
    sidecar.stored_full(41);
    let newer = sidecar
        .full_told
        .wait_for(|told| *told == Some(Revision(120)));
    timeout(AFTER_A_PAUSE, newer).await.unwrap().unwrap();
    sidecar.stop().await;
}

#[tokio::test]
async fn an_api_server_that_goes_and_comes_back_delays_only_the_leases() {
    let mut server = ApiServer::start().await;
    let (client, namespace) = (server.client().await, server.namespace().await);
    let api = leases(&client, &namespace);
    let heartbeat = Duration::from_secs(1);
    let sidecar = Sidecar::with_client(&client, &namespace, heartbeat);
    sidecar.stands(Standing::Follower);
    eventually(&api, MEMBER, SOON, |it| {
        holder(it).as_deref() == Some("1a:2b:Member")
    })
    .await;

    let began = Instant::now();
    server.stop();
    sidecar.stands(Standing::Leader);
    sidecar.stored_full(41);
    sidecar.stored_delta(52);
    let failures = || sidecar.failures.0.load(Ordering::Relaxed);
    while failures() < 9 {
        assert!(began.elapsed() < SOON, "{} attempts", failures());
        sleep(heartbeat / 10).await;
    }
    // Three leases, and at least half a second between two attempts of each.
    let (found, most) = (failures(), 3 * (began.elapsed().as_millis() / 500 + 1));
    assert!(found as u128 <= most, "{found} attempts, at most {most}");

    server.restart().await;
    eventually(&api, MEMBER, AFTER_A_PAUSE, |it| {
        holder(it).as_deref() == Some("1a:2b:Leader")
    })
    .await;
    eventually(&api, FULL, AFTER_A_PAUSE, |it| {
        holder(it).as_deref() == Some("41")
    })
    .await;
    eventually(&api, DELTA, AFTER_A_PAUSE, |it| {
        holder(it).as_deref() == Some("52")
    })
    .await;
    let beat = renewed(&api.get(MEMBER).await.unwrap()).unwrap();
    eventually(&api, MEMBER, AFTER_A_PAUSE, |it| {
        renewed(it).unwrap() > beat
    })
    .await;
    sidecar.stop().await;
}

#[tokio::test]
async fn a_configuration_that_comes_late_is_read_then() {
    let server = ApiServer::start().await;
    let (client, namespace) = (server.client().await, server.namespace().await);
    let home = TempDir::new().unwrap();
    let path = home.path().join("kubeconfig");
    let sidecar = Sidecar::with_kubeconfig(path.clone(), &namespace, Duration::from_secs(1));
    sidecar.stands(Standing::Follower);
    while sidecar.failures.0.load(Ordering::Relaxed) == 0 {
        sleep(Duration::from_millis(10)).await;
    }
    fs::copy(server.kubeconfig(), &path).unwrap();
    let api = leases(&client, &namespace);
    eventually(&api, MEMBER, SOON, |it| {
        holder(it).as_deref() == Some("1a:2b:Member")
    })
    .await;
    sidecar.stop().await;
}

/// Rights as the controller of the peer grants them: leases may be read and written, not created.
async fn grant_existing_leases(client: &Client, namespace: &str, user: &str) {
    let metadata = ObjectMeta {
        name: Some("leases".to_owned()),
        ..ObjectMeta::default()
    };
    let words = |words: &[&str]| words.iter().map(ToString::to_string).collect::<Vec<_>>();
    let rights = PolicyRule {
        api_groups: Some(words(&["coordination.k8s.io"])),
        resources: Some(words(&["leases"])),
        verbs: words(&["get", "list", "patch", "update", "watch"]),
        ..PolicyRule::default()
    };
    let role = Role {
        metadata: metadata.clone(),
        rules: Some(vec![rights]),
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
async fn a_lease_that_may_not_be_created_is_waited_for() {
    let server = ApiServer::start().await;
    let (client, namespace) = (server.client().await, server.namespace().await);
    grant_existing_leases(&client, &namespace, "sidecar").await;
    let own = server.client_as("sidecar").await;
    let sidecar = Sidecar::with_client(&own, &namespace, Duration::from_secs(1));
    sidecar.stands(Standing::Follower);
    while sidecar.failures.0.load(Ordering::Relaxed) < 2 {
        sleep(Duration::from_millis(10)).await;
    }
    let api = leases(&client, &namespace);
    assert!(api.get_opt(MEMBER).await.unwrap().is_none());
    api.create(&PostParams::default(), &empty_lease(MEMBER))
        .await
        .unwrap();
    eventually(&api, MEMBER, SOON, |it| {
        holder(it).as_deref() == Some("1a:2b:Member")
    })
    .await;
    sidecar.stop().await;
}

#[tokio::test]
async fn pins_are_read_where_there_are_some_and_missed_aloud_where_they_cannot_be() {
    let mut server = ApiServer::start().await;
    let (client, namespace) = (server.client().await, server.namespace().await);
    let connection = Arc::new(Connection::new(Access::Client(client.clone())));
    let reader = PinReader::new(connection, &namespace, "etcd-main-coordination");
    let listing = ["v2/a", "v2/b"];
    assert_eq!(reader.pinned_keys(listing).await.unwrap(), BTreeSet::new());
    let maps = Api::<ConfigMap>::namespaced(client.clone(), &namespace);
    let found = maps.get_opt("etcd-main-coordination").await.unwrap();
    assert!(found.is_none(), "reading creates nothing");

    let backing = ConfigMapBacking::new(client, &namespace, "etcd-main-coordination");
    let compaction = Coordinator::new(Arc::new(backing));
    let wish = PinWish {
        name: "compaction".to_owned(),
        holder: "job-1".to_owned(),
        purpose: Purpose::Compact,
        keys: BTreeSet::from(["v2/b".to_owned()]),
        revisions: None,
        ttl: Duration::from_mins(5),
    };
    let pin = compaction.pin(&wish).await.unwrap();
    let pinned = reader.pinned_keys(listing).await.unwrap();
    assert_eq!(pinned, BTreeSet::from(["v2/b".to_owned()]));
    pin.remove().await.unwrap();
    assert_eq!(reader.pinned_keys(listing).await.unwrap(), BTreeSet::new());

    server.stop();
    assert!(reader.pinned_keys(listing).await.is_err());
}
