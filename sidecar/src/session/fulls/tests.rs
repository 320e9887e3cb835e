use super::*;

fn stored() -> Stored {
    let name: mainstay_archive::name::SnapshotName = "Full-00000000-00000009-1".parse().unwrap();
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

#[tokio::test]
async fn one_that_was_stored_when_everything_is_given_up_counts() {
    let mut fulls = Fulls::default();
    let (reply, answer) = oneshot::channel();
    fulls.want(Because::Asked, Finality::Ordinary, Some(reply));
    let (waits, refused) = oneshot::channel();
    fulls.want(Because::Asked, Finality::Ordinary, Some(waits));
    assert!(fulls.start_if_due(|_| tokio::spawn(async { Ok(taken()) })));
    while !fulls.running.as_ref().unwrap().task.is_finished() {
        tokio::task::yield_now().await;
    }
    let ended = fulls.give_up().await.unwrap();
    assert_eq!(ended.outcome.unwrap().stored, stored());
    ended.wanted.tell(&stored());
    assert_eq!(answer.await.unwrap(), Ok(stored()));
    assert_eq!(refused.await.unwrap(), Err(AskError::Ended));
}

#[tokio::test]
async fn one_that_is_given_up_in_the_middle_is_interrupted() {
    let mut fulls = Fulls::default();
    let (reply, answer) = oneshot::channel();
    fulls.want(Because::Asked, Finality::Ordinary, Some(reply));
    assert!(fulls.start_if_due(|_| tokio::spawn(std::future::pending())));
    let ended = fulls.give_up().await.unwrap();
    assert!(matches!(ended.outcome, Err(FullError::Interrupted)));
    assert_eq!(answer.await.unwrap(), Err(AskError::Ended));
    assert!(fulls.give_up().await.is_none(), "none is under way");
}
