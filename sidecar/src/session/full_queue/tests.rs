use super::*;

fn stored_snapshot() -> StoredSnapshot {
    let name: mainstay_archive::name::SnapshotName = "Full-00000000-00000009-1".parse().unwrap();
    StoredSnapshot {
        key: format!("p/v2/{name}"),
        name,
        size: 1,
    }
}

fn uploaded_full() -> UploadedFull {
    UploadedFull {
        stored: stored_snapshot(),
        raw_bytes: 1,
        parts: 1,
    }
}

#[tokio::test]
async fn full_snapshot_stored_before_an_abort_counts() {
    let mut fulls = FullQueue::default();
    let (reply, answer) = oneshot::channel();
    fulls.enqueue(
        FullSnapshotReason::OnDemand,
        Finality::Ordinary,
        Some(reply),
    );
    let (queued, refused) = oneshot::channel();
    fulls.enqueue(
        FullSnapshotReason::OnDemand,
        Finality::Ordinary,
        Some(queued),
    );
    assert!(fulls.start_if_due(|_| tokio::spawn(async { Ok(uploaded_full()) })));
    while !fulls.running.as_ref().unwrap().task.is_finished() {
        tokio::task::yield_now().await;
    }
    let ended = fulls.abort_all().await.unwrap();
    assert_eq!(ended.result.unwrap().stored, stored_snapshot());
    ended.request.notify_stored(&stored_snapshot());
    assert_eq!(answer.await.unwrap(), Ok(stored_snapshot()));
    assert_eq!(refused.await.unwrap(), Err(SnapshotRequestError::Aborted));
}

#[tokio::test]
async fn running_full_snapshot_is_interrupted_by_an_abort() {
    let mut fulls = FullQueue::default();
    let (reply, answer) = oneshot::channel();
    fulls.enqueue(
        FullSnapshotReason::OnDemand,
        Finality::Ordinary,
        Some(reply),
    );
    assert!(fulls.start_if_due(|_| tokio::spawn(std::future::pending())));
    let ended = fulls.abort_all().await.unwrap();
    assert!(matches!(ended.result, Err(FullError::Interrupted)));
    assert_eq!(answer.await.unwrap(), Err(SnapshotRequestError::Aborted));
    assert!(fulls.abort_all().await.is_none(), "none is running");
}
