//! What every store promises. Each function is one claim and works in a folder of its own.

use std::io::{Read, Write};

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use mainstay_store::{Class, Provider, SnapStore, StoreError, UploadOptions};

use crate::data::{MIB, assert_same, download, keys, noise, put, upload};

/// Runs every claim; the last line printed names the one that failed.
pub(crate) async fn all(store: &SnapStore) {
    macro_rules! claims {
        ($($claim:ident),* $(,)?) => { $(
            eprintln!("{}: {}", store.provider(), stringify!($claim));
            $claim(store).await;
        )* };
    }
    claims![
        what_is_absent_is_not_found,
        small_and_empty_objects_come_back,
        large_objects_come_back_whole,
        blocking_threads_read_and_write,
        a_listing_is_exactly_one_folder,
        keys_are_taken_literally,
        create_only_protects_small_objects,
        create_only_protects_large_objects,
        without_create_only_the_last_writer_wins,
        an_aborted_upload_leaves_nothing,
        a_dropped_upload_leaves_nothing,
        deleting_is_idempotent,
        a_wrong_catalogue_size_is_noticed,
        an_object_replaced_while_read_is_noticed,
        an_object_deleted_while_read_is_noticed,
        senseless_keys_are_refused,
    ];
}

async fn what_is_absent_is_not_found(store: &SnapStore) {
    let head = store.head("absent/object").await.unwrap_err();
    assert_eq!(head.class(), Class::NotFound, "{head:?}");
    assert!(head.to_string().contains("absent/object"), "{head}");
    assert!(head.to_string().contains(store.provider().name()), "{head}");
    let download = store.download("absent/object", None).await.unwrap_err();
    assert_eq!(download.class(), Class::NotFound, "{download:?}");
    assert_eq!(store.list("absent").await.unwrap(), []);
}

