//! Random histories of live servers are restored, at their end and at revisions in between.

use mainstay_ids::{HashKv, Revision};
use mainstay_testkit::recorder::RecorderCompression;
use mainstay_testkit::{
    EtcdOptions, EtcdRelease, EtcdServer, Recorder, Workload, each_version, newest_version,
};
use rand::rngs::StdRng;
use rand::seq::IteratorRandom;
use rand::{Rng, SeedableRng};
use tempfile::TempDir;

use crate::support::{EtcdState, RestorerBackup, start_etcd_on};

const PREFIX: &str = "etcd-main";
const SAMPLE_COUNT: usize = 6;

/// Restores each state and verifies it with an etcd of the source's version. Finally the source is killed, and its own
/// directory must verify as well.
async fn assert_all_restore(
    mut source: EtcdServer,
    home: &TempDir,
    states: &[EtcdState],
    seed: u64,
) {
    let backup = RestorerBackup::local(home.path(), PREFIX);
    for state in states {
        let directory = TempDir::new().unwrap();
        let data_dir = directory.path().join("data");
        backup.restore_at(&data_dir, state.revision);
        assert_eq!(backup.verify_data_dir(&data_dir), state.revision);
        let mut restored = start_etcd_on(source.version(), &data_dir).await;
        if let Some((name, password)) = source.user() {
            restored.login(name, password);
        }
        let context = format!("seed {seed}, restored at revision {}", state.revision);
        state.assert_restored(&restored, &context).await;
    }
    source.kill();
    backup.verify_data_dir(source.data_dir());
}

async fn start_recorder(etcd: &EtcdServer, home: &TempDir) -> Recorder {
    Recorder::start(
        etcd,
        &RestorerBackup::container_dir(home),
        PREFIX,
        RecorderCompression::Gzip,
    )
    .await
}

/// First and last revision, and random ones in between.
fn sample_revisions(
    seed: u64,
    (first, last): (Revision, Revision),
    between: usize,
) -> Vec<Revision> {
    let mut random = StdRng::seed_from_u64(seed);
    let mut chosen = (first.0 + 1..last.0).choose_multiple(&mut random, between);
    chosen.extend([first.0, last.0]);
    chosen.into_iter().map(Revision).collect()
}

/// Restores a history in deltas of every compression, at its ends and at random revisions in between.
async fn assert_history_restores(version: EtcdRelease, between: usize) {
    let seed = 20_260_101;
    let etcd = EtcdServer::start(version, EtcdOptions::new()).await;
    let mut load = Workload::new(seed)
        .with_values_up_to(200_000)
        .with_transactions_up_to(120);
    let home = TempDir::new().unwrap();
    load.run(&etcd, 250).await;
    let mut recorder = start_recorder(&etcd, &home).await;
    let first = recorder.last_revision();
    for compression in [
        RecorderCompression::Zlib,
        RecorderCompression::None,
        RecorderCompression::Gzip,
    ] {
        recorder.set_compression(compression);
        load.run(&etcd, 250).await;
        recorder.write_delta(&etcd).await.unwrap();
    }
    let mut states = Vec::new();
    for revision in sample_revisions(seed, (first, load.revision()), between) {
        states.push(EtcdState::read_at(&etcd, revision).await);
    }
    assert_all_restore(etcd, &home, &states, seed).await;
}

mod soak {
    use super::*;

    each_version! {
        async fn history_is_restored_at_many_revisions(version) {
            assert_history_restores(version, 6).await;
        }
    }
}

