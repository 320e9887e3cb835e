use jiff::Timestamp;

use super::*;
use crate::catalogue::{Catalogue, Listed};

/// `F<last>@<created>` is a full, `D<start>-<last>@<created>` a delta; each weighs ten bytes.
fn catalogue(objects: &str) -> Catalogue {
    let listed = objects.split_whitespace().map(|object| Listed {
        key: format!("p/v2/{}", name(object)),
        size: 10,
        modified: Timestamp::UNIX_EPOCH,
    });
    Catalogue::from_listing("p", listed.collect())
}

fn name(object: &str) -> String {
    let (range, created) = object.split_once('@').unwrap();
    match range.split_at(1) {
        ("F", last) => format!("Full-00000000-{last:0>8}-{created}.gz"),
        (_, range) => {
            let (start, last) = range.split_once('-').unwrap();
            format!("Incr-{start:0>8}-{last:0>8}-{created}.gz")
        }
    }
}

/// The chain in the same short form, with `?<from>-<to>` for a hole behind the base.
fn short(chain: &Chain) -> String {
    let base = format!("F{}@{}", chain.base.name.last, chain.base.name.created);
    let hole = chain
        .hole_after_base
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
        .chain(hole)
        .chain(links)
        .collect::<Vec<_>>()
        .join(" ")
}

fn at(second: i64) -> Target {
    Target::Time(Timestamp::from_second(second).unwrap())
}

fn revision(revision: i64) -> Target {
    Target::Revision(Revision(revision))
}

fn chosen(objects: &str, target: Target) -> String {
    short(&choose(&catalogue(objects), &Request::new(target)).unwrap())
}

fn refused(objects: &str, target: Target) -> String {
    choose(&catalogue(objects), &Request::new(target))
        .unwrap_err()
        .to_string()
}

const PLAIN: &str = "F100@10 D101-200@20 D201-300@30 D301-400@40";

#[test]
fn the_latest_state_is_the_newest_base_and_everything_behind_it() {
    assert_eq!(chosen(PLAIN, Target::Latest), PLAIN);
    assert_eq!(chosen("F100@10", Target::Latest), "F100@10");
    let two = "F100@10 D101-200@20 F200@25 D201-300@30";
    assert_eq!(chosen(two, Target::Latest), "F200@25 D201-300@30");
    let reaches = choose(&catalogue(PLAIN), &Request::new(Target::Latest))
        .unwrap()
        .reaches;
    assert_eq!(reaches, Revision(400));
}

#[test]
fn a_base_that_is_newest_of_all_needs_no_delta() {
    assert_eq!(
        chosen("F100@10 D101-400@20 F400@30", Target::Latest),
        "F400@30"
    );
    assert_eq!(chosen("F400@20 F400@30", Target::Latest), "F400@30");
}

#[test]
fn overlapping_and_duplicate_deltas_give_a_smallest_cover_of_the_newer_ones() {
    let wild = "F674@48 F744@51 D675-1107@52 D745-1107@54 D1108-1541@56 D1108-1541@57 \
                D1542-1705@58 D1542-1977@60 D1706-1977@60 D1978-2412@62 D1978-2412@63";
    assert_eq!(
        chosen(wild, Target::Latest),
        "F744@51 D745-1107@54 D1108-1541@57 D1542-1977@60 D1978-2412@63"
    );
    let deep = "F10@1 D11-20@2 D15-40@3 D21-30@4 D31-50@5";
    assert_eq!(
        chosen(deep, Target::Latest),
        "F10@1 D11-20@2 D15-40@3 D31-50@5"
    );
}

