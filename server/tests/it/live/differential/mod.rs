//! The same requests to ours and to a real etcd, in lockstep: every response must be equal, ids aside.

mod generate;
mod lockstep;

use etcd_client::Client;
use mainstay_ids::Revision;
use mainstay_testkit::etcd::hash_kv;
use mainstay_testkit::{EtcdOptions, EtcdRelease, EtcdServer};

use self::generate::Generator;
use self::lockstep::answer;
use super::process::ServerProcess;

/// Sends `steps` random requests to both.
async fn compare(server: &ServerProcess, steps: usize, seed: u64) {
    let etcd = EtcdServer::start(EtcdRelease::V3_6, EtcdOptions::new()).await;
    let mut theirs = etcd.client().await;
    let mut ours = server.client().await;
    let mut generator = Generator::new(seed);
    for number in 0..steps {
        let revision = current_revision(&mut ours).await;
        let step = generator.next(revision);
        let expected = answer(&mut theirs, &step).await;
        let found = answer(&mut ours, &step).await;
        assert_eq!(
            found, expected,
            "step {number} of seed {seed} at revision {revision}: {step:?}"
        );
        generator.learn(&step, &expected);
    }
    let revision = Revision(current_revision(&mut ours).await);
    assert_eq!(
        hash_kv(&mut ours, revision).await,
        hash_kv(&mut theirs, revision).await,
        "HashKV after {steps} steps of seed {seed}"
    );
}

async fn current_revision(client: &mut Client) -> i64 {
    let answer = client
        .get("missing", None)
        .await
        .expect("read the revision");
    answer.header().expect("a header").revision()
}

#[tokio::test]
async fn memory_engine_answers_like_etcd() {
    let server = ServerProcess::start(&["--engine", "memory"]).await;
    compare(&server, 2000, 1).await;
}

#[tokio::test]
async fn redb_engine_answers_like_etcd() {
    let scratch = tempfile::tempdir().unwrap();
    let data_dir = scratch.path().to_str().unwrap();
    let server = ServerProcess::start(&["--engine", "redb", "--data-dir", data_dir]).await;
    compare(&server, 500, 2).await;
}

mod soak {
    use super::{ServerProcess, compare};

    #[tokio::test]
    async fn memory_engine_answers_like_etcd_with_many_seeds() {
        for seed in 100..120 {
            let server = ServerProcess::start(&["--engine", "memory"]).await;
            compare(&server, 5000, seed).await;
        }
    }
}
