//! Valid data is replaced only by a backup that continues it, and the log of a killed etcd counts as data.

use std::path::{Path, PathBuf};

use mainstay_verdict::Verdict;

use crate::home::{Home, expect_failure, expect_success};

const FIXTURE: &str = "gzip-3.5.30";
/// Newest revision of the fixture.
const NEWEST_REVISION: i64 = 2385;
/// Looks newer than every snapshot, and is no snapshot.
const STRAY_FULL: &str = "Full-00000000-99999999-1794799999.gz";

/// Restores a revision of the fixture into `new.etcd`, as data that lags behind its own backup.
fn restore_earlier_state(home: &Home, revision: i64) -> String {
    let data_dir = home.path("new.etcd").to_str().unwrap().to_owned();
    let revision = format!("--to-revision={revision}");
    let flags = ["-d", &data_dir, &revision];
    expect_success(home.run_on_bucket("restore", &flags), Verdict::Restored);
    data_dir
}

fn add_stray(home: &Home) {
    std::fs::write(home.object_path(STRAY_FULL), "not a snapshot").unwrap();
}

fn list_previous(home: &Home) -> Vec<String> {
    let mut names = home.list_names("");
    names.retain(|name| name.contains(".before-"));
    names
}

#[test]
fn data_behind_its_own_backup_is_restored() {
    // Inside a delta, at the end of a delta, at the end of the full snapshot.
    for revision in [1200, 1544, 695] {
        let home = Home::from_fixture(FIXTURE);
        let data_dir = restore_earlier_state(&home, revision);
        let restored = home.run_on_bucket("initialize", &["-d", &data_dir]);
        let report = expect_success(restored, Verdict::Restored);
        assert_eq!(report["revision"], NEWEST_REVISION, "{report}");
        assert_eq!(list_previous(&home).len(), 1, "the old data is kept");
    }
}

#[test]
fn stray_object_causes_no_restore_of_current_data() {
    let home = Home::from_fixture(FIXTURE);
    let data_dir = restore_earlier_state(&home, NEWEST_REVISION);
    add_stray(&home);
    let kept = home.run_on_bucket("initialize", &["-d", &data_dir]);
    expect_success(kept, Verdict::Valid);
    assert!(list_previous(&home).is_empty());
}

#[test]
fn stray_object_does_not_stop_a_restore_of_older_data() {
    let home = Home::from_fixture(FIXTURE);
    let data_dir = restore_earlier_state(&home, 1200);
    add_stray(&home);
    let restored = home.run_on_bucket("initialize", &["-d", &data_dir]);
    let report = expect_success(restored, Verdict::Restored);
    assert_eq!(report["revision"], NEWEST_REVISION, "{report}");
}

#[test]
fn unreadable_newer_delta_is_no_evidence_of_newer_data() {
    let home = Home::from_fixture(FIXTURE);
    let data_dir = restore_earlier_state(&home, NEWEST_REVISION);
    let stray = home.object_path("Incr-00002386-00009999-1794799999.gz");
    std::fs::write(stray, "not a delta").unwrap();
    let kept = home.run_on_bucket("initialize", &["-d", &data_dir]);
    expect_success(kept, Verdict::Valid);
}

/// Objects whose names start with a prefix, in the order of their revisions.
fn list_objects(home: &Home, prefix: &str) -> Vec<PathBuf> {
    let example = home.object_path(STRAY_FULL);
    let entries = std::fs::read_dir(example.parent().unwrap()).unwrap();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| {
        path.file_name()
            .unwrap()
            .to_string_lossy()
            .starts_with(prefix)
    });
    paths.sort();
    paths
}

#[test]
fn backup_that_ends_at_a_gap_before_the_data_does_not_replace_it() {
    let home = Home::from_fixture(FIXTURE);
    let data_dir = restore_earlier_state(&home, 1200);
    // Of the chain after the full snapshot at 695, only what follows the gap is left: a restore ends at 695.
    let removed = list_objects(&home, "Incr-00000696");
    assert_eq!(removed.len(), 1, "{removed:?}");
    std::fs::remove_file(&removed[0]).unwrap();
    let kept = home.run_on_bucket("initialize", &["-d", &data_dir]);
    expect_success(kept, Verdict::Valid);
    assert!(list_previous(&home).is_empty());
}

#[test]
fn full_snapshot_of_another_cluster_does_not_stop_current_data() {
    let home = Home::from_fixture(FIXTURE);
    let data_dir = restore_earlier_state(&home, NEWEST_REVISION);
    let other = Home::from_fixture("zlib-3.5.16");
    let foreign = list_objects(&other, "Full-").pop().unwrap();
    let name = "Full-00000000-00009999-1794799999.zlib";
    std::fs::copy(foreign, home.object_path(name)).unwrap();
    let kept = home.run_on_bucket("initialize", &["-d", &data_dir]);
    expect_success(kept, Verdict::Valid);

    // Older data is neither replaced by the other cluster, which a restore would choose, nor started as current.
    let home = Home::from_fixture(FIXTURE);
    let data_dir = restore_earlier_state(&home, 1200);
    std::fs::copy(
        list_objects(&other, "Full-").pop().unwrap(),
        home.object_path(name),
    )
    .unwrap();
    let refused = home.run_on_bucket("initialize", &["-d", &data_dir]);
    expect_failure(refused, Verdict::HistoryDiverged);
}

