//! Buckets in directories, and the expected values reported by the live etcd.

use std::fs::File;
use std::io::{self, Read};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use mainstay_archive::catalogue::{Catalogue, ListedObject, SnapshotObject};
use mainstay_archive::chain::{ChainRequest, ChainTarget, choose};
use mainstay_bbolt::{Database, check};
use mainstay_ids::{LeaseId, Revision};
use mainstay_mvcc::{DatabaseStatus, HistoryChecker, schema};
use mainstay_restorer::rebuild::{
    DatabaseFile, Durability, HashCheck, Meter, ObjectSource, RebuildError, RebuildOptions,
    RebuildSummary, StopPoint, rebuild,
};

pub(crate) const FIXTURES: [&str; 6] = [
    "gzip-3.5.30",
    "gzip-3.6.14",
    "lzw-3.5.30",
    "none-3.4.23",
    "overlap-3.5.30",
    "zlib-3.5.16",
];

pub(crate) fn fixture_path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../tests/fixtures")
        .join(name)
}

/// Values reported by the live etcd when the bucket was written.
pub(crate) struct FixtureState {
    pub(crate) revision: Revision,
    pub(crate) hash: u32,
    pub(crate) keys: u64,
    pub(crate) leased_keys: u64,
}

impl FixtureState {
    pub(crate) fn load(name: &str) -> Self {
        let text = std::fs::read(fixture_path(name).join("expected.json")).unwrap();
        let json: serde_json::Value = serde_json::from_slice(&text).unwrap();
        Self {
            revision: Revision(json["revision"].as_i64().unwrap()),
            hash: u32::try_from(json["hashkv"].as_u64().unwrap()).unwrap(),
            keys: json["keys"].as_u64().unwrap(),
            leased_keys: json["leased_keys"].as_u64().unwrap(),
        }
    }
}

/// A bucket in a directory.
pub(crate) struct FixtureBucket {
    root: PathBuf,
}

impl FixtureBucket {
    pub(crate) fn open_fixture(name: &str) -> Self {
        Self {
            root: fixture_path(name).join("bucket"),
        }
    }

    pub(crate) fn catalogue(&self) -> Catalogue {
        let folder = self.root.join("etcd-main/v2");
        let listed = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| {
                let entry = entry.unwrap();
                ListedObject {
                    key: format!("etcd-main/v2/{}", entry.file_name().to_str().unwrap()),
                    size: entry.metadata().unwrap().len(),
                    modified: jiff::Timestamp::UNIX_EPOCH,
                }
            })
            .collect();
        Catalogue::from_listing("etcd-main", listed)
    }
}

impl ObjectSource for FixtureBucket {
    fn open(&self, object: &SnapshotObject) -> io::Result<Box<dyn Read + Send>> {
        Ok(Box::new(File::open(self.root.join(&object.key))?))
    }
}

/// A database rebuilt into a temporary file.
pub(crate) struct RestoredDatabase {
    pub(crate) rebuilt: RebuildSummary,
    pub(crate) database: Database<File>,
    _directory: tempfile::TempDir,
}

pub(crate) fn restore_database(
    bucket: &FixtureBucket,
    target: ChainTarget,
) -> Result<RestoredDatabase, RebuildError> {
    let chain = choose(&bucket.catalogue(), &ChainRequest::new(target)).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("db");
    let file = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&path)
        .unwrap();
    let options = RebuildOptions {
        stop: match target {
            ChainTarget::Latest => StopPoint::End,
            ChainTarget::Revision(revision) => StopPoint::Revision(revision),
            ChainTarget::Time(time) => StopPoint::Time(time),
        },
        hash_check: HashCheck::Required,
        default_lease_seconds: 60,
        threads: NonZeroUsize::new(2).unwrap(),
    };
    let target_file = DatabaseFile {
        file: &file,
        durability: Durability::Scratch,
    };
    let settings = (&options, &Meter::default());
    let rebuilt = rebuild(&chain, bucket, target_file, directory.path(), settings)?;
    let database = Database::open(file).unwrap();
    Ok(RestoredDatabase {
        rebuilt,
        database,
        _directory: directory,
    })
}

impl RestoredDatabase {
    /// Checks every page and row; returns the number of live keys and of keys with a lease.
    pub(crate) fn verify(&self) -> (u64, u64) {
        let facts = DatabaseStatus::read(&self.database).unwrap();
        let mut history = HistoryChecker::new(&facts);
        check(&self.database, |bucket, item| {
            if bucket == schema::KEY {
                history.check_row(item.key, item.value).unwrap();
            }
            Ok::<_, mainstay_bbolt::BboltError>(())
        })
        .unwrap();
        let leases = mainstay_mvcc::read_small_bucket(&self.database, schema::LEASE).unwrap();
        let has_lease = |id: LeaseId| {
            leases
                .iter()
                .any(|(key, _)| key.as_slice() == id.0.to_be_bytes())
        };
        let summary = history.finish(has_lease).unwrap();
        assert_eq!(summary.warnings, []);
        (summary.live_keys, summary.leased_keys)
    }
}
