use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use mainstay_archive::compression::open_decoder;
use mainstay_archive::name::SnapshotName;
use mainstay_bbolt::Update;
use mainstay_mvcc::schema;

use super::*;

/// Streams `bytes` in chunks, again for each page that must be kept; returns the facts and the number of passes.
fn read_streamed(
    bytes: &[u8],
    chunk: usize,
) -> (Result<DatabaseStatus, DatabaseStatusError>, usize) {
    let mut keep = BTreeSet::new();
    for pass in 1.. {
        let mut outline = Outline::new(&keep);
        for chunk in bytes.chunks(chunk) {
            if let Err(error) = outline.push(chunk) {
                return (Err(error.into()), pass);
            }
        }
        match outline.facts() {
            Ok(facts) => return (Ok(facts), pass),
            Err(OutlineError::PageNotKept { page }) => assert!(keep.insert(page), "{page} twice"),
            Err(OutlineError::Facts(error)) => return (Err(error), pass),
        }
    }
    unreachable!("the loop has no end")
}

fn read_facts(bytes: &[u8]) -> Result<DatabaseStatus, DatabaseStatusError> {
    DatabaseStatus::read(&Database::open(bytes)?)
}

fn assert_same_facts(bytes: &[u8], passes: usize) {
    let expected = read_facts(bytes).unwrap();
    for chunk in [977, 4096, 100_000, 1 << 20] {
        let (facts, took) = read_streamed(bytes, chunk);
        assert_eq!(facts.unwrap(), expected, "chunks of {chunk}");
        assert_eq!(took, passes, "chunks of {chunk}");
    }
}

fn read_fixture_bases() -> Vec<(String, Vec<u8>)> {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures");
    let mut found = Vec::new();
    for fixture in std::fs::read_dir(fixtures).unwrap() {
        let folder = fixture.unwrap().path().join("bucket/etcd-main/v2");
        for entry in folder.read_dir().into_iter().flatten() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            if !name.starts_with("Full-") {
                continue;
            }
            let compression = name.parse::<SnapshotName>().unwrap().compression;
            let one = std::num::NonZeroUsize::MIN;
            let mut stream = open_decoder(&compression, File::open(&path).unwrap(), one).unwrap();
            let mut bytes = Vec::new();
            stream.read_to_end(&mut bytes).unwrap();
            bytes.truncate(bytes.len() - 32);
            found.push((name, bytes));
        }
    }
    assert!(found.len() >= 7, "{} bases", found.len());
    found
}

#[test]
fn stream_of_a_real_snapshot_gives_the_same_facts_as_the_file() {
    for (name, bytes) in read_fixture_bases() {
        assert_same_facts(&bytes, 1);
        let revision = read_facts(&bytes).unwrap().revision;
        let named: SnapshotName = name.parse().unwrap();
        assert!(revision >= named.last, "{name} holds {revision}");
    }
}

/// Builds a database with values of the given sizes, added in several commits, so that free pages of earlier ones
/// remain.
fn build_database(
    page_size: u32,
    commits: &[Vec<usize>],
    others: &[(&str, &str, usize)],
) -> Vec<u8> {
    let file = tempfile::tempfile().unwrap();
    let mut revision = 2;
    for (at, sizes) in commits.iter().enumerate() {
        let mut update = match at {
            0 => Update::create(&file, page_size).unwrap(),
            _ => Update::open(&file).unwrap(),
        };
        let mut bucket = update.append_to_bucket(schema::KEY).unwrap();
        for size in sizes {
            let key = RevisionKey::first_of(Revision(revision)).encode();
            bucket.add(&key, &vec![0x5a; *size]).unwrap();
            revision += 1;
        }
        bucket.finish().unwrap();
        for (bucket, key, size) in others {
            let mut writer = update.rewrite_bucket(bucket.as_bytes());
            writer.add(key.as_bytes(), &vec![b'x'; *size]).unwrap();
            writer.finish().unwrap();
        }
        update.commit().unwrap();
    }
    let mut bytes = vec![0; usize::try_from(file.size().unwrap()).unwrap()];
    ReadAt::read_exact_at(&file, &mut bytes, 0).unwrap();
    bytes
}

