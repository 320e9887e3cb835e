use mainstay_verdict::{DataDirSummary, DataState};

use super::*;

fn cluster_member(id: u64, name: &str, has_started: bool) -> ClusterMember {
    ClusterMember {
        id: MemberId(id),
        name: name.into(),
        peer_urls: vec![format!("http://host-{id}:2380")],
        has_started,
    }
}

fn member_response(member: u64, cluster: u64, leader: Option<u64>) -> MemberResponse {
    MemberResponse {
        member: MemberId(member),
        cluster: ClusterId(cluster),
        leader: leader.map(MemberId),
        members: vec![
            cluster_member(1, "m1", true),
            cluster_member(2, "m2", false),
            cluster_member(3, "", false),
            cluster_member(4, "", false),
        ],
    }
}

fn no_data() -> ObservedDataDir {
    ObservedDataDir {
        summary: DataDirSummary::from_state(DataState::Missing),
        member_id: None,
        cluster_id: None,
        faults: None,
    }
}

fn local_member<'a>(
    name: &'a str,
    peer_urls: &'a [String],
    observed: &'a ObservedDataDir,
) -> LocalMember<'a> {
    LocalMember {
        name,
        peer_urls,
        observed,
    }
}

#[test]
fn leader_response_precedes_followers_and_members_without_leader() {
    let (lost, follower, leader) = (
        member_response(9, 1, None),
        member_response(8, 1, Some(3)),
        member_response(3, 1, Some(3)),
    );
    let all = [lost.clone(), leader.clone(), follower.clone()];
    assert_eq!(choose_response(&all, None), Some(&leader));
    assert_eq!(
        choose_response(&[lost.clone(), follower.clone()], None),
        Some(&follower)
    );
    let own = member_response(1, 7, None);
    let mixed = [leader, own.clone()];
    assert_eq!(choose_response(&mixed, Some(ClusterId(7))), Some(&own));
    assert_eq!(choose_response(&[], None), None);
}

#[test]
fn member_without_data_is_matched_by_name_or_peer_url() {
    let (answer, seen) = (member_response(1, 1, Some(1)), no_data());
    let mine = |name: &str, urls: &[String]| match answer
        .to_cluster_summary(local_member(name, urls, &seen))
    {
        ClusterSummary::Found { mine, .. } => mine,
        ClusterSummary::Unreachable => unreachable!(),
    };
    assert_eq!(mine("m1", &[]), MemberRegistration::Started);
    assert_eq!(mine("m2", &[]), MemberRegistration::Added);
    assert_eq!(
        mine("m3", &["https://host-3:2380/".into()]),
        MemberRegistration::Added
    );
    assert_eq!(
        mine("m3", &["http://host-5:2380".into()]),
        MemberRegistration::Absent
    );
    // The URL of a member with a name belongs to that member.
    assert_eq!(
        mine("m9", &["http://host-1:2380".into()]),
        MemberRegistration::Absent
    );
}

#[test]
fn member_with_data_is_matched_by_member_id_only() {
    let answer = member_response(1, 1, Some(1));
    let mut seen = no_data();
    seen.member_id = Some(MemberId(77));
    assert_eq!(answer.find_member(local_member("m1", &[], &seen)), None);
    seen.member_id = Some(MemberId(1));
    assert_eq!(
        answer
            .find_member(local_member("other", &[], &seen))
            .unwrap()
            .name,
        "m1"
    );
}

#[test]
fn initial_cluster_lists_all_members_and_the_local_name() {
    let (answer, seen) = (member_response(1, 1, Some(1)), no_data());
    let urls = ["https://host-3:2380".to_owned()];
    let InitialClusterConfig::FromRunningCluster {
        members,
        own_peer_urls,
    } = answer.to_initial_cluster(local_member("m3", &urls, &seen))
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
async fn unreachable_members_give_no_response_and_no_error() {
    let args = ClusterArgs {
        service_endpoints: vec!["http://127.0.0.1:1".parse().unwrap()],
        cacert: Some("/nowhere/ca.crt".into()),
        cert: None,
        key: None,
    };
    let urls = ["https://127.0.0.1:1".to_owned(), "nonsense".to_owned()];
    assert_eq!(args.query_members(urls).await, []);
}
