//! The Service clients use, and the one that gives each member an address.

use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use mainstay_crds::etcd::TrafficDistribution;

use crate::draft::Draft;
use crate::labels::{self, Component};
use crate::meta;

pub(crate) fn client(draft: &Draft<'_>) -> Service {
    let name = draft.names.client_service();
    let given = draft.etcd.spec.etcd.client_service.as_ref();
    let mut metadata = meta::of(draft.etcd, &name, Component::ClientService);
    if let Some(labels) = given.and_then(|given| given.labels.clone()) {
        metadata.labels.get_or_insert_default().extend(labels);
    }
    metadata.annotations = given.and_then(|given| given.annotations.clone());
    Service {
        metadata,
        spec: Some(ServiceSpec {
            type_: Some("ClusterIP".into()),
            selector: Some(labels::member_selector(&draft.names)),
            ports: Some(vec![
                // By name: while the number changes, each pod listens where it was made to.
                ServicePort {
                    target_port: Some(IntOrString::String("client".into())),
                    ..port("client", draft.ports.client)
                },
                // Deprecated by the peer, still there for those who use it.
                port("server", draft.ports.peer),
                port("backuprestore", draft.ports.backup),
            ]),
            session_affinity: Some("None".into()),
            traffic_distribution: given
                .and_then(|given| given.traffic_distribution)
                .map(|distribution| traffic(distribution).to_owned()),
            ..ServiceSpec::default()
        }),
        status: None,
    }
}

fn traffic(distribution: TrafficDistribution) -> &'static str {
    match distribution {
        TrafficDistribution::PreferSameZone => "PreferSameZone",
        TrafficDistribution::PreferSameNode => "PreferSameNode",
        TrafficDistribution::PreferClose => "PreferClose",
    }
}

/// Members find each other before they are ready.
pub(crate) fn peer(draft: &Draft<'_>) -> Service {
    let name = draft.names.peer_service();
    Service {
        metadata: meta::of(draft.etcd, &name, Component::PeerService),
        spec: Some(ServiceSpec {
            type_: Some("ClusterIP".into()),
            cluster_ip: Some("None".into()),
            selector: Some(labels::member_selector(&draft.names)),
            ports: Some(vec![port("peer", draft.ports.peer)]),
            session_affinity: Some("None".into()),
            publish_not_ready_addresses: Some(true),
            ..ServiceSpec::default()
        }),
        status: None,
    }
}

fn port(name: &str, number: u16) -> ServicePort {
    ServicePort {
        name: Some(name.into()),
        protocol: Some("TCP".into()),
        port: i32::from(number),
        target_port: Some(IntOrString::Int(i32::from(number))),
        ..ServicePort::default()
    }
}
