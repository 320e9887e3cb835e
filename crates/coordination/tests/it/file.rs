//! The conformance tests with files.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use mainstay_coordination::{Backing, BackingError, CoordinationError, Coordinator, FileBacking};
use tempfile::TempDir;

use crate::conformance;
use crate::contention::{self, ContestConfig};

fn document_in_file() -> (TempDir, impl Fn() -> Arc<dyn Backing>) {
    let home = TempDir::new().unwrap();
    let path = home.path().join("coordination.json");
    (home, move || Arc::new(FileBacking::new(&path)))
}

#[tokio::test(flavor = "multi_thread")]
async fn lock_has_one_holder_at_a_time() {
    let (_home, backings) = document_in_file();
    let rules = ContestConfig {
        ttl: Duration::from_millis(400),
        min_duration: Duration::from_secs(8),
        min_tenures: 12,
        timeout: Duration::from_secs(50),
    };
    contention::run_contest(backings, rules).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pins_are_never_lost() {
    let (_home, backings) = document_in_file();
    conformance::pins_are_never_lost(backings).await;
}

#[tokio::test]
async fn pin_of_crashed_reader_expires() {
    let (_home, backings) = document_in_file();
    conformance::pin_of_crashed_reader_expires(backings).await;
}

#[tokio::test]
async fn pin_belongs_to_its_holder() {
    let (_home, backings) = document_in_file();
    conformance::pin_belongs_to_its_holder(backings).await;
}

#[tokio::test]
async fn unreadable_entry_is_not_overwritten() {
    let (_home, backings) = document_in_file();
    conformance::unreadable_entry_is_not_overwritten(backings).await;
}

#[tokio::test]
async fn restarted_holder_resumes_its_lock() {
    let (_home, backings) = document_in_file();
    conformance::restarted_holder_resumes_its_lock(backings).await;
}

#[tokio::test]
async fn holder_raises_its_epoch() {
    let (_home, backings) = document_in_file();
    conformance::holder_raises_its_epoch(backings).await;
}

#[tokio::test]
async fn work_stops_when_lock_is_lost() {
    let (_home, backings) = document_in_file();
    conformance::work_stops_when_lock_is_lost(backings).await;
}

#[tokio::test]
async fn invalid_document_is_not_overwritten() {
    let home = TempDir::new().unwrap();
    let path = home.path().join("coordination.json");
    fs::write(&path, "not JSON").unwrap();
    let coordinator = Coordinator::new(Arc::new(FileBacking::new(&path)));
    let refused = coordinator
        .try_acquire(&conformance::lock_request("a", Duration::from_secs(1)))
        .await;
    let Err(CoordinationError::Backing(error @ BackingError::InvalidDocument { .. })) = refused
    else {
        panic!("{refused:?}")
    };
    assert!(
        error.to_string().contains("correct it, or remove it"),
        "{error}"
    );
    assert_eq!(fs::read_to_string(&path).unwrap(), "not JSON");
}

#[tokio::test]
async fn missing_directory_is_named_in_the_error() {
    let home = TempDir::new().unwrap();
    let path = home.path().join("absent/coordination.json");
    let coordinator = Coordinator::new(Arc::new(FileBacking::new(&path)));
    let refused = coordinator
        .try_acquire(&conformance::lock_request("a", Duration::from_secs(1)))
        .await;
    let Err(CoordinationError::Backing(error)) = refused else {
        panic!("{refused:?}")
    };
    assert!(
        error.to_string().contains("absent/coordination.json.lock"),
        "{error}"
    );
}
