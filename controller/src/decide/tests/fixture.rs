//! A cluster that is whole, and the ways to make it less so.

use jiff::{SignedDuration, Timestamp};
use mainstay_crds::etcd::VolumeGrowth;
use mainstay_ids::{ClusterId, MemberId};

use crate::decide::{Blocker, Known, Plan, Policy, Step, World, decide};
use crate::observe::{
    Answer, Finding, Held, Members, Membership, Observation, Ordinal, PeerStage, SeenClaim,
    SeenLease, SeenMember, SeenPod, SeenSet, SetCounts, SnapshotLease, Strategy, Talks,
};
use crate::validate::{
    DEFAULT_STORAGE_BYTES, Peers, Requests, Wanted, WantedBackup, WantedRecovery,
};

pub(crate) const OLD: &str = "old";
pub(crate) const NEW: &str = "new";
pub(crate) const IMAGE: &str = "etcd:v3.5.26";

pub(crate) fn noon() -> Timestamp {
    "2026-11-16T12:00:00Z".parse().unwrap()
}

pub(crate) fn ago(seconds: i64) -> Timestamp {
    noon() - SignedDuration::from_secs(seconds)
}

/// A situation under test; it begins whole.
#[derive(Clone, Debug)]
pub(crate) struct Scene {
    pub(crate) wanted: Wanted,
    pub(crate) seen: Observation,
    pub(crate) policy: Policy,
    pub(crate) known: Known,
}

pub(crate) fn wanted(replicas: u32) -> Wanted {
    Wanted {
        name: "main".to_owned(),
        namespace: "shoot".to_owned(),
        generation: 1,
        replicas,
        impossible_replicas: None,
        member_prefix: None,
        etcd_image: IMAGE.to_owned(),
        storage_bytes: DEFAULT_STORAGE_BYTES,
        growth: VolumeGrowth::Expand,
        backup: None,
        recovery: WantedRecovery::default(),
        upkeep: crate::decide::upkeep::WantedUpkeep::default(),
        peers: Peers {
            port: 2380,
            ..Peers::default()
        },
        joins_existing: false,
        is_external: false,
        requests: Requests::default(),
        deleted: None,
    }
}

pub(crate) fn id(ordinal: u32) -> MemberId {
    MemberId(u64::from(ordinal) + 100)
}

pub(crate) fn pod(ordinal: u32, revision: &str) -> SeenPod {
    SeenPod {
        uid: format!("pod-{ordinal}-{revision}"),
        revision: Some(revision.to_owned()),
        is_ready: true,
        has_ready_containers: true,
        is_deleting: false,
        created: Some(ago(3_600)),
        address: Some(format!("10.0.0.{ordinal}")),
        etcd_image: Some(IMAGE.to_owned()),
        finding: Some(Finding::Good),
        words: None,
        reaches: None,
        crashes: 0,
        talks: Talks::default(),
    }
}

pub(crate) fn claim(ordinal: u32) -> SeenClaim {
    SeenClaim {
        uid: format!("claim-{ordinal}"),
        is_bound: true,
        requested_bytes: Some(DEFAULT_STORAGE_BYTES),
        capacity_bytes: Some(DEFAULT_STORAGE_BYTES),
        ..SeenClaim::default()
    }
}

pub(crate) fn lease(ordinal: u32, is_leader: bool) -> SeenLease {
    SeenLease {
        held: Some(Held {
            member: id(ordinal),
            cluster: Some(ClusterId(7)),
            is_leader,
        }),
        renewed: Some(ago(5)),
        peer_tls: Some(false),
    }
}

pub(crate) fn answer(leader: u32) -> Answer {
    Answer {
        leader: Some(id(leader)),
        cluster: ClusterId(7),
        version: "3.5.26".to_owned(),
        revision: 1_000,
        db_bytes: 20_480,
        db_bytes_in_use: 16_384,
    }
}

pub(crate) fn member(wanted: &Wanted, ordinal: u32) -> SeenMember {
    SeenMember {
        id: id(ordinal),
        name: wanted.member(Ordinal(ordinal)),
        ordinal: Some(Ordinal(ordinal)),
        peer_urls: wanted.peer_urls(Ordinal(ordinal), PeerStage::Off),
        is_learner: false,
        answer: Some(answer(0)),
    }
}

pub(crate) fn set(replicas: u32) -> SeenSet {
    SeenSet {
        uid: "set".to_owned(),
        resource_version: "1".to_owned(),
        is_deleting: false,
        is_observed: true,
        replicas,
        strategy: Strategy::OnDelete,
        is_ours: true,
        update_revision: Some(OLD.to_owned()),
        etcd_image: Some(IMAGE.to_owned()),
        storage_bytes: Some(DEFAULT_STORAGE_BYTES),
        peer_stage: PeerStage::Off,
        noted_size: Some(replicas),
        counts: SetCounts::default(),
    }
}

