use jiff::Timestamp;

use super::*;
use crate::catalogue::{Catalogue, ListedObject};

/// `F<last>@<created>` is a full, `D<start>-<last>@<created>` a delta; each is ten bytes long.
fn catalogue(objects: &str) -> Catalogue {
    let listed = objects.split_whitespace().map(|object| ListedObject {
        key: format!("p/v2/{}", snapshot_name(object)),
        size: 10,
        modified: Timestamp::UNIX_EPOCH,
    });
    Catalogue::from_listing("p", listed.collect())
}

fn snapshot_name(object: &str) -> String {
    let (range, created) = object.split_once('@').unwrap();
    match range.split_at(1) {
        ("F", last) => format!("Full-00000000-{last:0>8}-{created}.gz"),
        (_, range) => {
            let (start, last) = range.split_once('-').unwrap();
            format!("Incr-{start:0>8}-{last:0>8}-{created}.gz")
        }
    }
}

/// The chain in the same short form, with `?<from>-<to>` for a gap after the base.
fn format_chain(chain: &SnapshotChain) -> String {
    let base = format!("F{}@{}", chain.base.name.last, chain.base.name.created);
    let gap = chain
        .gap_after_base
        .map(|(from, to)| format!("?{from}-{to}"));
    let links = chain.deltas.iter().map(|link| {
        let SnapshotName {
            start,
            last,
            created,
            ..
        } = &link.object.name;
        format!("D{start}-{last}@{created}")
    });
    std::iter::once(base)
        .chain(gap)
        .chain(links)
        .collect::<Vec<_>>()
        .join(" ")
}

fn time_target(second: i64) -> ChainTarget {
    ChainTarget::Time(Timestamp::from_second(second).unwrap())
}

fn revision_target(revision: i64) -> ChainTarget {
    ChainTarget::Revision(Revision(revision))
}

fn choose_and_format(objects: &str, target: ChainTarget) -> String {
    format_chain(&choose(&catalogue(objects), &ChainRequest::new(target)).unwrap())
}

fn choose_error(objects: &str, target: ChainTarget) -> String {
    choose(&catalogue(objects), &ChainRequest::new(target))
        .unwrap_err()
        .to_string()
}

const PLAIN: &str = "F100@10 D101-200@20 D201-300@30 D301-400@40";

#[test]
fn latest_state_is_the_newest_base_plus_its_deltas() {
    assert_eq!(choose_and_format(PLAIN, ChainTarget::Latest), PLAIN);
    assert_eq!(choose_and_format("F100@10", ChainTarget::Latest), "F100@10");
    let two = "F100@10 D101-200@20 F200@25 D201-300@30";
    assert_eq!(
        choose_and_format(two, ChainTarget::Latest),
        "F200@25 D201-300@30"
    );
    let reaches = choose(&catalogue(PLAIN), &ChainRequest::new(ChainTarget::Latest))
        .unwrap()
        .last_revision;
    assert_eq!(reaches, Revision(400));
}

#[test]
fn newest_base_at_the_last_revision_needs_no_delta() {
    assert_eq!(
        choose_and_format("F100@10 D101-400@20 F400@30", ChainTarget::Latest),
        "F400@30"
    );
    assert_eq!(
        choose_and_format("F400@20 F400@30", ChainTarget::Latest),
        "F400@30"
    );
}

#[test]
fn overlapping_deltas_give_the_fewest_and_newest_deltas() {
    let wild = "F674@48 F744@51 D675-1107@52 D745-1107@54 D1108-1541@56 D1108-1541@57 \
                D1542-1705@58 D1542-1977@60 D1706-1977@60 D1978-2412@62 D1978-2412@63";
    assert_eq!(
        choose_and_format(wild, ChainTarget::Latest),
        "F744@51 D745-1107@54 D1108-1541@57 D1542-1977@60 D1978-2412@63"
    );
    let deep = "F10@1 D11-20@2 D15-40@3 D21-30@4 D31-50@5";
    assert_eq!(
        choose_and_format(deep, ChainTarget::Latest),
        "F10@1 D11-20@2 D15-40@3 D31-50@5"
    );
}

#[test]
fn chain_lists_alternates_of_each_delta() {
    let wild = "F100@10 D101-200@20 D50-250@21 D201-300@30 D201-300@31 D150-320@29";
    let chain = choose(&catalogue(wild), &ChainRequest::new(revision_target(300))).unwrap();
    assert_eq!(format_chain(&chain), "F100@10 D50-250@21 D150-320@29");
    let alternates = |link: usize| -> Vec<i64> {
        chain.deltas[link]
            .alternates
            .iter()
            .map(|o| o.name.created)
            .collect()
    };
    assert_eq!(alternates(0), [20]);
    assert_eq!(alternates(1), [31, 30]);
}

