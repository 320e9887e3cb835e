//! Every backup written by etcd-backup-restore is restored to the state of its etcd.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use mainstay_ids::{LeaseId, Revision};
use mainstay_testkit::{EtcdRelease, EtcdServer};
use tempfile::TempDir;

use crate::support::{EtcdState, Fixture, assert_same_keys, start_etcd_on};

/// Restores a fixture, and verifies it with the version of etcd that wrote it and with each newer one, each on its own
/// copy.
async fn assert_fixture_restores(name: &str, writer: EtcdRelease) {
    let fixture = Fixture::open(name);
    let backup = fixture.backup();
    assert_eq!(backup.verify(), fixture.state.revision);
    for version in writer.newer_or_equal() {
        let directory = TempDir::new().unwrap();
        let data_dir = directory.path().join("data");
        let report = backup.restore(&data_dir, &[]);
        assert_eq!(report["revision"], fixture.state.revision.0, "{report:#}");
        assert_eq!(backup.verify_data_dir(&data_dir), fixture.state.revision);
        let mut etcd = start_etcd_on(version, &data_dir).await;
        let context = format!("{name} on {version}");
        assert_matches_source(&etcd, &fixture, &context).await;
        Box::pin(assert_keeps_working(&mut etcd, &fixture, &context)).await;
        let reached = etcd.revision().await;
        etcd.stop().await;
        assert_eq!(backup.verify_data_dir(&data_dir), reached, "{context}");
    }
}

/// Verifies the state and that no lease was added. Leases without keys may remain: a backup records the revocation of a
/// lease only by the deletion of its keys.
async fn assert_matches_source(etcd: &EtcdServer, fixture: &Fixture, context: &str) {
    fixture.state.assert_restored(etcd, context).await;
    for lease in etcd.list_leases().await {
        let known = fixture.lease_ids.contains(&lease.id) || lease.keys.is_empty();
        assert!(known, "{context}: {lease:?} did not exist in the source");
    }
}

/// Writes, compacts, defragments and restarts: operations that fail on a malformed database.
async fn assert_keeps_working(etcd: &mut EtcdServer, fixture: &Fixture, context: &str) {
    let keys = &fixture.state.keys;
    let mut client = etcd.client().await;
    for kv in keys.iter().step_by(3) {
        client.put(kv.key.clone(), "changed", None).await.unwrap();
    }
    for kv in keys.iter().skip(1).step_by(3) {
        client.delete(kv.key.clone(), None).await.unwrap();
    }
    let changes = i64::try_from(keys.len() - keys.len() / 3).unwrap();
    let reached = Revision(fixture.state.revision.0 + changes);
    assert_eq!(etcd.revision().await, reached, "{context}");
    etcd.compact(Revision(reached.0 - 1)).await;
    client.defragment().await.unwrap();
    let left = EtcdState::read(etcd).await;
    etcd.stop().await;
    etcd.restart().await;
    left.assert_restored(etcd, context).await;
    etcd.client()
        .await
        .put("after", "everything", None)
        .await
        .unwrap();
    assert_eq!(etcd.revision().await, reached.next(), "{context}");
}

macro_rules! each_fixture {
    ($($claim:ident: $name:literal, $writer:expr;)+) => {$(
        #[tokio::test]
        async fn $claim() {
            assert_fixture_restores($name, $writer).await;
        }
    )+};
}

each_fixture! {
    a_gzip_chain_comes_back: "gzip-3.5.30", EtcdRelease::V3_5New;
    a_zlib_chain_comes_back: "zlib-3.5.16", EtcdRelease::V3_5;
    an_lzw_chain_comes_back: "lzw-3.5.30", EtcdRelease::V3_5New;
    an_uncompressed_chain_of_the_oldest_etcd_comes_back: "none-3.4.23", EtcdRelease::V3_4;
    the_overlapping_chains_of_two_snapshotters_come_back: "overlap-3.5.30", EtcdRelease::V3_5New;
    a_chain_of_etcd_3_6_comes_back: "gzip-3.6.14", EtcdRelease::V3_6;
}

/// Deltas do not contain the TTL of a lease; the flag sets it.
#[tokio::test]
async fn restored_leases_expire_and_delete_their_keys() {
    let fixture = Fixture::open("gzip-3.5.30");
    let directory = TempDir::new().unwrap();
    let data_dir = directory.path().join("data");
    let report = fixture
        .backup()
        .restore(&data_dir, &["--default-lease-ttl", "15s"]);
    let etcd = start_etcd_on(EtcdRelease::V3_5New, &data_dir).await;

    let leases = etcd.list_leases().await;
    let short: BTreeSet<LeaseId> = leases
        .iter()
        .filter(|lease| lease.granted_ttl == 15)
        .map(|lease| lease.id)
        .collect();
    assert_eq!(report["leasesWithDefaultTtl"], short.len(), "{report:#}");
    let keys = &fixture.state.keys;
    let survivors: Vec<_> = keys
        .iter()
        .filter(|kv| !short.contains(&kv.lease))
        .cloned()
        .collect();
    let leased_survivors = survivors.iter().filter(|kv| kv.lease != LeaseId::NONE);
    assert!(
        leased_survivors.count() > 0,
        "leases of the base have lives of their own"
    );
    assert!(
        survivors.len() < keys.len(),
        "the fixture has no keys on short leases"
    );

    let deadline = Instant::now() + Duration::from_mins(2);
    while etcd.all_keys().await.len() > survivors.len() {
        assert!(
            Instant::now() < deadline,
            "keys did not expire with their leases"
        );
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    assert_same_keys(
        &etcd.all_keys().await,
        &survivors,
        "keys on longer leases, or on none",
    );
    // Expired keys remain in the history.
    assert_same_keys(
        &etcd.all_keys_at(fixture.state.revision).await,
        keys,
        "before",
    );
}
