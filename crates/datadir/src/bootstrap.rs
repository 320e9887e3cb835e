//! Writes the raft files of a new data directory: a WAL and a raft snapshot that contain the members.
//!
//! The files are byte-identical to those of `etcdutl snapshot restore`, except that the WAL is not padded to
//! 64 MB with zeros: etcd starts on either, and the shorter file is cheaper to copy, archive and verify.
//! Another crate writes the database, which must match; see [`BootstrapInfo`].

use std::io;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use mainstay_ids::{MemberId, RaftIndex, Term};
use mainstay_wal::v2store::{self, V2BootstrapMember};
use mainstay_wal::{
    ConfChange, ConfChangeKind, Encoder, Entry, EntryKind, HardState, SegmentName, SnapFile,
    SnapshotMark, WalIdentity,
};

use crate::durable_fs;
use crate::membership::ClusterMembership;

/// Term of the entries that add the members of a restored cluster.
const FIRST_TERM: Term = Term(1);

/// Values that the `meta` bucket of the database must contain: `consistent_index` and `term`. With a lower
/// index etcd does not start; with a higher one it silently skips writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BootstrapInfo {
    /// Index of the raft snapshot: one entry per member.
    pub index: RaftIndex,
    /// Term of the raft snapshot.
    pub term: Term,
}

impl BootstrapInfo {
    /// Computes the values for these members; the files need not exist yet.
    pub fn from_membership(membership: &ClusterMembership) -> Self {
        Self {
            index: RaftIndex(membership.members().len() as u64),
            term: FIRST_TERM,
        }
    }
}

