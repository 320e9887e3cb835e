//! Crashes of the engine `redb`.

use std::collections::BTreeMap;

use etcd_client::{Client, GetOptions};
use tokio::task::JoinSet;

use super::process::ServerProcess;

/// Acknowledged writes: key → (value, revision).
type Acknowledged = BTreeMap<String, (String, i64)>;

/// Writes until the server is gone. Each writer has keys of its own.
async fn write_until_gone(mut client: Client, writer: u32, round: u32) -> Acknowledged {
    let mut acknowledged = Acknowledged::new();
    for step in 0u32.. {
        let (key, value) = (
            format!("/r/{writer}/{}", step % 20),
            format!("{round}-{step}"),
        );
        match client.put(key.clone(), value.clone(), None).await {
            Ok(put) => {
                acknowledged.insert(key, (value, put.header().expect("a header").revision()))
            }
            Err(_) => break,
        };
    }
    acknowledged
}

async fn current_revision(client: &mut Client) -> i64 {
    let options = GetOptions::new().with_count_only();
    let answer = client
        .get("k", Some(options))
        .await
        .expect("read the revision");
    answer.header().expect("a header").revision()
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_server_loses_no_acknowledged_write_and_reuses_no_revision() {
    const WRITERS: u32 = 8;
    let scratch = tempfile::tempdir().unwrap();
    let data_dir = scratch.path().to_str().unwrap();
    let mut server = ServerProcess::start(&["--engine", "redb", "--data-dir", data_dir]).await;
    let mut newest = 0;
    for round in 0..2 {
        let mut writers = JoinSet::new();
        for writer in 0..WRITERS {
            writers.spawn(write_until_gone(server.client().await, writer, round));
        }
        let mut observer = server.client().await;
        let start = current_revision(&mut observer).await;
        assert!(
            start >= newest,
            "revision {newest} was acknowledged, now it is {start}"
        );
        while current_revision(&mut observer).await < start + 400 {}
        server.kill();
        let mut acknowledged = Acknowledged::new();
        while let Some(written) = writers.join_next().await {
            acknowledged.extend(written.unwrap());
        }
        server.restart().await;
        let mut client = server.client().await;
        for (key, (value, revision)) in acknowledged {
            let found = client.get(key.clone(), None).await.unwrap();
            let kv = found.kvs().first().expect("an acknowledged key exists");
            // A write in flight at the crash may have replaced it, at a later revision.
            let is_same = kv.value_str().unwrap() == value && kv.mod_revision() == revision;
            assert!(
                is_same || kv.mod_revision() > revision,
                "{key} {value} at {revision}: {kv:?}"
            );
            newest = newest.max(revision);
        }
        let put = client.put("after", "crash", None).await.unwrap();
        let next = put.header().unwrap().revision();
        assert!(next > newest, "revision {next} was used before");
        newest = next;
    }
}