#[test]
fn gap_between_deltas_is_an_error_and_never_shortens_the_chain() {
    let holed = "F100@10 D101-200@20 D301-400@40";
    assert_eq!(
        choose_error(holed, ChainTarget::Latest),
        "revisions 201 to 300 are missing between Incr-00000101-00000200-20.gz and \
         Incr-00000301-00000400-40.gz; newest restorable revision before the gap: 200"
    );
    assert_eq!(
        choose_and_format(holed, revision_target(150)),
        "F100@10 D101-200@20"
    );
    assert_eq!(
        choose_and_format(holed, revision_target(200)),
        "F100@10 D101-200@20"
    );
    for beyond in [201, 300, 301, 400] {
        let error = choose(
            &catalogue(holed),
            &ChainRequest::new(revision_target(beyond)),
        )
        .unwrap_err();
        assert!(
            matches!(
                error,
                ChooseError::MissingRevisions {
                    from: Revision(201),
                    ..
                }
            ),
            "{error}"
        );
    }
}

#[test]
fn older_base_with_complete_chain_beats_newer_base_with_gap() {
    let objects = "F100@10 D101-200@20 F150@25 D201-300@30 F250@35 D260-300@36 D301-310@37";
    assert_eq!(
        choose_and_format("F100@10 D101-300@20 F150@25", ChainTarget::Latest),
        "F150@25 D101-300@20"
    );
    assert_eq!(
        choose_and_format(objects, ChainTarget::Latest),
        "F250@35 D201-300@30 D301-310@37"
    );
    let only_old = "F100@10 D101-180@20 F190@22 D201-300@30 D170-250@31 D251-300@32";
    assert_eq!(
        choose_and_format(only_old, ChainTarget::Latest),
        "F190@22 D170-250@31 D251-300@32"
    );
    let truly = "F100@10 D101-190@20 D191-300@30 F150@25";
    let mut request = ChainRequest::new(ChainTarget::Latest);
    request
        .excluded
        .insert(format!("p/v2/{}", snapshot_name("D101-190@20")));
    let chain = choose(&catalogue(truly), &request).unwrap();
    assert_eq!(format_chain(&chain), "F150@25 ?151-190 D191-300@30");
}

#[test]
fn gap_after_base_stays_undecided_until_the_base_is_read() {
    let objects = "F100@10 D121-200@20";
    let listed = catalogue(objects);
    for target in [ChainTarget::Latest, revision_target(160)] {
        let chain = choose(&listed, &ChainRequest::new(target)).unwrap();
        assert_eq!(format_chain(&chain), "F100@10 ?101-120 D121-200@20");
    }
    let request = ChainRequest::new(ChainTarget::Latest);
    let base = &listed.fulls[0];
    let whole = choose_deltas(&listed, base, Revision(120), &request).unwrap();
    assert_eq!(format_chain(&whole), "F100@10 D121-200@20");
    let error = choose_deltas(&listed, base, Revision(110), &request).unwrap_err();
    assert_eq!(
        error.to_string(),
        "revisions 111 to 120 are missing between Full-00000000-00000100-10.gz and \
         Incr-00000121-00000200-20.gz; newest restorable revision before the gap: 110"
    );
}

#[test]
fn deltas_below_the_revision_read_from_the_base_are_skipped() {
    let listed = catalogue("F100@10 D101-200@20 D301-400@40 D401-500@50");
    let request = ChainRequest::new(ChainTarget::Latest);
    let chain = choose_deltas(&listed, &listed.fulls[0], Revision(350), &request).unwrap();
    assert_eq!(format_chain(&chain), "F100@10 D301-400@40 D401-500@50");
    let chain = choose_deltas(&listed, &listed.fulls[0], Revision(600), &request).unwrap();
    assert_eq!(
        (format_chain(&chain).as_str(), chain.last_revision),
        ("F100@10", Revision(600))
    );
    let error = choose_deltas(
        &listed,
        &listed.fulls[0],
        Revision(350),
        &ChainRequest::new(revision_target(340)),
    );
    assert!(matches!(
        error,
        Err(ChooseError::BasePastTarget {
            holds: Revision(350),
            ..
        })
    ));
}

#[test]
fn revision_in_the_gap_after_a_base_may_be_in_the_base() {
    let chain = choose(
        &catalogue("F100@10 D121-200@20"),
        &ChainRequest::new(revision_target(110)),
    )
    .unwrap();
    assert_eq!(format_chain(&chain), "F100@10 ?101-110");
    assert_eq!(chain.last_revision, Revision(110));
}

