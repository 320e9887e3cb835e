//! What `make soak` runs of this: the store is stopped for minutes.

use super::super::super::stage::on_own_stage;
use super::super::outage::{Away, outage};

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_is_away_for_minutes_is_told_and_caught_up_with() {
    on_own_stage("outage", async |stage| outage(stage, Away::Stopped).await).await;
}