each_version! {
    async fn history_is_restored_at_every_revision(version) {
        assert_history_restores(version, 1).await;
    }

    async fn a_history_that_etcd_compacts_comes_back(version) {
        let seed = 20_260_202;
        let mut random = StdRng::seed_from_u64(seed);
        let etcd = EtcdServer::start(version, EtcdOptions::new()).await;
        let mut load = Workload::new(seed).with_compactions();
        let home = TempDir::new().unwrap();
        load.run(&etcd, 200).await;
        let mut recorder = start_recorder(&etcd, &home).await;
        let mut states = Vec::new();
        for pause in 0..SAMPLE_COUNT {
            load.run(&etcd, random.random_range(60..160)).await;
            // Some states are inside a delta, some at the end of one, one at a new base.
            match pause {
                0 | 2 => drop(recorder.write_delta(&etcd).await.unwrap()),
                3 => drop(recorder.write_full(&etcd).await),
                _ => {}
            }
            // The source compacts these revisions later, so its state is read now.
            states.push(EtcdState::read(&etcd).await);
        }
        recorder.write_delta(&etcd).await.unwrap();
        let compactions = states.iter().map(|state| state.hash.compact_revision);
        assert!(compactions.collect::<std::collections::BTreeSet<_>>().len() > 2);
        assert_all_restore(etcd, &home, &states, seed).await;
    }

    async fn what_a_live_etcd_held_is_compared_and_a_difference_restores_nothing(version) {
        let etcd = EtcdServer::start(version, EtcdOptions::new()).await;
        let mut load = Workload::new(20_260_505);
        let home = TempDir::new().unwrap();
        load.run(&etcd, 150).await;
        let mut recorder = start_recorder(&etcd, &home).await;
        load.run(&etcd, 150).await;
        recorder.write_delta(&etcd).await.unwrap();
        let stored = load.revision();
        // etcd has compacted further than the backup, and continued.
        load.run(&etcd, 50).await;
        etcd.compact(Revision(stored.0 - 20)).await;
        let live = etcd.hash_kv(stored).await;
        let live = HashKv { hash: live.hash, revision: stored, compact_revision: live.compact_revision };
        let backup = RestorerBackup::local(home.path(), PREFIX);

        let target = home.path().join("restored");
        let expecting = |expected: HashKv| {
            let expected = expected.to_string();
            let target = target.to_str().unwrap();
            backup.run("restore", &["--data-dir", target, "--expect-hash-kv", &expected])
        };
        let run = expecting(HashKv { hash: live.hash ^ 1, ..live });
        let reason = run.expect_refused("damaged-backup", 22);
        assert!(reason.contains("backup does not match the live etcd"), "{reason}");
        let run = expecting(HashKv { revision: stored.next(), ..live });
        run.expect_refused("incomplete", 21);
        assert!(!target.exists(), "the target must not be created");
        let report = expecting(live).expect_success("restored");
        assert_eq!(report["hashKv"], format!("equal {live}"));
    }

    async fn a_cluster_with_authentication_comes_back_with_it(version) {
        let seed = 20_260_404;
        let mut etcd = EtcdServer::start(version, EtcdOptions::new()).await;
        let mut load = Workload::new(seed);
        let home = TempDir::new().unwrap();
        load.run(&etcd, 100).await;
        load.enable_auth(&mut etcd).await;
        let mut recorder = start_recorder(&etcd, &home).await;
        load.run(&etcd, 100).await;
        recorder.write_delta(&etcd).await.unwrap();
        let states = [EtcdState::read(&etcd).await];
        assert_all_restore(etcd, &home, &states, seed).await;

        let data_dir = home.path().join("restored");
        RestorerBackup::local(home.path(), PREFIX).restore(&data_dir, &[]);
        let mut restored = start_etcd_on(version, &data_dir).await;
        let refused = restored.client().await.put("k", "v", None).await.unwrap_err();
        assert!(refused.to_string().contains("user name is empty"), "{refused}");
        restored.login("reader", "reader-secret");
        let mut reader = restored.client().await;
        reader.get("/registry/group-00/object-00", None).await.unwrap();
        let refused = reader.put("/registry/k", "v", None).await.unwrap_err();
        assert!(refused.to_string().contains("permission denied"), "{refused}");
    }
}

newest_version! {
    async fn largest_transactions_are_restored(version) {
        let seed = 20_260_303;
        let etcd = EtcdServer::start(version, EtcdOptions::new().huge_transactions()).await;
        let mut load = Workload::new(seed);
        let home = TempDir::new().unwrap();
        load.run(&etcd, 20).await;
        let mut recorder = start_recorder(&etcd, &home).await;
        recorder.set_compression(RecorderCompression::None);
        let mut states = Vec::new();
        for (operations, bytes) in [(10_000, 64 << 20), (10_000, 1 << 20)] {
            let reached = load.run_huge_transaction(&etcd, operations, bytes).await;
            recorder.write_delta_to(reached).await.unwrap();
            recorder.set_compression(RecorderCompression::Gzip);
            states.push(EtcdState::read(&etcd).await);
        }
        assert_all_restore(etcd, &home, &states, seed).await;
    }
}
