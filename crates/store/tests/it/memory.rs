//! Transfers stay within their memory limit when the other side is slow.

use std::time::{Duration, Instant};

use mainstay_store::config::DOWNLOAD_BUDGET_BYTES;
use mainstay_store::{TransferConfig, UploadOptions};

use crate::data::{MIB, put_object, random_bytes, test_transfer_config};
use crate::proxy::{InjectedFault, Proxy, RequestKind};
use crate::s3;
use crate::servers::{Access, SeaweedFs};

/// Waits until the condition holds.
async fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_mins(2);
    while !condition() {
        assert!(Instant::now() < deadline, "timeout: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn paused_reader_limits_the_prefetch() {
    let weed = SeaweedFs::start(Access::Keys).await;
    let bytes = random_bytes(1, 80 * MIB);
    put_object(&s3::open_store(&weed, &weed.endpoint), "object", &bytes).await;
    let proxy = Proxy::start(&weed.endpoint).await;
    let mut download = s3::open_store(&weed, &proxy.endpoint)
        .download("object", None)
        .await
        .unwrap();
    let mut consumed = download.next_part().await.unwrap().unwrap().len() as u64;
    wait_until("all prefetched parts have arrived", || {
        proxy.active_bodies() == 0
    })
    .await;
    assert!(
        proxy.sent_bytes() <= DOWNLOAD_BUDGET_BYTES,
        "{} bytes were fetched",
        proxy.sent_bytes()
    );
    while let Some(part) = download.next_part().await {
        let held = proxy.sent_bytes() - consumed;
        assert!(held <= DOWNLOAD_BUDGET_BYTES, "{held} bytes are held");
        consumed += part.unwrap().len() as u64;
    }
    assert_eq!(consumed, bytes.len() as u64);
}

#[tokio::test(flavor = "multi_thread")]
async fn dropped_download_stops_fetching() {
    let weed = SeaweedFs::start(Access::Keys).await;
    put_object(
        &s3::open_store(&weed, &weed.endpoint),
        "object",
        &random_bytes(2, 80 * MIB),
    )
    .await;
    let proxy = Proxy::start(&weed.endpoint).await;
    // At this rate the prefetch takes minutes.
    let slow = InjectedFault::SlowBody {
        piece: 16 * 1024,
        pause: Duration::from_millis(200),
    };
    proxy.inject(RequestKind::Get, 0, usize::MAX, slow);
    let download = s3::open_store(&weed, &proxy.endpoint)
        .download("object", None)
        .await
        .unwrap();
    wait_until("the download has started", || proxy.sent_bytes() > 0).await;
    drop(download);
    wait_until("the download has stopped", || proxy.active_bodies() == 0).await;
    let sent = proxy.sent_bytes();
    assert!(
        sent < DOWNLOAD_BUDGET_BYTES / 2,
        "{sent} bytes were fetched"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn stalled_store_blocks_the_writer() {
    let weed = SeaweedFs::start(Access::Keys).await;
    let proxy = Proxy::start(&weed.endpoint).await;
    proxy.inject(
        RequestKind::Part,
        0,
        usize::MAX,
        InjectedFault::NeverRespond,
    );
    let store = s3::open_store(&weed, &proxy.endpoint);
    let mut upload = store.upload("object", UploadOptions::default()).unwrap();
    let (piece, mut taken) = (random_bytes(3, MIB), 0);
    while let Ok(outcome) =
        tokio::time::timeout(Duration::from_secs(10), upload.write(piece.clone())).await
    {
        outcome.unwrap();
        taken += piece.len() as u64;
    }
    let TransferConfig {
        parallel_uploads,
        upload_part_bytes,
        ..
    } = test_transfer_config();
    let limit_bytes = (u64::from(parallel_uploads) + 1) * upload_part_bytes;
    assert!(
        taken <= limit_bytes,
        "{taken} bytes were buffered, the limit is {limit_bytes}"
    );
    assert!(
        taken >= limit_bytes - 2 * upload_part_bytes,
        "only {taken} bytes were buffered"
    );
    upload.abort().await.unwrap();
}
