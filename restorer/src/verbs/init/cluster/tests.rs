use mainstay_verdict::{Data, DataState};

use super::*;

fn listed(id: u64, name: &str, has_started: bool) -> Listed {
    Listed {
        id: MemberId(id),
        name: name.into(),
        peer_urls: vec![format!("http://host-{id}:2380")],
        has_started,
    }
}

fn answer(member: u64, cluster: u64, leader: Option<u64>) -> Answer {
    Answer {
        member: MemberId(member),
        cluster: ClusterId(cluster),
        leader: leader.map(MemberId),
        members: vec![
            listed(1, "m1", true),
            listed(2, "m2", false),
            listed(3, "", false),
            listed(4, "", false),
        ],
    }
}

fn nothing() -> SeenData {
    SeenData {
        data: Data::of(DataState::Missing),
        member: None,
        cluster: None,
        faults: None,
    }
}

fn with<'a>(name: &'a str, peer_urls: &'a [String], seen: &'a SeenData) -> Myself<'a> {
    Myself {
        name,
        peer_urls,
        seen,
    }
}

#[test]
fn the_leader_is_believed_before_those_who_follow_and_those_who_are_lost() {
    let (lost, follower, leader) = (
        answer(9, 1, None),
        answer(8, 1, Some(3)),
        answer(3, 1, Some(3)),
    );
    let all = [lost.clone(), leader.clone(), follower.clone()];
    assert_eq!(weightiest(&all, None), Some(&leader));
    assert_eq!(
        weightiest(&[lost.clone(), follower.clone()], None),
        Some(&follower)
    );
    let own = answer(1, 7, None);
    let mixed = [leader, own.clone()];
    assert_eq!(weightiest(&mixed, Some(ClusterId(7))), Some(&own));
    assert_eq!(weightiest(&[], None), None);
}

#[test]
fn a_member_without_data_is_known_by_its_name_or_by_where_it_was_added() {
    let (answer, seen) = (answer(1, 1, Some(1)), nothing());
    let mine = |name: &str, urls: &[String]| match answer.summary(with(name, urls, &seen)) {
        Cluster::Found { mine, .. } => mine,
        Cluster::Unreachable => unreachable!(),
    };
    assert_eq!(mine("m1", &[]), Mine::Started);
    assert_eq!(mine("m2", &[]), Mine::Added);
    assert_eq!(mine("m3", &["https://host-3:2380/".into()]), Mine::Added);
    assert_eq!(mine("m3", &["http://host-5:2380".into()]), Mine::Absent);
    // Addresses of members with a name are theirs.
    assert_eq!(mine("m9", &["http://host-1:2380".into()]), Mine::Absent);
}

#[test]
fn a_member_with_data_is_known_by_its_identity_alone() {
    let answer = answer(1, 1, Some(1));
    let mut seen = nothing();
    seen.member = Some(MemberId(77));
    assert_eq!(answer.entry_of(with("m1", &[], &seen)), None);
    seen.member = Some(MemberId(1));
    assert_eq!(
        answer.entry_of(with("other", &[], &seen)).unwrap().name,
        "m1"
    );
}

#[test]
fn a_roster_names_everybody_and_this_member_by_its_own_name() {
    let (answer, seen) = (answer(1, 1, Some(1)), nothing());
    let urls = ["https://host-3:2380".to_owned()];
    let Roster::Running {
        members,
        own_peer_urls,
    } = answer.roster(with("m3", &urls, &seen))
    else {
        unreachable!()
    };
    assert_eq!(
        members,
        "m1=http://host-1:2380,m2=http://host-2:2380,m3=http://host-3:2380,4=http://host-4:2380"
    );
    assert_eq!(own_peer_urls, ["http://host-3:2380"]);
}

#[tokio::test]
async fn nobody_at_all_is_no_answer_and_no_failure() {
    let args = ClusterArgs {
        service_endpoints: vec!["http://127.0.0.1:1".parse().unwrap()],
        cacert: Some("/nowhere/ca.crt".into()),
        cert: None,
        key: None,
    };
    let urls = ["https://127.0.0.1:1".to_owned(), "nonsense".to_owned()];
    assert_eq!(args.ask(urls).await, []);
}
