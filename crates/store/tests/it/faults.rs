//! Transfers over a network that misbehaves.

use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::future::join_all;
use mainstay_store::{Class, Effort, Provider, SnapStore, StoreConfig, StoreError, UploadOptions};

use crate::data::{MIB, assert_same, brisk, download, keys, noise, put, upload};
use crate::proxy::{Fault, Kind, Proxy};
use crate::servers::{Access, Azurite, Weed};
use crate::{azure, s3};

/// A store behind a proxy that does not wait long for silence.
fn nervous(weed: &Weed, proxy: &Proxy) -> SnapStore {
    with_effort(
        weed,
        proxy,
        Effort {
            request_timeout: Duration::from_secs(3),
            ..brisk()
        },
    )
}

fn with_effort(weed: &Weed, proxy: &Proxy, effort: Effort) -> SnapStore {
    let config = StoreConfig {
        endpoint: Some(proxy.endpoint.parse().unwrap()),
        effort,
        ..StoreConfig::new(Provider::S3, Weed::BUCKET)
    };
    SnapStore::open(&config, &s3::environment(weed)).unwrap()
}

/// Faults of reads that must all be survived.
const READ_FAULTS: [Fault; 8] = [
    Fault::Status(500),
    Fault::Status(503),
    Fault::Status(429),
    Fault::Refuse,
    Fault::CutBody(0),
    Fault::CutBody(3 * MIB + 1),
    Fault::StallBody(MIB + 7),
    Fault::SlowBody {
        piece: 64 * 1024,
        pause: Duration::from_millis(5),
    },
];

