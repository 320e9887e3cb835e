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
use mainstay_telemetry::Chain;

use super::dial::quickly;
use super::{
    Answer, DialError, Dialer, Members, Membership, Observation, Ordinal, Reach, SeenMember,
};

/// A member to ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Which pod it is; `None` for members of a cluster that is joined.
    pub ordinal: Option<Ordinal>,
    /// Where it is.
    pub reach: Reach,
}

/// Everybody who can be asked.
pub fn targets(etcd: &Etcd, seen: &Observation) -> Vec<Target> {
    let names = Names::of(etcd);
    let wanted = etcd
        .spec
        .etcd
        .client_port
        .and_then(|port| u16::try_from(port).ok());
    let pods = seen.pods.iter().filter_map(|(ordinal, pod)| {
        let tls = pod.talks.client_tls.as_ref();
        let port = pod.talks.client_port.or(wanted).unwrap_or(2379);
        let scheme = if tls.is_some() { "https" } else { "http" };
        let address = pod.address.as_ref()?;
        let host = if address.contains(':') {
            format!("[{address}]")
        } else {
            address.clone()
        };
        Some(Target {
            ordinal: Some(*ordinal),
            reach: Reach {
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
    let strangers = strangers.map(|url| Target {
        ordinal: None,
        reach: Reach {
            url: url.as_str().trim_end_matches('/').to_owned(),
            server_name: None,
            tls: None,
        },
    });
    pods.chain(strangers).collect()
}

/// One who answered.
struct Answered<'a> {
    target: &'a Target,
    member: MemberId,
    answer: Answer,
    client: etcd_client::Client,
}

/// Asks everybody.
pub async fn members(dialer: &Dialer, etcd: &Etcd, seen: &Observation) -> Membership {
    let targets = targets(etcd, seen);
    let asked = join_all(targets.iter().map(|target| status(dialer, target))).await;
    let mut why = "no member has an address".to_owned();
    let mut answered = Vec::new();
    for result in asked {
        match result {
            Ok(one) => answered.push(one),
            Err(error) => why = Chain(&error).to_string(),
        }
    }
    answered.sort_by_key(|one| std::cmp::Reverse(one.answer.revision));
    let alive = answered
        .iter()
        .filter_map(|one| Some((one.target.ordinal?, one.answer.revision)))
        .collect();
    let leads = |one: &&mut Answered<'_>| one.answer.leader == Some(one.member);
    let answers: BTreeMap<MemberId, Answer> = answered
        .iter()
        .map(|one| (one.member, one.answer.clone()))
        .collect();
    let Some(leader) = answered.iter_mut().find(leads) else {
        if !answers.is_empty() {
            "no member that answers leads".clone_into(&mut why);
        }
        return Membership::Silent { why, alive };
    };
    match list(leader, etcd, &answers).await {
        Ok(members) => Membership::Known(members),
        Err(error) => Membership::Silent {
            why: Chain(&error).to_string(),
            alive,
        },
    }
}

async fn status<'a>(dialer: &Dialer, target: &'a Target) -> Result<Answered<'a>, DialError> {
    let mut client = dialer.connect(&target.reach).await?;
    let status = quickly("status", &target.reach, client.status()).await?;
    let (member, cluster) = status
        .header()
        .map(|header| (MemberId(header.member_id()), ClusterId(header.cluster_id())))
        .unwrap_or_default();
    Ok(Answered {
        target,
        member,
        answer: answer(&status, cluster),
        client,
    })
}

fn answer(status: &StatusResponse, cluster: ClusterId) -> Answer {
    Answer {
        leader: Some(MemberId(status.leader())).filter(|leader| leader.0 != 0),
        cluster,
        version: status.version().to_owned(),
        revision: status
            .header()
            .map_or(0, etcd_client::ResponseHeader::revision),
        db_bytes: status.db_size(),
        db_bytes_in_use: status.raft_used_db_size(),
    }
}

/// The list of a leader that has just proven to be one.
async fn list(
    leader: &mut Answered<'_>,
    etcd: &Etcd,
    answers: &BTreeMap<MemberId, Answer>,
) -> Result<Members, DialError> {
    let reach = &leader.target.reach;
    let proof = leader
        .client
        .get("health", Some(GetOptions::new().with_count_only()));
    quickly("read with a quorum", reach, proof).await?;
    let listed = quickly("list the members", reach, leader.client.member_list()).await?;
    let names = Names::of(etcd);
    let seen = listed.members().iter().map(|member| {
        let id = MemberId(member.id());
        SeenMember {
            id,
            name: member.name().to_owned(),
            ordinal: ordinal(&names, member.name(), member.peer_urls()),
            peer_urls: member.peer_urls().to_vec(),
            is_learner: member.is_learner(),
            answer: answers.get(&id).cloned(),
        }
    });
    Ok(Members {
        cluster: leader.answer.cluster,
        list: seen.collect(),
    })
}

/// Which pod a member is: by its name, or by its address while it has none.
fn ordinal(names: &Names<'_>, name: &str, peer_urls: &[String]) -> Option<Ordinal> {
    if !name.is_empty() {
        return names.ordinal_of_member(name).map(Ordinal);
    }
    let of_url = |url: &String| {
        let host = url.split_once("://")?.1;
        let pod = host.split(['.', ':']).next()?;
        let ordinal = names.ordinal_of_pod(pod)?;
        host.starts_with(&names.pod_host(pod))
            .then_some(Ordinal(ordinal))
    };
    peer_urls.iter().find_map(of_url)
}
