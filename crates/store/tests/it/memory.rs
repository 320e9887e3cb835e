//! Transfers hold no more than they promise. What a peer cannot take, stays where it is.

use std::time::{Duration, Instant};

use mainstay_store::config::DOWNLOAD_BUDGET_BYTES;
use mainstay_store::{Effort, UploadOptions};

use crate::data::{MIB, brisk, noise, put};
use crate::proxy::{Fault, Kind, Proxy};
use crate::s3;
use crate::servers::{Access, Weed};

/// Waits for a state that comes.
async fn until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_mins(2);
    while !is_so() {
        assert!(Instant::now() < deadline, "never: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_pauses_is_not_buried() {
    let weed = Weed::start(Access::Keys).await;
    let bytes = noise(1, 80 * MIB);
    put(&s3::open(&weed, &weed.endpoint), "object", &bytes).await;
    let proxy = Proxy::start(&weed.endpoint).await;
    let mut download = s3::open(&weed, &proxy.endpoint)
        .download("object", None)
        .await
        .unwrap();
    let mut consumed = download.next_part().await.unwrap().unwrap().len() as u64;
    until("all that is fetched ahead has come", || {
        proxy.under_way() == 0
    })
    .await;
    assert!(
        proxy.sent() <= DOWNLOAD_BUDGET_BYTES,
        "{} bytes were fetched",
        proxy.sent()
    );
    while let Some(part) = download.next_part().await {
        let held = proxy.sent() - consumed;
        assert!(held <= DOWNLOAD_BUDGET_BYTES, "{held} bytes are held");
        consumed += part.unwrap().len() as u64;
    }
    assert_eq!(consumed, bytes.len() as u64);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_download_stops_fetching() {
    let weed = Weed::start(Access::Keys).await;
    put(
        &s3::open(&weed, &weed.endpoint),
        "object",
        &noise(2, 80 * MIB),
    )
    .await;
    let proxy = Proxy::start(&weed.endpoint).await;
    // At this pace what may be fetched ahead takes minutes.
    let slow = Fault::SlowBody {
        piece: 16 * 1024,
        pause: Duration::from_millis(200),
    };
    proxy.spoil(Kind::Get, 0, usize::MAX, slow);
    let download = s3::open(&weed, &proxy.endpoint)
        .download("object", None)
        .await
        .unwrap();
    until("it fetches", || proxy.sent() > 0).await;
    drop(download);
    until("nothing is fetched", || proxy.under_way() == 0).await;
    let sent = proxy.sent();
    assert!(
        sent < DOWNLOAD_BUDGET_BYTES / 2,
        "{sent} bytes were fetched"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_takes_nothing_stops_the_writer() {
    let weed = Weed::start(Access::Keys).await;
    let proxy = Proxy::start(&weed.endpoint).await;
    proxy.spoil(Kind::Part, 0, usize::MAX, Fault::Silence);
    let store = s3::open(&weed, &proxy.endpoint);
    let mut upload = store.upload("object", UploadOptions::default()).unwrap();
    let (piece, mut taken) = (noise(3, MIB), 0);
    while let Ok(outcome) =
        tokio::time::timeout(Duration::from_secs(10), upload.write(piece.clone())).await
    {
        outcome.unwrap();
        taken += piece.len() as u64;
    }
    let Effort {
        parallel_uploads,
        upload_part_bytes,
        ..
    } = brisk();
    let promised = (u64::from(parallel_uploads) + 1) * upload_part_bytes;
    assert!(
        taken <= promised,
        "{taken} bytes were taken, {promised} are promised"
    );
    assert!(
        taken >= promised - 2 * upload_part_bytes,
        "only {taken} bytes were taken"
    );
    upload.abort().await.unwrap();
}