#[test]
fn revision_target_takes_the_newest_base_not_past_it() {
    let objects = "F100@10 D101-200@20 F200@25 D201-300@30";
    assert_eq!(
        choose_and_format(objects, revision_target(250)),
        "F200@25 D201-300@30"
    );
    assert_eq!(choose_and_format(objects, revision_target(200)), "F200@25");
    assert_eq!(
        choose_and_format(objects, revision_target(199)),
        "F100@10 D101-200@20"
    );
    assert_eq!(choose_and_format(objects, revision_target(100)), "F100@10");
}

#[test]
fn missing_revision_is_refused_with_the_restorable_ranges() {
    let objects = "F100@10 D101-200@20 F500@50 D501-600@60";
    for wanted in [99, 601] {
        assert_eq!(
            choose_error(objects, revision_target(wanted)),
            format!(
                "revision {wanted} is not restorable; restorable revisions: 100 to 200, 500 to 600"
            )
        );
    }
}

#[test]
fn requested_base_is_used() {
    let listed = catalogue("F100@10 D101-200@20 F200@25 D201-300@30 F300@31");
    let mut request = ChainRequest::new(ChainTarget::Latest);
    request.base = Some(snapshot_name("F100@10").parse().unwrap());
    let chain = choose(&listed, &request).unwrap();
    assert_eq!(format_chain(&chain), "F100@10 D101-200@20 D201-300@30");

    let cut = catalogue("F100@10 D101-200@20 F400@31");
    let error = choose(&cut, &request).unwrap_err();
    let ChooseError::MissingRevisions {
        from, to, before, ..
    } = error
    else {
        panic!("{error}")
    };
    assert_eq!(
        (from, to, before),
        (Revision(201), Revision(400), snapshot_name("F400@31"))
    );

    for absent in ["F101@10", "D101-200@20"] {
        request.base = Some(snapshot_name(absent).parse().unwrap());
        assert!(matches!(
            choose(&listed, &request),
            Err(ChooseError::BaseNotFound { .. })
        ));
    }
}

#[test]
fn damaged_object_is_replaced_by_alternates() {
    let listed = catalogue("F100@10 D101-300@20 F200@25 D201-300@30 D101-250@21 D251-300@22");
    let mut request = ChainRequest::new(ChainTarget::Latest);
    assert_eq!(
        format_chain(&choose(&listed, &request).unwrap()),
        "F200@25 D201-300@30"
    );
    request
        .excluded
        .insert(format!("p/v2/{}", snapshot_name("D201-300@30")));
    assert_eq!(
        format_chain(&choose(&listed, &request).unwrap()),
        "F200@25 D101-300@20"
    );
    request
        .excluded
        .insert(format!("p/v2/{}", snapshot_name("D101-300@20")));
    assert_eq!(
        format_chain(&choose(&listed, &request).unwrap()),
        "F200@25 D101-250@21 D251-300@22"
    );
    request
        .excluded
        .insert(format!("p/v2/{}", snapshot_name("F200@25")));
    assert_eq!(
        format_chain(&choose(&listed, &request).unwrap()),
        "F100@10 D101-250@21 D251-300@22"
    );
    request
        .excluded
        .insert(format!("p/v2/{}", snapshot_name("F100@10")));
    assert!(matches!(
        choose(&listed, &request),
        Err(ChooseError::NoBase { .. })
    ));
}

#[test]
fn deltas_without_base_and_empty_bucket_give_different_errors() {
    assert_eq!(
        choose_error("D101-200@20 D201-300@30", ChainTarget::Latest),
        "no full snapshot to start from; found 2 deltas up to revision 300"
    );
    assert_eq!(choose_error("", ChainTarget::Latest), "no snapshot found");
}

#[test]
fn time_target_takes_every_delta_that_may_hold_an_earlier_event() {
    assert_eq!(
        choose_and_format(PLAIN, time_target(15)),
        "F100@10 D101-200@20"
    );
    assert_eq!(
        choose_and_format(PLAIN, time_target(20)),
        "F100@10 D101-200@20"
    );
    assert_eq!(
        choose_and_format(PLAIN, time_target(21)),
        "F100@10 D101-200@20 D201-300@30"
    );
    assert_eq!(choose_and_format(PLAIN, time_target(40)), PLAIN);
    assert_eq!(choose_and_format(PLAIN, time_target(10)), "F100@10");
    let half = ChainTarget::Time("1970-01-01T00:00:20.5Z".parse().unwrap());
    assert_eq!(
        choose_and_format(PLAIN, half),
        "F100@10 D101-200@20 D201-300@30"
    );
    let two = "F100@10 D101-200@20 F200@25 D201-300@30";
    assert_eq!(
        choose_and_format(two, time_target(24)),
        "F100@10 D101-200@20 D201-300@30"
    );
    assert_eq!(
        choose_and_format(two, time_target(26)),
        "F200@25 D201-300@30"
    );
}

