use clap::Parser;
use mainstay_archive::catalogue::Catalogue;
use mainstay_archive::name::SnapshotName;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::*;
use crate::args::SidecarArgs;
use crate::assembly;
use crate::session::handle::SnapshotQueue;
use crate::state::MemberStatus;

/// Detects a hang.
const TEST_TIMEOUT: Duration = Duration::from_secs(45);

/// A leader as the program builds it; its etcd does not answer, and its store is never used.
fn build_leader() -> BackupLeader {
    let args = SidecarArgs::parse_from([
        "mainstay-sidecar",
        "--endpoints=http://127.0.0.1:1",
        "--storage-provider=Local",
        "--store-container=none",
    ]);
    let parts = assembly::SidecarTasks::from_args(args, true).unwrap();
    parts.election.session
}

/// Runs a round in the middle of a chain, with a tail that sends these events and ends.
async fn run_with_events(
    leader: &BackupLeader,
    fulls: &mut FullQueue,
    notices: Vec<TailEvent>,
) -> RoundEnd {
    let plan = StartPlan::Continue {
        after: Revision(9),
        backfill_after: None,
        full: None,
    };
    let bucket = leader.store.clone().unwrap();
    let stock = Inventory::new("p", Catalogue::default());
    let note = OnStopCell::default();
    let round = Round::start(leader, &bucket, (plan, stock), fulls, &note);
    let mut round = round.await.unwrap();
    let (send, receive) = mpsc::channel(TAIL_EVENT_CAPACITY);
    for notice in notices {
        send.send(notice).await.unwrap();
    }
    drop(send);
    round.tail_events = receive;
    let (_asking, mut asks) = mpsc::channel(1);
    let stop = CancellationToken::new();
    let run = timeout(TEST_TIMEOUT, round.run(&stop, &mut asks));
    run.await.expect("the round continues without a tail")
}

