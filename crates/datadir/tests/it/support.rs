//! Builds valid data directories; each test changes one thing.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use mainstay_bbolt::Update;
use mainstay_datadir::{
    ClusterMembership, Depth, DirReport, DirVerdict, FaultKind, WarningKind, verify,
};
use mainstay_ids::{LeaseId, MemberId, RaftIndex, Revision, Term};
use mainstay_mvcc::{KeyValue, RevisionKey, schema};
use mainstay_wal::v2store::{self, V2BootstrapMember};
use mainstay_wal::{
    ConfChange, ConfChangeKind, ConfState, Encoder, Entry, EntryKind, HardState, SegmentName,
    SnapFile, SnapshotMark, WalIdentity,
};
use tempfile::TempDir;

/// An item of a bucket.
pub(crate) type BucketItem = (Vec<u8>, Vec<u8>);

/// A put request as encoded in the WAL.
pub(crate) const PUT_REQUEST: &[u8] = b"\x22\x02\x08\x01";

/// Index of the raft snapshot of a valid directory.
pub(crate) const SNAPSHOT_INDEX: u64 = 5;

/// Last entry of its WAL.
pub(crate) const LAST_INDEX: u64 = 12;

/// Term of all its entries.
pub(crate) const TERM: u64 = 2;

/// The members of its cluster.
pub(crate) fn test_membership() -> ClusterMembership {
    let listed = "a=http://10.0.0.1:2380,b=http://10.0.0.2:2380,c=http://10.0.0.3:2380";
    ClusterMembership::new(&listed.parse().unwrap(), "sound").unwrap()
}

/// The member that owns the directory.
pub(crate) fn own_member_id() -> MemberId {
    test_membership().members()[0].id
}

/// The rows of a put.
pub(crate) fn put_row(at: (i64, i64), key: &str, created: i64, version: i64) -> BucketItem {
    leased_put_row(at, key, (created, version), LeaseId::NONE)
}

pub(crate) fn leased_put_row(
    (main, sub): (i64, i64),
    key: &str,
    (created, version): (i64, i64),
    lease: LeaseId,
) -> BucketItem {
    let row = RevisionKey {
        main: Revision(main),
        sub,
        is_tombstone: false,
    };
    let kv = KeyValue {
        key: key.as_bytes(),
        create_revision: Revision(created),
        mod_revision: Revision(main),
        version,
        value: b"value",
        lease,
    };
    let mut value = Vec::new();
    kv.encode(&mut value);
    (row.encode(), value)
}

pub(crate) fn delete_row((main, sub): (i64, i64), key: &str) -> BucketItem {
    let row = RevisionKey {
        main: Revision(main),
        sub,
        is_tombstone: true,
    };
    let mut value = Vec::new();
    let kv = KeyValue {
        key: key.as_bytes(),
        ..KeyValue::default()
    };
    kv.encode(&mut value);
    (row.encode(), value)
}

/// The content of a database.
#[derive(Clone, Debug)]
pub(crate) struct DatabaseContent {
    pub(crate) rows: Vec<BucketItem>,
    pub(crate) scheduled_compact: Option<i64>,
    pub(crate) finished_compact: Option<i64>,
    pub(crate) consistent_index: Option<u64>,
    pub(crate) term: Option<u64>,
    pub(crate) storage_version: Option<&'static str>,
    pub(crate) cluster_version: Option<&'static str>,
    pub(crate) members: Vec<BucketItem>,
    pub(crate) leases: Vec<BucketItem>,
    pub(crate) alarms: Vec<BucketItem>,
    pub(crate) removed_members: Vec<BucketItem>,
    pub(crate) is_auth_enabled: bool,
}

impl DatabaseContent {
    /// A store at revision 6 with two keys, one of them with a lease.
    pub(crate) fn valid() -> Self {
        let lease = schema::Lease {
            id: LeaseId(77),
            ttl_seconds: 60,
            remaining_seconds: 0,
        };
        let (lease_key, lease_value) = lease.encode();
        let members = test_membership().members_bucket_rows().into_iter();
        Self {
            rows: vec![
                put_row((2, 0), "a", 2, 1),
                put_row((3, 0), "b", 3, 1),
                put_row((3, 1), "c", 3, 1),
                put_row((4, 0), "a", 2, 2),
                delete_row((5, 0), "b"),
                leased_put_row((6, 0), "c", (3, 2), lease.id),
            ],
            scheduled_compact: None,
            finished_compact: None,
            consistent_index: Some(LAST_INDEX),
            term: Some(TERM),
            storage_version: None,
            cluster_version: Some("3.5.0"),
            members: members
                .map(|(id, json)| (id.into_bytes(), json.into_bytes()))
                .collect(),
            leases: vec![(lease_key.to_vec(), lease_value)],
            alarms: Vec::new(),
            removed_members: Vec::new(),
            is_auth_enabled: false,
        }
    }

