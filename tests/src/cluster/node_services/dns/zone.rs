//! The DNS zone of a cluster, built from its Services and Endpoints.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{EndpointAddress, EndpointSubset, Endpoints, Service};

use super::message::{DnsAnswer, RecordData, RecordType};
use crate::cluster::addresses::DOMAIN;

/// Records by name.
#[derive(Debug, Default)]
pub struct Zone {
    records: BTreeMap<String, Vec<RecordData>>,
}

impl Zone {
    /// Builds the zone of Services and their Endpoints.
    pub fn new(services: &[Arc<Service>], endpoints: &[Arc<Endpoints>]) -> Self {
        let mut zone = Self::default();
        for service in services {
            let Some(spec) = &service.spec else { continue };
            let name = service_domain(
                service.metadata.name.as_deref(),
                service.metadata.namespace.as_deref(),
            );
            match spec.cluster_ip.as_deref() {
                Some("None") => {
                    // A headless Service has a name even without endpoints: NODATA, not NXDOMAIN.
                    zone.records.entry(name.clone()).or_default();
                    let behind = endpoints.iter().filter(|other| {
                        (&other.metadata.name, &other.metadata.namespace)
                            == (&service.metadata.name, &service.metadata.namespace)
                    });
                    for subset in behind.flat_map(|endpoints| endpoints.subsets.iter().flatten()) {
                        zone.add_subset(&name, subset);
                    }
                }
                Some(address) => zone.add_service(&name, address, service),
                None => {}
            }
        }
        zone
    }

    /// A Service with a cluster IP.
    fn add_service(&mut self, name: &str, address: &str, service: &Service) {
        let Ok(address) = address.parse() else { return };
        self.add(name, RecordData::Address(address));
        self.add(&reverse_name(address), RecordData::Pointer(name.to_owned()));
        let ports = service
            .spec
            .iter()
            .flat_map(|spec| spec.ports.iter().flatten());
        for port in ports {
            let protocol = port.protocol.as_deref();
            self.add_port(name, name, (port.name.as_deref(), protocol, port.port));
        }
    }

    /// Pods of a headless Service: one name for all of them, and one for each.
    fn add_subset(&mut self, service: &str, subset: &EndpointSubset) {
        for endpoint in subset.addresses.iter().flatten() {
            let Ok(address) = endpoint.ip.parse() else {
                continue;
            };
            let name = format!("{}.{service}", pod_host(endpoint, address));
            self.add(service, RecordData::Address(address));
            self.add(&name, RecordData::Address(address));
            self.add(&reverse_name(address), RecordData::Pointer(name.clone()));
            for port in subset.ports.iter().flatten() {
                let protocol = port.protocol.as_deref();
                self.add_port(service, &name, (port.name.as_deref(), protocol, port.port));
            }
        }
    }

    fn add_port(&mut self, service: &str, target: &str, port: (Option<&str>, Option<&str>, i32)) {
        let (Some(name), protocol, Ok(number)) = (port.0, port.1, u16::try_from(port.2)) else {
            return;
        };
        let protocol = protocol.unwrap_or("TCP").to_ascii_lowercase();
        let data = RecordData::Service {
            port: number,
            target: target.to_owned(),
        };
        self.add(&format!("_{name}._{protocol}.{service}"), data);
    }

    fn add(&mut self, name: &str, data: RecordData) {
        let records = self.records.entry(name.to_owned()).or_default();
        if !records.contains(&data) {
            records.push(data);
        }
    }

    /// Looks a name up.
    pub fn lookup(&self, name: &str, kind: RecordType) -> DnsAnswer {
        let Some(records) = self.records.get(name) else {
            return DnsAnswer::NxDomain;
        };
        let matches_kind = |data: &&RecordData| {
            matches!(
                (data, kind),
                (RecordData::Address(_), RecordType::Address)
                    | (RecordData::Pointer(_), RecordType::Pointer)
                    | (RecordData::Service { .. }, RecordType::Service)
            )
        };
        DnsAnswer::Records(records.iter().filter(matches_kind).cloned().collect())
    }
}

fn service_domain(name: Option<&str>, namespace: Option<&str>) -> String {
    let (name, namespace) = (name.unwrap_or_default(), namespace.unwrap_or_default());
    format!("{name}.{namespace}.svc.{DOMAIN}")
}