#[test]
fn base_of_the_target_second_is_used_only_without_an_earlier_chain() {
    let half = ChainTarget::Time("1970-01-01T00:00:25.5Z".parse().unwrap());
    for moment in [time_target(25), half] {
        let two = "F100@10 D101-200@20 F200@25 D201-300@30";
        assert_eq!(
            choose_and_format(two, moment),
            "F100@10 D101-200@20 D201-300@30"
        );
    }
    let alone = "F100@10 F200@25 D201-300@30";
    assert_eq!(choose_and_format(alone, time_target(25)), "F200@25");
    assert_eq!(choose_and_format(alone, half), "F200@25 D201-300@30");
}

#[test]
fn delta_uploaded_late_does_not_hide_events_before_the_target_time() {
    // The slow writer stored 101 to 150 at 40; another one stored 151 to 200 at 20.
    let objects = "F100@10 D101-150@40 D151-200@20 D201-300@50";
    assert_eq!(
        choose_and_format(objects, time_target(30)),
        "F100@10 D101-150@40 D151-200@20 D201-300@50"
    );
}

#[test]
fn time_out_of_range_is_refused_with_the_restorable_times() {
    let objects = "F100@10 D101-200@20 F900@50 D901-950@60";
    for outside in [9, 61] {
        let error = choose_error(objects, time_target(outside));
        let wanted = Timestamp::from_second(outside).unwrap();
        assert_eq!(
            error,
            format!(
                "the state at {wanted} is not restorable; restorable times: 1970-01-01T00:00:10Z to \
                 1970-01-01T00:00:20Z, 1970-01-01T00:00:50Z to 1970-01-01T00:01:00Z"
            )
        );
    }
    let error = choose(&catalogue(objects), &ChainRequest::new(time_target(30))).unwrap_err();
    assert!(
        matches!(
            error,
            ChooseError::MissingRevisions {
                from: Revision(201),
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn time_after_the_last_delta_is_refused() {
    let compacted = "F100@10 D101-200@20 D201-300@30 F200@50";
    assert!(
        choose_error(compacted, time_target(40))
            .ends_with("restorable times: 1970-01-01T00:00:10Z to 1970-01-01T00:00:30Z")
    );
    assert_eq!(
        choose_and_format(compacted, time_target(30)),
        "F100@10 D101-200@20 D201-300@30"
    );
    let later = "F100@10 D101-200@20 D201-300@30 F200@50 D301-400@60";
    assert_eq!(
        choose_and_format(later, time_target(55)),
        "F200@50 D201-300@30 D301-400@60"
    );
}

#[test]
fn final_snapshot_is_an_ordinary_base() {
    let listed = Catalogue::from_listing(
        "",
        vec![ListedObject {
            key: "v2/Full-00000000-00009002-1565021494.gz.final".to_owned(),
            size: 1,
            modified: Timestamp::UNIX_EPOCH,
        }],
    );
    let chain = choose(&listed, &ChainRequest::new(ChainTarget::Latest)).unwrap();
    assert!(chain.base.name.is_final);
}

#[test]
fn listing_shows_each_base_with_its_deltas_gaps_and_sizes() {
    let found = list_chains(&catalogue(
        "D51-60@5 F100@10 D101-200@20 D301-400@40 F400@41 D390-450@42 D451-500@43 F700@70",
    ));
    let shape: Vec<_> = found
        .iter()
        .map(|c| {
            (
                c.base.is_some(),
                c.deltas.len(),
                c.revisions.0.0,
                c.revisions.1.0,
                c.bytes,
            )
        })
        .collect();
    assert_eq!(
        shape,
        [
            (false, 1, 51, 60, 10),
            (true, 2, 100, 400, 30),
            (true, 2, 400, 500, 30),
            (true, 0, 700, 700, 10)
        ]
    );
    let reaches: Vec<_> = found
        .iter()
        .map(|c| c.last_reachable.map(|r| r.0))
        .collect();
    assert_eq!(reaches, [None, Some(200), Some(500), Some(700)]);
    let [gap] = found[1].gaps.as_slice() else {
        panic!("{:?}", found[1].gaps)
    };
    assert_eq!((gap.from, gap.to), (Revision(201), Revision(300)));
    assert_eq!(gap.after.to_string(), snapshot_name("D101-200@20"));
    assert_eq!(gap.before.to_string(), snapshot_name("D301-400@40"));
    assert!(found[2].gaps.is_empty());
    assert_eq!(found[1].times.1, Timestamp::from_second(40).unwrap());
}

#[test]
fn restorable_revisions_are_the_union_of_all_chains() {
    let found = restorable_revisions(&catalogue(
        "F100@10 D101-200@20 F201@21 D301-400@40 F500@50",
    ));
    assert_eq!(found.to_string(), "100 to 201, 500 to 500");
    assert_eq!(
        restorable_revisions(&Catalogue::default()).to_string(),
        "none"
    );
}
