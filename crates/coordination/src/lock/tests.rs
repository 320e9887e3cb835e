use super::*;

const NOON: Timestamp = Timestamp::constant(1_800_000_000, 0);
/// Noon as an epoch.
const CLOCK: u64 = 1_800_000_000_000;
const TTL: Duration = Duration::from_secs(30);

fn wish(holder: &str) -> Wish {
    Wish {
        holder: holder.to_owned(),
        purpose: Purpose::Restore,
        ttl: TTL,
    }
}

fn held_by(holder: &str, epoch: u64) -> Lock {
    taken(Epoch(epoch), &wish(holder), NOON, BTreeMap::new())
}

fn claim(lock: &Lock) -> Claim {
    Claim {
        holder: lock.holder.clone(),
        epoch: lock.epoch,
    }
}

fn take(found: Option<&Lock>, unchanged: Duration) -> Lock {
    match decide(found, unchanged, &wish("b"), NOON) {
        Decision::Take(lock) => lock,
        Decision::Wait { .. } => panic!("the lock should be free: {found:?}"),
    }
}

fn take_at(found: Option<&Lock>, now: Timestamp) -> Lock {
    match decide(found, LONGEST_TTL, &wish("b"), now) {
        Decision::Take(lock) => lock,
        Decision::Wait { .. } => panic!("the lock should be free: {found:?}"),
    }
}

#[test]
fn the_first_epoch_is_the_time_in_milliseconds() {
    assert_eq!(take(None, Duration::ZERO), held_by("b", CLOCK));
}

#[test]
fn an_epoch_grows_even_if_the_clock_went_back() {
    let past = Timestamp::constant(-1_000, 0);
    for now in [NOON, past, Timestamp::MIN, Timestamp::MAX] {
        let mut lock = take_at(None, now);
        assert!(lock.epoch > Epoch::default(), "{now}");
        for later in [NOON, Timestamp::MIN, past, Timestamp::MAX, NOON, past] {
            let next = take_at(Some(&lock), later);
            assert!(next.epoch > lock.epoch, "{now}, {later}");
            let text = serde_json::to_string(&next).unwrap();
            assert_eq!(serde_json::from_str::<Lock>(&text).unwrap(), next);
            lock = next;
        }
    }
}

#[test]
fn a_document_made_anew_goes_on_above_the_one_before() {
    let lock = take_at(None, NOON);
    let later = take_at(None, NOON + SignedDuration::from_millis(1));
    assert!(later.epoch > lock.epoch);
}

#[test]
fn a_holder_goes_above_an_epoch_found_elsewhere_and_no_further() {
    let lock = held_by("a", 7);
    let raise = |above| raised(Some(&lock), &claim(&lock), Epoch(above), NOON).unwrap();
    for above in [7, 8, CLOCK, IMPLAUSIBLE - 1] {
        let next = raise(above);
        assert_eq!(next.epoch, Epoch(above + 1));
        assert_ne!(next.renewed, lock.renewed, "that is a sign of life");
        let again = raised(Some(&next), &claim(&next), Epoch(above), NOON).unwrap();
        assert_eq!(again, next, "once is enough");
    }
    for nothing in [0, 6, IMPLAUSIBLE, MAX_EPOCH, u64::MAX] {
        assert_eq!(raise(nothing), lock, "{nothing}");
    }
}

#[test]
fn who_does_not_hold_the_lock_does_not_raise_it() {
    let lock = held_by("a", 7);
    let free = released(Some(&lock), &claim(&lock), NOON).unwrap();
    let lost = Err(Lost::Released { epoch: Epoch(7) });
    assert_eq!(raised(Some(&free), &claim(&lock), Epoch(9), NOON), lost);
    let taken = held_by("b", 8);
    assert!(raised(Some(&taken), &claim(&lock), Epoch(9), NOON).is_err());
    let gone = raised(None, &claim(&lock), Epoch(9), NOON);
    assert_eq!(gone, Err(Lost::Removed));
}

#[test]
fn a_lock_seen_alive_is_waited_for() {
    let lock = held_by("a", 7);
    let decision = decide(Some(&lock), TTL / 3, &wish("b"), NOON);
    assert_eq!(
        decision,
        Decision::Wait {
            lock: &lock,
            expires_in: TTL * 2 / 3
        }
    );
}

#[test]
fn an_expired_lock_is_taken_with_the_next_epoch() {
    assert_eq!(take(Some(&held_by("a", 7)), TTL), held_by("b", CLOCK));
    let (ahead, next) = (held_by("a", CLOCK + 7), held_by("b", CLOCK + 8));
    assert_eq!(take(Some(&ahead), TTL), next);
}

