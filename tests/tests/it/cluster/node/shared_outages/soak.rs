//! Variant for `make soak`: the store is stopped for minutes.

use super::super::super::harness::with_local_namespace;
use super::super::store_outage::{StoreOutage, run_store_outage};

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_is_away_for_minutes_is_told_and_caught_up_with() {
    with_local_namespace("outage", async |stage| {
        run_store_outage(stage, StoreOutage::Stopped).await
    })
    .await;
}
