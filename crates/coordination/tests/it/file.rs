//! The promises over files.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use mainstay_coordination::{Backing, BackingError, CoordinationError, Coordinator, FileBacking};
use tempfile::TempDir;

use crate::conformance;
use crate::contention::{self, Rules};

fn document() -> (TempDir, impl Fn() -> Arc<dyn Backing>) {
    let home = TempDir::new().unwrap();
    let path = home.path().join("coordination.json");
    (home, move || Arc::new(FileBacking::new(&path)))
}

#[tokio::test(flavor = "multi_thread")]
async fn one_party_at_a_time() {
    let (_home, backings) = document();
    let rules = Rules {
        ttl: Duration::from_millis(400),
        lasts: Duration::from_secs(8),
        at_least: 12,
        patience: Duration::from_secs(50),
    };
    contention::contest(backings, rules).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pins_are_never_lost() {
    let (_home, backings) = document();
    conformance::pins_are_never_lost(backings).await;
}

#[tokio::test]
async fn the_pin_of_a_dead_reader_expires() {
    let (_home, backings) = document();
    conformance::the_pin_of_a_dead_reader_expires(backings).await;
}

#[tokio::test]
async fn a_pin_belongs_to_its_holder() {
    let (_home, backings) = document();
    conformance::a_pin_belongs_to_its_holder(backings).await;
}

#[tokio::test]
async fn what_cannot_be_read_is_never_overwritten() {
    let (_home, backings) = document();
    conformance::what_cannot_be_read_is_never_overwritten(backings).await;
}

#[tokio::test]
async fn a_claim_outlives_its_process() {
    let (_home, backings) = document();
    conformance::a_claim_outlives_its_process(backings).await;
}

#[tokio::test]
async fn an_epoch_is_raised_by_its_holder() {
    let (_home, backings) = document();
    conformance::an_epoch_is_raised_by_its_holder(backings).await;
}

#[tokio::test]
async fn work_lasts_as_long_as_the_lock() {
    let (_home, backings) = document();
    conformance::work_lasts_as_long_as_the_lock(backings).await;
}

#[tokio::test]
async fn a_file_that_is_no_document_is_left_alone() {
    let home = TempDir::new().unwrap();
    let path = home.path().join("coordination.json");
    fs::write(&path, "what a mess").unwrap();
    let coordinator = Coordinator::new(Arc::new(FileBacking::new(&path)));
    let refused = coordinator
        .try_acquire(&conformance::wish("a", Duration::from_secs(1)))
        .await;
    let Err(CoordinationError::Backing(error @ BackingError::NotADocument { .. })) = refused else {
        panic!("{refused:?}")
    };
    assert!(
        error.to_string().contains("correct it, or remove it"),
        "{error}"
    );
    assert_eq!(fs::read_to_string(&path).unwrap(), "what a mess");
}

#[tokio::test]
async fn a_missing_directory_is_named() {
    let home = TempDir::new().unwrap();
    let path = home.path().join("absent/coordination.json");
    let coordinator = Coordinator::new(Arc::new(FileBacking::new(&path)));
    let refused = coordinator
        .try_acquire(&conformance::wish("a", Duration::from_secs(1)))
        .await;
    let Err(CoordinationError::Backing(error)) = refused else {
        panic!("{refused:?}")
    };
    assert!(
        error.to_string().contains("absent/coordination.json.lock"),
        "{error}"
    );
}
