//! Tests that every store must pass. Each function tests one property in its own folder.

use std::io::{Read, Write};

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use mainstay_store::{ErrorClass, SnapStore, StorageProvider, StoreError, UploadOptions};

use crate::data::{MIB, assert_same_bytes, download, list_keys, put_object, random_bytes, upload};

/// Runs all tests; the last line printed names the one that failed.
pub(crate) async fn run_all(store: &SnapStore) {
    macro_rules! claims {
        ($($claim:ident),* $(,)?) => { $(
            eprintln!("{}: {}", store.provider(), stringify!($claim));
            $claim(store).await;
        )* };
    }
    claims![
        absent_object_is_not_found,
        small_and_empty_objects_round_trip,
        large_objects_round_trip,
        blocking_threads_read_and_write,
        listing_covers_exactly_one_folder,
        keys_are_taken_literally,
        create_only_protects_small_objects,
        create_only_protects_large_objects,
        without_create_only_the_last_writer_wins,
        aborted_upload_leaves_no_object,
        dropped_upload_leaves_no_object,
        deleting_is_idempotent,
        wrong_catalogue_size_is_detected,
        object_replaced_during_read_is_detected,
        object_deleted_during_read_is_detected,
        invalid_keys_are_rejected,
    ];
}

async fn absent_object_is_not_found(store: &SnapStore) {
    let head = store.head("absent/object").await.unwrap_err();
    assert_eq!(head.class(), ErrorClass::NotFound, "{head:?}");
    assert!(head.to_string().contains("absent/object"), "{head}");
    assert!(head.to_string().contains(store.provider().name()), "{head}");
    let download = store.download("absent/object", None).await.unwrap_err();
    assert_eq!(download.class(), ErrorClass::NotFound, "{download:?}");
    assert_eq!(store.list("absent").await.unwrap(), []);
}

async fn small_and_empty_objects_round_trip(store: &SnapStore) {
    for length in [0, 1, 4096] {
        let (key, bytes) = (format!("small/{length}"), random_bytes(1, length));
        let object = put_object(store, &key, &bytes).await;
        assert_eq!(
            (object.key.as_str(), object.size),
            (key.as_str(), length as u64)
        );
        assert_same_bytes(&store.get_bytes(&key, 4096).await.unwrap(), &bytes);
    }
    let error = store.get_bytes("small/4096", 4095).await.unwrap_err();
    assert!(
        matches!(
            error,
            StoreError::TooLarge {
                found: 4096,
                limit: 4095,
                ..
            }
        ),
        "{error:?}"
    );
}

async fn large_objects_round_trip(store: &SnapStore) {
    // Around exactly one part, and several parts for upload and download.
    for length in [5 * MIB - 1, 5 * MIB, 5 * MIB + 1, 27 * MIB + 12_345] {
        let (key, bytes) = (format!("large/{length}"), random_bytes(2, length));
        let object = put_object(store, &key, &bytes).await;
        assert_eq!(object.size, length as u64);
        assert_same_bytes(&download(store, &key).await.unwrap(), &bytes);
    }
    let stream = store
        .download(&format!("large/{}", 5 * MIB), None)
        .await
        .unwrap()
        .into_stream();
    let parts: Vec<Bytes> = stream.boxed().try_collect().await.unwrap();
    assert_same_bytes(&parts.concat(), &random_bytes(2, 5 * MIB));
}

async fn blocking_threads_read_and_write(store: &SnapStore) {
    let bytes = random_bytes(3, 11 * MIB + 7);
    let mut writer = store
        .upload("blocking/object", UploadOptions::create_only())
        .unwrap()
        .into_writer();
    let source = bytes.clone();
    let object = tokio::task::spawn_blocking(move || {
        for piece in source.chunks(100_003) {
            writer.write_all(piece).unwrap();
        }
        writer.finish()
    });
    assert_eq!(object.await.unwrap().unwrap().size, bytes.len() as u64);

    let mut reader = store
        .download("blocking/object", Some(bytes.len() as u64))
        .await
        .unwrap()
        .into_reader();
    let read = tokio::task::spawn_blocking(move || {
        let mut bytes = Vec::new();
        reader.read_to_end(&mut bytes).map(|_| bytes)
    });
    assert_same_bytes(&read.await.unwrap().unwrap(), &bytes);
}