#[tokio::test(flavor = "multi_thread")]
async fn downloads_survive_errors_resets_short_and_slow_reads() {
    let weed = Weed::start(Access::Keys).await;
    let bytes = noise(1, 29 * MIB + 3);
    put(&s3::open(&weed, &weed.endpoint), "object", &bytes).await;
    for fault in READ_FAULTS {
        let proxy = Proxy::start(&weed.endpoint).await;
        proxy.spoil(Kind::Get, 1, 3, fault);
        let found = download(&nervous(&weed, &proxy), "object").await;
        assert_same(
            &found.unwrap_or_else(|error| panic!("{fault:?}: {error:?}")),
            &bytes,
        );
        assert_eq!(proxy.struck(), 3, "{fault:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_download_goes_on_from_the_byte_it_reached() {
    let weed = Weed::start(Access::Keys).await;
    let bytes = noise(2, 8 * MIB);
    put(&s3::open(&weed, &weed.endpoint), "object", &bytes).await;
    let proxy = Proxy::start(&weed.endpoint).await;
    // Seven attempts break off after a mebibyte. Going on needs little more than the object, some
    // of it lost in the broken connections; starting over would need fifteen mebibytes.
    proxy.spoil(Kind::Get, 0, 7, Fault::CutBody(MIB));
    assert_same(
        &download(&nervous(&weed, &proxy), "object").await.unwrap(),
        &bytes,
    );
    assert_eq!(proxy.struck(), 7);
    assert!(
        proxy.sent() < 12 * MIB as u64,
        "{} bytes were sent for 8 MiB",
        proxy.sent()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trickle_that_outlives_every_deadline_still_arrives() {
    let weed = Weed::start(Access::Keys).await;
    let bytes = noise(3, 2 * MIB);
    put(&s3::open(&weed, &weed.endpoint), "object", &bytes).await;
    let proxy = Proxy::start(&weed.endpoint).await;
    let slow = Fault::SlowBody {
        piece: 64 * 1024,
        pause: Duration::from_millis(200),
    };
    proxy.spoil(Kind::Get, 0, usize::MAX, slow);
    let effort = Effort {
        request_timeout: Duration::from_secs(2),
        retry_timeout: Duration::from_secs(3),
        ..Effort::default()
    };
    let started = Instant::now();
    assert_same(
        &download(&with_effort(&weed, &proxy, effort), "object")
            .await
            .unwrap(),
        &bytes,
    );
    assert!(
        started.elapsed() > Duration::from_secs(5),
        "the trickle was not slow"
    );
}

/// Faults of uploads that must all be survived: kind, how many pass before, fault.
const WRITE_FAULTS: [(Kind, usize, Fault); 11] = [
    (Kind::Any, 0, Fault::Status(503)),
    (Kind::Any, 0, Fault::Refuse),
    (Kind::Part, 1, Fault::Status(500)),
    (Kind::Part, 1, Fault::Status(503)),
    (Kind::Part, 1, Fault::Refuse),
    (Kind::Part, 1, Fault::LoseAnswer),
    (Kind::Part, 1, Fault::Silence),
    (Kind::Complete, 0, Fault::Status(503)),
    (Kind::Complete, 0, Fault::Refuse),
    (Kind::Complete, 0, Fault::LoseAnswer),
    (Kind::Head, 0, Fault::Status(500)),
];

#[tokio::test(flavor = "multi_thread")]
async fn uploads_survive_errors_resets_and_lost_answers() {
    let weed = Weed::start(Access::Keys).await;
    let direct = s3::open(&weed, &weed.endpoint);
    let bytes = noise(4, 17 * MIB + 3);
    for (number, (kind, skip, fault)) in WRITE_FAULTS.into_iter().enumerate() {
        let proxy = Proxy::start(&weed.endpoint).await;
        proxy.spoil(kind, skip, 2, fault);
        let key = format!("large/{number}");
        let store = nervous(&weed, &proxy);
        let outcome = upload(&store, &key, &bytes, UploadOptions::create_only()).await;
        let object = outcome.unwrap_or_else(|error| panic!("{kind:?} {fault:?}: {error:?}"));
        assert_eq!(object.size, bytes.len() as u64);
        assert_same(&download(&direct, &key).await.unwrap(), &bytes);
        assert!(proxy.struck() > 0, "{kind:?} {fault:?} never happened");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_answer_to_a_create_only_write_is_not_mistaken_for_an_obstacle() {
    let weed = Weed::start(Access::Keys).await;
    let bytes = noise(5, 1000);
    for fault in [
        Fault::LoseAnswer,
        Fault::Status(500),
        Fault::Refuse,
        Fault::Silence,
    ] {
        let proxy = Proxy::start(&weed.endpoint).await;
        proxy.spoil(Kind::Put, 0, 1, fault);
        let store = nervous(&weed, &proxy);
        let key = format!("small/{fault:?}");
        upload(&store, &key, &bytes, UploadOptions::create_only())
            .await
            .unwrap();
        assert_eq!(proxy.struck(), 1);
        assert_same(&download(&store, &key).await.unwrap(), &bytes);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_object_is_an_obstacle_also_after_a_retry() {
    let weed = Weed::start(Access::Keys).await;
    let proxy = Proxy::start(&weed.endpoint).await;
    let (ours, foreign) = (noise(6, 1000), noise(7, 1000));
    put(&s3::open(&weed, &weed.endpoint), "small", &foreign).await;
    proxy.spoil(Kind::Put, 0, 1, Fault::Status(503));
    let store = nervous(&weed, &proxy);
    let error = upload(&store, "small", &ours, UploadOptions::create_only())
        .await
        .unwrap_err();
    assert!(matches!(error, StoreError::Exists { .. }), "{error:?}");
    assert_eq!(proxy.struck(), 1);
    assert_same(&download(&store, "small").await.unwrap(), &foreign);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_conditional_writes_is_asked_first() {
    let weed = Weed::start(Access::Keys).await;
    let proxy = Proxy::start(&weed.endpoint).await;
    let (first, second) = (noise(6, 1000), noise(7, 1000));
    let store = nervous(&weed, &proxy);
    proxy.spoil(Kind::Put, 0, 1, Fault::Status(501));
    upload(&store, "small", &first, UploadOptions::create_only())
        .await
        .unwrap();
    assert_eq!(proxy.struck(), 1);
    proxy.spoil(Kind::Put, 0, 1, Fault::Status(501));
    let error = upload(&store, "small", &second, UploadOptions::create_only())
        .await
        .unwrap_err();
    assert!(matches!(error, StoreError::Exists { .. }), "{error:?}");
    assert_eq!(proxy.struck(), 2);
    assert_same(&download(&store, "small").await.unwrap(), &first);
}

#[tokio::test(flavor = "multi_thread")]
async fn listings_survive_errors_and_resets() {
    let weed = Weed::start(Access::Keys).await;
    let direct = s3::open(&weed, &weed.endpoint);
    let expected: Vec<String> = (0..20)
        .map(|number| format!("v2/Incr-{number:02}"))
        .collect();
    for key in &expected {
        put(&direct, key, &Bytes::from_static(b"x")).await;
    }
    for fault in [
        Fault::Status(500),
        Fault::Refuse,
        Fault::CutBody(700),
        Fault::StallBody(700),
    ] {
        let proxy = Proxy::start(&weed.endpoint).await;
        proxy.spoil(Kind::List, 0, 2, fault);
        assert_eq!(
            keys(&nervous(&weed, &proxy), "v2").await,
            expected,
            "{fault:?}"
        );
        assert_eq!(proxy.struck(), 2, "{fault:?}");
    }
}

/// Whatever is asked of a store that is gone is tried several times and fails.
async fn an_outage(weed: &Weed, effort: Effort, fault: Fault) {
    let proxy = Proxy::start(&weed.endpoint).await;
    let store = with_effort(weed, &proxy, effort);
    let reading = store.download("object", None).await.unwrap();
    drop(reading);
    proxy.spoil(Kind::Any, 0, usize::MAX, fault);
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
        assert_eq!(error.class(), Class::Transient, "{fault:?}: {error:?}");
        assert!(
            matches!(error, StoreError::Request { attempts: 2.., .. }),
            "{error:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outage_is_reported_before_the_deadline() {
    let weed = Weed::start(Access::Keys).await;
    let direct = s3::open(&weed, &weed.endpoint);
    put(&direct, "object", &noise(8, 9 * MIB)).await;
    let effort = Effort {
        request_timeout: Duration::from_secs(3),
        retry_timeout: Duration::from_secs(9),
        ..Effort::default()
    };
    let faults = [Fault::Status(503), Fault::Refuse, Fault::Silence];
    join_all(faults.map(|fault| an_outage(&weed, effort.clone(), fault))).await;
    assert_eq!(keys(&direct, "new").await, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_that_cannot_finish_leaves_no_object_and_no_parts() {
    let weed = Weed::start(Access::Keys).await;
    let effort = Effort {
        retry_timeout: Duration::from_secs(10),
        ..brisk()
    };
    let bytes = noise(9, 17 * MIB);
    let faults = [(Kind::Part, 0), (Kind::Part, 2), (Kind::Complete, 0)];
    let uploads = faults.map(async |(kind, skip)| {
        let proxy = Proxy::start(&weed.endpoint).await;
        proxy.spoil(kind, skip, usize::MAX, Fault::Status(503));
        let store = with_effort(&weed, &proxy, effort.clone());
        let key = format!("v2/{kind:?}-{skip}");
        let outcome = upload(&store, &key, &bytes, UploadOptions::create_only());
        let error = outcome.await.unwrap_err();
        assert_eq!(error.class(), Class::Transient, "{error:?}");
        assert!(proxy.struck() > 1);
    });
    join_all(uploads).await;
    let direct = s3::open(&weed, &weed.endpoint);
    assert_eq!(keys(&direct, "v2").await, Vec::<String>::new());
    let deadline = Instant::now() + Duration::from_mins(2);
    loop {
        let left = weed.unfinished_uploads().await;
        if left.is_empty() {
            return;
        }
        assert!(Instant::now() < deadline, "parts remain: {left:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_is_closed_after_an_abandoned_write() {
    let weed = Weed::start(Access::Keys).await;
    let proxy = Proxy::start(&weed.endpoint).await;
    proxy.spoil(Kind::Any, 0, usize::MAX, Fault::Silence);
    let store = with_effort(&weed, &proxy, brisk());
    let mut upload = store.upload("v2/Full-1", UploadOptions::default()).unwrap();
    let abandoned = upload.write(noise(10, 6 * MIB));
    assert!(
        tokio::time::timeout(Duration::from_millis(500), abandoned)
            .await
            .is_err()
    );
    let error = upload.write(noise(10, 1)).await.unwrap_err();
    assert!(matches!(error, StoreError::Closed { .. }), "{error:?}");
    let error = upload.finish().await.unwrap_err();
    assert!(matches!(error, StoreError::Closed { .. }), "{error:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn azure_transfers_survive_faults_too() {
    let azurite = Azurite::start().await;
    let proxy = Proxy::start(&azurite.endpoint).await;
    let store = azure::open(&azurite, &proxy.endpoint, Azurite::KEY);
    let bytes = noise(11, 17 * MIB + 3);
    proxy.spoil(Kind::Part, 1, 2, Fault::Status(503));
    proxy.spoil(Kind::Part, 1, 1, Fault::Refuse);
    proxy.spoil(Kind::Complete, 0, 1, Fault::LoseAnswer);
    upload(&store, "object", &bytes, UploadOptions::create_only())
        .await
        .unwrap();
    assert_eq!(proxy.struck(), 4);
    proxy.spoil(Kind::Get, 0, 2, Fault::CutBody(MIB + 1));
    proxy.spoil(Kind::Get, 0, 1, Fault::Status(500));
    assert_same(&download(&store, "object").await.unwrap(), &bytes);
    assert_eq!(proxy.struck(), 7);
}
