use clap::Parser;
use mainstay_archive::catalogue::Catalogue;
use mainstay_archive::name::SnapshotName;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::*;
use crate::args::SidecarArgs;
use crate::assemble;
use crate::session::handle::Line;
use crate::state::Sighting;
use crate::tail::{Gap, GapCause};

/// Detects a hang.
const SOON: Duration = Duration::from_secs(45);

/// As the program makes it; its etcd does not answer, and its store is never asked.
fn leader() -> Leader {
    let args = SidecarArgs::parse_from([
        "mainstay-sidecar",
        "--endpoints=http://127.0.0.1:1",
        "--storage-provider=Local",
        "--store-container=none",
    ]);
    let parts = assemble::Parts::from_args(args, true).unwrap();
    parts.election.session
}

/// A round in the middle of a chain, that hears these notices and then nothing more.
async fn over_after(leader: &Leader, fulls: &mut Fulls, notices: Vec<Notice>) -> Over {
    let plan = Begin::Continue {
        after: Revision(9),
        deltas_end: None,
        full: None,
    };
    let bucket = leader.bucket.clone().unwrap();
    let stock = Stock::new("p", Catalogue::default());
    let note = FarewellNote::default();
    let round = Round::start(leader, &bucket, (plan, stock), fulls, &note);
    let mut round = round.await.unwrap();
    let (send, receive) = mpsc::channel(NOTICES);
    for notice in notices {
        send.send(notice).await.unwrap();
    }
    drop(send);
    round.notices = receive;
    let (_asking, mut asks) = mpsc::channel(1);
    let stop = CancellationToken::new();
    let run = timeout(SOON, round.run(&stop, &mut asks));
    run.await.expect("the round goes on without a tail")
}

fn stored() -> Stored {
    let name: SnapshotName = "Full-00000000-00000009-1".parse().unwrap();
    Stored {
        key: format!("p/v2/{name}"),
        name,
        size: 1,
    }
}

fn taken() -> Taken {
    Taken {
        stored: stored(),
        raw_bytes: 1,
        parts: 1,
    }
}

/// A full snapshot that was asked for and is under way; whoever holds the first end says when it ends.
fn under_way(
    fulls: &mut Fulls,
) -> (
    oneshot::Sender<()>,
    oneshot::Receiver<Result<Stored, AskError>>,
) {
    let (finish, finished) = oneshot::channel::<()>();
    let (reply, answer) = oneshot::channel();
    fulls.want(Because::Asked, Finality::Ordinary, Some(reply));
    let has_started = fulls.start_if_due(|_| {
        tokio::spawn(async move {
            finished.await.map_err(|_| FullError::Interrupted)?;
            Ok(taken())
        })
    });
    assert!(has_started);
    (finish, answer)
}

#[tokio::test]
async fn a_tail_that_dies_without_a_word_ends_the_round() {
    let over = over_after(&leader(), &mut Fulls::default(), Vec::new()).await;
    assert!(matches!(over, Over::TailDied));
}

#[tokio::test]
async fn a_full_snapshot_goes_on_when_deltas_begin_anew() {
    let mut fulls = Fulls::default();
    let (finish, _answer) = under_way(&mut fulls);
    let over = over_after(&leader(), &mut fulls, vec![Notice::Overtaken]).await;
    assert!(matches!(over, Over::BeginAnew(None)));
    finish.send(()).expect("the full snapshot is under way");
    let ended = timeout(SOON, fulls.ended()).await.unwrap();
    assert_eq!(ended.outcome.unwrap().stored, stored());
    assert_eq!(ended.wanted.replies.len(), 1, "whoever asked still waits");
}

#[tokio::test]
async fn behind_a_gap_a_full_snapshot_under_way_is_worth_nothing() {
    let mut fulls = Fulls::default();
    let (finish, answer) = under_way(&mut fulls);
    let gap = Gap {
        from: Revision(10),
        to: Revision(12),
        cause: GapCause::Compacted,
    };
    let over = over_after(&leader(), &mut fulls, vec![Notice::Gap(gap)]).await;
    assert!(matches!(over, Over::BeginAnew(Some(Because::Gap))));
    assert_eq!(answer.await.unwrap(), Err(AskError::Ended));
    assert!(finish.send(()).is_err(), "it goes on");
    assert!(!fulls.is_coming());
}

/// Deltas are held back until it is stored: waiting for them would be waiting for itself.
#[tokio::test]
async fn a_full_snapshot_waits_for_deltas_but_not_for_those_that_wait_for_it() {
    let leader = leader();
    let bucket = leader.bucket.clone().unwrap();
    let (mut fulls, note) = (Fulls::default(), FarewellNote::default());
    let (finish, _answer) = under_way(&mut fulls);
    finish.send(()).unwrap();
    let ended = fulls.ended().await;
    let stock = Stock::new("p", Catalogue::default());
    let plan = Begin::StoreAhead {
        store: Revision(50),
        etcd: Revision(9),
    };
    let round = Round::start(&leader, &bucket, (plan, stock), &mut fulls, &note);
    let mut round = round.await.unwrap();
    assert!(round.flusher_beside_a_full().is_none(), "the tail is held");
    round.on_ended(ended);
    assert!(round.flusher_beside_a_full().is_some(), "it is released");
}

/// etcd answered once and had written further than is captured.
fn seen_at(revision: i64) -> Sighting {
    Sighting {
        revision: Revision(revision),
        ..Sighting::default()
    }
}

#[tokio::test]
async fn a_watch_that_cannot_be_opened_is_told_and_falls_behind_meanwhile() {
    let leader = leader();
    let mut view = leader.board.subscribe();
    leader
        .board
        .send_modify(|state| state.sighting = Some(seen_at(50)));
    let plan = Begin::Continue {
        after: Revision(9),
        deltas_end: None,
        full: None,
    };
    let bucket = leader.bucket.clone().unwrap();
    let (stock, note) = (
        Stock::new("p", Catalogue::default()),
        FarewellNote::default(),
    );
    let mut fulls = Fulls::default();
    let round = Round::start(&leader, &bucket, (plan, stock), &mut fulls, &note);
    let _round = round.await.unwrap();
    let is_told = |state: &state::State| {
        let trouble = state.trouble.as_ref();
        trouble.is_some_and(|trouble| trouble.class == "watch")
    };
    timeout(Duration::from_mins(1), view.wait_for(is_told))
        .await
        .expect("nothing is told")
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
    .expect("the lag does not grow while nothing arrives");
}

#[tokio::test]
async fn what_one_round_did_not_come_to_is_asked_of_the_next() {
    let line = Line::default();
    let mut asks = line.open();
    let (reply, answer) = oneshot::channel();
    line.ask_again(Ask::Delta(reply)).await;
    let Some(Ask::Delta(reply)) = asks.recv().await else {
        panic!("the question is lost");
    };
    reply.send(Ok(Some(stored()))).unwrap();
    assert_eq!(answer.await.unwrap(), Ok(Some(stored())));

    let (reply, answer) = oneshot::channel();
    line.close();
    line.ask_again(Ask::Delta(reply)).await;
    assert_eq!(answer.await.unwrap(), Err(AskError::Ended));
}
