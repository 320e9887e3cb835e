//! Transfers over a faulty network.

use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::future::join_all;
use mainstay_store::{
    ErrorClass, SnapStore, StorageProvider, StoreConfig, StoreError, TransferConfig, UploadOptions,
};

use crate::data::{
    MIB, assert_same_bytes, download, list_keys, put_object, random_bytes, test_transfer_config,
    upload,
};
use crate::proxy::{InjectedFault, Proxy, RequestKind};
use crate::servers::{Access, Azurite, SeaweedFs};
use crate::{azure, s3};

/// A store behind a proxy, with a short request timeout.
fn open_with_short_timeout(weed: &SeaweedFs, proxy: &Proxy) -> SnapStore {
    open_with_config(
        weed,
        proxy,
        TransferConfig {
            request_timeout: Duration::from_secs(3),
            ..test_transfer_config()
        },
    )
}

fn open_with_config(weed: &SeaweedFs, proxy: &Proxy, transfer: TransferConfig) -> SnapStore {
    let config = StoreConfig {
        endpoint: Some(proxy.endpoint.parse().unwrap()),
        transfer,
        ..StoreConfig::new(StorageProvider::S3, SeaweedFs::BUCKET)
    };
    SnapStore::open(&config, &s3::write_environment(weed)).unwrap()
}

/// Read faults that the store must tolerate.
const READ_FAULTS: [InjectedFault; 8] = [
    InjectedFault::Status(500),
    InjectedFault::Status(503),
    InjectedFault::Status(429),
    InjectedFault::CloseConnection,
    InjectedFault::TruncateBody(0),
    InjectedFault::TruncateBody(3 * MIB + 1),
    InjectedFault::StallBody(MIB + 7),
    InjectedFault::SlowBody {
        piece: 64 * 1024,
        pause: Duration::from_millis(5),
    },
];

