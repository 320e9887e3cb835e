//! Decodes and reproduces the exact bytes written by etcd and etcdutl.

use bytes::Bytes;
use mainstay_ids::{ClusterId, MemberId, RaftIndex, Term};
use mainstay_wal::v2store::{V2BootstrapMember, V2Store, build_bootstrap_store};
use mainstay_wal::{
    ConfChange, ConfChangeKind, ConfState, Encoder, Entry, EntryKind, LogTail, SnapFile,
    SnapshotMark, WalIdentity,
};
use sha2::{Digest as _, Sha256};

use crate::support::{
    MEMBER, WalDir, entry, first_segment, hard_state, new_segment_name, next_segment,
};

/// The whole log of `etcdutl snapshot restore` 3.5.30 with all defaults.
pub(crate) const DEFAULT_RESTORE: &str = concat!(
    "040000000000008408041000000000002000000000000000080110bb81c7fc051a1608cdd2918bd2b881cf8e0110b298",
    "eaf1948386fccd010e0000000000008208051094bbc7ed0e1a040800100000007400000000000084080210c2ee92950b",
    "1a6a08011001180122620800100018cdd2918bd2b881cf8e0122517b226964223a313032373636353737343339333239",
    "37353433372c227065657255524c73223a5b22687474703a2f2f6c6f63616c686f73743a32333830225d2c226e616d65",
    "223a2264656661756c74227d0000000019000000000000870803109b98d6c3081a0f080110cdd2918bd2b881cf8e0118",
    "01000000000000001d000000000000830805108d9eaeef0d1a13080110011a0d08cdd2918bd2b881cf8e012800000000",
);

const MEMBER_JSON: &[u8] =
    br#"{"id":10276657743932975437,"peerURLs":["http://localhost:2380"],"name":"default"}"#;

fn join_entry(node: MemberId) -> Entry {
    let change = ConfChange {
        id: 0,
        kind: ConfChangeKind::AddNode,
        node,
        context: Bytes::from_static(MEMBER_JSON),
    };
    Entry {
        index: RaftIndex(1),
        term: Term(1),
        kind: EntryKind::ConfChange,
        data: Bytes::from(change.encode()),
    }
}

fn restored_mark(node: MemberId) -> SnapshotMark {
    let conf_state = Some(ConfState::from_voters(vec![node]));
    SnapshotMark {
        index: RaftIndex(1),
        term: Term(1),
        conf_state,
    }
}

#[test]
fn log_of_a_default_restore_is_written_byte_for_byte() {
    let mut segment = first_segment();
    segment.write_entry(&join_entry(MEMBER.node)).unwrap();
    segment.write_state(&hard_state(1, 1)).unwrap();
    segment.write_snapshot(&restored_mark(MEMBER.node)).unwrap();
    assert_eq!(hex::encode(segment.into_inner()), DEFAULT_RESTORE);
}

#[test]
fn log_of_a_default_restore_is_read() {
    let mut bytes = hex::decode(DEFAULT_RESTORE).unwrap();
    bytes.resize(100_000, 0);
    let disk = WalDir::with_segment(&bytes);
    let summary = disk.read_summary().unwrap();
    assert_eq!(summary.identity, MEMBER);
    assert_eq!(
        summary.snapshots,
        [SnapshotMark::START, restored_mark(MEMBER.node)]
    );
    assert_eq!(summary.hard_state, Some(hard_state(1, 1)));
    assert_eq!(
        (summary.first_index, summary.last_index),
        (Some(RaftIndex(1)), RaftIndex(1))
    );
    assert_eq!(summary.tail, LogTail::Clean);
    assert_eq!(summary.lost_commits(), 0);
    let log = disk.open_log();
    let entries: Vec<_> = log
        .committed_after(&summary, RaftIndex(0))
        .collect::<Result<_, _>>()
        .unwrap();
    assert_eq!(entries, [join_entry(MEMBER.node)]);
    let change = ConfChange::decode(&entries[0].data).unwrap();
    assert_eq!(
        (change.node, &change.context[..]),
        (MEMBER.node, MEMBER_JSON)
    );
}

#[test]
fn snapshot_of_a_default_restore_is_written_byte_for_byte() {
    let peer_urls = ["http://localhost:2380".to_owned()];
    let member = V2BootstrapMember {
        id: MEMBER.node,
        peer_urls: &peer_urls,
    };
    let snap = SnapFile {
        term: Term(1),
        index: RaftIndex(1),
        conf_state: ConfState::from_voters(vec![MEMBER.node]),
        data: Bytes::from(build_bootstrap_store(&[member])),
    };
    let bytes = snap.encode();
    assert_eq!(bytes.len(), 6490);
    assert_eq!(
        hex::encode(Sha256::digest(&bytes)),
        "391e233526d2ed237b95d33b9d3c7975cf3db23b1913a478baacdeee4177b533"
    );
    assert_eq!(
        snap.name().to_string(),
        "0000000000000001-0000000000000001.snap"
    );
    assert_eq!(SnapFile::decode(Bytes::from(bytes)).unwrap(), snap);
    let members = V2Store::parse(&snap.data).unwrap().members;
    assert_eq!(members.len(), 1);
    assert_eq!(
        (members[0].id, &members[0].peer_urls[..]),
        (MEMBER.node, &peer_urls[..])
    );
}

