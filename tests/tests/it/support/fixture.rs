//! The fixtures: buckets written by etcd-backup-restore, with the recorded state of the live etcd.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use base64_simd::STANDARD;
use mainstay_ids::{LeaseId, Revision};
use mainstay_testkit::{KeyValueHash, Kv};
use serde::Deserialize;

use super::{EtcdState, RestorerBackup};

/// The prefix of every fixture.
const PREFIX: &str = "etcd-main";

/// One folder of `tests/fixtures`.
#[derive(Debug)]
pub(crate) struct Fixture {
    folder: PathBuf,
    /// The newest state; the key space was never compacted.
    pub(crate) state: EtcdState,
    /// All leases, including those without keys.
    pub(crate) lease_ids: BTreeSet<LeaseId>,
}

#[derive(Deserialize)]
struct ExpectedState {
    revision: i64,
    hashkv: u32,
    lease_ids: Vec<i64>,
}

#[derive(Deserialize)]
struct ListedKey {
    key: String,
    value: Option<String>,
    create_revision: i64,
    mod_revision: i64,
    version: i64,
    lease: Option<i64>,
}

impl Fixture {
    pub(crate) fn open(name: &str) -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("fixtures")
            .join(name);
        let expected: ExpectedState = read_json(&folder.join("expected.json"));
        let mut keys: Vec<Kv> = read_json::<Vec<ListedKey>>(&folder.join("keys.json"))
            .into_iter()
            .map(ListedKey::decode)
            .collect();
        keys.sort_unstable_by(|one, other| one.key.cmp(&other.key));
        Self {
            state: EtcdState {
                revision: Revision(expected.revision),
                hash: KeyValueHash {
                    hash: expected.hashkv,
                    compact_revision: None,
                },
                keys,
            },
            lease_ids: expected
                .lease_ids
                .into_iter()
                .map(LeaseId::from_signed)
                .collect(),
            folder,
        }
    }

    /// The bucket; it must not be modified.
    pub(crate) fn backup(&self) -> RestorerBackup {
        RestorerBackup::local(&self.folder, PREFIX)
    }

    /// The objects and their keys in the bucket.
    pub(crate) fn objects(&self) -> Vec<(String, Vec<u8>)> {
        let folder = self.folder.join("bucket").join(PREFIX).join("v2");
        let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
        entries
            .map(|entry| {
                let name = entry.file_name().into_string().unwrap();
                (
                    format!("{PREFIX}/v2/{name}"),
                    fs::read(entry.path()).unwrap(),
                )
            })
            .collect()
    }
}

impl ListedKey {
    fn decode(self) -> Kv {
        let bytes = |text: &str| STANDARD.decode_to_vec(text).unwrap();
        Kv {
            key: bytes(&self.key),
            value: self.value.as_deref().map(bytes).unwrap_or_default(),
            create_revision: Revision(self.create_revision),
            mod_revision: Revision(self.mod_revision),
            version: self.version,
            lease: self.lease.map_or(LeaseId::NONE, LeaseId::from_signed),
        }
    }
}

fn read_json<T: serde::de::DeserializeOwned>(path: &Path) -> T {
    let text =
        fs::read(path).unwrap_or_else(|error| panic!("failed to read {}: {error}", path.display()));
    serde_json::from_slice(&text)
        .unwrap_or_else(|error| panic!("failed to read {}: {error}", path.display()))
}
