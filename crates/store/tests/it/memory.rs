//! Transfers hold no more than they promise. What a peer cannot take, stays where it is.

use std::time::Duration;

use steward_store::config::DOWNLOAD_BUDGET_BYTES;
use steward_store::{Effort, UploadOptions};

use crate::data::{MIB, brisk, noise, put};
use crate::proxy::{Fault, Kind, Proxy};
use crate::s3;
use crate::servers::{Access, Weed};

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
    tokio::time::sleep(Duration::from_secs(3)).await;
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
    let slow = Fault::SlowBody {
        piece: 64 * 1024,
        pause: Duration::from_millis(20),
    };
    proxy.spoil(Kind::Get, 0, usize::MAX, slow);
    let download = s3::open(&weed, &proxy.endpoint)
        .download("object", None)
        .await
        .unwrap();
    tokio::time::sleep(Duration::from_millis(500)).await;
    drop(download);
    tokio::time::sleep(Duration::from_millis(500)).await;
    let sent = proxy.sent();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(sent > 0);
    assert!(
        proxy.sent() - sent < MIB as u64,
        "{} bytes more were fetched",
        proxy.sent() - sent
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