impl Scene {
    /// `replicas` members, all well, the first one leading.
    pub(crate) fn whole(replicas: u32) -> Self {
        let wanted = wanted(replicas);
        let each = || 0..replicas;
        let seen = Observation {
            set: Some(set(replicas)),
            pods: each().map(|n| (Ordinal(n), pod(n, OLD))).collect(),
            claims: each().map(|n| (Ordinal(n), claim(n))).collect(),
            leases: each().map(|n| (Ordinal(n), lease(n, n == 0))).collect(),
            membership: Membership::Known(Members {
                cluster: ClusterId(7),
                list: each().map(|n| member(&wanted, n)).collect(),
            }),
            ..Observation::default()
        };
        let known = Known {
            observed_generation: Some(1),
            version: None,
            loss_since: None,
            upkeep: crate::decide::upkeep::KnownUpkeep::default(),
        };
        Self {
            wanted,
            seen,
            policy: Policy::default(),
            known,
        }
    }

    pub(crate) fn world(&self) -> World<'_> {
        World {
            wanted: &self.wanted,
            seen: &self.seen,
            policy: &self.policy,
            known: &self.known,
            now: noon(),
        }
    }

    pub(crate) fn plan(&self) -> Plan {
        decide(&self.world())
    }

    pub(crate) fn step(&self) -> Option<Step> {
        self.plan().step
    }

    /// What is waited for, when nothing is done.
    pub(crate) fn waits(&self) -> Option<Blocker> {
        match self.step() {
            Some(Step::Wait { on }) => Some(on),
            _ => None,
        }
    }

    pub(crate) fn replicas(mut self, replicas: u32) -> Self {
        self.wanted.replicas = replicas;
        self
    }

    pub(crate) fn backed_up(mut self, age_seconds: i64) -> Self {
        self.wanted.backup = Some(WantedBackup {
            schedule: None,
            delta_seconds: Some(20),
        });
        self.seen.full_snapshot = Some(SnapshotLease {
            created: Some(ago(86_400)),
            renewed: Some(ago(age_seconds)),
            revision: Some(100),
        });
        self
    }

    /// The template has a revision no pod has.
    pub(crate) fn outdated(mut self) -> Self {
        self.set_mut().update_revision = Some(NEW.to_owned());
        self
    }

    pub(crate) fn set_mut(&mut self) -> &mut SeenSet {
        self.seen.set.as_mut().unwrap()
    }

    pub(crate) fn pod_mut(&mut self, ordinal: u32) -> &mut SeenPod {
        self.seen.pods.get_mut(&Ordinal(ordinal)).unwrap()
    }

    pub(crate) fn members_mut(&mut self) -> &mut Vec<SeenMember> {
        match &mut self.seen.membership {
            Membership::Known(members) => &mut members.list,
            other => panic!("no members: {other:?}"),
        }
    }

    pub(crate) fn member_mut(&mut self, ordinal: u32) -> &mut SeenMember {
        let found = self
            .members_mut()
            .iter_mut()
            .find(|m| m.ordinal == Some(Ordinal(ordinal)));
        found.unwrap()
    }

    /// The pod is not ready and etcd in it does not answer.
    pub(crate) fn down(mut self, ordinal: u32) -> Self {
        let pod = self.pod_mut(ordinal);
        (pod.is_ready, pod.has_ready_containers) = (false, false);
        self.member_mut(ordinal).answer = None;
        self
    }

    pub(crate) fn finding(mut self, ordinal: u32, finding: Finding) -> Self {
        self.pod_mut(ordinal).finding = Some(finding);
        self
    }

    /// The pod has the newest template.
    pub(crate) fn updated(mut self, ordinal: u32) -> Self {
        self.seen.pods.insert(Ordinal(ordinal), pod(ordinal, NEW));
        self
    }

    pub(crate) fn leader(mut self, ordinal: u32) -> Self {
        for member in self.members_mut() {
            if let Some(answer) = &mut member.answer {
                answer.leader = Some(id(ordinal));
            }
        }
        self
    }

    /// Nobody answers with a quorum.
    pub(crate) fn silent(mut self) -> Self {
        self.seen.membership = Membership::Silent {
            why: "no leader".to_owned(),
            alive: std::collections::BTreeMap::new(),
        };
        self
    }

    pub(crate) fn without_member(mut self, ordinal: u32) -> Self {
        self.members_mut()
            .retain(|member| member.ordinal != Some(Ordinal(ordinal)));
        self
    }

    /// A pod beyond the members, as a grown StatefulSet makes it.
    pub(crate) fn waiting_pod(mut self, ordinal: u32) -> Self {
        let set = self.set_mut();
        set.replicas = set.replicas.max(ordinal + 1);
        set.noted_size = Some(set.replicas);
        let waiting = SeenPod {
            is_ready: false,
            has_ready_containers: false,
            finding: Some(Finding::Waits),
            ..pod(ordinal, OLD)
        };
        self.seen.pods.insert(Ordinal(ordinal), waiting);
        self.seen.claims.insert(Ordinal(ordinal), claim(ordinal));
        self
    }
}