fn stored_snapshot() -> StoredSnapshot {
    let name: SnapshotName = "Full-00000000-00000009-1".parse().unwrap();
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

/// Starts a requested full snapshot that ends when the returned sender is used.
fn start_full(
    fulls: &mut FullQueue,
) -> (
    oneshot::Sender<()>,
    oneshot::Receiver<Result<StoredSnapshot, SnapshotRequestError>>,
) {
    let (finish, finished) = oneshot::channel::<()>();
    let (reply, answer) = oneshot::channel();
    fulls.enqueue(
        FullSnapshotReason::OnDemand,
        Finality::Ordinary,
        Some(reply),
    );
    let has_started = fulls.start_if_due(|_| {
        tokio::spawn(async move {
            finished.await.map_err(|_| FullError::Interrupted)?;
            Ok(uploaded_full())
        })
    });
    assert!(has_started);
    (finish, answer)
}

#[tokio::test]
async fn tail_that_ends_without_an_event_ends_the_round() {
    let over = run_with_events(&build_leader(), &mut FullQueue::default(), Vec::new()).await;
    assert!(matches!(over, RoundEnd::TailEnded));
}

#[tokio::test]
async fn full_snapshot_continues_when_deltas_restart() {
    let mut fulls = FullQueue::default();
    let (finish, _answer) = start_full(&mut fulls);
    let over = run_with_events(&build_leader(), &mut fulls, vec![TailEvent::Superseded]).await;
    assert!(matches!(over, RoundEnd::Restart(None)));
    finish
        .send(())
        .expect("the full snapshot should be running");
    let ended = timeout(TEST_TIMEOUT, fulls.wait_for_finished())
        .await
        .unwrap();
    assert_eq!(ended.result.unwrap().stored, stored_snapshot());
    assert_eq!(ended.request.replies.len(), 1, "the requester still waits");
}

#[tokio::test]
async fn gap_aborts_the_running_full_snapshot() {
    let mut fulls = FullQueue::default();
    let (finish, answer) = start_full(&mut fulls);
    let over = run_with_events(&build_leader(), &mut fulls, vec![TailEvent::Gap]).await;
    assert!(matches!(
        over,
        RoundEnd::Restart(Some(FullSnapshotReason::Gap))
    ));
    assert_eq!(answer.await.unwrap(), Err(SnapshotRequestError::Aborted));
    assert!(finish.send(()).is_err(), "the snapshot should be aborted");
    assert!(!fulls.has_required_or_running());
}

/// Deltas are held back until the full snapshot is stored: waiting for them would be a deadlock.
#[tokio::test]
async fn full_snapshot_does_not_wait_for_deltas_that_are_held_for_it() {
    let leader = build_leader();
    let bucket = leader.store.clone().unwrap();
    let (mut fulls, note) = (FullQueue::default(), OnStopCell::default());
    let (finish, _answer) = start_full(&mut fulls);
    finish.send(()).unwrap();
    let ended = fulls.wait_for_finished().await;
    let stock = Inventory::new("p", Catalogue::default());
    let plan = StartPlan::StoreAhead {
        store: Revision(50),
        etcd: Revision(9),
    };
    let round = Round::start(&leader, &bucket, (plan, stock), &mut fulls, &note);
    let mut round = round.await.unwrap();
    assert!(round.flusher_for_full().is_none(), "the tail is held");
    round.on_full_finished(ended);
    assert!(round.flusher_for_full().is_some(), "it is released");
}

/// A status of etcd ahead of the captured revision.
fn status_at(revision: i64) -> MemberStatus {
    MemberStatus {
        revision: Revision(revision),
        ..MemberStatus::default()
    }
}

#[tokio::test]
async fn failed_watch_is_reported_and_its_lag_grows() {
    let leader = build_leader();
    let mut view = leader.state_tx.subscribe();
    leader
        .state_tx
        .send_modify(|state| state.member_status = Some(status_at(50)));
    let plan = StartPlan::Continue {
        after: Revision(9),
        backfill_after: None,
        full: None,
    };
    let bucket = leader.store.clone().unwrap();
    let (stock, note) = (
        Inventory::new("p", Catalogue::default()),
        OnStopCell::default(),
    );
    let mut fulls = FullQueue::default();
    let round = Round::start(&leader, &bucket, (plan, stock), &mut fulls, &note);
    let _round = round.await.unwrap();
    let is_reported = |state: &state::SidecarState| {
        let trouble = state.failure.as_ref();
        trouble.is_some_and(|trouble| trouble.class == "watch")
    };
    timeout(Duration::from_mins(1), view.wait_for(is_reported))
        .await
        .expect("the failure is not reported")
        .unwrap();
    let shows_lag = |text: &str| {
        let seconds = text
            .lines()
            .find_map(|line| line.strip_prefix("mainstay_watch_lag_seconds "));
        text.contains("\nmainstay_watch_lag_revisions 41\n")
            && seconds.is_some_and(|seconds| seconds.parse::<f64>().unwrap() > 0.0)
    };
    timeout(Duration::from_mins(1), async {
        while !shows_lag(&leader.metrics.render().unwrap()) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await
    .expect("the lag should grow while no events arrive");
}

#[tokio::test]
async fn unanswered_request_is_requeued_for_the_next_round() {
    let line = SnapshotQueue::default();
    let mut asks = line.open();
    let (reply, answer) = oneshot::channel();
    line.requeue(SessionRequest::Delta(reply)).await;
    let Some(SessionRequest::Delta(reply)) = asks.recv().await else {
        panic!("the request is lost");
    };
    reply.send(Ok(Some(stored_snapshot()))).unwrap();
    assert_eq!(answer.await.unwrap(), Ok(Some(stored_snapshot())));

    let (reply, answer) = oneshot::channel();
    line.close();
    line.requeue(SessionRequest::Delta(reply)).await;
    assert_eq!(answer.await.unwrap(), Err(SnapshotRequestError::Aborted));
}
