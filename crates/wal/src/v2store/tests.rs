use mainstay_ids::MemberId;

use super::build::EVENT_SLOTS;
use super::parse::MAX_MEMBERS;
use super::*;

fn urls(text: &str) -> Vec<String> {
    vec![text.to_owned()]
}

#[test]
fn built_store_round_trips() {
    let (first, second) = (urls("http://a&b:2380"), urls("https://b:2380"));
    let members = [
        V2BootstrapMember {
            id: MemberId(0xf),
            peer_urls: &first,
        },
        V2BootstrapMember {
            id: MemberId(0x10),
            peer_urls: &second,
        },
    ];
    let store = V2Store::parse(build_bootstrap_store(&members).as_bytes()).unwrap();
    let parsed: Vec<_> = store
        .members
        .iter()
        .map(|member| (member.id, &member.peer_urls))
        .collect();
    assert_eq!(parsed, [(MemberId(0xf), &first), (MemberId(0x10), &second)]);
    assert_eq!(store.user_keys, 0);
    assert_eq!(store.version, None);
}

#[test]
fn built_store_is_valid_json_with_every_history_slot() {
    for count in [0_u64, 1, 3] {
        let peer_urls = urls("http://a:2380");
        let members: Vec<_> = (1..=count)
            .map(|id| V2BootstrapMember {
                id: MemberId(id),
                peer_urls: &peer_urls,
            })
            .collect();
        let json: serde_json::Value =
            serde_json::from_str(&build_bootstrap_store(&members)).unwrap();
        let events = &json["WatcherHub"]["EventHistory"]["Queue"]["Events"];
        assert_eq!(events.as_array().unwrap().len(), EVENT_SLOTS);
        assert_eq!(json["Stats"]["createSuccess"], count);
    }
}

/// A store as a running server leaves it: attributes, a learner, a removed member, a version, a user key.
const LIVE: &str = r#"{"Root":{"Path":"/","Children":{
    "0":{"Path":"/0","Children":{
        "members":{"Children":{
            "b":{"Children":{
                "raftAttributes":{"Value":"{\"peerURLs\":[\"http://b:1\"],\"isLearner\":true}","Children":null}}},
            "a":{"Children":{
                "attributes":{"Value":"{\"name\":\"n1\",\"clientURLs\":[\"http://a:2\"]}","Children":null},
                "raftAttributes":{"Value":"{\"peerURLs\":[\"http://a:1\"]}","Children":null}}}}},
        "removed_members":{"Children":{"c":{"Value":"","Children":null}}},
        "version":{"Value":"3.5.0","Children":null}}},
    "1":{"Children":{"foo":{"Value":"bar","Children":null}}}}},
    "WatcherHub":null,"CurrentIndex":9,"CurrentVersion":2}"#;

#[test]
fn store_of_a_running_server_is_parsed() {
    let store = V2Store::parse(LIVE.as_bytes()).unwrap();
    assert_eq!(
        store,
        V2Store {
            members: vec![
                V2Member {
                    id: MemberId(0xa),
                    peer_urls: urls("http://a:1"),
                    is_learner: false,
                    name: "n1".to_owned(),
                    client_urls: urls("http://a:2"),
                },
                V2Member {
                    id: MemberId(0xb),
                    peer_urls: urls("http://b:1"),
                    is_learner: true,
                    name: String::new(),
                    client_urls: Vec::new(),
                },
            ],
            removed: vec![MemberId(0xc)],
            version: Some("3.5.0".to_owned()),
            user_keys: 1,
        }
    );
}

#[test]
fn invalid_store_is_an_error() {
    let parse = |json: &str| V2Store::parse(json.as_bytes()).unwrap_err();
    assert!(matches!(parse("{}"), V2StoreError::Json { .. }));
    assert!(matches!(
        parse(&LIVE[..LIVE.len() - 1]),
        V2StoreError::Json { .. }
    ));
    let renamed = LIVE.replace("\"b\":{", "\"x\":{");
    assert!(matches!(parse(&renamed), V2StoreError::MemberName { .. }));
    let unnamed = LIVE.replace("raftAttributes", "other");
    assert!(matches!(
        parse(&unnamed),
        V2StoreError::NoRaftAttributes { id: MemberId(0xa) }
    ));
    let broken = LIVE.replace("{\\\"name\\\"", "{name");
    assert!(matches!(
        parse(&broken),
        V2StoreError::Attributes {
            what: "attributes",
            ..
        }
    ));
}

#[test]
fn excessive_nesting_is_refused() {
    let deep = format!("{{\"Root\":{}", "{\"Children\":".repeat(100_000));
    assert!(matches!(
        V2Store::parse(deep.as_bytes()),
        Err(V2StoreError::Json { .. })
    ));
}

#[test]
fn too_many_members_are_refused() {
    let many: Vec<_> = (0..=MAX_MEMBERS)
        .map(|id| format!("\"{id:x}\":{{}}"))
        .collect();
    let members = format!("{{\"members\":{{\"Children\":{{{}}}}}}}", many.join(","));
    let json = format!("{{\"Root\":{{\"Children\":{{\"0\":{{\"Children\":{members}}}}}}}}}");
    let error = V2Store::parse(json.as_bytes()).unwrap_err();
    assert!(matches!(error, V2StoreError::Json { .. }), "{error}");
}