async fn listing_covers_exactly_one_folder(store: &SnapStore) {
    let mut inside = vec![
        "list/etcd/v2/Full-1",
        "list/etcd/v2/Full-1/0000000001",
        "list/etcd/v2/Incr-2",
    ];
    if store.provider() == StorageProvider::Local {
        // A directory cannot contain a file and a folder with the same name; buckets can.
        inside.remove(1);
    }
    for key in inside
        .iter()
        .chain(&["list/etcd-events/v2/Full-9", "list/etcd/v1/Backup-1/x"])
    {
        put_object(store, key, &random_bytes(4, 10)).await;
    }
    assert_eq!(list_keys(store, "list/etcd/v2").await, inside);
    assert_eq!(list_keys(store, "list/etcd/v2/").await, inside);
    assert_eq!(list_keys(store, "list/etcd").await.len(), inside.len() + 1);
    let listed = store.list("list/etcd-events/v2").await.unwrap();
    let head = store.head("list/etcd-events/v2/Full-9").await.unwrap();
    assert_eq!(
        (listed.len(), listed[0].size, listed[0].key.as_str()),
        (1, 10, head.key.as_str())
    );
    let difference = listed[0]
        .last_modified
        .duration_since(head.last_modified)
        .abs();
    assert!(
        difference <= jiff::SignedDuration::from_secs(1),
        "{listed:?} {head:?}"
    );
}

async fn keys_are_taken_literally(store: &SnapStore) {
    let odd = [
        "odd/a b",
        "odd/ü+1",
        "odd/50%25",
        "odd/x=y&z",
        "odd/(1),'2'",
    ];
    for key in odd {
        let bytes = random_bytes(5, key.len());
        put_object(store, key, &bytes).await;
        assert_same_bytes(&download(store, key).await.unwrap(), &bytes);
    }
    let mut expected = odd.map(str::to_owned).to_vec();
    expected.sort();
    assert_eq!(list_keys(store, "odd").await, expected);
}

async fn create_only_protects_small_objects(store: &SnapStore) {
    let (first, second) = (random_bytes(6, 1000), random_bytes(7, 1000));
    upload(store, "create/small", &first, UploadOptions::create_only())
        .await
        .unwrap();
    for attempt in [&first, &second] {
        let outcome = upload(store, "create/small", attempt, UploadOptions::create_only()).await;
        let error = outcome.unwrap_err();
        assert!(
            matches!(error, StoreError::AlreadyExists { .. }),
            "{error:?}"
        );
        assert_eq!(error.class(), ErrorClass::Exists);
    }
    assert_same_bytes(&download(store, "create/small").await.unwrap(), &first);
}

async fn create_only_protects_large_objects(store: &SnapStore) {
    let (first, second) = (random_bytes(8, 6 * MIB), random_bytes(9, 7 * MIB));
    upload(store, "create/large", &first, UploadOptions::create_only())
        .await
        .unwrap();
    let error = upload(store, "create/large", &second, UploadOptions::create_only())
        .await
        .unwrap_err();
    assert!(
        matches!(error, StoreError::AlreadyExists { .. }),
        "{error:?}"
    );
    assert_same_bytes(&download(store, "create/large").await.unwrap(), &first);
}

async fn without_create_only_the_last_writer_wins(store: &SnapStore) {
    for (seed, length) in [(10, 6 * MIB), (11, 10), (12, 11 * MIB)] {
        let bytes = random_bytes(seed, length);
        put_object(store, "overwrite", &bytes).await;
        assert_same_bytes(&download(store, "overwrite").await.unwrap(), &bytes);
    }
}

