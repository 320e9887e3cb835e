//! Documents with content that this program never writes.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use mainstay_coordination::{
    AcquireOutcome, Coordinator, Epoch, FileBacking, LockRequest, Purpose,
};
use tempfile::TempDir;
use tokio::time::Instant;

#[tokio::test]
async fn lock_with_excessive_ttl_is_valid_for_at_most_an_hour() {
    let home = TempDir::new().unwrap();
    let path = home.path().join("coordination.json");
    let coordinator = Coordinator::new(Arc::new(FileBacking::new(&path)));
    let lock_request = LockRequest {
        holder: "holder".to_owned(),
        purpose: Purpose::Restore,
        ttl: Duration::from_secs(30),
    };
    let AcquireOutcome::Acquired(held) = coordinator.try_acquire(&lock_request).await.unwrap()
    else {
        panic!("lock must be free")
    };
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.contains("30s"), "{text}");
    let longest = format!("{}s", i64::MAX);
    fs::write(&path, text.replace("30s", &longest)).unwrap();

    let latest = || Instant::now() + Duration::from_hours(1);
    let resumed = coordinator.resume_lock(held.token()).await.unwrap();
    assert!(resumed.valid_until() < latest());
    let above = Epoch(held.token().epoch.0 + 5);
    let raised = resumed.raise_epoch(above).await.unwrap();
    assert!(raised.token().epoch > above);
    assert!(raised.valid_until() < latest());
}