#[tokio::test(flavor = "multi_thread")]
async fn downloads_survive_errors_resets_short_and_slow_reads() {
    let weed = SeaweedFs::start(Access::Keys).await;
    let bytes = random_bytes(1, 29 * MIB + 3);
    put_object(&s3::open_store(&weed, &weed.endpoint), "object", &bytes).await;
    for fault in READ_FAULTS {
        let proxy = Proxy::start(&weed.endpoint).await;
        proxy.inject(RequestKind::Get, 1, 3, fault);
        let found = download(&open_with_short_timeout(&weed, &proxy), "object").await;
        assert_same_bytes(
            &found.unwrap_or_else(|error| panic!("{fault:?}: {error:?}")),
            &bytes,
        );
        assert_eq!(proxy.injected_count(), 3, "{fault:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn download_resumes_from_the_byte_it_reached() {
    let weed = SeaweedFs::start(Access::Keys).await;
    let bytes = random_bytes(2, 8 * MIB);
    put_object(&s3::open_store(&weed, &weed.endpoint), "object", &bytes).await;
    let proxy = Proxy::start(&weed.endpoint).await;
    // Seven attempts fail after 1 MiB. Resuming transfers little more than the object, some of it lost
    // in the broken connections; restarting would transfer 15 MiB.
    proxy.inject(RequestKind::Get, 0, 7, InjectedFault::TruncateBody(MIB));
    assert_same_bytes(
        &download(&open_with_short_timeout(&weed, &proxy), "object")
            .await
            .unwrap(),
        &bytes,
    );
    assert_eq!(proxy.injected_count(), 7);
    assert!(
        proxy.sent_bytes() < 12 * MIB as u64,
        "{} bytes were sent for 8 MiB",
        proxy.sent_bytes()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_download_completes_beyond_the_retry_timeout() {
    let weed = SeaweedFs::start(Access::Keys).await;
    let bytes = random_bytes(3, 2 * MIB);
    put_object(&s3::open_store(&weed, &weed.endpoint), "object", &bytes).await;
    let proxy = Proxy::start(&weed.endpoint).await;
    let slow = InjectedFault::SlowBody {
        piece: 64 * 1024,
        pause: Duration::from_millis(200),
    };
    proxy.inject(RequestKind::Get, 0, usize::MAX, slow);
    let effort = TransferConfig {
        request_timeout: Duration::from_secs(2),
        retry_timeout: Duration::from_secs(3),
        ..TransferConfig::default()
    };
    let started = Instant::now();
    assert_same_bytes(
        &download(&open_with_config(&weed, &proxy, effort), "object")
            .await
            .unwrap(),
        &bytes,
    );
    assert!(
        started.elapsed() > Duration::from_secs(5),
        "the download was not slow"
    );
}

/// Upload faults that the store must tolerate: kind, requests to skip, fault.
const WRITE_FAULTS: [(RequestKind, usize, InjectedFault); 11] = [
    (RequestKind::Any, 0, InjectedFault::Status(503)),
    (RequestKind::Any, 0, InjectedFault::CloseConnection),
    (RequestKind::Part, 1, InjectedFault::Status(500)),
    (RequestKind::Part, 1, InjectedFault::Status(503)),
    (RequestKind::Part, 1, InjectedFault::CloseConnection),
    (RequestKind::Part, 1, InjectedFault::DropResponse),
    (RequestKind::Part, 1, InjectedFault::NeverRespond),
    (RequestKind::Complete, 0, InjectedFault::Status(503)),
    (RequestKind::Complete, 0, InjectedFault::CloseConnection),
    (RequestKind::Complete, 0, InjectedFault::DropResponse),
    (RequestKind::Head, 0, InjectedFault::Status(500)),
];

#[tokio::test(flavor = "multi_thread")]
async fn uploads_survive_errors_resets_and_lost_responses() {
    let weed = SeaweedFs::start(Access::Keys).await;
    let direct = s3::open_store(&weed, &weed.endpoint);
    let bytes = random_bytes(4, 17 * MIB + 3);
    for (number, (kind, skip, fault)) in WRITE_FAULTS.into_iter().enumerate() {
        let proxy = Proxy::start(&weed.endpoint).await;
        proxy.inject(kind, skip, 2, fault);
        let key = format!("large/{number}");
        let store = open_with_short_timeout(&weed, &proxy);
        let outcome = upload(&store, &key, &bytes, UploadOptions::create_only()).await;
        let object = outcome.unwrap_or_else(|error| panic!("{kind:?} {fault:?}: {error:?}"));
        assert_eq!(object.size, bytes.len() as u64);
        assert_same_bytes(&download(&direct, &key).await.unwrap(), &bytes);
        assert!(
            proxy.injected_count() > 0,
            "{kind:?} {fault:?} never happened"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_response_to_a_create_only_write_is_not_a_conflict() {
    let weed = SeaweedFs::start(Access::Keys).await;
    let bytes = random_bytes(5, 1000);
    for fault in [
        InjectedFault::DropResponse,
        InjectedFault::Status(500),
        InjectedFault::CloseConnection,
        InjectedFault::NeverRespond,
    ] {
        let proxy = Proxy::start(&weed.endpoint).await;
        proxy.inject(RequestKind::Put, 0, 1, fault);
        let store = open_with_short_timeout(&weed, &proxy);
        let key = format!("small/{fault:?}");
        upload(&store, &key, &bytes, UploadOptions::create_only())
            .await
            .unwrap();
        assert_eq!(proxy.injected_count(), 1);
        assert_same_bytes(&download(&store, &key).await.unwrap(), &bytes);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn foreign_object_is_a_conflict_even_after_a_retry() {
    let weed = SeaweedFs::start(Access::Keys).await;
    let proxy = Proxy::start(&weed.endpoint).await;
    let (ours, foreign) = (random_bytes(6, 1000), random_bytes(7, 1000));
    put_object(&s3::open_store(&weed, &weed.endpoint), "small", &foreign).await;
    proxy.inject(RequestKind::Put, 0, 1, InjectedFault::Status(503));
    let store = open_with_short_timeout(&weed, &proxy);
    let error = upload(&store, "small", &ours, UploadOptions::create_only())
        .await
        .unwrap_err();
    assert!(
        matches!(error, StoreError::AlreadyExists { .. }),
        "{error:?}"
    );
    assert_eq!(proxy.injected_count(), 1);
    assert_same_bytes(&download(&store, "small").await.unwrap(), &foreign);
}

#[tokio::test(flavor = "multi_thread")]
async fn existing_object_is_kept_without_conditional_write_support() {
    let weed = SeaweedFs::start(Access::Keys).await;
    let proxy = Proxy::start(&weed.endpoint).await;
    let (first, second) = (random_bytes(6, 1000), random_bytes(7, 1000));
    let store = open_with_short_timeout(&weed, &proxy);
    proxy.inject(RequestKind::Put, 0, 1, InjectedFault::Status(501));
    upload(&store, "small", &first, UploadOptions::create_only())
        .await
        .unwrap();
    assert_eq!(proxy.injected_count(), 1);
    proxy.inject(RequestKind::Put, 0, 1, InjectedFault::Status(501));
    let error = upload(&store, "small", &second, UploadOptions::create_only())
        .await
        .unwrap_err();
    assert!(
        matches!(error, StoreError::AlreadyExists { .. }),
        "{error:?}"
    );
    assert_eq!(proxy.injected_count(), 2);
    assert_same_bytes(&download(&store, "small").await.unwrap(), &first);
}

#[tokio::test(flavor = "multi_thread")]
async fn listings_survive_errors_and_resets() {
    let weed = SeaweedFs::start(Access::Keys).await;
    let direct = s3::open_store(&weed, &weed.endpoint);
    let expected: Vec<String> = (0..20)
        .map(|number| format!("v2/Incr-{number:02}"))
        .collect();
    for key in &expected {
        put_object(&direct, key, &Bytes::from_static(b"x")).await;
    }
    for fault in [
        InjectedFault::Status(500),
        InjectedFault::CloseConnection,
        InjectedFault::TruncateBody(700),
        InjectedFault::StallBody(700),
    ] {
        let proxy = Proxy::start(&weed.endpoint).await;
        proxy.inject(RequestKind::List, 0, 2, fault);
        assert_eq!(
            list_keys(&open_with_short_timeout(&weed, &proxy), "v2").await,
            expected,
            "{fault:?}"
        );
        assert_eq!(proxy.injected_count(), 2, "{fault:?}");
    }
}

/// Asserts that every operation on an unreachable store is retried and fails as transient.
async fn assert_outage_is_reported(weed: &SeaweedFs, effort: TransferConfig, fault: InjectedFault) {
    let proxy = Proxy::start(&weed.endpoint).await;
    let store = open_with_config(weed, &proxy, effort);
    let reading = store.download("object", None).await.unwrap();
    drop(reading);
    proxy.inject(RequestKind::Any, 0, usize::MAX, fault);
    let small = Bytes::from_static(b"x");
    let (list, head, read, write) = tokio::join!(
        store.list("v2"),
        store.head("object"),
        download(&store, "object"),
        upload(&store, "new", &small, UploadOptions::create_only()),
    );
    for error in [
        list.unwrap_err(),
        head.unwrap_err(),
        read.unwrap_err(),
        write.unwrap_err(),
    ] {
        assert_eq!(error.class(), ErrorClass::Transient, "{fault:?}: {error:?}");
        assert!(
            matches!(error, StoreError::Request { attempts: 2.., .. }),
            "{error:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn outage_is_reported_before_the_deadline() {
    let weed = SeaweedFs::start(Access::Keys).await;
    let direct = s3::open_store(&weed, &weed.endpoint);
    put_object(&direct, "object", &random_bytes(8, 9 * MIB)).await;
    let effort = TransferConfig {
        request_timeout: Duration::from_secs(3),
        retry_timeout: Duration::from_secs(9),
        ..TransferConfig::default()
    };
    let faults = [
        InjectedFault::Status(503),
        InjectedFault::CloseConnection,
        InjectedFault::NeverRespond,
    ];
    join_all(faults.map(|fault| assert_outage_is_reported(&weed, effort.clone(), fault))).await;
    assert_eq!(list_keys(&direct, "new").await, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_upload_leaves_no_object_and_no_parts() {
    let weed = SeaweedFs::start(Access::Keys).await;
    let effort = TransferConfig {
        retry_timeout: Duration::from_secs(10),
        ..test_transfer_config()
    };
    let bytes = random_bytes(9, 17 * MIB);
    let faults = [
        (RequestKind::Part, 0),
        (RequestKind::Part, 2),
        (RequestKind::Complete, 0),
    ];
    let uploads = faults.map(async |(kind, skip)| {
        let proxy = Proxy::start(&weed.endpoint).await;
        proxy.inject(kind, skip, usize::MAX, InjectedFault::Status(503));
        let store = open_with_config(&weed, &proxy, effort.clone());
        let key = format!("v2/{kind:?}-{skip}");
        let outcome = upload(&store, &key, &bytes, UploadOptions::create_only());
        let error = outcome.await.unwrap_err();
        assert_eq!(error.class(), ErrorClass::Transient, "{error:?}");
        assert!(proxy.injected_count() > 1);
    });
    join_all(uploads).await;
    let direct = s3::open_store(&weed, &weed.endpoint);
    assert_eq!(list_keys(&direct, "v2").await, Vec::<String>::new());
    let deadline = Instant::now() + Duration::from_mins(2);
    loop {
        let left = weed.list_unfinished_uploads().await;
        if left.is_empty() {
            return;
        }
        assert!(Instant::now() < deadline, "parts remain: {left:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn upload_is_closed_after_an_abandoned_write() {
    let weed = SeaweedFs::start(Access::Keys).await;
    let proxy = Proxy::start(&weed.endpoint).await;
    proxy.inject(RequestKind::Any, 0, usize::MAX, InjectedFault::NeverRespond);
    let store = open_with_config(&weed, &proxy, test_transfer_config());
    let mut upload = store.upload("v2/Full-1", UploadOptions::default()).unwrap();
    let abandoned = upload.write(random_bytes(10, 6 * MIB));
    assert!(
        tokio::time::timeout(Duration::from_millis(500), abandoned)
            .await
            .is_err()
    );
    let error = upload.write(random_bytes(10, 1)).await.unwrap_err();
    assert!(matches!(error, StoreError::Closed { .. }), "{error:?}");
    let error = upload.finish().await.unwrap_err();
    assert!(matches!(error, StoreError::Closed { .. }), "{error:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn azure_transfers_survive_faults() {
    let azurite = Azurite::start().await;
    let proxy = Proxy::start(&azurite.endpoint).await;
    let store = azure::open_store(&azurite, &proxy.endpoint, Azurite::KEY);
    let bytes = random_bytes(11, 17 * MIB + 3);
    proxy.inject(RequestKind::Part, 1, 2, InjectedFault::Status(503));
    proxy.inject(RequestKind::Part, 1, 1, InjectedFault::CloseConnection);
    proxy.inject(RequestKind::Complete, 0, 1, InjectedFault::DropResponse);
    upload(&store, "object", &bytes, UploadOptions::create_only())
        .await
        .unwrap();
    assert_eq!(proxy.injected_count(), 4);
    proxy.inject(RequestKind::Get, 0, 2, InjectedFault::TruncateBody(MIB + 1));
    proxy.inject(RequestKind::Get, 0, 1, InjectedFault::Status(500));
    assert_same_bytes(&download(&store, "object").await.unwrap(), &bytes);
    assert_eq!(proxy.injected_count(), 7);
}
