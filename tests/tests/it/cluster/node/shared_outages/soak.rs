//! Variant for `make soak`: the store is stopped for minutes.

use super::super::super::harness::with_local_namespace;
use super::super::store_outage::{StoreOutage, run_store_outage};

#[tokio::test(flavor = "multi_thread")]
async fn store_outage_of_minutes_is_reported_and_caught_up() {
    with_local_namespace("outage", async |stage| {
        run_store_outage(stage, StoreOutage::Stopped).await;
    })
    .await;
}
