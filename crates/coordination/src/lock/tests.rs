use super::*;

const NOON: Timestamp = Timestamp::constant(1_800_000_000, 0);
/// `NOON` as an epoch: milliseconds since 1970.
const NOON_EPOCH: u64 = 1_800_000_000_000;
const TTL: Duration = Duration::from_secs(30);

fn lock_request(holder: &str) -> LockRequest {
    LockRequest {
        holder: holder.to_owned(),
        purpose: Purpose::Restore,
        ttl: TTL,
    }
}

fn lock_held_by(holder: &str, epoch: u64) -> Lock {
    build_lock(Epoch(epoch), &lock_request(holder), NOON, BTreeMap::new())
}

fn token_of(lock: &Lock) -> LockToken {
    LockToken {
        holder: lock.holder.clone(),
        epoch: lock.epoch,
    }
}

fn acquire_after(found: Option<&Lock>, unchanged: Duration) -> Lock {
    match decide_acquire(found, unchanged, &lock_request("b"), NOON) {
        AcquireDecision::Take(lock) => lock,
        AcquireDecision::Wait { .. } => panic!("expected a free lock: {found:?}"),
    }
}

fn acquire_at(found: Option<&Lock>, now: Timestamp) -> Lock {
    match decide_acquire(found, MAX_TTL, &lock_request("b"), now) {
        AcquireDecision::Take(lock) => lock,
        AcquireDecision::Wait { .. } => panic!("expected a free lock: {found:?}"),
    }
}

#[test]
fn first_epoch_is_the_time_in_milliseconds() {
    assert_eq!(
        acquire_after(None, Duration::ZERO),
        lock_held_by("b", NOON_EPOCH)
    );
}

#[test]
fn epoch_grows_even_when_the_clock_moves_back() {
    let past = Timestamp::constant(-1_000, 0);
    for now in [NOON, past, Timestamp::MIN, Timestamp::MAX] {
        let mut lock = acquire_at(None, now);
        assert!(lock.epoch > Epoch::default(), "{now}");
        for later in [NOON, Timestamp::MIN, past, Timestamp::MAX, NOON, past] {
            let next = acquire_at(Some(&lock), later);
            assert!(next.epoch > lock.epoch, "{now}, {later}");
            let text = serde_json::to_string(&next).unwrap();
            assert_eq!(serde_json::from_str::<Lock>(&text).unwrap(), next);
            lock = next;
        }
    }
}

#[test]
fn recreated_document_continues_above_the_previous_epoch() {
    let lock = acquire_at(None, NOON);
    let later = acquire_at(None, NOON + SignedDuration::from_millis(1));
    assert!(later.epoch > lock.epoch);
}

#[test]
fn holder_raises_its_epoch_to_one_above_the_given_epoch() {
    let lock = lock_held_by("a", 7);
    let raise = |above| raise_epoch(Some(&lock), &token_of(&lock), Epoch(above), NOON).unwrap();
    for above in [7, 8, NOON_EPOCH, EPOCH_LIMIT - 1] {
        let next = raise(above);
        assert_eq!(next.epoch, Epoch(above + 1));
        assert_ne!(next.renewed, lock.renewed, "raising renews the lock");
        let again = raise_epoch(Some(&next), &token_of(&next), Epoch(above), NOON).unwrap();
        assert_eq!(again, next, "a second raise changes nothing");
    }
    for nothing in [0, 6, EPOCH_LIMIT, MAX_EPOCH, u64::MAX] {
        assert_eq!(raise(nothing), lock, "{nothing}");
    }
}

#[test]
fn only_the_holder_raises_the_epoch() {
    let lock = lock_held_by("a", 7);
    let free = release(Some(&lock), &token_of(&lock), NOON).unwrap();
    let lost = Err(LockLoss::Released { epoch: Epoch(7) });
    assert_eq!(
        raise_epoch(Some(&free), &token_of(&lock), Epoch(9), NOON),
        lost
    );
    let taken = lock_held_by("b", 8);
    assert!(raise_epoch(Some(&taken), &token_of(&lock), Epoch(9), NOON).is_err());
    let gone = raise_epoch(None, &token_of(&lock), Epoch(9), NOON);
    assert_eq!(gone, Err(LockLoss::Removed));
}

#[test]
fn acquire_waits_for_a_live_lock() {
    let lock = lock_held_by("a", 7);
    let decision = decide_acquire(Some(&lock), TTL / 3, &lock_request("b"), NOON);
    assert_eq!(
        decision,
        AcquireDecision::Wait {
            lock: &lock,
            expires_in: TTL * 2 / 3
        }
    );
}