#[test]
fn snapshot_of_two_members_has_the_length_etcdutl_writes() {
    let ids = [
        MemberId(0x385a_443a_7c14_8853),
        MemberId(0xa1ab_dbec_a39b_936f),
    ];
    let (one, two) = (
        ["http://127.0.0.1:23891".to_owned()],
        ["http://127.0.0.1:23893".to_owned()],
    );
    let members = [
        V2BootstrapMember {
            id: ids[0],
            peer_urls: &one,
        },
        V2BootstrapMember {
            id: ids[1],
            peer_urls: &two,
        },
    ];
    let snap = SnapFile {
        term: Term(1),
        index: RaftIndex(2),
        conf_state: ConfState::from_voters(ids.to_vec()),
        data: Bytes::from(build_bootstrap_store(&members)),
    };
    assert_eq!(snap.encode().len(), 7031);
}

#[test]
fn header_matches_a_live_log_byte_for_byte() {
    let identity = WalIdentity {
        node: MemberId(0xed68_3a91_a8f4_9cc4),
        cluster: ClusterId(0x73bc_6497_83b2_fdc1),
    };
    let mut segment = Encoder::begin(Vec::new(), 0, identity).unwrap();
    assert_eq!(segment.crc(), 0x6783_c46c);
    segment.write_snapshot(&SnapshotMark::START).unwrap();
    assert_eq!(segment.crc(), 0xd8b7_36b0);
    assert_eq!(
        hex::encode(segment.into_inner()),
        concat!(
            "04000000000000840804100000000000",
            "1f00000000000081080110ec888fbc061a1508c4b9d2c79ad28eb4ed0110c1fbcb9df89299de7300",
            "0e00000000000082080510b0eddcc50d1a04080010000000",
        )
    );
}

#[test]
fn entry_without_data_has_no_data_field() {
    assert_eq!(hex::encode(entry(2, 2, b"").encode()), "080010021802");
    let mut segment = first_segment();
    let head = segment.crc();
    segment.write_entry(&entry(2, 2, b"")).unwrap();
    assert_ne!(segment.crc(), head);
    let bytes = segment.into_inner();
    let frame = &bytes[bytes.len() - 24..];
    assert_eq!(hex::encode(&frame[..10]), "10000000000000000802");
    assert!(hex::encode(frame).ends_with("1a06080010021802"));
}

#[test]
fn segment_starts_with_the_crc_carried_over() {
    let bytes = next_segment(0xfe4a_39a6).into_inner();
    assert_eq!(
        hex::encode(&bytes[..16]),
        "0800000000000000080410a6f3a8f20f"
    );
    let disk = WalDir::new();
    disk.write_segment(new_segment_name(7, 100), &bytes);
    let summary = disk
        .read_summary()
        .expect("the first segment at hand may carry any value");
    assert_eq!(
        (summary.first_index, summary.last_index),
        (None, RaftIndex(99))
    );
}

#[test]
fn conf_state_is_encoded_unpacked_with_explicit_zero() {
    let state = ConfState::from_voters(vec![
        MemberId(0x385a_443a_7c14_8853),
        MemberId(0xa1ab_dbec_a39b_936f),
    ]);
    let conf_state = "08d390d2e0a78791ad3808efa6ee9ccafdf6d5a1012800";
    assert_eq!(hex::encode(state.encode()), conf_state);
    let snap = SnapFile {
        term: Term(1),
        index: RaftIndex(2),
        conf_state: state,
        data: Bytes::new(),
    };
    let expected = format!("0a17{conf_state}10021801");
    assert!(hex::encode(snap.encode()).ends_with(&expected));
}

#[test]
fn omitted_fields_are_zero_and_unknown_fields_are_skipped() {
    // etcd 3.7 omits zeros: {index 1} without term; field 9 is undefined.
    let record = |kind: u8, crc: u32, data: &[u8]| {
        let mut record = vec![0x08, kind, 0x10];
        let mut rest = crc;
        while rest >= 0x80 {
            record.push(u8::try_from(rest & 0x7f).unwrap() | 0x80);
            rest >>= 7;
        }
        record.extend([
            u8::try_from(rest).unwrap(),
            0x1a,
            u8::try_from(data.len()).unwrap(),
        ]);
        record.extend(data);
        let padding = (8 - record.len() % 8) % 8;
        let flag = if padding == 0 { 0 } else { 0x80 | padding };
        let mut frame = ((record.len() | flag << 56) as u64).to_le_bytes().to_vec();
        frame.extend(record);
        frame.resize(frame.len() + padding, 0);
        frame
    };
    let mut segment = first_segment();
    segment.write_entry(&entry(1, 1, b"x")).unwrap();
    let crc = segment.crc();
    let mut log = segment.into_inner();
    let mark = [0x08, 1, 0x48, 5];
    log.extend(record(5, crc32c::crc32c_append(crc, &mark), &mark));
    let summary = WalDir::with_segment(&log).read_summary().unwrap();
    let last = summary.snapshots.last().unwrap();
    assert_eq!(
        (last.index, last.term, &last.conf_state),
        (RaftIndex(1), Term(0), &None)
    );
}