#[test]
fn data_that_differs_in_the_compared_delta_is_not_replaced() {
    let home = Home::from_fixture(FIXTURE);
    let data_dir = restore_earlier_state(&home, 1200);
    // The bucket of another cluster, whose revisions reach further.
    let other = Home::from_fixture("zlib-3.5.16");
    std::fs::remove_dir_all(home.path("bucket")).unwrap();
    std::fs::rename(other.path("bucket"), home.path("bucket")).unwrap();
    let before = read_database(&data_dir);
    let refused = home.run_on_bucket("initialize", &["-d", &data_dir]);
    let failure = expect_failure(refused, Verdict::HistoryDiverged);
    assert!(failure.reason().contains("1200"), "{failure}");
    assert_eq!(read_database(&data_dir), before);
    assert!(list_previous(&home).is_empty());

    let accepted = home.run_on_bucket("initialize", &["-d", &data_dir, "--accept-history"]);
    expect_success(accepted, Verdict::Restored);
    assert_eq!(list_previous(&home).len(), 1, "the old data is kept");
}

#[test]
fn data_before_the_newest_full_snapshot_is_matched_with_an_older_delta() {
    let home = Home::from_fixture(FIXTURE);
    let data_dir = restore_earlier_state(&home, 1200);
    // The newest chain now starts after the data, with the history before it compacted.
    let scratch = format!("--scratch-dir={}", home.root().display());
    expect_success(
        home.run_on_bucket("compact", &[&scratch]),
        Verdict::Compacted,
    );
    let restored = home.run_on_bucket("initialize", &["-d", &data_dir]);
    let report = expect_success(restored, Verdict::Restored);
    assert_eq!(report["revision"], NEWEST_REVISION, "{report}");
    assert_eq!(report["deltas"], 0, "{report}");
}

fn read_database(data_dir: &str) -> Vec<u8> {
    std::fs::read(Path::new(data_dir).join("member/snap/db")).unwrap()
}

mod live {
    use std::fs::File;
    use std::path::Path;

    use etcd_client::{
        Client, CompactionOptions, Compare, CompareOp, DeleteOptions, LeaseGrantOptions,
        PutOptions, Txn, TxnOp,
    };
    use mainstay_bbolt::{Database, Update};
    use mainstay_history::replay::{ReplayScope, ReplayedRow, replay_log};
    use mainstay_ids::Revision;
    use mainstay_mvcc::hash::hash_kv;
    use mainstay_mvcc::schema;
    use mainstay_testkit::{EtcdOptions, EtcdRelease, EtcdServer, each_version};
    use mainstay_verdict::Verdict;
    use mainstay_wal::Log;

    use super::{FIXTURE, NEWEST_REVISION, list_previous, read_database};
    use crate::home::{Home, expect_failure};

    /// Every kind of request that changes keys or leases, those that fail included.
    async fn write_all_kinds(client: &mut Client, round: i64) {
        let key = |name: &str| format!("{name}-{round}");
        for number in 0..20 {
            let value = format!("{number}");
            client.put(key("counter"), value, None).await.unwrap();
            client
                .put(format!("{}/{number}", key("dir")), "v", None)
                .await
                .unwrap();
        }
        let lease = 1_000 + round;
        let grant = LeaseGrantOptions::new().with_id(lease);
        client.lease_grant(3_600, Some(grant)).await.unwrap();
        let leased = || Some(PutOptions::new().with_lease(lease));
        client.put(key("leased-b"), "1", leased()).await.unwrap();
        client.put(key("leased-a"), "1", leased()).await.unwrap();
        client.put(key("detached"), "1", leased()).await.unwrap();
        client.put(key("detached"), "2", None).await.unwrap();
        let unknown = Some(PutOptions::new().with_lease(777));
        client.put(key("refused"), "1", unknown).await.unwrap_err();
        let keep = Some(PutOptions::new().with_ignore_value().with_lease(lease));
        client.put(key("counter"), "", keep).await.unwrap();
        let first = format!("{}/1", key("dir"));
        client
            .delete(first, Some(DeleteOptions::new().with_prefix()))
            .await
            .unwrap();
        client.delete(key("absent"), None).await.unwrap();
        write_transactions(client, &key("counter"), &key("made")).await;
        client.lease_revoke(lease).await.unwrap();
        client.put(key("counter"), "again", None).await.unwrap();
    }