    fn meta_items(&self) -> Vec<BucketItem> {
        let number = |value: u64| value.to_be_bytes().to_vec();
        let revision = |main: i64| RevisionKey::first_of(Revision(main)).encode();
        let text = |text: &str| text.as_bytes().to_vec();
        let entries = [
            (schema::CONSISTENT_INDEX, self.consistent_index.map(number)),
            (
                schema::FINISHED_COMPACT,
                self.finished_compact.map(revision),
            ),
            (
                schema::SCHEDULED_COMPACT,
                self.scheduled_compact.map(revision),
            ),
            (schema::STORAGE_VERSION, self.storage_version.map(text)),
            (schema::TERM, self.term.map(number)),
        ];
        let present = entries.into_iter();
        let mut meta: Vec<BucketItem> = present
            .filter_map(|(key, value)| Some((key.to_vec(), value?)))
            .collect();
        meta.sort();
        meta
    }

    /// Writes the database.
    pub(crate) fn write(&self, path: &Path) {
        fs::write(path, b"").unwrap();
        let mut update = Update::create(open_read_write(path), 4096).unwrap();
        let version = self.cluster_version.iter();
        let auth = vec![(
            schema::AUTH_ENABLED.to_vec(),
            vec![u8::from(self.is_auth_enabled)],
        )];
        let cluster = version
            .map(|text| (schema::CLUSTER_VERSION.to_vec(), text.as_bytes().to_vec()))
            .collect();
        for (name, items) in [
            (schema::KEY, &self.rows),
            (schema::META, &self.meta_items()),
            (schema::MEMBERS, &self.members),
            (schema::MEMBERS_REMOVED, &self.removed_members),
            (schema::LEASE, &self.leases),
            (schema::ALARM, &self.alarms),
            (schema::AUTH, &auth),
            (schema::CLUSTER, &cluster),
        ] {
            let mut bucket = update.rewrite_bucket(name);
            for (key, value) in items {
                bucket.add(key, value).unwrap();
            }
            bucket.finish().unwrap();
        }
        update.commit().unwrap();
    }
}

pub(crate) fn normal_entry(index: u64, term: u64, data: &[u8]) -> Entry {
    Entry {
        index: RaftIndex(index),
        term: Term(term),
        kind: EntryKind::Normal,
        data: Bytes::copy_from_slice(data),
    }
}

/// The entry that adds or removes a member.
pub(crate) fn conf_change_entry(index: u64, kind: ConfChangeKind, node: MemberId) -> Entry {
    let change = ConfChange {
        id: 0,
        kind,
        node,
        context: Bytes::from_static(b"{}"),
    };
    Entry {
        kind: EntryKind::ConfChange,
        ..normal_entry(index, TERM, &change.encode())
    }
}

pub(crate) fn hard_state(term: u64, commit: u64) -> HardState {
    HardState {
        term: Term(term),
        vote: own_member_id(),
        commit: RaftIndex(commit),
    }
}

pub(crate) fn snapshot_mark(index: u64, conf_state: Option<ConfState>) -> SnapshotMark {
    SnapshotMark {
        index: RaftIndex(index),
        term: Term(TERM),
        conf_state,
    }
}

/// The owner of the WAL.
pub(crate) fn wal_identity() -> WalIdentity {
    WalIdentity {
        node: own_member_id(),
        cluster: test_membership().cluster_id(),
    }
}

/// A raft snapshot at `index` of these members.
pub(crate) fn snap_file(index: u64, membership: &ClusterMembership) -> SnapFile {
    let listed: Vec<_> = membership
        .members()
        .iter()
        .map(|member| V2BootstrapMember {
            id: member.id,
            peer_urls: &member.peer_urls,
        })
        .collect();
    SnapFile {
        term: Term(TERM),
        index: RaftIndex(index),
        conf_state: membership.conf_state(),
        data: Bytes::from(v2store::build_bootstrap_store(&listed)),
    }
}

/// A data directory in a temporary directory.
pub(crate) struct DataDir {
    temp_dir: TempDir,
}

impl DataDir {
    /// Directories without files.
    pub(crate) fn empty() -> Self {
        let temp_dir = tempfile::tempdir().unwrap();
        for subdir in ["snap", "wal"] {
            fs::create_dir_all(temp_dir.path().join("data/member").join(subdir)).unwrap();
        }
        Self { temp_dir }
    }

    /// Two segments: entries 1 to 7 with a snapshot record at 5, then 8 to 12; everything is committed and
    /// applied. The first segment has no padding, the second is padded with zeros.
    pub(crate) fn valid() -> Self {
        Self::with_content(&DatabaseContent::valid())
    }

    /// A valid directory with another database.
    pub(crate) fn with_content(content: &DatabaseContent) -> Self {
        let dir = Self::empty();
        content.write(&dir.db_path());
        dir.write_log(&Self::segments());
        dir.write_snapshot(&snap_file(SNAPSHOT_INDEX, &test_membership()));
        dir
    }

    /// The segments of a valid directory.
    pub(crate) fn segments() -> [(SegmentName, Vec<u8>); 2] {
        Self::segments_to(LAST_INDEX)
    }