/// The host name of a pod, or its address with dashes.
fn pod_host(endpoint: &EndpointAddress, address: Ipv4Addr) -> String {
    let named = endpoint.hostname.clone().filter(|name| !name.is_empty());
    named.unwrap_or_else(|| address.to_string().replace('.', "-"))
}

fn reverse_name(address: Ipv4Addr) -> String {
    let [a, b, c, d] = address.octets();
    format!("{d}.{c}.{b}.{a}.in-addr.arpa")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const PEER: &str = "main-peer.shoot.svc.cluster.local";

    fn zone() -> Zone {
        let client = json!({
            "metadata": {"name": "main-client", "namespace": "shoot"},
            "spec": {"clusterIP": "198.19.7.7", "ports": [{"name": "client", "port": 2379}]},
        });
        let peer = json!({
            "metadata": {"name": "main-peer", "namespace": "shoot"},
            "spec": {"clusterIP": "None", "ports": [{"name": "peer", "port": 2380}]},
        });
        let empty = json!({
            "metadata": {"name": "empty", "namespace": "shoot"}, "spec": {"clusterIP": "None"},
        });
        let endpoints = json!({
            "metadata": {"name": "main-peer", "namespace": "shoot"},
            "subsets": [{
                "addresses": [{"ip": "198.18.16.5", "hostname": "main-0"}, {"ip": "198.18.16.6"}],
                "notReadyAddresses": [{"ip": "198.18.16.9", "hostname": "main-2"}],
                "ports": [{"name": "peer", "port": 2380, "protocol": "TCP"}],
            }],
        });
        let services = [client, peer, empty];
        let services = services.map(|service| Arc::new(serde_json::from_value(service).unwrap()));
        Zone::new(
            &services,
            &[Arc::new(serde_json::from_value(endpoints).unwrap())],
        )
    }

    fn lookup_addresses(name: &str) -> DnsAnswer {
        zone().lookup(name, RecordType::Address)
    }

    fn address_records(addresses: &[[u8; 4]]) -> DnsAnswer {
        DnsAnswer::Records(
            addresses
                .iter()
                .map(|&octets| RecordData::Address(octets.into()))
                .collect(),
        )
    }

    #[test]
    fn service_resolves_to_its_cluster_ip() {
        assert_eq!(
            lookup_addresses("main-client.shoot.svc.cluster.local"),
            address_records(&[[198, 19, 7, 7]])
        );
    }

    #[test]
    fn headless_service_resolves_to_its_ready_pods() {
        assert_eq!(
            lookup_addresses(PEER),
            address_records(&[[198, 18, 16, 5], [198, 18, 16, 6]])
        );
    }

    #[test]
    fn pod_resolves_by_host_name_or_by_address() {
        assert_eq!(
            lookup_addresses(&format!("main-0.{PEER}")),
            address_records(&[[198, 18, 16, 5]])
        );
        assert_eq!(
            lookup_addresses(&format!("198-18-16-6.{PEER}")),
            address_records(&[[198, 18, 16, 6]])
        );
    }

    #[test]
    fn unready_pod_does_not_resolve() {
        assert_eq!(
            lookup_addresses(&format!("main-2.{PEER}")),
            DnsAnswer::NxDomain
        );
    }

    #[test]
    fn service_without_pods_resolves_to_no_addresses() {
        assert_eq!(
            lookup_addresses("empty.shoot.svc.cluster.local"),
            address_records(&[])
        );
        assert_eq!(
            lookup_addresses("none.shoot.svc.cluster.local"),
            DnsAnswer::NxDomain
        );
    }

    #[test]
    fn named_port_resolves_to_every_ready_pod() {
        let found = zone().lookup(&format!("_peer._tcp.{PEER}"), RecordType::Service);
        let data = |host: &str| RecordData::Service {
            port: 2380,
            target: format!("{host}.{PEER}"),
        };
        assert_eq!(
            found,
            DnsAnswer::Records(vec![data("main-0"), data("198-18-16-6")])
        );
    }

    #[test]
    fn address_resolves_back_to_its_pod() {
        let found = zone().lookup("5.16.18.198.in-addr.arpa", RecordType::Pointer);
        assert_eq!(
            found,
            DnsAnswer::Records(vec![RecordData::Pointer(format!("main-0.{PEER}"))])
        );
    }

    #[test]
    fn name_without_records_of_the_type_returns_an_empty_answer() {
        let ipv6 = RecordType::Other(28);
        assert_eq!(zone().lookup(PEER, ipv6), DnsAnswer::Records(Vec::new()));
    }
}
