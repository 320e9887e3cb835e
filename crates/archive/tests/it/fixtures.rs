//! Every bucket of etcd-backup-restore: its objects, that every hash matches, that the selected chain has no gap.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use mainstay_archive::catalogue::{Catalogue, ListedObject, SnapshotObject};
use mainstay_archive::chain::{
    ChainRequest, ChainTarget, choose, list_chains, restorable_revisions,
};
use mainstay_archive::compression::{Compression, EncoderOptions, StreamEncoder, open_decoder};
use mainstay_archive::delta::{DeltaReader, DeltaWriter, TRAILER_LEN, parse_time};
use mainstay_archive::layout::list_prefixes;
use mainstay_ids::{LeaseId, Revision};
use serde_json::Value;
use sha2::{Digest, Sha256};

const FOLDERS: [&str; 6] = [
    "gzip-3.5.30",
    "zlib-3.5.16",
    "lzw-3.5.30",
    "none-3.4.23",
    "gzip-3.6.14",
    "overlap-3.5.30",
];
const PREFIX: &str = "etcd-main";

struct UpstreamBucket {
    root: PathBuf,
    catalogue: Catalogue,
    expected: Value,
}

impl UpstreamBucket {
    fn open(folder: &str) -> Self {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let folder = here.join("../../tests/fixtures").join(folder);
        let root = folder.join("bucket");
        let mut listed = Vec::new();
        list_files(&root, &root, &mut listed);
        let expected = fs::read(folder.join("expected.json")).unwrap();
        Self {
            root,
            catalogue: Catalogue::from_listing(PREFIX, listed),
            expected: serde_json::from_slice(&expected).unwrap(),
        }
    }

    fn expected_revision(&self) -> Revision {
        Revision(self.expected["revision"].as_i64().unwrap())
    }

    fn read_keys(&self) -> Vec<Value> {
        let keys = fs::read(self.root.join("../keys.json")).unwrap();
        serde_json::from_slice(&keys).unwrap()
    }

    fn read_content(&self, object: &SnapshotObject) -> Vec<u8> {
        let file = fs::File::open(self.root.join(&object.key)).unwrap();
        let mut content = Vec::new();
        open_decoder(&object.name.compression, file, NonZeroUsize::MIN)
            .unwrap()
            .read_to_end(&mut content)
            .unwrap();
        content
    }
}

fn list_files(root: &Path, folder: &Path, listed: &mut Vec<ListedObject>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            list_files(root, &path, listed);
            continue;
        }
        let key = path
            .strip_prefix(root)
            .unwrap()
            .to_str()
            .unwrap()
            .to_owned();
        let size = path.metadata().unwrap().len();
        listed.push(ListedObject {
            key,
            size,
            modified: Timestamp::UNIX_EPOCH,
        });
    }
}

/// An owned event.
#[derive(Clone, Debug, PartialEq)]
struct PutEvent {
    value: Vec<u8>,
    create_revision: Revision,
    version: i64,
    lease: LeaseId,
}

#[test]
fn every_object_of_an_upstream_bucket_is_recognised() {
    for folder in FOLDERS {
        let bucket = UpstreamBucket::open(folder);
        let Catalogue {
            fulls,
            deltas,
            chunks,
            foreign,
        } = &bucket.catalogue;
        let expected = if folder == "overlap-3.5.30" {
            (2, 9)
        } else {
            (1, 5)
        };
        assert_eq!((fulls.len(), deltas.len()), expected, "{folder}");
        assert!(chunks.is_empty() && foreign.is_empty(), "{folder}");
        let listed = &list_prefixes(PREFIX)[0];
        for object in fulls.iter().chain(deltas) {
            assert_eq!(object.key, format!("{listed}{}", object.name));
        }
    }
}

