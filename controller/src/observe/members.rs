//! Queries the membership from every member that has an address.
//!
//! **Invariant**: a member list is trusted only from a leader that has just answered a linearizable read, so it is not older
//! than the request. A member that answers without a leader is reachable, and nothing more is derived from it.

use std::collections::BTreeMap;

use futures::future::join_all;
use mainstay_crds::Etcd;
use mainstay_etcd::{MemberStatus, fetch_status, read_linearizably};
use mainstay_ids::MemberId;
use mainstay_manifests::Names;
use mainstay_telemetry::ErrorChain;

use super::dial::DIAL_TIMEOUT;
use super::{DialError, Dialer, EtcdEndpoint};
use crate::model::{
    EndpointStatus, Observation, ObservedEtcdMember, ObservedMembership, Ordinal, QuorumMembers,
};

/// A member to query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MemberTarget {
    /// Ordinal of its pod; `None` for an endpoint of the cluster to join.
    pub(crate) ordinal: Option<Ordinal>,
    pub(crate) endpoint: EtcdEndpoint,
}

/// All members that can be queried.
pub(crate) fn list_targets(etcd: &Etcd, observed: &Observation) -> Vec<MemberTarget> {
    let names = Names::new(etcd);
    let spec_port = etcd
        .spec
        .etcd
        .client_port
        .and_then(|port| u16::try_from(port).ok());
    let pods = observed.pods.iter().filter_map(|(ordinal, pod)| {
        let tls = pod.listeners.client_tls.as_ref();
        // The pod keeps the port it was created with, even after the spec has changed.
        let port = pod.listeners.client_port.or(spec_port).unwrap_or(2379);
        let scheme = if tls.is_some() { "https" } else { "http" };
        let address = pod.address.as_ref()?;
        let host = if address.contains(':') {
            format!("[{address}]")
        } else {
            address.clone()
        };
        Some(MemberTarget {
            ordinal: Some(*ordinal),
            endpoint: EtcdEndpoint {
                url: format!("{scheme}://{host}:{port}"),
                server_name: Some(names.pod_host(&names.pod(ordinal.0))),
                tls: tls.cloned(),
            },
        })
    });
    let source = etcd.spec.etcd.bootstrap_with_existing_cluster.as_ref();
    let is_joined = etcd
        .status
        .as_ref()
        .is_some_and(|status| status.bootstrap_with_existing_cluster.is_some());
    // After the join the pods of this Etcd report the membership; the old endpoints may be gone.
    let external = source
        .filter(|_| !is_joined)
        .into_iter()
        .flat_map(|source| &source.client_endpoints);
    let external = external.map(|url| MemberTarget {
        ordinal: None,
        endpoint: EtcdEndpoint {
            url: url.as_str().trim_end_matches('/').to_owned(),
            server_name: None,
            tls: None,
        },
    });
    pods.chain(external).collect()
}

/// A member that answered the status request.
struct RespondingMember<'a> {
    target: &'a MemberTarget,
    member_id: MemberId,
    status: EndpointStatus,
    client: etcd_client::Client,
}

/// Queries all members concurrently.
pub(crate) async fn query_members(
    dialer: &Dialer,
    etcd: &Etcd,
    observed: &Observation,
) -> ObservedMembership {
    let targets = list_targets(etcd, observed);
    let results = join_all(targets.iter().map(|target| query_status(dialer, target))).await;
    let mut failure = "no pod has an address".to_owned();
    let mut answered = Vec::new();
    for result in results {
        match result {
            Ok(member) => answered.push(member),
            Err(error) => failure = ErrorChain(&error).to_string(),
        }
    }
    // A deposed leader may still claim leadership: try the one with the newest revision.
    answered.sort_by_key(|member| std::cmp::Reverse(member.status.revision));
    let reachable = answered
        .iter()
        .filter_map(|member| Some((member.target.ordinal?, member.status.revision)))
        .collect();
    let is_leader =
        |member: &&mut RespondingMember<'_>| member.status.leader == Some(member.member_id);
    let serving: BTreeMap<MemberId, EndpointStatus> = answered
        .iter()
        .map(|member| (member.member_id, member.status.clone()))
        .collect();
    let Some(leader) = answered.iter_mut().find(is_leader) else {
        if !serving.is_empty() {
            "no reachable member is the leader".clone_into(&mut failure);
        }
        return ObservedMembership::NoQuorum {
            reason: failure,
            reachable,
        };
    };
    match list_members(leader, etcd, &serving).await {
        Ok(members) => ObservedMembership::Known(members),
        Err(error) => ObservedMembership::NoQuorum {
            reason: ErrorChain(&error).to_string(),
            reachable,
        },
    }
}

async fn query_status<'a>(
    dialer: &Dialer,
    target: &'a MemberTarget,
) -> Result<RespondingMember<'a>, DialError> {
    let mut client = dialer.connect(&target.endpoint).await?;
    let status = fetch_status(&mut client, DIAL_TIMEOUT)
        .await
        .map_err(DialError::request_failed("Status", &target.endpoint))?;
    Ok(RespondingMember {
        target,
        member_id: status.member,
        status: to_endpoint_status(status),
        client,
    })
}

fn to_endpoint_status(status: MemberStatus) -> EndpointStatus {
    EndpointStatus {
        leader: status.leader,
        cluster_id: status.cluster,
        version: status.version,
        revision: status.revision.0,
        db_bytes: i64::try_from(status.db_bytes).unwrap_or(i64::MAX),
        db_bytes_in_use: i64::try_from(status.db_bytes_in_use).unwrap_or(i64::MAX),
    }
}

/// The member list of a leader that still has quorum.
async fn list_members(
    leader: &mut RespondingMember<'_>,
    etcd: &Etcd,
    serving: &BTreeMap<MemberId, EndpointStatus>,
) -> Result<QuorumMembers, DialError> {
    let endpoint = &leader.target.endpoint;
    // A linearizable read needs a quorum, while MemberList and Status are answered from local state.
    read_linearizably(&leader.client, "health", DIAL_TIMEOUT)
        .await
        .map_err(DialError::request_failed("linearizable read", endpoint))?;
    let listed = mainstay_etcd::list_members(&mut leader.client, DIAL_TIMEOUT)
        .await
        .map_err(DialError::request_failed("MemberList", endpoint))?;
    let names = Names::new(etcd);
    let observed = listed.into_iter().map(|member| ObservedEtcdMember {
        id: member.id,
        ordinal: find_ordinal(&names, &member.name, &member.peer_urls),
        name: member.name,
        peer_urls: member.peer_urls,
        is_learner: member.is_learner,
        status: serving.get(&member.id).cloned(),
    });
    Ok(QuorumMembers {
        cluster_id: leader.status.cluster_id,
        list: observed.collect(),
    })
}

/// Ordinal of the pod of a member. A member that was added and never started has no name, only its peer URLs.
fn find_ordinal(names: &Names<'_>, name: &str, peer_urls: &[String]) -> Option<Ordinal> {
    if !name.is_empty() {
        return names.member_ordinal(name).map(Ordinal);
    }
    let ordinal_of = |url: &String| {
        let host = url.split_once("://")?.1;
        let pod = host.split(['.', ':']).next()?;
        let ordinal = names.pod_ordinal(pod)?;
        host.starts_with(&names.pod_host(pod))
            .then_some(Ordinal(ordinal))
    };
    peer_urls.iter().find_map(ordinal_of)
}
