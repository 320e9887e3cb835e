//! Which changes make a running member outdated, and which do not.

use mainstay_crds::Etcd;
use mainstay_crds::etcd::{BootstrapMember, BootstrapWithExistingCluster, MemberPeerUrls};
use mainstay_crds::scalar::Url;
use mainstay_manifests::{CONFIG_CHECKSUM, EtcdClusterState, PeerTlsPhase, RenderInput, render};

use crate::support::{
    container_args, find_container, peer_tls_config, plain_etcd, pod_spec, pod_template,
    render_etcd, settings,
};

fn render_checksum(etcd: &Etcd, shape: &RenderInput) -> String {
    let manifests = render(etcd, &settings(), shape).unwrap();
    let metadata = pod_template(&manifests).metadata.clone().unwrap();
    metadata.annotations.unwrap()[CONFIG_CHECKSUM].clone()
}

fn render_config(etcd: &Etcd, shape: &RenderInput) -> serde_norway::Mapping {
    let manifests = render(etcd, &settings(), shape).unwrap();
    serde_norway::from_str(&manifests.config_map.data.unwrap()["etcd.conf.yaml"]).unwrap()
}

#[test]
fn joining_members_do_not_restart_others() {
    let etcd = plain_etcd();
    let steady = RenderInput::from_etcd(&etcd);
    let before = render(&etcd, &settings(), &steady).unwrap();
    let mut larger = etcd.clone();
    larger.spec.replicas = 5;
    let joining = RenderInput {
        replicas: 4,
        cluster_state: EtcdClusterState::Existing,
        ..steady.clone()
    };
    let after = render(&larger, &settings(), &joining).unwrap();
    assert_eq!(pod_template(&before), pod_template(&after));
    assert_ne!(before.config_map.data, after.config_map.data);
}

#[test]
fn changed_etcd_setting_restarts_every_member() {
    let etcd = plain_etcd();
    let shape = RenderInput::from_etcd(&etcd);
    let before = render_checksum(&etcd, &shape);
    let mut changed = etcd.clone();
    changed.spec.etcd.snapshot_count = Some(5000);
    assert_ne!(render_checksum(&changed, &shape), before);
    let encrypted = RenderInput {
        peer_tls: PeerTlsPhase::Prepared(peer_tls_config("peer")),
        ..shape.clone()
    };
    let prepared = render_checksum(&etcd, &encrypted);
    assert_ne!(prepared, before);
    let encrypted = RenderInput {
        peer_tls: PeerTlsPhase::On(peer_tls_config("peer")),
        ..shape
    };
    assert_ne!(render_checksum(&etcd, &encrypted), prepared);
}

#[test]
fn members_prepared_for_peer_tls_have_certificates_and_listen_plain() {
    let etcd = plain_etcd();
    let shape = RenderInput {
        peer_tls: PeerTlsPhase::Prepared(peer_tls_config("peer")),
        ..RenderInput::from_etcd(&etcd)
    };
    let config = render_config(&etcd, &shape);
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
fn configuration_has_the_urls_of_every_member() {
    let mut etcd = plain_etcd();
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
    let manifests = render_etcd(&etcd);
    let config = render_config(&etcd, &RenderInput::from_etcd(&etcd));
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
        let flags = container_args(find_container(pod_spec(&manifests), name));
        let expected = "--service-endpoints=http://etcd-main-client:2379,http://old:2379";
        assert!(flags.contains(&expected.to_owned()), "{name}: {flags:?}");
    }
    // A pod template cannot contain values that differ per member.
    let flags = container_args(find_container(pod_spec(&manifests), "backup-restore"));
    assert!(
        !flags
            .iter()
            .any(|flag| flag.starts_with("--member-peer-urls")),
        "{flags:?}"
    );
}

#[test]
fn hibernated_cluster_keeps_its_pod_template_and_has_no_replicas() {
    let mut etcd = plain_etcd();
    let running = render_etcd(&etcd);
    etcd.spec.replicas = 0;
    let hibernated = render_etcd(&etcd);
    assert_eq!(pod_template(&running), pod_template(&hibernated));
    assert_eq!(
        hibernated.stateful_set.spec.as_ref().unwrap().replicas,
        Some(0)
    );
    assert!(hibernated.member_leases.is_empty());
    let config = render_config(&etcd, &RenderInput::from_etcd(&etcd));
    assert_eq!(config["initial-cluster"], "");
}

#[test]
fn rendering_is_deterministic() {
    for (name, etcd, shape) in crate::support::etcd_variants() {
        let once = render(&etcd, &settings(), &shape).unwrap();
        let again = render(&etcd.clone(), &settings(), &shape.clone()).unwrap();
        assert_eq!(once, again, "{name}");
    }
}
