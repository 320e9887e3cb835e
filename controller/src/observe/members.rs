//! What etcd says about itself, asked at every member that has an address.
//!
//! A member list counts when the member that gave it leads and has just answered a read that needed a quorum; so it is no
//! older than the question. Members that answer without a leader are alive, and no more is known.

use std::collections::BTreeMap;

use etcd_client::{GetOptions, StatusResponse};
use futures::future::join_all;
use mainstay_crds::Etcd;
use mainstay_ids::{ClusterId, MemberId};
use mainstay_manifests::Names;
use mainstay_telemetry::ErrorChain;

use super::dial::call;
use super::{
    EndpointStatus, DialError, Dialer, QuorumMembers, ObservedMembership, Observation, Ordinal, EtcdEndpoint, ObservedEtcdMember,
};

/// A member to ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberTarget {
    /// Which pod it is; `None` for members of a cluster that is joined.
    pub ordinal: Option<Ordinal>,
    /// Where it is.
    pub endpoint: EtcdEndpoint,
}

/// Everybody who can be asked.
pub fn list_targets(etcd: &Etcd, observed: &Observation) -> Vec<MemberTarget> {
    let names = Names::new(etcd);
    let wanted = etcd
        .spec
        .etcd
        .client_port
        .and_then(|port| u16::try_from(port).ok());
    let pods = observed.pods.iter().filter_map(|(ordinal, pod)| {
        let tls = pod.listeners.client_tls.as_ref();
        let port = pod.listeners.client_port.or(wanted).unwrap_or(2379);
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
    let strangers = source
        .filter(|_| !is_joined)
        .into_iter()
        .flat_map(|source| &source.client_endpoints);
    let strangers = strangers.map(|url| MemberTarget {
        ordinal: None,
        endpoint: EtcdEndpoint {
            url: url.as_str().trim_end_matches('/').to_owned(),
            server_name: None,
            tls: None,
        },
    });
    pods.chain(strangers).collect()
}

/// One who answered.
struct RespondingMember<'a> {
    target: &'a MemberTarget,
    member_id: MemberId,
    status: EndpointStatus,
    client: etcd_client::Client,
}

/// Asks everybody.
pub async fn query_members(dialer: &Dialer, etcd: &Etcd, observed: &Observation) -> ObservedMembership {
    let targets = list_targets(etcd, observed);
    let requested = join_all(targets.iter().map(|target| query_status(dialer, target))).await;
    let mut why = "no member has an address".to_owned();
    let mut answered = Vec::new();
    for result in requested {
        match result {
            Ok(one) => answered.push(one),
            Err(error) => why = ErrorChain(&error).to_string(),
        }
    }
    answered.sort_by_key(|one| std::cmp::Reverse(one.status.revision));
    let alive = answered
        .iter()
        .filter_map(|one| Some((one.target.ordinal?, one.status.revision)))
        .collect();
    let leads = |one: &&mut RespondingMember<'_>| one.status.leader == Some(one.member_id);
    let serving: BTreeMap<MemberId, EndpointStatus> = answered
        .iter()
        .map(|one| (one.member_id, one.status.clone()))
        .collect();
    let Some(leader) = answered.iter_mut().find(leads) else {
        if !serving.is_empty() {
            "no member that answers leads".clone_into(&mut why);
        }
        return ObservedMembership::NoQuorum { reason: why, reachable: alive };
    };
    match list_members(leader, etcd, &serving).await {
        Ok(members) => ObservedMembership::Known(members),
        Err(error) => ObservedMembership::NoQuorum {
            reason: ErrorChain(&error).to_string(),
            reachable: alive,
        },
    }
}

async fn query_status<'a>(dialer: &Dialer, target: &'a MemberTarget) -> Result<RespondingMember<'a>, DialError> {
    let mut client = dialer.connect(&target.endpoint).await?;
    let status = call("status", &target.endpoint, client.status()).await?;
    let (member, cluster) = status
        .header()
        .map(|header| (MemberId(header.member_id()), ClusterId(header.cluster_id())))
        .unwrap_or_default();
    Ok(RespondingMember {
        target,
        member_id: member,
        status: to_endpoint_status(&status, cluster),
        client,
    })
}

fn to_endpoint_status(status: &StatusResponse, cluster: ClusterId) -> EndpointStatus {
    EndpointStatus {
        leader: Some(MemberId(status.leader())).filter(|leader| leader.0 != 0),
        cluster_id: cluster,
        version: status.version().to_owned(),
        revision: status
            .header()
            .map_or(0, etcd_client::ResponseHeader::revision),
        db_bytes: status.db_size(),
        db_bytes_in_use: status.raft_used_db_size(),
    }
}

/// The list of a leader that has just proven to be one.
async fn list_members(
    leader: &mut RespondingMember<'_>,
    etcd: &Etcd,
    serving: &BTreeMap<MemberId, EndpointStatus>,
) -> Result<QuorumMembers, DialError> {
    let reach = &leader.target.endpoint;
    let proof = leader
        .client
        .get("health", Some(GetOptions::new().with_count_only()));
    call("read with a quorum", reach, proof).await?;
    let listed = call("list the members", reach, leader.client.member_list()).await?;
    let names = Names::new(etcd);
    let observed = listed.members().iter().map(|member| {
        let id = MemberId(member.id());
        ObservedEtcdMember {
            id,
            name: member.name().to_owned(),
            ordinal: find_ordinal(&names, member.name(), member.peer_urls()),
            peer_urls: member.peer_urls().to_vec(),
            is_learner: member.is_learner(),
            status: serving.get(&id).cloned(),
        }
    });
    Ok(QuorumMembers {
        cluster_id: leader.status.cluster_id,
        list: observed.collect(),
    })
}

/// Which pod a member is: by its name, or by its address while it has none.
fn find_ordinal(names: &Names<'_>, name: &str, peer_urls: &[String]) -> Option<Ordinal> {
    if !name.is_empty() {
        return names.member_ordinal(name).map(Ordinal);
    }
    let of_url = |url: &String| {
        let host = url.split_once("://")?.1;
        let pod = host.split(['.', ':']).next()?;
        let ordinal = names.pod_ordinal(pod)?;
        host.starts_with(&names.pod_host(pod))
            .then_some(Ordinal(ordinal))
    };
    peer_urls.iter().find_map(of_url)
}
