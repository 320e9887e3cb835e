//! The Service for clients, and the headless Service that gives each member a host name.

use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use mainstay_crds::etcd::TrafficDistribution;

use crate::context::RenderContext;
use crate::labels::{self, Component};
use crate::meta;

pub(crate) fn render_client_service(draft: &RenderContext<'_>) -> Service {
    let name = draft.names.client_service();
    let given = draft.etcd.spec.etcd.client_service.as_ref();
    let mut metadata = meta::build_metadata(draft.etcd, &name, Component::ClientService);
    if let Some(labels) = given.and_then(|given| given.labels.clone()) {
        // The labels of the spec win, as in etcd-druid.
        metadata.labels.get_or_insert_default().extend(labels);
    }
    metadata.annotations = given.and_then(|given| given.annotations.clone());
    Service {
        metadata,
        spec: Some(ServiceSpec {
            type_: Some("ClusterIP".into()),
            selector: Some(labels::member_selector(&draft.names)),
            ports: Some(vec![
                // By name: during a rollout of a new port number, each pod still listens on its own.
                ServicePort {
                    target_port: Some(IntOrString::String("client".into())),
                    ..service_port("client", draft.ports.client)
                },
                // Deprecated by etcd-druid, kept for existing consumers.
                service_port("server", draft.ports.peer),
                service_port("backuprestore", draft.ports.backup),
            ]),
            session_affinity: Some("None".into()),
            traffic_distribution: given
                .and_then(|given| given.traffic_distribution)
                .map(|distribution| format_traffic_distribution(distribution).to_owned()),
            ..ServiceSpec::default()
        }),
        status: None,
    }
}

fn format_traffic_distribution(distribution: TrafficDistribution) -> &'static str {
    match distribution {
        TrafficDistribution::PreferSameZone => "PreferSameZone",
        TrafficDistribution::PreferSameNode => "PreferSameNode",
        TrafficDistribution::PreferClose => "PreferClose",
    }
}

/// Publishes not-ready addresses, because members must find each other before they are ready.
pub(crate) fn render_peer_service(draft: &RenderContext<'_>) -> Service {
    let name = draft.names.peer_service();
    Service {
        metadata: meta::build_metadata(draft.etcd, &name, Component::PeerService),
        spec: Some(ServiceSpec {
            type_: Some("ClusterIP".into()),
            cluster_ip: Some("None".into()),
            selector: Some(labels::member_selector(&draft.names)),
            ports: Some(vec![service_port("peer", draft.ports.peer)]),
            session_affinity: Some("None".into()),
            publish_not_ready_addresses: Some(true),
            ..ServiceSpec::default()
        }),
        status: None,
    }
}

fn service_port(name: &str, number: u16) -> ServicePort {
    ServicePort {
        name: Some(name.into()),
        protocol: Some("TCP".into()),
        port: i32::from(number),
        target_port: Some(IntOrString::Int(i32::from(number))),
        ..ServicePort::default()
    }
}
