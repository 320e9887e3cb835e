//! What makes a running member outdated, and what does not.

use mainstay_crds::Etcd;
use mainstay_crds::etcd::{BootstrapMember, BootstrapWithExistingCluster, MemberPeerUrls};
use mainstay_crds::scalar::Url;
use mainstay_manifests::{CONFIG_CHECKSUM, ClusterState, PeerTls, Shape, render};

use crate::support::{args, container, peer_tls, plain, pod, rendered, settings, template};

fn checksum(etcd: &Etcd, shape: &Shape) -> String {
    let manifests = render(etcd, &settings(), shape).unwrap();
    let metadata = template(&manifests).metadata.clone().unwrap();
    metadata.annotations.unwrap()[CONFIG_CHECKSUM].clone()
}

fn config(etcd: &Etcd, shape: &Shape) -> serde_norway::Mapping {
    let manifests = render(etcd, &settings(), shape).unwrap();
    serde_norway::from_str(&manifests.config_map.data.unwrap()["etcd.conf.yaml"]).unwrap()
}

#[test]
fn members_that_come_and_go_restart_no_other() {
    let etcd = plain();
    let steady = Shape::of(&etcd);
    let before = render(&etcd, &settings(), &steady).unwrap();
    let mut wider = etcd.clone();
    wider.spec.replicas = 5;
    let joining = Shape {
        replicas: 4,
        cluster_state: ClusterState::Existing,
        ..steady.clone()
    };
    let after = render(&wider, &settings(), &joining).unwrap();
    assert_eq!(template(&before), template(&after));
    assert_ne!(before.config_map.data, after.config_map.data);
}

#[test]
fn a_setting_of_etcd_restarts_every_member() {
    let etcd = plain();
    let shape = Shape::of(&etcd);
    let before = checksum(&etcd, &shape);
    let mut changed = etcd.clone();
    changed.spec.etcd.snapshot_count = Some(5000);
    assert_ne!(checksum(&changed, &shape), before);
    let encrypted = Shape {
        peer_tls: PeerTls::Prepared(peer_tls("peer")),
        ..shape.clone()
    };
    let prepared = checksum(&etcd, &encrypted);
    assert_ne!(prepared, before);
    let encrypted = Shape {
        peer_tls: PeerTls::On(peer_tls("peer")),
        ..shape
    };
    assert_ne!(checksum(&etcd, &encrypted), prepared);
}

#[test]
fn members_that_are_prepared_have_certificates_and_listen_plain() {
    let etcd = plain();
    let shape = Shape {
        peer_tls: PeerTls::Prepared(peer_tls("peer")),
        ..Shape::of(&etcd)
    };
    let config = config(&etcd, &shape);
    assert_eq!(config["listen-peer-urls"], "http://0.0.0.0:2380");
    assert_eq!(
        config["peer-transport-security"]["cert-file"],
        "/var/etcd/ssl/peer/server/tls.crt"
    );
    assert!(
        config["initial-cluster"]
            .as_str()
            .unwrap()
            .contains("=http://etcd-main-0.")
    );
}

#[test]
fn the_configuration_has_the_addresses_of_every_member() {
    let mut etcd = plain();
    etcd.spec.member_name_prefix = Some("eu".into());
    etcd.spec.etcd.additional_advertise_peer_urls = Some(vec![MemberPeerUrls {
        member_name: "eu-etcd-main-1".into(),
        urls: vec![Url("http://balancer:2380".into())],
    }]);
    etcd.spec.etcd.bootstrap_with_existing_cluster = Some(BootstrapWithExistingCluster {
        members: vec![BootstrapMember {
            name: "old-0".into(),
            peer_urls: vec![Url("http://old-0:2380".into())],
        }],
        client_endpoints: vec![Url("http://old:2379".into())],
    });
    let manifests = rendered(&etcd);
    let config = config(&etcd, &Shape::of(&etcd));
    let own = "http://etcd-main-1.etcd-main-peer.shoot.svc:2380";
    let urls = config["initial-advertise-peer-urls"]["eu-etcd-main-1"]
        .as_sequence()
        .unwrap();
    assert_eq!(urls, &[own, "http://balancer:2380"]);
    let members = config["initial-cluster"].as_str().unwrap();
    assert!(members.contains(&format!(
        "eu-etcd-main-1={own},eu-etcd-main-1=http://balancer:2380"
    )));
    assert!(members.ends_with(",old-0=http://old-0:2380"), "{members}");
    for name in ["init", "backup-restore"] {
        let flags = args(container(pod(&manifests), name));
        let expected = "--service-endpoints=http://etcd-main-client:2379,http://old:2379";
        assert!(flags.contains(&expected.to_owned()), "{name}: {flags:?}");
    }
    // A template cannot say what differs from member to member.
    let flags = args(container(pod(&manifests), "backup-restore"));
    assert!(
        !flags
            .iter()
            .any(|flag| flag.starts_with("--member-peer-urls")),
        "{flags:?}"
    );
}

#[test]
fn a_hibernated_cluster_keeps_its_template_and_has_no_members() {
    let mut etcd = plain();
    let running = rendered(&etcd);
    etcd.spec.replicas = 0;
    let asleep = rendered(&etcd);
    assert_eq!(template(&running), template(&asleep));
    assert_eq!(asleep.stateful_set.spec.as_ref().unwrap().replicas, Some(0));
    assert!(asleep.member_leases.is_empty());
    let config = config(&etcd, &Shape::of(&etcd));
    assert_eq!(config["initial-cluster"], "");
}

#[test]
fn the_same_resource_gives_the_same_objects() {
    for (name, etcd, shape) in crate::support::variety() {
        let once = render(&etcd, &settings(), &shape).unwrap();
        let again = render(&etcd.clone(), &settings(), &shape.clone()).unwrap();
        assert_eq!(once, again, "{name}");
    }
}
