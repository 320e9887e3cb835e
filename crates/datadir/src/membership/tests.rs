use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::peer_url::parse_peer_urls;

fn build_membership(listed: &str, token: &str) -> ClusterMembership {
    ClusterMembership::new(&listed.parse().unwrap(), token).unwrap()
}

fn member_ids(membership: &ClusterMembership) -> Vec<String> {
    membership
        .members()
        .iter()
        .map(|member| member.id.to_string())
        .collect()
}

#[test]
fn member_and_cluster_ids_equal_those_of_etcd() {
    let vectors: [(&str, &str, &[&str], &str); 5] = [
        (
            "default=http://localhost:2380",
            "etcd-cluster",
            &["8e9e05c52164694d"],
            "cdf818194e3a8c32",
        ),
        (
            "n1=http://127.0.0.1:23791",
            "tkn",
            &["ed683a91a8f49cc4"],
            "73bc649783b2fdc1",
        ),
        (
            "a=http://127.0.0.1:23891,b=http://127.0.0.1:23893",
            "tk2",
            &["385a443a7c148853", "a1abdbeca39b936f"],
            "ea8cbcb36922b728",
        ),
        (
            "a=http://127.0.0.1:23891",
            "tk2",
            &["385a443a7c148853"],
            "6bbd0eea4bb72630",
        ),
        (
            "x=http://127.0.0.1:25011,y=http://127.0.0.1:25021,z=http://127.0.0.1:25031",
            "three",
            &["78cfd8a133a852a1", "c8aab8453cb28bde", "fa92fbdcaf11e8e3"],
            "2514093402a1acae",
        ),
    ];
    for (listed, token, members, cluster) in vectors {
        let membership = build_membership(listed, token);
        assert_eq!(member_ids(&membership), members, "{listed}");
        assert_eq!(membership.cluster_id().to_string(), cluster, "{listed}");
    }
}

#[test]
fn member_id_depends_on_sorted_urls_and_not_on_the_name() {
    for listed in [
        "m=https://b:2380,m=https://a:2380",
        "m=https://a:2380,m=https://b:2380",
        "other=https://b:2380,,other=https://a:2380,",
    ] {
        assert_eq!(
            member_ids(&build_membership(listed, "t")),
            ["3129bd2ebe81a981"],
            "{listed}"
        );
    }
}

#[test]
fn different_token_gives_different_ids() {
    let listed = "default=http://localhost:2380";
    assert_ne!(
        member_ids(&build_membership(listed, "one")),
        member_ids(&build_membership(listed, "two"))
    );
}

#[test]
fn invalid_initial_cluster_error_names_the_entry() {
    let fault = |text: &str| text.parse::<InitialCluster>().unwrap_err();
    assert_eq!(fault(",,"), MembershipError::Empty);
    assert!(matches!(
        fault("http://a:1"),
        MembershipError::InvalidPair { .. }
    ));
    assert!(matches!(
        fault("=http://a:1"),
        MembershipError::InvalidName { .. }
    ));
    assert!(matches!(
        fault("a=http://a:1, b=http://b:1"),
        MembershipError::InvalidName { .. }
    ));
    let MembershipError::InvalidUrl { name, source } = fault("a=http://a:1,b=b:1") else {
        panic!("not a url fault")
    };
    assert_eq!(
        (name.as_str(), source),
        (
            "b",
            PeerUrlError::Scheme {
                url: "b:1".to_owned()
            }
        )
    );
}

#[test]
fn duplicate_url_is_refused() {
    for text in ["a=http://x:1,b=http://x:1", "a=http://x:1,a=http://x:1"] {
        let error = text.parse::<InitialCluster>().unwrap_err();
        assert!(
            matches!(error, MembershipError::DuplicateUrl { .. }),
            "{text}: {error}"
        );
    }
}

#[test]
fn advertised_urls_are_compared_as_sets() {
    let membership = build_membership("a=http://x:1,a=http://y:1,b=http://z:1", "t");
    let urls = |text| parse_peer_urls(text).unwrap();
    let member = membership
        .find_member("a", &urls("http://y:1,http://x:1,http://y:1"))
        .unwrap();
    assert_eq!(member.peer_urls, ["http://x:1", "http://y:1"]);
    let error = membership
        .find_member("a", &urls("http://x:1"))
        .unwrap_err();
    assert!(
        matches!(error, MembershipError::AdvertisedUrlsMismatch { .. }),
        "{error}"
    );
    let error = membership
        .find_member("c", &urls("http://x:1"))
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "member \"c\" is not among the members of the initial cluster: ".to_owned()
            + &membership
                .members()
                .iter()
                .map(|m| m.name.clone())
                .collect::<Vec<_>>()
                .join(", ")
    );
}

#[test]
fn member_json_equals_that_of_etcd() {
    let membership = build_membership("n1=http://127.0.0.1:23791", "tkn");
    assert_eq!(
        membership.members_bucket_rows(),
        [(
            "ed683a91a8f49cc4".to_owned(),
            r#"{"id":17106987581846101188,"peerURLs":["http://127.0.0.1:23791"],"name":"n1"}"#
                .to_owned()
        )]
    );
    let odd = Member {
        id: MemberId(1),
        name: "a<b>&\"".to_owned(),
        peer_urls: vec!["http://x:1".to_owned()],
    };
    assert_eq!(
        odd.to_json(),
        "{\"id\":1,\"peerURLs\":[\"http://x:1\"],\"name\":\"a\\u003cb\\u003e\\u0026\\\"\"}"
    );
}

#[test]
fn conf_state_lists_voters_in_order() {
    let membership = build_membership("a=http://127.0.0.1:23891,b=http://127.0.0.1:23893", "tk2");
    assert_eq!(
        membership.conf_state_json(),
        "{\"voters\":[4060633032008435795,11649646670527566703],\"auto_leave\":false}"
    );
    assert_eq!(
        hex::encode(membership.conf_state().encode()),
        "08d390d2e0a78791ad3808efa6ee9ccafdf6d5a1012800"
    );
}

proptest! {
    #[test]
    fn order_of_initial_cluster_does_not_matter(ports in vec(1..=u16::MAX, 1..9), by in 0..9_usize) {
        let mut ports = ports;
        ports.sort_unstable();
        ports.dedup();
        let mut parts: Vec<_> = ports.iter().map(|port| format!("m{}=http://h:{port}", port % 4)).collect();
        let straight = build_membership(&parts.join(","), "t");
        let middle = by % parts.len();
        parts.rotate_left(middle);
        let rotated = build_membership(&parts.join(","), "t");
        prop_assert_eq!(&straight, &rotated);
        prop_assert!(straight.members().is_sorted_by(|one, next| one.id < next.id));
    }

    #[test]
    fn any_text_parses_or_is_an_error(text in ".{0,60}|[a-c=,:/htps1-9 ]{0,40}") {
        if let Ok(listed) = text.parse::<InitialCluster>() {
            let membership = ClusterMembership::new(&listed, "t").unwrap();
            for member in listed.members() {
                prop_assert!(membership.find_member(&member.name, &member.peer_urls).is_ok());
            }
        }
    }
}