#[test]
fn each_delta_brings_what_could_replace_it() {
    let wild = "F100@10 D101-200@20 D50-250@21 D201-300@30 D201-300@31 D150-320@29";
    let chain = choose(&catalogue(wild), &Request::new(revision(300))).unwrap();
    assert_eq!(short(&chain), "F100@10 D50-250@21 D150-320@29");
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
fn a_hole_between_deltas_is_named_and_never_stopped_before() {
    let holed = "F100@10 D101-200@20 D301-400@40";
    assert_eq!(
        refused(holed, Target::Latest),
        "revisions 201 to 300 are missing between Incr-00000101-00000200-20.gz and \
         Incr-00000301-00000400-40.gz; the newest revision that can be restored before them is 200"
    );
    assert_eq!(chosen(holed, revision(150)), "F100@10 D101-200@20");
    assert_eq!(chosen(holed, revision(200)), "F100@10 D101-200@20");
    for beyond in [201, 300, 301, 400] {
        let error = choose(&catalogue(holed), &Request::new(revision(beyond))).unwrap_err();
        assert!(
            matches!(
                error,
                ChooseError::Missing {
                    from: Revision(201),
                    ..
                }
            ),
            "{error}"
        );
    }
}

#[test]
fn an_older_base_with_a_whole_chain_beats_a_newer_one_with_a_hole() {
    let objects = "F100@10 D101-200@20 F150@25 D201-300@30 F250@35 D260-300@36 D301-310@37";
    assert_eq!(
        chosen("F100@10 D101-300@20 F150@25", Target::Latest),
        "F150@25 D101-300@20"
    );
    assert_eq!(
        chosen(objects, Target::Latest),
        "F250@35 D201-300@30 D301-310@37"
    );
    let only_old = "F100@10 D101-180@20 F190@22 D201-300@30 D170-250@31 D251-300@32";
    assert_eq!(
        chosen(only_old, Target::Latest),
        "F190@22 D170-250@31 D251-300@32"
    );
    let truly = "F100@10 D101-190@20 D191-300@30 F150@25";
    let mut request = Request::new(Target::Latest);
    request
        .without
        .insert(format!("p/v2/{}", name("D101-190@20")));
    let chain = choose(&catalogue(truly), &request).unwrap();
    assert_eq!(short(&chain), "F150@25 ?151-190 D191-300@30");
}

#[test]
fn a_hole_right_behind_a_base_is_left_open_until_the_base_was_read() {
    let objects = "F100@10 D121-200@20";
    let listed = catalogue(objects);
    for target in [Target::Latest, revision(160)] {
        let chain = choose(&listed, &Request::new(target)).unwrap();
        assert_eq!(short(&chain), "F100@10 ?101-120 D121-200@20");
    }
    let request = Request::new(Target::Latest);
    let base = &listed.fulls[0];
    let whole = continue_from(&listed, base, Revision(120), &request).unwrap();
    assert_eq!(short(&whole), "F100@10 D121-200@20");
    let error = continue_from(&listed, base, Revision(110), &request).unwrap_err();
    assert_eq!(
        error.to_string(),
        "revisions 111 to 120 are missing between Full-00000000-00000100-10.gz and \
         Incr-00000121-00000200-20.gz; the newest revision that can be restored before them is 110"
    );
}

#[test]
fn a_base_newer_than_whole_deltas_skips_them_once_it_was_read() {
    let listed = catalogue("F100@10 D101-200@20 D301-400@40 D401-500@50");
    let request = Request::new(Target::Latest);
    let chain = continue_from(&listed, &listed.fulls[0], Revision(350), &request).unwrap();
    assert_eq!(short(&chain), "F100@10 D301-400@40 D401-500@50");
    let chain = continue_from(&listed, &listed.fulls[0], Revision(600), &request).unwrap();
    assert_eq!(
        (short(&chain).as_str(), chain.reaches),
        ("F100@10", Revision(600))
    );
    let error = continue_from(
        &listed,
        &listed.fulls[0],
        Revision(350),
        &Request::new(revision(340)),
    );
    assert!(matches!(
        error,
        Err(ChooseError::BaseBeyond {
            holds: Revision(350),
            ..
        })
    ));
}

#[test]
fn a_revision_inside_the_hole_behind_a_base_may_still_be_in_the_base() {
    let chain = choose(
        &catalogue("F100@10 D121-200@20"),
        &Request::new(revision(110)),
    )
    .unwrap();
    assert_eq!(short(&chain), "F100@10 ?101-110");
    assert_eq!(chain.reaches, Revision(110));
}

#[test]
fn a_revision_takes_the_newest_base_not_past_it() {
    let objects = "F100@10 D101-200@20 F200@25 D201-300@30";
    assert_eq!(chosen(objects, revision(250)), "F200@25 D201-300@30");
    assert_eq!(chosen(objects, revision(200)), "F200@25");
    assert_eq!(chosen(objects, revision(199)), "F100@10 D101-200@20");
    assert_eq!(chosen(objects, revision(100)), "F100@10");
}

#[test]
fn a_revision_nothing_holds_is_refused_with_what_can_be_had() {
    let objects = "F100@10 D101-200@20 F500@50 D501-600@60";
    for wanted in [99, 601] {
        assert_eq!(
            refused(objects, revision(wanted)),
            format!("revision {wanted} is in no chain; restorable: 100 to 200, 500 to 600")
        );
    }
}

#[test]
fn a_chosen_base_is_kept_to() {
    let listed = catalogue("F100@10 D101-200@20 F200@25 D201-300@30 F300@31");
    let mut request = Request::new(Target::Latest);
    request.from = Some(name("F100@10").parse().unwrap());
    let chain = choose(&listed, &request).unwrap();
    assert_eq!(short(&chain), "F100@10 D101-200@20 D201-300@30");

    let cut = catalogue("F100@10 D101-200@20 F400@31");
    let error = choose(&cut, &request).unwrap_err();
    let ChooseError::Missing {
        from, to, before, ..
    } = error
    else {
        panic!("{error}")
    };
    assert_eq!(
        (from, to, before),
        (Revision(201), Revision(400), name("F400@31"))
    );

    for absent in ["F101@10", "D101-200@20"] {
        request.from = Some(name(absent).parse().unwrap());
        assert!(matches!(
            choose(&listed, &request),
            Err(ChooseError::NoSuchBase { .. })
        ));
    }
}

#[test]
fn an_object_found_damaged_is_worked_around() {
    let listed = catalogue("F100@10 D101-300@20 F200@25 D201-300@30 D101-250@21 D251-300@22");
    let mut request = Request::new(Target::Latest);
    assert_eq!(
        short(&choose(&listed, &request).unwrap()),
        "F200@25 D201-300@30"
    );
    request
        .without
        .insert(format!("p/v2/{}", name("D201-300@30")));
    assert_eq!(
        short(&choose(&listed, &request).unwrap()),
        "F200@25 D101-300@20"
    );
    request
        .without
        .insert(format!("p/v2/{}", name("D101-300@20")));
    assert_eq!(
        short(&choose(&listed, &request).unwrap()),
        "F200@25 D101-250@21 D251-300@22"
    );
    request.without.insert(format!("p/v2/{}", name("F200@25")));
    assert_eq!(
        short(&choose(&listed, &request).unwrap()),
        "F100@10 D101-250@21 D251-300@22"
    );
    request.without.insert(format!("p/v2/{}", name("F100@10")));
    assert!(matches!(
        choose(&listed, &request),
        Err(ChooseError::NoBase { .. })
    ));
}

#[test]
fn deltas_alone_and_nothing_at_all_are_told_apart() {
    assert_eq!(
        refused("D101-200@20 D201-300@30", Target::Latest),
        "2 deltas up to revision 300 are there, but no full snapshot to begin with"
    );
    assert_eq!(
        refused("", Target::Latest),
        "there is no snapshot to choose from"
    );
}

#[test]
fn a_moment_takes_every_delta_that_may_hold_an_event_before_it() {
    assert_eq!(chosen(PLAIN, at(15)), "F100@10 D101-200@20");
    assert_eq!(chosen(PLAIN, at(20)), "F100@10 D101-200@20");
    assert_eq!(chosen(PLAIN, at(21)), "F100@10 D101-200@20 D201-300@30");
    assert_eq!(chosen(PLAIN, at(40)), PLAIN);
    assert_eq!(chosen(PLAIN, at(10)), "F100@10");
    let half = Target::Time("1970-01-01T00:00:20.5Z".parse().unwrap());
    assert_eq!(chosen(PLAIN, half), "F100@10 D101-200@20 D201-300@30");
    let two = "F100@10 D101-200@20 F200@25 D201-300@30";
    assert_eq!(chosen(two, at(24)), "F100@10 D101-200@20 D201-300@30");
    assert_eq!(chosen(two, at(26)), "F200@25 D201-300@30");
}

#[test]
fn a_base_of_the_very_second_is_taken_only_when_no_earlier_one_leads_there() {
    let half = Target::Time("1970-01-01T00:00:25.5Z".parse().unwrap());
    for moment in [at(25), half] {
        let two = "F100@10 D101-200@20 F200@25 D201-300@30";
        assert_eq!(chosen(two, moment), "F100@10 D101-200@20 D201-300@30");
    }
    let alone = "F100@10 F200@25 D201-300@30";
    assert_eq!(chosen(alone, at(25)), "F200@25");
    assert_eq!(chosen(alone, half), "F200@25 D201-300@30");
}

#[test]
fn a_late_writer_does_not_hide_an_event_before_the_moment() {
    // The slow writer stored 101 to 150 at 40; another had 151 to 200 stored by 20 already.
    let objects = "F100@10 D101-150@40 D151-200@20 D201-300@50";
    assert_eq!(
        chosen(objects, at(30)),
        "F100@10 D101-150@40 D151-200@20 D201-300@50"
    );
}

#[test]
fn a_moment_outside_is_refused_with_the_moments_that_can_be_had() {
    let objects = "F100@10 D101-200@20 F900@50 D901-950@60";
    for outside in [9, 61] {
        let error = refused(objects, at(outside));
        let wanted = Timestamp::from_second(outside).unwrap();
        assert_eq!(
            error,
            format!(
                "the state at {wanted} is in no chain; restorable: 1970-01-01T00:00:10Z to \
                 1970-01-01T00:00:20Z, 1970-01-01T00:00:50Z to 1970-01-01T00:01:00Z"
            )
        );
    }
    let error = choose(&catalogue(objects), &Request::new(at(30))).unwrap_err();
    assert!(
        matches!(
            error,
            ChooseError::Missing {
                from: Revision(201),
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn a_moment_after_the_last_delta_is_not_guessed_at() {
    let compacted = "F100@10 D101-200@20 D201-300@30 F200@50";
    assert!(
        refused(compacted, at(40))
            .ends_with("restorable: 1970-01-01T00:00:10Z to 1970-01-01T00:00:30Z")
    );
    assert_eq!(chosen(compacted, at(30)), "F100@10 D101-200@20 D201-300@30");
    let later = "F100@10 D101-200@20 D201-300@30 F200@50 D301-400@60";
    assert_eq!(chosen(later, at(55)), "F200@50 D201-300@30 D301-400@60");
}

#[test]
fn a_final_snapshot_is_an_ordinary_base() {
    let listed = Catalogue::from_listing(
        "",
        vec![Listed {
            key: "v2/Full-00000000-00009002-1565021494.gz.final".to_owned(),
            size: 1,
            modified: Timestamp::UNIX_EPOCH,
        }],
    );
    let chain = choose(&listed, &Request::new(Target::Latest)).unwrap();
    assert!(chain.base.name.is_final);
}

#[test]
fn a_listing_shows_each_base_with_its_deltas_gaps_and_sizes() {
    let found = chains(&catalogue(
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
    let reaches: Vec<_> = found.iter().map(|c| c.reaches.map(|r| r.0)).collect();
    assert_eq!(reaches, [None, Some(200), Some(500), Some(700)]);
    let [gap] = found[1].gaps.as_slice() else {
        panic!("{:?}", found[1].gaps)
    };
    assert_eq!((gap.from, gap.to), (Revision(201), Revision(300)));
    assert_eq!(gap.after.to_string(), name("D101-200@20"));
    assert_eq!(gap.before.to_string(), name("D301-400@40"));
    assert!(found[2].gaps.is_empty());
    assert_eq!(found[1].times.1, Timestamp::from_second(40).unwrap());
}

#[test]
fn what_can_be_restored_is_the_union_of_all_chains() {
    let found = restorable(&catalogue(
        "F100@10 D101-200@20 F201@21 D301-400@40 F500@50",
    ));
    assert_eq!(found.to_string(), "100 to 201, 500 to 500");
    assert_eq!(restorable(&Catalogue::default()).to_string(), "nothing");
}