/// The raft files were not written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BootstrapError {
    /// The owner of the directory is not a member of the cluster.
    #[error("write raft files: {member} is not a member of cluster {cluster}")]
    NotAMember {
        /// The owner of the directory.
        member: MemberId,
        /// The new cluster.
        cluster: mainstay_ids::ClusterId,
    },
    /// A directory cannot be created.
    #[error("create directory {}", dir.display())]
    CreateDir {
        /// The directory.
        dir: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// A file cannot be written. Existing files are never overwritten.
    #[error("write {}", file.display())]
    Write {
        /// The file.
        file: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// A directory cannot be synced.
    #[error("sync directory {}", dir.display())]
    Sync {
        /// The directory.
        dir: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// The WAL cannot be encoded.
    #[error("encode the WAL")]
    Encode {
        /// The encoder's error.
        source: io::Error,
    },
}

/// Writes `wal/` and `snap/<term>-<index>.snap` of member `me` below `dir`, the `member` directory. Syncs the
/// files and the directories `wal`, `snap` and `dir`; the caller syncs the parent of `dir`.
pub fn write_raft_files(
    dir: &Path,
    membership: &ClusterMembership,
    me: MemberId,
) -> Result<BootstrapInfo, BootstrapError> {
    // etcd would start with an ID that raft does not know.
    if membership.member(me).is_none() {
        let cluster = membership.cluster_id();
        return Err(BootstrapError::NotAMember {
            member: me,
            cluster,
        });
    }
    let info = BootstrapInfo::from_membership(membership);
    let (wal, snap) = (dir.join("wal"), dir.join("snap"));
    for subdir in [dir, &wal, &snap] {
        durable_fs::create_private_dirs(subdir).map_err(|source| BootstrapError::CreateDir {
            dir: subdir.to_owned(),
            source,
        })?;
    }
    let snapshot = build_snapshot(membership, info);
    let log =
        encode_log(membership, me, info).map_err(|source| BootstrapError::Encode { source })?;
    // `write_new` fails on existing files: an existing data directory is never overwritten.
    for (file, bytes) in [
        (wal.join(SegmentName::FIRST.to_string()), log),
        (snap.join(snapshot.name().to_string()), snapshot.encode()),
    ] {
        durable_fs::write_new_file(&file, &bytes)
            .map_err(|source| BootstrapError::Write { file, source })?;
    }
    for subdir in [&wal, &snap, dir] {
        durable_fs::sync_dir(subdir).map_err(|source| BootstrapError::Sync {
            dir: subdir.to_owned(),
            source,
        })?;
    }
    Ok(info)
}

/// Encodes the WAL: one committed entry adds each member, and the snapshot covers all of them.
fn encode_log(
    membership: &ClusterMembership,
    me: MemberId,
    info: BootstrapInfo,
) -> io::Result<Vec<u8>> {
    let identity = WalIdentity {
        node: me,
        cluster: membership.cluster_id(),
    };
    let mut segment = Encoder::begin(Vec::new(), 0, identity)?;
    segment.write_snapshot(&SnapshotMark::START)?;
    for (index, member) in (1..).zip(membership.members()) {
        let change = ConfChange {
            id: 0,
            kind: ConfChangeKind::AddNode,
            node: member.id,
            context: Bytes::from(member.to_json()),
        };
        segment.write_entry(&Entry {
            index: RaftIndex(index),
            term: info.term,
            kind: EntryKind::ConfChange,
            data: Bytes::from(change.encode()),
        })?;
    }
    // etcdutl votes for the first member as well; the files must be identical on that point.
    let vote = membership
        .members()
        .first()
        .map(|member| member.id)
        .unwrap_or_default();
    segment.write_state(&HardState {
        term: info.term,
        vote,
        commit: info.index,
    })?;
    let conf_state = Some(membership.conf_state());
    segment.write_snapshot(&SnapshotMark {
        index: info.index,
        term: info.term,
        conf_state,
    })?;
    Ok(segment.into_inner())
}

fn build_snapshot(membership: &ClusterMembership, info: BootstrapInfo) -> SnapFile {
    let members: Vec<_> = membership
        .members()
        .iter()
        .map(|member| V2BootstrapMember {
            id: member.id,
            peer_urls: &member.peer_urls,
        })
        .collect();
    SnapFile {
        term: info.term,
        index: info.index,
        conf_state: membership.conf_state(),
        data: Bytes::from(v2store::build_bootstrap_store(&members)),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use mainstay_wal::v2store::V2Store;
    use mainstay_wal::{Log, LogTail};
    use sha2::{Digest as _, Sha256};

    use super::*;

    fn build_membership(listed: &str, token: &str) -> ClusterMembership {
        ClusterMembership::new(&listed.parse().unwrap(), token).unwrap()
    }

    fn sha256(path: &Path) -> String {
        hex::encode(Sha256::digest(fs::read(path).unwrap()))
    }

    #[test]
    fn raft_files_equal_those_of_a_default_etcdutl_restore() {
        let dir = tempfile::tempdir().unwrap();
        let member = dir.path().join("member");
        let membership = build_membership("default=http://localhost:2380", "etcd-cluster");
        let me = membership.members()[0].id;
        let info = write_raft_files(&member, &membership, me).unwrap();
        assert_eq!(
            info,
            BootstrapInfo {
                index: RaftIndex(1),
                term: Term(1)
            }
        );
        let wal = member.join("wal/0000000000000000-0000000000000000.wal");
        assert_eq!(fs::metadata(&wal).unwrap().len(), 288);
        assert_eq!(
            sha256(&wal),
            "5d6ef1158b8cf9062b717f2d86ae1cf6ef98f09cb5a0af0f259a839ff2050928"
        );
        assert_eq!(
            sha256(&member.join("snap/0000000000000001-0000000000000001.snap")),
            "391e233526d2ed237b95d33b9d3c7975cf3db23b1913a478baacdeee4177b533"
        );
    }

    #[test]
    fn raft_files_of_members_differ_only_in_identity() {
        let dir = tempfile::tempdir().unwrap();
        let membership = build_membership(
            "x=http://127.0.0.1:25011,y=http://127.0.0.1:25021,z=http://127.0.0.1:25031",
            "three",
        );
        for member in membership.members() {
            let path = dir.path().join(&member.name);
            let info = write_raft_files(&path, &membership, member.id).unwrap();
            assert_eq!(info.index, RaftIndex(3));
            let summary = Log::open(&path.join("wal")).unwrap().read().unwrap();
            assert_eq!(summary.tail, LogTail::Clean);
            assert_eq!(summary.identity.node, member.id);
            assert_eq!(summary.identity.cluster, membership.cluster_id());
            assert_eq!(
                (summary.commit_index(), summary.last_index),
                (info.index, info.index)
            );
            assert_eq!(summary.hard_state.unwrap().vote, membership.members()[0].id);
            let mark = summary.usable_snapshots().next().unwrap().clone();
            let file = path.join("snap/0000000000000001-0000000000000003.snap");
            let snap = SnapFile::read(&file).unwrap();
            assert_eq!((mark.index, mark.term), (snap.index, snap.term));
            assert_eq!(mark.conf_state.as_ref(), Some(&snap.conf_state));
            let store = V2Store::parse(&snap.data).unwrap();
            let listed: Vec<_> = store.members.iter().map(|member| member.id).collect();
            assert_eq!(listed, snap.conf_state.voters);
        }
    }

    #[test]
    fn raft_files_are_readable_by_their_owner_only() {
        let dir = tempfile::tempdir().unwrap();
        let member = dir.path().join("member");
        let membership = build_membership("default=http://localhost:2380", "t");
        write_raft_files(&member, &membership, membership.members()[0].id).unwrap();
        let mode = |path: &str| {
            fs::metadata(member.join(path))
                .unwrap()
                .permissions()
                .mode()
                & 0o777
        };
        assert_eq!(["", "wal", "snap"].map(mode), [0o700; 3]);
        assert_eq!(mode("wal/0000000000000000-0000000000000000.wal"), 0o600);
        assert_eq!(mode("snap/0000000000000001-0000000000000001.snap"), 0o600);
    }

    #[test]
    fn existing_raft_files_are_not_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let membership = build_membership("default=http://localhost:2380", "t");
        let me = membership.members()[0].id;
        write_raft_files(dir.path(), &membership, me).unwrap();
        let error = write_raft_files(dir.path(), &membership, me).unwrap_err();
        assert!(matches!(error, BootstrapError::Write { .. }), "{error}");
        let error = write_raft_files(dir.path(), &membership, MemberId(7)).unwrap_err();
        assert!(
            matches!(error, BootstrapError::NotAMember { .. }),
            "{error}"
        );
    }
}