#[test]
fn every_full_snapshot_is_a_database_followed_by_its_hash() {
    for folder in FOLDERS {
        let bucket = UpstreamBucket::open(folder);
        for full in &bucket.catalogue.fulls {
            let content = bucket.read_content(full);
            let (database, hash) = content.split_last_chunk::<TRAILER_LEN>().unwrap();
            assert_eq!(database.len() % 512, 0, "{}", full.key);
            assert_eq!(Sha256::digest(database).as_slice(), hash, "{}", full.key);
        }
    }
}

#[test]
fn every_delta_holds_the_range_in_its_name_and_a_valid_hash() {
    for folder in FOLDERS {
        let bucket = UpstreamBucket::open(folder);
        for delta in &bucket.catalogue.deltas {
            let content = bucket.read_content(delta);
            let mut reader = DeltaReader::new(content.as_slice());
            let mut next = delta.name.start;
            while let Some(event) = reader.next_event().unwrap() {
                assert!(event.mod_revision == next || event.mod_revision.next() == next);
                next = event.mod_revision.next();
                parse_time(event.time).unwrap();
            }
            assert_eq!(next, delta.name.last.next(), "{}", delta.key);
        }
    }
}

#[test]
fn rewritten_delta_is_byte_identical() {
    for folder in FOLDERS {
        let bucket = UpstreamBucket::open(folder);
        for delta in &bucket.catalogue.deltas {
            let content = bucket.read_content(delta);
            let mut reader = DeltaReader::new(content.as_slice());
            let mut writer = DeltaWriter::new(Vec::new());
            while let Some(event) = reader.next_event().unwrap() {
                writer.write_event(&event).unwrap();
            }
            assert!(writer.finish().unwrap() == content, "{}", delta.key);
        }
    }
}

#[test]
fn chosen_chain_has_every_revision_up_to_the_expected_one() {
    for folder in FOLDERS {
        let bucket = UpstreamBucket::open(folder);
        let chain = choose(&bucket.catalogue, &ChainRequest::new(ChainTarget::Latest)).unwrap();
        assert_eq!(
            (chain.last_revision, chain.gap_after_base),
            (bucket.expected_revision(), None),
            "{folder}"
        );
        let mut reached = chain.base.name.last;
        for link in &chain.deltas {
            let content = bucket.read_content(&link.object);
            let mut reader = DeltaReader::new(content.as_slice());
            while let Some(event) = reader.next_event().unwrap() {
                assert!(
                    event.mod_revision <= reached.next(),
                    "{folder} misses {reached}+1"
                );
                reached = reached.max(event.mod_revision);
            }
        }
        assert_eq!(reached, bucket.expected_revision(), "{folder}");
        let ranges = restorable_revisions(&bucket.catalogue).0;
        assert_eq!(
            ranges,
            [(
                bucket.catalogue.fulls[0].name.last,
                bucket.expected_revision()
            )]
        );
        assert!(
            list_chains(&bucket.catalogue)
                .iter()
                .all(|c| c.gaps.is_empty()),
            "{folder}"
        );
    }
}

#[test]
fn overlapping_writers_leave_a_chain_of_the_fewest_deltas() {
    let bucket = UpstreamBucket::open("overlap-3.5.30");
    let chain = choose(&bucket.catalogue, &ChainRequest::new(ChainTarget::Latest)).unwrap();
    assert_eq!(chain.last_revision, Revision(2412));
    assert_eq!(chain.base.name.last, Revision(744));
    let starts: Vec<i64> = chain
        .deltas
        .iter()
        .map(|link| link.object.name.start.0)
        .collect();
    assert_eq!(starts, [745, 1108, 1542, 1978]);
    let alternates: Vec<usize> = chain
        .deltas
        .iter()
        .map(|link| link.alternates.len())
        .collect();
    assert_eq!(alternates, [1, 1, 0, 1]);
}

