//! Random histories of live servers come back, at their end and at points in the middle.

use mainstay_ids::{HashKv, Revision};
use mainstay_testkit::recorder::Compression;
use mainstay_testkit::{
    Etcd, EtcdOptions, EtcdVersion, Load, Recorder, each_version, newest_version,
};
use rand::rngs::StdRng;
use rand::seq::IteratorRandom;
use rand::{Rng, SeedableRng};
use tempfile::TempDir;

use crate::support::{Backup, State, boot};

const PREFIX: &str = "etcd-main";
const SAMPLES: usize = 6;

/// Restores each state and has an etcd of the source's version confirm it. At last the source dies, and
/// its own directory must be found sound too.
async fn all_come_back(mut source: Etcd, home: &TempDir, states: &[State], seed: u64) {
    let backup = Backup::local(home.path(), PREFIX);
    for state in states {
        let directory = TempDir::new().unwrap();
        let data_dir = directory.path().join("data");
        backup.restore_at(&data_dir, state.revision);
        assert_eq!(backup.verify_directory(&data_dir), state.revision);
        let mut restored = boot(source.version(), &data_dir).await;
        if let Some((name, password)) = source.user() {
            restored.login(name, password);
        }
        let context = format!("seed {seed}, restored at revision {}", state.revision);
        state.assert_restored(&restored, &context).await;
    }
    source.kill();
    backup.verify_directory(source.data_dir());
}

async fn recorder(etcd: &Etcd, home: &TempDir) -> Recorder {
    Recorder::start(etcd, &Backup::container(home), PREFIX, Compression::Gzip).await
}

/// The ends, and revisions drawn between them.
fn sampled(seed: u64, (first, last): (Revision, Revision), between: usize) -> Vec<Revision> {
    let mut random = StdRng::seed_from_u64(seed);
    let mut chosen = (first.0 + 1..last.0).choose_multiple(&mut random, between);
    chosen.extend([first.0, last.0]);
    chosen.into_iter().map(Revision).collect()
}

/// A history in deltas of every compression comes back at its ends and at so many revisions between them.
async fn history_comes_back(version: EtcdVersion, between: usize) {
    let seed = 20_260_101;
    let etcd = Etcd::start(version, EtcdOptions::new()).await;
    let mut load = Load::new(seed)
        .with_values_up_to(200_000)
        .with_transactions_up_to(120);
    let home = TempDir::new().unwrap();
    load.run(&etcd, 250).await;
    let mut recorder = recorder(&etcd, &home).await;
    let first = recorder.last();
    for compression in [Compression::Zlib, Compression::None, Compression::Gzip] {
        recorder.set_compression(compression);
        load.run(&etcd, 250).await;
        recorder.cut(&etcd).await.unwrap();
    }
    let mut states = Vec::new();
    for revision in sampled(seed, (first, load.revision()), between) {
        states.push(State::at(&etcd, revision).await);
    }
    all_come_back(etcd, &home, &states, seed).await;
}

mod soak {
    use super::*;

    each_version! {
        async fn a_history_comes_back_at_many_points(version) {
            history_comes_back(version, 6).await;
        }
    }
}

each_version! {
    async fn a_history_comes_back_at_every_point(version) {
        history_comes_back(version, 1).await;
    }

    async fn a_history_that_etcd_compacts_comes_back(version) {
        let seed = 20_260_202;
        let mut random = StdRng::seed_from_u64(seed);
        let etcd = Etcd::start(version, EtcdOptions::new()).await;
        let mut load = Load::new(seed).with_compactions();
        let home = TempDir::new().unwrap();
        load.run(&etcd, 200).await;
        let mut recorder = recorder(&etcd, &home).await;
        let mut states = Vec::new();
        for pause in 0..SAMPLES {
            load.run(&etcd, random.random_range(60..160)).await;
            // Some states are inside a delta, some where one ends, one where a new base begins.
            match pause {
                0 | 2 => drop(recorder.cut(&etcd).await.unwrap()),
                3 => drop(recorder.full(&etcd).await),
                _ => {}
            }
            // The source forgets them: asked for now, not later.
            states.push(State::of(&etcd).await);
        }
        recorder.cut(&etcd).await.unwrap();
        let compactions = states.iter().map(|state| state.hash.compact_revision);
        assert!(compactions.collect::<std::collections::BTreeSet<_>>().len() > 2);
        all_come_back(etcd, &home, &states, seed).await;
    }

    async fn what_a_live_etcd_held_is_compared_and_a_difference_restores_nothing(version) {
        let etcd = Etcd::start(version, EtcdOptions::new()).await;
        let mut load = Load::new(20_260_505);
        let home = TempDir::new().unwrap();
        load.run(&etcd, 150).await;
        let mut recorder = recorder(&etcd, &home).await;
        load.run(&etcd, 150).await;
        recorder.cut(&etcd).await.unwrap();
        let stored = load.revision();
        // etcd has compacted farther than the backup, and gone on.
        load.run(&etcd, 50).await;
        etcd.compact(Revision(stored.0 - 20)).await;
        let live = etcd.hash_kv(stored).await;
        let live = HashKv { hash: live.hash, revision: stored, compact_revision: live.compact_revision };
        let backup = Backup::local(home.path(), PREFIX);

        let target = home.path().join("restored");
        let expecting = |expected: HashKv| {
            let expected = expected.to_string();
            let target = target.to_str().unwrap();
            backup.run("restore", &["--data-dir", target, "--expect-hash-kv", &expected])
        };
        let run = expecting(HashKv { hash: live.hash ^ 1, ..live });
        let reason = run.refused("damaged-backup", 22);
        assert!(reason.contains("is not what etcd held"), "{reason}");
        let run = expecting(HashKv { revision: stored.next(), ..live });
        run.refused("incomplete", 21);
        assert!(!target.exists(), "something was restored");
        let report = expecting(live).succeeded("restored");
        assert_eq!(report["hashKv"], format!("equal {live}"));
    }

    async fn a_cluster_with_authentication_comes_back_with_it(version) {
        let seed = 20_260_404;
        let mut etcd = Etcd::start(version, EtcdOptions::new()).await;
        let mut load = Load::new(seed);
        let home = TempDir::new().unwrap();
        load.run(&etcd, 100).await;
        load.enable_auth(&mut etcd).await;
        let mut recorder = recorder(&etcd, &home).await;
        load.run(&etcd, 100).await;
        recorder.cut(&etcd).await.unwrap();
        let states = [State::of(&etcd).await];
        all_come_back(etcd, &home, &states, seed).await;

        let data_dir = home.path().join("restored");
        Backup::local(home.path(), PREFIX).restore(&data_dir, &[]);
        let mut restored = boot(version, &data_dir).await;
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
    async fn the_largest_transactions_come_back(version) {
        let seed = 20_260_303;
        let etcd = Etcd::start(version, EtcdOptions::new().huge_transactions()).await;
        let mut load = Load::new(seed);
        let home = TempDir::new().unwrap();
        load.run(&etcd, 20).await;
        let mut recorder = recorder(&etcd, &home).await;
        recorder.set_compression(Compression::None);
        let mut states = Vec::new();
        for (operations, bytes) in [(10_000, 64 << 20), (10_000, 1 << 20)] {
            let reached = load.huge_transaction(&etcd, operations, bytes).await;
            recorder.cut_at(reached).await.unwrap();
            recorder.set_compression(Compression::Gzip);
            states.push(State::of(&etcd).await);
        }
        all_come_back(etcd, &home, &states, seed).await;
    }
}