#[test]
fn a_released_lock_is_taken_with_the_next_epoch() {
    let lock = held_by("a", CLOCK);
    let free = released(Some(&lock), &claim(&lock), NOON).unwrap();
    assert_eq!(take(Some(&free), Duration::ZERO), held_by("b", CLOCK + 1));
}

#[test]
fn a_holder_waits_for_its_own_lock_of_an_earlier_run() {
    let lock = held_by("b", 7);
    assert!(matches!(
        decide(Some(&lock), Duration::ZERO, &wish("b"), NOON),
        Decision::Wait { .. }
    ));
}

#[test]
fn wrong_clocks_do_not_matter() {
    let century = SignedDuration::from_hours(24 * 365 * 100);
    for skew in [century, -century] {
        let lock = Lock {
            renewed: NOON + skew,
            acquired: NOON + skew,
            ..held_by("a", CLOCK)
        };
        assert!(matches!(
            decide(Some(&lock), TTL / 2, &wish("b"), NOON),
            Decision::Wait { .. }
        ));
        assert_eq!(take(Some(&lock), TTL).epoch, Epoch(CLOCK + 1));
    }
}

#[test]
fn no_lock_lasts_for_ever_whatever_it_says() {
    let lock = Lock {
        ttl: Duration::from_hours(1_000_000),
        ..held_by("a", CLOCK)
    };
    assert_eq!(take(Some(&lock), LONGEST_TTL).epoch, Epoch(CLOCK + 1));
}

#[test]
fn a_renewal_differs_even_when_the_clock_stands_still() {
    let lock = held_by("a", 7);
    let next = renewed(Some(&lock), &claim(&lock), NOON).unwrap();
    assert_ne!(next.renewed, lock.renewed);
}

#[test]
fn a_stale_claim_neither_renews_nor_releases() {
    let stale = claim(&held_by("a", 6));
    let taken = Lost::Taken {
        holder: "a".to_owned(),
        epoch: Epoch(7),
    };
    let lock = held_by("a", 7);
    assert_eq!(renewed(Some(&lock), &stale, NOON), Err(taken.clone()));
    assert_eq!(released(Some(&lock), &stale, NOON), Err(taken));
    assert_eq!(renewed(None, &stale, NOON), Err(Lost::Removed));
}

#[test]
fn a_released_lock_cannot_be_renewed() {
    let lock = held_by("a", 7);
    let free = released(Some(&lock), &claim(&lock), NOON).unwrap();
    let lost = Err(Lost::Released { epoch: Epoch(7) });
    assert_eq!(renewed(Some(&free), &claim(&lock), NOON), lost);
}

#[test]
fn the_form_in_the_document_is_stable() {
    let text = r#"{"holder":"a","purpose":"restore","epoch":7,"acquired":"2027-01-15T08:00:00Z","renewed":"2027-01-15T08:00:00Z","ttl":"30s"}"#;
    assert_eq!(serde_json::to_string(&held_by("a", 7)).unwrap(), text);
    assert_eq!(serde_json::from_str::<Lock>(text).unwrap(), held_by("a", 7));
}

#[test]
fn what_later_versions_add_survives_renewal_and_change_of_hands() {
    let text = r#"{"holder":"a","purpose":"upgrade","epoch":7,"acquired":"2027-01-15T08:00:00Z",
        "renewed":"2027-01-15T08:00:00Z","ttl":"1m","ticket":{"id":4}}"#;
    let lock: Lock = serde_json::from_str(text).unwrap();
    assert_eq!(lock.purpose, Purpose::Other("upgrade".to_owned()));
    let next = renewed(Some(&lock), &claim(&lock), NOON).unwrap();
    assert_eq!(next.other["ticket"]["id"], 4);
    assert_eq!(take(Some(&lock), lock.ttl).other["ticket"]["id"], 4);
}

#[test]
fn a_document_with_an_absurd_epoch_or_span_is_refused() {
    let text = serde_json::to_string(&held_by("a", 7)).unwrap();
    let absurd = [
        text.replace(":7,", ":18446744073709551615,"),
        text.replace("\"30s\"", "\"-30s\""),
        text.replace("\"30s\"", "\"soon\""),
    ];
    for text in absurd {
        assert!(serde_json::from_str::<Lock>(&text).is_err(), "{text}");
    }
}