    async fn write_transactions(client: &mut Client, counter: &str, made: &str) {
        let met = [
            Compare::version(counter, CompareOp::Equal, 21),
            Compare::value(counter, CompareOp::Greater, "1"),
            Compare::create_revision(made, CompareOp::Equal, 0),
            Compare::lease(counter, CompareOp::NotEqual, 0),
        ];
        let nested = Txn::new()
            .when([Compare::mod_revision(made, CompareOp::Greater, 0)])
            .and_then([TxnOp::put(format!("{made}-wrong"), "", None)])
            .or_else([TxnOp::put(format!("{made}-nested"), "1", None)]);
        let txn = Txn::new()
            .when(met)
            .and_then([
                TxnOp::put(made, "1", None),
                TxnOp::delete(counter, None),
                TxnOp::get(counter, None),
                TxnOp::txn(nested),
            ])
            .or_else([TxnOp::put(format!("{made}-wrong"), "", None)]);
        assert!(client.txn(txn).await.unwrap().succeeded());
        // A value of a key that does not exist meets no condition.
        let unmet = Txn::new()
            .when([Compare::value(counter, CompareOp::NotEqual, "x")])
            .and_then([TxnOp::put(format!("{made}-wrong"), "", None)])
            .or_else([TxnOp::put(made, "2", None)]);
        assert!(!client.txn(unmet).await.unwrap().succeeded());
    }

    /// Appends the rows of the log to a copy of the database. Returns the number of rows and the hash.
    fn replay_into(db: &Path, wal: &Path) -> (u64, Revision, u32) {
        let file = File::options().read(true).write(true).open(db).unwrap();
        let mut rows = Vec::new();
        let mut keep = |row: &ReplayedRow<'_>| {
            let mut value = Vec::new();
            row.row.encode(&mut value);
            rows.push((row.at.encode(), value));
            Ok(())
        };
        let database = Database::open(&file).unwrap();
        let log = Log::open(wal).unwrap();
        let summary = replay_log(&database, &log, ReplayScope::OnlyVoter, &mut keep).unwrap();
        let mut update = Update::open(&file).unwrap();
        let mut bucket = update.append_to_bucket(schema::KEY).unwrap();
        for (key, value) in &rows {
            bucket.add(key, value).unwrap();
        }
        bucket.finish().unwrap();
        update.commit().unwrap();
        let hash = hash_kv(&Database::open(&file).unwrap(), Some(summary.revision)).unwrap();
        (summary.rows, summary.revision, hash.hash)
    }

    each_version! {
        async fn log_of_a_killed_etcd_gives_the_rows_that_its_restart_shows(version) {
            let home = Home::new();
            let data_dir = home.path("data/new.etcd");
            // etcd does not commit its database by time or size: the rest is in the log.
            let options = EtcdOptions::new().data_dir(&data_dir)
                .flag("backend-batch-interval", "1h")
                .flag("backend-batch-limit", "1000000");
            let mut etcd = EtcdServer::start(version, options).await;
            let mut client = etcd.client().await;
            write_all_kinds(&mut client, 1).await;
            let acknowledged = etcd.revision().await;
            let physical = CompactionOptions::new().with_physical();
            client.compact(acknowledged.0 - 5, Some(physical)).await.unwrap();
            // From 3.5 on, a revoked lease commits the database too, so the older file is kept.
            etcd.kill();
            let copy = home.path("db");
            std::fs::copy(data_dir.join("member/snap/db"), &copy).unwrap();
            etcd.restart().await;
            write_all_kinds(&mut etcd.client().await, 2).await;
            let acknowledged = etcd.revision().await;
            etcd.kill();

            let (rows, revision, hash) = replay_into(&copy, &data_dir.join("member/wal"));
            assert!(rows >= 50, "only {rows} rows were in the log alone");
            assert_eq!(revision, acknowledged);
            etcd.restart().await;
            assert_eq!(etcd.hash_kv(revision).await.hash, hash);
        }
    }

    #[tokio::test]
    async fn newer_backup_of_another_cluster_does_not_replace_valid_data() {
        let home = Home::from_fixture(FIXTURE);
        let data_dir = home.path("new.etcd");
        let options = EtcdOptions::new().data_dir(&data_dir);
        let mut etcd = EtcdServer::start(EtcdRelease::NEWEST, options).await;
        for number in 0..30 {
            let key = format!("key-{number}");
            etcd.client().await.put(key, "value", None).await.unwrap();
        }
        assert!(etcd.revision().await.0 < NEWEST_REVISION);
        etcd.kill();
        let data_dir = data_dir.to_str().unwrap().to_owned();
        let before = read_database(&data_dir);
        let runs = tokio::task::spawn_blocking(move || {
            let refused = home.run_on_bucket("initialize", &["-d", &data_dir]);
            expect_failure(refused, Verdict::HistoryDiverged);
            assert_eq!(read_database(&data_dir), before);
            assert!(list_previous(&home).is_empty());
        });
        runs.await.unwrap();
    }
}