#[test]
fn expired_lock_is_acquired_with_a_higher_epoch() {
    assert_eq!(
        acquire_after(Some(&lock_held_by("a", 7)), TTL),
        lock_held_by("b", NOON_EPOCH)
    );
    let (ahead, next) = (
        lock_held_by("a", NOON_EPOCH + 7),
        lock_held_by("b", NOON_EPOCH + 8),
    );
    assert_eq!(acquire_after(Some(&ahead), TTL), next);
}

#[test]
fn released_lock_is_acquired_with_the_next_epoch() {
    let lock = lock_held_by("a", NOON_EPOCH);
    let free = release(Some(&lock), &token_of(&lock), NOON).unwrap();
    assert_eq!(
        acquire_after(Some(&free), Duration::ZERO),
        lock_held_by("b", NOON_EPOCH + 1)
    );
}

#[test]
fn holder_waits_for_its_own_lock_of_an_earlier_run() {
    let lock = lock_held_by("b", 7);
    assert!(matches!(
        decide_acquire(Some(&lock), Duration::ZERO, &lock_request("b"), NOON),
        AcquireDecision::Wait { .. }
    ));
}

#[test]
fn clock_skew_does_not_affect_expiry() {
    let century = SignedDuration::from_hours(24 * 365 * 100);
    for skew in [century, -century] {
        let lock = Lock {
            renewed: NOON + skew,
            acquired: NOON + skew,
            ..lock_held_by("a", NOON_EPOCH)
        };
        assert!(matches!(
            decide_acquire(Some(&lock), TTL / 2, &lock_request("b"), NOON),
            AcquireDecision::Wait { .. }
        ));
        assert_eq!(acquire_after(Some(&lock), TTL).epoch, Epoch(NOON_EPOCH + 1));
    }
}

#[test]
fn lock_expires_after_the_maximum_ttl() {
    let lock = Lock {
        ttl: Duration::from_hours(1_000_000),
        ..lock_held_by("a", NOON_EPOCH)
    };
    assert_eq!(
        acquire_after(Some(&lock), MAX_TTL).epoch,
        Epoch(NOON_EPOCH + 1)
    );
}

#[test]
fn renewal_changes_the_lock_even_when_the_clock_stands_still() {
    let lock = lock_held_by("a", 7);
    let next = renew(Some(&lock), &token_of(&lock), NOON).unwrap();
    assert_ne!(next.renewed, lock.renewed);
}

#[test]
fn stale_token_neither_renews_nor_releases() {
    let stale = token_of(&lock_held_by("a", 6));
    let taken = LockLoss::Taken {
        holder: "a".to_owned(),
        epoch: Epoch(7),
    };
    let lock = lock_held_by("a", 7);
    assert_eq!(renew(Some(&lock), &stale, NOON), Err(taken.clone()));
    assert_eq!(release(Some(&lock), &stale, NOON), Err(taken));
    assert_eq!(renew(None, &stale, NOON), Err(LockLoss::Removed));
}

#[test]
fn released_lock_cannot_be_renewed() {
    let lock = lock_held_by("a", 7);
    let free = release(Some(&lock), &token_of(&lock), NOON).unwrap();
    let lost = Err(LockLoss::Released { epoch: Epoch(7) });
    assert_eq!(renew(Some(&free), &token_of(&lock), NOON), lost);
}

#[test]
fn lock_json_format_is_stable() {
    let text = r#"{"holder":"a","purpose":"restore","epoch":7,"acquired":"2027-01-15T08:00:00Z","renewed":"2027-01-15T08:00:00Z","ttl":"30s"}"#;
    assert_eq!(serde_json::to_string(&lock_held_by("a", 7)).unwrap(), text);
    assert_eq!(
        serde_json::from_str::<Lock>(text).unwrap(),
        lock_held_by("a", 7)
    );
}

#[test]
fn fields_of_later_versions_survive_renewal_and_takeover() {
    let text = r#"{"holder":"a","purpose":"upgrade","epoch":7,"acquired":"2027-01-15T08:00:00Z",
        "renewed":"2027-01-15T08:00:00Z","ttl":"1m","ticket":{"id":4}}"#;
    let lock: Lock = serde_json::from_str(text).unwrap();
    assert_eq!(lock.purpose, Purpose::Other("upgrade".to_owned()));
    let next = renew(Some(&lock), &token_of(&lock), NOON).unwrap();
    assert_eq!(next.other["ticket"]["id"], 4);
    assert_eq!(
        acquire_after(Some(&lock), lock.ttl).other["ticket"]["id"],
        4
    );
}

#[test]
fn lock_with_invalid_epoch_or_ttl_is_refused() {
    let text = serde_json::to_string(&lock_held_by("a", 7)).unwrap();
    let absurd = [
        text.replace(":7,", ":18446744073709551615,"),
        text.replace("\"30s\"", "\"-30s\""),
        text.replace("\"30s\"", "\"soon\""),
    ];
    for text in absurd {
        assert!(serde_json::from_str::<Lock>(&text).is_err(), "{text}");
    }
}
