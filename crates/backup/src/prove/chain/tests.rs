use jiff::Timestamp;
use mainstay_archive::catalogue::SnapshotObject;
use mainstay_archive::chain::Link;
use mainstay_archive::layout::LayoutVersion;

use super::*;

fn object(name: &str) -> SnapshotObject {
    SnapshotObject {
        key: format!("p/v2/{name}"),
        name: name.parse().unwrap(),
        layout: LayoutVersion::V2,
        size: 1,
        modified: Timestamp::UNIX_EPOCH,
    }
}

fn chain(deltas: &[&str]) -> SnapshotChain {
    let link = |name: &&str| Link {
        object: object(name),
        alternates: Vec::new(),
    };
    SnapshotChain {
        base: object("Full-00000000-00000010-1.gz"),
        deltas: deltas.iter().map(link).collect(),
        last_revision: Revision(0),
        gap_after_base: None,
    }
}

fn facts(revision: i64, compact: Option<i64>) -> DatabaseStatus {
    DatabaseStatus {
        revision: Revision(revision),
        last_row: Some(Revision(revision)),
        scheduled_compact: compact.map(Revision),
        finished_compact: compact.map(Revision),
        consistent_index: None,
        term: None,
        conf_state: None,
        storage_version: None,
    }
}

fn span(runs: &[(i64, i64)]) -> DeltaSpan {
    let runs = runs
        .iter()
        .map(|(a, b)| (Revision(*a), Revision(*b)))
        .collect();
    DeltaSpan {
        runs,
        ..DeltaSpan::default()
    }
}

const DELTA_A: &str = "Incr-00000011-00000020-2.gz";
const DELTA_B: &str = "Incr-00000021-00000030-3.gz";

fn reached_revision(holds: i64, spans: &[DeltaSpan], stop: StopPoint) -> Result<i64, String> {
    check_chain(
        &chain(&[DELTA_A, DELTA_B]),
        &facts(holds, None),
        spans,
        stop,
    )
    .map(|reached| reached.revision.0)
    .map_err(|error| error.to_string())
}

#[test]
fn deltas_without_a_gap_reach_their_end_or_the_requested_revision() {
    let spans = [span(&[(11, 20)]), span(&[(21, 30)])];
    assert_eq!(reached_revision(10, &spans, StopPoint::End), Ok(30));
    for wanted in [10, 11, 20, 21, 29, 30] {
        assert_eq!(
            reached_revision(10, &spans, StopPoint::Revision(Revision(wanted))),
            Ok(wanted)
        );
    }
    let short = reached_revision(10, &spans, StopPoint::Revision(Revision(31))).unwrap_err();
    assert!(short.contains("ends at revision 30"), "{short}");
}

#[test]
fn base_newer_than_its_name_fills_gaps_and_supersedes_deltas() {
    let spans = [span(&[(11, 20)]), span(&[(21, 30)])];
    assert_eq!(reached_revision(25, &spans, StopPoint::End), Ok(30));
    assert_eq!(reached_revision(40, &spans, StopPoint::End), Ok(40));
    assert_eq!(
        reached_revision(25, &spans, StopPoint::Revision(Revision(15))),
        Ok(15)
    );
    let late = [span(&[(15, 20)]), span(&[(21, 30)])];
    assert_eq!(reached_revision(14, &late, StopPoint::End), Ok(30));
    let gap = reached_revision(12, &late, StopPoint::End).unwrap_err();
    assert!(
        gap.contains("13 to 14 are missing") && gap.contains(DELTA_A),
        "{gap}"
    );
}

#[test]
fn base_compacted_beyond_the_target_cannot_restore_it() {
    let wanted = StopPoint::Revision(Revision(12));
    let error = check_chain(&chain(&[]), &facts(20, Some(15)), &[], wanted).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("compacted at 15") && text.contains("Full-00000000-00000010-1.gz"));
    let fits = check_chain(&chain(&[]), &facts(20, Some(12)), &[], wanted).unwrap();
    assert_eq!(fits.revision, Revision(12));
}

#[test]
fn gap_inside_or_between_deltas_is_named_with_both_neighbours() {
    let between = [span(&[(11, 20)]), span(&[(23, 30)])];
    let text = reached_revision(10, &between, StopPoint::End).unwrap_err();
    assert!(text.contains("21 to 22 are missing"), "{text}");
    assert!(text.contains(DELTA_A) && text.contains(DELTA_B), "{text}");
    assert_eq!(
        reached_revision(10, &between, StopPoint::Revision(Revision(20))),
        Ok(20)
    );

    let inside = [span(&[(11, 20)]), span(&[(21, 25), (28, 30)])];
    let text = reached_revision(10, &inside, StopPoint::End).unwrap_err();
    assert!(
        text.contains("26 to 27 are missing") && text.contains(DELTA_B),
        "{text}"
    );
    assert!(!text.contains(DELTA_A), "{text}");
}

#[test]
fn overlapping_delta_continues_where_the_previous_one_ended() {
    let spans = [span(&[(11, 24)]), span(&[(21, 22), (23, 30)])];
    assert_eq!(reached_revision(10, &spans, StopPoint::End), Ok(30));
    let split = [span(&[(11, 20)]), span(&[(20, 30)])];
    let text = reached_revision(10, &split, StopPoint::End).unwrap_err();
    assert!(
        text.contains(DELTA_B) && text.contains("starts with revision 20"),
        "{text}"
    );
}

#[test]
fn time_target_ends_before_the_first_later_revision() {
    let stop = StopPoint::Time("2026-01-01T00:00:00Z".parse().unwrap());
    let later = |runs: &[(i64, i64)], at| DeltaSpan {
        first_later: Some(Revision(at)),
        ..span(runs)
    };
    let spans = [span(&[(11, 20)]), later(&[(21, 30)], 25)];
    assert_eq!(reached_revision(10, &spans, stop), Ok(24));
    assert_eq!(
        reached_revision(10, &[span(&[(11, 20)]), later(&[(21, 30)], 21)], stop),
        Ok(20)
    );
    assert_eq!(
        reached_revision(10, &[later(&[(11, 20)], 11)], stop),
        Ok(10)
    );

    let first_untimed = DeltaSpan {
        first_untimed: Some(Revision(22)),
        ..later(&[(21, 30)], 25)
    };
    let text = reached_revision(10, &[span(&[(11, 20)]), first_untimed.clone()], stop).unwrap_err();
    assert!(
        text.contains(DELTA_B) && text.contains("no valid time at revision 22"),
        "{text}"
    );
    let behind = DeltaSpan {
        first_later: Some(Revision(22)),
        ..first_untimed
    };
    assert_eq!(
        reached_revision(10, &[span(&[(11, 20)]), behind], stop),
        Ok(21)
    );
}

#[test]
fn object_that_ends_before_its_named_revision_is_an_error() {
    let mut chain = chain(&[DELTA_A]);
    chain.last_revision = Revision(20);
    let text = check_chain(
        &chain,
        &facts(10, None),
        &[span(&[(11, 19)])],
        StopPoint::End,
    )
    .unwrap_err()
    .to_string();
    assert!(
        text.contains("ends at revision 19, before revision 20"),
        "{text}"
    );
}
