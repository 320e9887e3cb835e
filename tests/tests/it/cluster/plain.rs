//! The cluster itself does what the disasters to come rely on. Its volumes: `node::volumes`.

use mainstay_tests::cluster::member::content;

use super::members::{self, NAME, load};
use super::stage::{assert_kept, on_stage};

#[tokio::test(flavor = "multi_thread")]
async fn three_members_find_each_other_by_name_and_agree_on_what_was_written() {
    on_stage("peers", async |stage| {
        let members = members::start(stage, 3).await;
        let load = load(&members);
        let questions: Vec<String> = (0..3)
            .map(|number| format!("getent hosts {NAME}-{number}.{NAME}"))
            .collect();
        stage.job("names", &questions.join("\n"), None).await;
        stage
            .job("no-such-name", "! getent hosts etcd-9.etcd", None)
            .await;
        load.has_written(20).await.unwrap();
        let written = load.stop().await.unwrap();
        assert_kept(&written, &content(&members).await.unwrap());
    })
    .await;
}