#[test]
fn pages_of_earlier_commits_are_ignored() {
    let commits: Vec<Vec<usize>> = (0..30).map(|n| vec![40 + n; 50]).collect();
    for page_size in [1024, 4096, 65_536] {
        let bytes = build_database(page_size, &commits, &[("meta", "confState", 10)]);
        assert_eq!(read_facts(&bytes).unwrap().revision, Revision(1501));
        assert_same_facts(&bytes, 1);
    }
}

#[test]
fn multi_page_rows_and_distant_last_keys_are_found() {
    for last in [0, 1, 5_000, 300_000, 2_000_000] {
        let bytes = build_database(4096, &[vec![10; 3000], vec![1_500_000, 3, last]], &[]);
        assert_same_facts(&bytes, 1);
    }
    // The values of the leaf come before its last key, so the key is beyond the first page of the leaf.
    let bytes = build_database(65_536, &[vec![1; 700]], &[]);
    assert_same_facts(&bytes, 1);
}

#[test]
fn empty_key_bucket_is_revision_one() {
    let bytes = build_database(4096, &[vec![]], &[("meta", "confState", 10)]);
    let (facts, _) = read_streamed(&bytes, 4096);
    assert_eq!(facts.unwrap().revision, Revision(1));
    assert_same_facts(&bytes, 1);
}

#[test]
fn meta_bucket_with_its_own_page_needs_one_more_pass() {
    let bytes = build_database(1024, &[vec![10; 2000]], &[("meta", "confState", 600)]);
    assert_same_facts(&bytes, 2);
}

#[test]
fn root_bucket_of_several_pages_needs_a_pass_for_each() {
    let names = [
        "alarm",
        "auth",
        "authRoles",
        "authUsers",
        "cluster",
        "lease",
        "members",
    ];
    let others: Vec<(&str, &str, usize)> = names.iter().map(|name| (*name, "k", 200)).collect();
    let bytes = build_database(1024, &[vec![10; 500]], &others);
    let expected = read_facts(&bytes).unwrap();
    let (facts, passes) = read_streamed(&bytes, 4096);
    assert_eq!(facts.unwrap(), expected);
    assert!(
        passes > 1,
        "the root is one page: the test does not cover its case"
    );
}

#[test]
fn damaged_page_gives_the_same_result_as_reading_the_file() {
    let sound = build_database(4096, &[vec![100; 5000]], &[]);
    for page in 0..sound.len() / 4096 {
        let mut bytes = sound.clone();
        bytes[page * 4096] ^= 0x40; // the id of the page, which is not checked for meta pages
        let (facts, _) = read_streamed(&bytes, 100_000);
        match (facts, read_facts(&bytes)) {
            (Ok(found), Ok(expected)) => assert_eq!(found, expected, "page {page}"),
            (Err(found), Err(expected)) => assert_eq!(found.to_string(), expected.to_string()),
            (found, expected) => panic!("page {page}: {found:?} but {expected:?}"),
        }
    }
}

#[test]
fn file_truncated_anywhere_is_an_error() {
    let sound = build_database(4096, &[vec![100; 500]], &[]);
    for len in (0..sound.len()).step_by(1000) {
        assert!(read_streamed(&sound[..len], 4096).0.is_err(), "{len} bytes");
    }
}

#[test]
fn garbage_after_valid_meta_pages_is_an_error_within_two_passes() {
    let mut bytes = build_database(4096, &[vec![100; 5000]], &[]);
    for (page, chunk) in bytes.chunks_mut(4096).enumerate().skip(2) {
        let header = [
            (page as u64).to_le_bytes().as_slice(),
            &[2, 0, 255, 255],
            &[255; 4],
        ]
        .concat();
        chunk[..16].copy_from_slice(&header);
        chunk[16..].fill(0xff);
    }
    let (facts, passes) = read_streamed(&bytes, 4096);
    assert!(facts.is_err() && passes <= 2, "{passes} passes");
}