async fn aborted_upload_leaves_no_object(store: &SnapStore) {
    let mut unfinished = store
        .upload("aborted/object", UploadOptions::default())
        .unwrap();
    unfinished.write(random_bytes(13, 12 * MIB)).await.unwrap();
    unfinished.abort().await.unwrap();
    assert_eq!(store.list("aborted").await.unwrap(), []);
    // The key is still unused.
    let bytes = random_bytes(14, 100);
    upload(
        store,
        "aborted/object",
        &bytes,
        UploadOptions::create_only(),
    )
    .await
    .unwrap();
    assert_same_bytes(&download(store, "aborted/object").await.unwrap(), &bytes);
}

async fn dropped_upload_leaves_no_object(store: &SnapStore) {
    let mut unfinished = store
        .upload("dropped/async", UploadOptions::default())
        .unwrap();
    unfinished.write(random_bytes(15, 12 * MIB)).await.unwrap();
    drop(unfinished);
    let mut writer = store
        .upload("dropped/blocking", UploadOptions::default())
        .unwrap()
        .into_writer();
    tokio::task::spawn_blocking(move || writer.write_all(&random_bytes(16, 6 * MIB)).unwrap())
        .await
        .unwrap();
    assert_eq!(store.list("dropped").await.unwrap(), []);
}

async fn deleting_is_idempotent(store: &SnapStore) {
    put_object(store, "deleted/object", &random_bytes(17, 10)).await;
    store.delete("deleted/object").await.unwrap();
    store.delete("deleted/object").await.unwrap();
    assert_eq!(
        store.head("deleted/object").await.unwrap_err().class(),
        ErrorClass::NotFound
    );
}

async fn wrong_catalogue_size_is_detected(store: &SnapStore) {
    put_object(store, "size/object", &random_bytes(18, 10)).await;
    let error = store.download("size/object", Some(11)).await.unwrap_err();
    assert!(
        matches!(
            error,
            StoreError::SizeMismatch {
                expected: 11,
                found: 10,
                ..
            }
        ),
        "{error:?}"
    );
    assert_eq!(error.class(), ErrorClass::Corrupt);
}

/// So large that the last parts are requested only after the first was consumed.
const LARGER_THAN_BUDGET: usize = 41 * MIB;

async fn object_replaced_during_read_is_detected(store: &SnapStore) {
    let (before, after) = (
        random_bytes(19, LARGER_THAN_BUDGET),
        random_bytes(20, LARGER_THAN_BUDGET),
    );
    put_object(store, "replaced/object", &before).await;
    let mut download = store.download("replaced/object", None).await.unwrap();
    // Wait until all parts within the memory limit have arrived from the first version.
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    put_object(store, "replaced/object", &after).await;
    let (mut bytes, mut error) = (Vec::new(), None);
    while let Some(part) = download.next_part().await {
        match part {
            Ok(part) => bytes.extend_from_slice(&part),
            Err(found) => error = Some(found),
        }
    }
    let error = error.expect("two versions were mixed");
    assert!(matches!(error, StoreError::Changed { .. }), "{error:?}");
    assert_eq!(error.class(), ErrorClass::Corrupt);
    assert_same_bytes(&bytes, &before[..bytes.len()]);
}

async fn object_deleted_during_read_is_detected(store: &SnapStore) {
    put_object(
        store,
        "vanished/object",
        &random_bytes(21, LARGER_THAN_BUDGET),
    )
    .await;
    let mut download = store.download("vanished/object", None).await.unwrap();
    download.next_part().await.unwrap().unwrap();
    store.delete("vanished/object").await.unwrap();
    let mut outcomes = Vec::new();
    while let Some(part) = download.next_part().await {
        outcomes.push(part.map(|part| part.len()));
    }
    let error = outcomes.pop().unwrap().unwrap_err();
    assert_eq!(error.class(), ErrorClass::NotFound, "{error:?}");
}

async fn invalid_keys_are_rejected(store: &SnapStore) {
    for key in ["", "/a", "a/", "a//b", "../a", "a/../b", "a/./b", "a\nb"] {
        let error = store.head(key).await.unwrap_err();
        assert!(
            matches!(error, StoreError::InvalidKey { .. }),
            "{key:?} gave {error:?}"
        );
        assert_eq!(error.class(), ErrorClass::Invalid);
        assert!(
            store.upload(key, UploadOptions::default()).is_err(),
            "{key:?}"
        );
    }
}