    /// The segments of a valid directory up to another entry.
    pub(crate) fn segments_to(last: u64) -> [(SegmentName, Vec<u8>); 2] {
        let mut first = Encoder::begin(Vec::new(), 0, wal_identity()).unwrap();
        first.write_snapshot(&SnapshotMark::START).unwrap();
        for (index, member) in (1..).zip(test_membership().members()) {
            let added = conf_change_entry(index, ConfChangeKind::AddNode, member.id);
            first.write_entry(&added).unwrap();
        }
        for index in 4..=7 {
            first
                .write_entry(&normal_entry(index, TERM, PUT_REQUEST))
                .unwrap();
        }
        first.write_state(&hard_state(TERM, 7)).unwrap();
        let conf_state = Some(test_membership().conf_state());
        first
            .write_snapshot(&snapshot_mark(SNAPSHOT_INDEX, conf_state))
            .unwrap();
        let mut second = Encoder::begin(Vec::new(), first.crc(), wal_identity()).unwrap();
        second.write_state(&hard_state(TERM, 7)).unwrap();
        for index in 8..=last {
            second
                .write_entry(&normal_entry(index, TERM, PUT_REQUEST))
                .unwrap();
        }
        second.write_state(&hard_state(TERM, last)).unwrap();
        let mut second = second.into_inner();
        second.resize(second.len() + 4096, 0);
        let next = SegmentName {
            sequence: 1,
            first_index: RaftIndex(8),
        };
        [(SegmentName::FIRST, first.into_inner()), (next, second)]
    }

    /// A WAL of one segment that starts at the first entry.
    pub(crate) fn one_segment(
        build: impl FnOnce(&mut Encoder<Vec<u8>>),
    ) -> [(SegmentName, Vec<u8>); 1] {
        let mut segment = Encoder::begin(Vec::new(), 0, wal_identity()).unwrap();
        segment.write_snapshot(&SnapshotMark::START).unwrap();
        build(&mut segment);
        [(SegmentName::FIRST, segment.into_inner())]
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.temp_dir.path().join("data")
    }

    pub(crate) fn db_path(&self) -> PathBuf {
        self.path().join("member/snap/db")
    }

    pub(crate) fn snap_path(&self, name: &str) -> PathBuf {
        self.path().join("member/snap").join(name)
    }

    pub(crate) fn wal_path(&self, name: &str) -> PathBuf {
        self.path().join("member/wal").join(name)
    }

    /// Replaces the existing segments.
    pub(crate) fn write_log(&self, segments: &[(SegmentName, Vec<u8>)]) {
        let wal_dir = self.path().join("member/wal");
        fs::remove_dir_all(&wal_dir).unwrap();
        fs::create_dir(&wal_dir).unwrap();
        for (name, bytes) in segments {
            fs::write(wal_dir.join(name.to_string()), bytes).unwrap();
        }
    }

    pub(crate) fn write_snapshot(&self, snapshot: &SnapFile) -> PathBuf {
        let path = self.snap_path(&snapshot.name().to_string());
        fs::write(&path, snapshot.encode()).unwrap();
        path
    }

    pub(crate) fn verify(&self, depth: Depth) -> DirReport {
        verify(&self.path(), depth).unwrap()
    }

    /// A full verification that must find exactly these faults.
    pub(crate) fn assert_faults(&self, expected: &[FaultKind]) -> DirReport {
        let report = self.verify(Depth::Full);
        let found: Vec<FaultKind> = report.faults.iter().map(|fault| fault.what).collect();
        assert_eq!(found, expected, "{report:#?}");
        let verdict = match expected {
            [] => DirVerdict::Valid,
            _ => DirVerdict::Corrupt,
        };
        assert_eq!(report.verdict, verdict);
        for fault in &report.faults {
            assert!(!fault.reason.is_empty(), "{fault:?}");
        }
        report
    }

    /// The only fault, formatted.
    pub(crate) fn assert_single_fault(&self, expected: FaultKind) -> String {
        self.assert_faults(&[expected]).faults[0].to_string()
    }

    /// A full verification of a valid directory that must return exactly these warnings.
    pub(crate) fn assert_warnings(&self, expected: &[WarningKind]) -> DirReport {
        let report = self.assert_faults(&[]);
        let found: Vec<WarningKind> = report.warnings.iter().map(|warning| warning.what).collect();
        assert_eq!(found, expected, "{report:#?}");
        report
    }
}

/// Opens a file for reading and writing.
pub(crate) fn open_read_write(path: &Path) -> File {
    File::options().read(true).write(true).open(path).unwrap()
}

/// Changes one byte of a file.
pub(crate) fn flip_byte(path: &Path, offset: u64, mask: u8) {
    let file = open_read_write(path);
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).unwrap();
    byte[0] ^= mask;
    file.write_all_at(&byte, offset).unwrap();
}

/// Overwrites bytes of a file.
pub(crate) fn overwrite(path: &Path, offset: u64, bytes: &[u8]) {
    open_read_write(path).write_all_at(bytes, offset).unwrap();
}

/// Truncates a file, or extends it with zeros.
pub(crate) fn set_length(path: &Path, length: u64) {
    open_read_write(path).set_len(length).unwrap();
}

pub(crate) fn file_length(path: &Path) -> u64 {
    fs::metadata(path).unwrap().len()
}
