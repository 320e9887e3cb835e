//! Checks the features of the test cluster that the disaster tests rely on. Volumes: `node::volumes`.

use mainstay_tests::cluster::member::read_key_space;

use super::harness::{assert_no_write_lost, with_namespace};
use super::plain_etcd::{self, NAME, start_load};

#[tokio::test(flavor = "multi_thread")]
async fn three_members_resolve_each_other_and_lose_no_write() {
    with_namespace("peers", async |stage| {
        let members = plain_etcd::start_plain_etcd(stage, 3).await;
        let load = start_load(&members);
        let lookups: Vec<String> = (0..3)
            .map(|number| format!("getent hosts {NAME}-{number}.{NAME}"))
            .collect();
        stage.run_job("names", &lookups.join("\n"), None).await;
        stage
            .run_job("no-such-name", "! getent hosts etcd-9.etcd", None)
            .await;
        load.wait_for_writes(20).await.unwrap();
        let written = load.stop().await.unwrap();
        assert_no_write_lost(&written, &read_key_space(&members).await.unwrap());
    })
    .await;
}