#[test]
fn keys_changed_by_deltas_match_the_live_etcd() {
    for folder in FOLDERS {
        let bucket = UpstreamBucket::open(folder);
        let chain = choose(&bucket.catalogue, &ChainRequest::new(ChainTarget::Latest)).unwrap();
        let mut puts: BTreeMap<(Vec<u8>, Revision), PutEvent> = BTreeMap::new();
        for link in &chain.deltas {
            let content = bucket.read_content(&link.object);
            let mut reader = DeltaReader::new(content.as_slice());
            while let Some(event) = reader.next_event().unwrap() {
                let put = PutEvent {
                    value: event.value.to_vec(),
                    create_revision: event.create_revision,
                    version: event.version,
                    lease: event.lease,
                };
                puts.insert((event.key.to_vec(), event.mod_revision), put);
            }
        }
        let mut compared = 0;
        for live in bucket.read_keys() {
            let text = |field: &str| live[field].as_str().unwrap_or_default().to_owned();
            let number = |field: &str| live[field].as_i64().unwrap_or_default();
            let bytes = |field: &str| base64_simd::STANDARD.decode_to_vec(text(field)).unwrap();
            let revision = Revision(number("mod_revision"));
            if revision <= chain.base.name.last {
                continue;
            }
            let expected = PutEvent {
                value: bytes("value"),
                create_revision: Revision(number("create_revision")),
                version: number("version"),
                lease: LeaseId::from_signed(number("lease")),
            };
            assert_eq!(
                puts.get(&(bytes("key"), revision)),
                Some(&expected),
                "{folder} {revision}"
            );
            compared += 1;
        }
        assert!(compared > 300, "{folder}: only {compared} keys compared");
    }
}

#[test]
fn real_objects_round_trip_through_every_compression() {
    let bucket = UpstreamBucket::open("none-3.4.23");
    let options = EncoderOptions {
        threads: NonZeroUsize::new(2).unwrap(),
        ..Default::default()
    };
    for object in bucket
        .catalogue
        .fulls
        .iter()
        .chain(&bucket.catalogue.deltas)
    {
        let content = bucket.read_content(object);
        for compression in [
            Compression::Gzip,
            Compression::Zlib,
            Compression::Lzw,
            Compression::Zstd,
        ] {
            let mut encoder = StreamEncoder::new(&compression, Vec::new(), options).unwrap();
            std::io::copy(&mut content.as_slice(), &mut encoder).unwrap();
            let packed = std::io::Cursor::new(encoder.finish().unwrap());
            let mut back = Vec::new();
            open_decoder(&compression, packed, options.threads)
                .unwrap()
                .read_to_end(&mut back)
                .unwrap();
            assert!(back == content, "{} as {compression}", object.key);
        }
    }
}

/// All events of a stored delta, if its hash matches.
fn read_verified(compression: &Compression, stored: Vec<u8>) -> Option<Vec<String>> {
    let stream = open_decoder(compression, std::io::Cursor::new(stored), NonZeroUsize::MIN).ok()?;
    let mut reader = DeltaReader::new(stream);
    let mut events = Vec::new();
    while let Some(event) = reader.next_event().ok()? {
        events.push(format!("{event:?}"));
    }
    Some(events)
}

#[test]
fn damaged_upstream_object_never_yields_different_events() {
    for folder in FOLDERS {
        let bucket = UpstreamBucket::open(folder);
        let delta = bucket
            .catalogue
            .deltas
            .iter()
            .min_by_key(|d| d.size)
            .unwrap();
        let stored = fs::read(bucket.root.join(&delta.key)).unwrap();
        let compression = &delta.name.compression;
        let events = read_verified(compression, stored.clone());
        assert!(events.is_some());
        let step = (stored.len() / 150).max(1);
        for position in (0..stored.len()).step_by(step) {
            let cut = stored[..position].to_vec();
            assert_eq!(
                read_verified(compression, cut),
                None,
                "{folder} cut to {position}"
            );
            let mut flipped = stored.clone();
            flipped[position] ^= 0x10;
            // A flip may encode the same content differently: another copy of a repeated text, for example.
            let found = read_verified(compression, flipped);
            assert!(
                found.is_none() || found == events,
                "{folder} flip {position}"
            );
        }
    }
}