async fn small_and_empty_objects_come_back(store: &SnapStore) {
    for length in [0, 1, 4096] {
        let (key, bytes) = (format!("small/{length}"), noise(1, length));
        let object = put(store, &key, &bytes).await;
        assert_eq!(
            (object.key.as_str(), object.size),
            (key.as_str(), length as u64)
        );
        assert_same(&store.get_bytes(&key, 4096).await.unwrap(), &bytes);
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

async fn large_objects_come_back_whole(store: &SnapStore) {
    // Exactly one part, one byte around a part, and several parts of both directions.
    for length in [5 * MIB - 1, 5 * MIB, 5 * MIB + 1, 27 * MIB + 12_345] {
        let (key, bytes) = (format!("large/{length}"), noise(2, length));
        let object = put(store, &key, &bytes).await;
        assert_eq!(object.size, length as u64);
        assert_same(&download(store, &key).await.unwrap(), &bytes);
    }
    let stream = store
        .download(&format!("large/{}", 5 * MIB), None)
        .await
        .unwrap()
        .into_stream();
    let parts: Vec<Bytes> = stream.boxed().try_collect().await.unwrap();
    assert_same(&parts.concat(), &noise(2, 5 * MIB));
}

async fn blocking_threads_read_and_write(store: &SnapStore) {
    let bytes = noise(3, 11 * MIB + 7);
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
    assert_same(&read.await.unwrap().unwrap(), &bytes);
}

async fn a_listing_is_exactly_one_folder(store: &SnapStore) {
    let mut inside = vec![
        "list/etcd/v2/Full-1",
        "list/etcd/v2/Full-1/0000000001",
        "list/etcd/v2/Incr-2",
    ];
    if store.provider() == Provider::Local {
        // A directory cannot hold a file and a folder of one name; buckets can.
        inside.remove(1);
    }
    for key in inside
        .iter()
        .chain(&["list/etcd-events/v2/Full-9", "list/etcd/v1/Backup-1/x"])
    {
        put(store, key, &noise(4, 10)).await;
    }
    assert_eq!(keys(store, "list/etcd/v2").await, inside);
    assert_eq!(keys(store, "list/etcd/v2/").await, inside);
    assert_eq!(keys(store, "list/etcd").await.len(), inside.len() + 1);
    let listed = store.list("list/etcd-events/v2").await.unwrap();
    let head = store.head("list/etcd-events/v2/Full-9").await.unwrap();
    assert_eq!(
        (listed.len(), listed[0].size, listed[0].key.as_str()),
        (1, 10, head.key.as_str())
    );
    let apart = listed[0].modified.duration_since(head.modified).abs();
    assert!(
        apart <= jiff::SignedDuration::from_secs(1),
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
        let bytes = noise(5, key.len());
        put(store, key, &bytes).await;
        assert_same(&download(store, key).await.unwrap(), &bytes);
    }
    let mut expected = odd.map(str::to_owned).to_vec();
    expected.sort();
    assert_eq!(keys(store, "odd").await, expected);
}

async fn create_only_protects_small_objects(store: &SnapStore) {
    let (first, second) = (noise(6, 1000), noise(7, 1000));
    upload(store, "create/small", &first, UploadOptions::create_only())
        .await
        .unwrap();
    for attempt in [&first, &second] {
        let outcome = upload(store, "create/small", attempt, UploadOptions::create_only()).await;
        let error = outcome.unwrap_err();
        assert!(matches!(error, StoreError::Exists { .. }), "{error:?}");
        assert_eq!(error.class(), Class::Exists);
    }
    assert_same(&download(store, "create/small").await.unwrap(), &first);
}

async fn create_only_protects_large_objects(store: &SnapStore) {
    let (first, second) = (noise(8, 6 * MIB), noise(9, 7 * MIB));
    upload(store, "create/large", &first, UploadOptions::create_only())
        .await
        .unwrap();
    let error = upload(store, "create/large", &second, UploadOptions::create_only())
        .await
        .unwrap_err();
    assert!(matches!(error, StoreError::Exists { .. }), "{error:?}");
    assert_same(&download(store, "create/large").await.unwrap(), &first);
}

async fn without_create_only_the_last_writer_wins(store: &SnapStore) {
    for (seed, length) in [(10, 6 * MIB), (11, 10), (12, 11 * MIB)] {
        let bytes = noise(seed, length);
        put(store, "overwrite", &bytes).await;
        assert_same(&download(store, "overwrite").await.unwrap(), &bytes);
    }
}

async fn an_aborted_upload_leaves_nothing(store: &SnapStore) {
    let mut unfinished = store
        .upload("aborted/object", UploadOptions::default())
        .unwrap();
    unfinished.write(noise(13, 12 * MIB)).await.unwrap();
    unfinished.abort().await.unwrap();
    assert_eq!(store.list("aborted").await.unwrap(), []);
    // The key is as free as before.
    let bytes = noise(14, 100);
    upload(
        store,
        "aborted/object",
        &bytes,
        UploadOptions::create_only(),
    )
    .await
    .unwrap();
    assert_same(&download(store, "aborted/object").await.unwrap(), &bytes);
}

async fn a_dropped_upload_leaves_nothing(store: &SnapStore) {
    let mut unfinished = store
        .upload("dropped/async", UploadOptions::default())
        .unwrap();
    unfinished.write(noise(15, 12 * MIB)).await.unwrap();
    drop(unfinished);
    let mut writer = store
        .upload("dropped/blocking", UploadOptions::default())
        .unwrap()
        .into_writer();
    tokio::task::spawn_blocking(move || writer.write_all(&noise(16, 6 * MIB)).unwrap())
        .await
        .unwrap();
    assert_eq!(store.list("dropped").await.unwrap(), []);
}

async fn deleting_is_idempotent(store: &SnapStore) {
    put(store, "deleted/object", &noise(17, 10)).await;
    store.delete("deleted/object").await.unwrap();
    store.delete("deleted/object").await.unwrap();
    assert_eq!(
        store.head("deleted/object").await.unwrap_err().class(),
        Class::NotFound
    );
}

async fn a_wrong_catalogue_size_is_noticed(store: &SnapStore) {
    put(store, "size/object", &noise(18, 10)).await;
    let error = store.download("size/object", Some(11)).await.unwrap_err();
    assert!(
        matches!(
            error,
            StoreError::Size {
                expected: 11,
                found: 10,
                ..
            }
        ),
        "{error:?}"
    );
    assert_eq!(error.class(), Class::Corrupt);
}

/// Long enough that the last parts are asked for only after the first was consumed.
const BEYOND_THE_BUDGET: usize = 41 * MIB;

async fn an_object_replaced_while_read_is_noticed(store: &SnapStore) {
    let (before, after) = (noise(19, BEYOND_THE_BUDGET), noise(20, BEYOND_THE_BUDGET));
    put(store, "replaced/object", &before).await;
    let mut download = store.download("replaced/object", None).await.unwrap();
    // All parts of the budget arrive from the first version, whatever happens now.
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    put(store, "replaced/object", &after).await;
    let (mut bytes, mut error) = (Vec::new(), None);
    while let Some(part) = download.next_part().await {
        match part {
            Ok(part) => bytes.extend_from_slice(&part),
            Err(found) => error = Some(found),
        }
    }
    let error = error.expect("two versions were mixed");
    assert!(matches!(error, StoreError::Changed { .. }), "{error:?}");
    assert_eq!(error.class(), Class::Corrupt);
    assert_same(&bytes, &before[..bytes.len()]);
}

async fn an_object_deleted_while_read_is_noticed(store: &SnapStore) {
    put(store, "vanished/object", &noise(21, BEYOND_THE_BUDGET)).await;
    let mut download = store.download("vanished/object", None).await.unwrap();
    download.next_part().await.unwrap().unwrap();
    store.delete("vanished/object").await.unwrap();
    let mut outcomes = Vec::new();
    while let Some(part) = download.next_part().await {
        outcomes.push(part.map(|part| part.len()));
    }
    let error = outcomes.pop().unwrap().unwrap_err();
    assert_eq!(error.class(), Class::NotFound, "{error:?}");
}

async fn senseless_keys_are_refused(store: &SnapStore) {
    for key in ["", "/a", "a/", "a//b", "../a", "a/../b", "a/./b", "a\nb"] {
        let error = store.head(key).await.unwrap_err();
        assert!(
            matches!(error, StoreError::Key { .. }),
            "{key:?} gave {error:?}"
        );
        assert_eq!(error.class(), Class::Invalid);
        assert!(
            store.upload(key, UploadOptions::default()).is_err(),
            "{key:?}"
        );
    }
}
