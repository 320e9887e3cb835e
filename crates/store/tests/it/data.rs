//! Test data and transfer helpers.

use std::time::Duration;

use bytes::Bytes;
use mainstay_store::{ObjectInfo, SnapStore, StoreError, TransferConfig, UploadOptions};
use rand::rngs::StdRng;
use rand::{RngCore, SeedableRng};

pub(crate) const MIB: usize = 1024 * 1024;

/// Incompressible bytes, deterministic for a seed.
pub(crate) fn random_bytes(seed: u64, length: usize) -> Bytes {
    let mut bytes = vec![0; length];
    StdRng::seed_from_u64(seed).fill_bytes(&mut bytes);
    bytes.into()
}

/// Timeouts that are short, but long enough for a busy machine.
pub(crate) fn test_transfer_config() -> TransferConfig {
    TransferConfig {
        request_timeout: Duration::from_secs(20),
        retry_timeout: Duration::from_mins(1),
        ..TransferConfig::default()
    }
}

/// Asserts that the operation was not retried.
#[track_caller]
pub(crate) fn assert_tried_once(error: &StoreError) {
    let is_once = matches!(error, StoreError::Request { attempts: 1, .. });
    assert!(is_once, "{error:?}");
}

/// Uploads `bytes` in pieces that are not aligned with parts.
pub(crate) async fn upload(
    store: &SnapStore,
    key: &str,
    bytes: &Bytes,
    options: UploadOptions,
) -> Result<ObjectInfo, StoreError> {
    let mut upload = store.upload(key, options)?;
    for piece in bytes.chunks(777_777) {
        upload.write(Bytes::copy_from_slice(piece)).await?;
    }
    upload.finish().await
}

pub(crate) async fn put_object(store: &SnapStore, key: &str, bytes: &Bytes) -> ObjectInfo {
    upload(store, key, bytes, UploadOptions::default())
        .await
        .unwrap()
}

/// Downloads a complete object part by part.
pub(crate) async fn download(store: &SnapStore, key: &str) -> Result<Vec<u8>, StoreError> {
    let mut download = store.download(key, None).await?;
    let mut bytes = Vec::new();
    while let Some(part) = download.next_part().await {
        bytes.extend_from_slice(&part?);
    }
    Ok(bytes)
}

pub(crate) async fn list_keys(store: &SnapStore, folder: &str) -> Vec<String> {
    store
        .list(folder)
        .await
        .unwrap()
        .into_iter()
        .map(|object| object.key)
        .collect()
}

/// Compares without printing megabytes.
#[track_caller]
pub(crate) fn assert_same_bytes(found: &[u8], expected: &[u8]) {
    assert_eq!(found.len(), expected.len(), "lengths differ");
    let difference = found.iter().zip(expected).position(|(a, b)| a != b);
    assert_eq!(difference, None, "bytes differ");
}
