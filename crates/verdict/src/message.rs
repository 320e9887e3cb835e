//! Any termination message: one word, a sentence, what to do, and the report of the verb that left it.

use serde::Deserialize;
use serde_json::Value;

use crate::init::InitReport;

/// A termination message of `mainstay-restorer`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Message {
    /// One word for how it ended; `docs/reference/exit-codes.md` lists them.
    pub verdict: String,
    /// Why, in words; absent when all is well.
    #[serde(default)]
    pub reason: Option<String>,
    /// What a person can do.
    #[serde(default)]
    pub next_step: Option<String>,
    /// The epoch of the writer that a volume remembers, when that is not below the one this writer was sent under.
    #[serde(default, deserialize_with = "lenient")]
    pub overtaken_by: Option<u64>,
    /// What was done, as far as the verb tells.
    #[serde(flatten)]
    pub done: Done,
    #[serde(default)]
    init: Option<Value>,
}

/// What a restore, a compaction, a copy or a verification tells of itself. Each tells a part; what is absent was not told,
/// and what has another shape than here was told by another version and is left out.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Done {
    /// The newest revision of the state that was restored, written or checked.
    #[serde(default, deserialize_with = "lenient")]
    pub revision: Option<i64>,
    /// The revision etcd begins with: higher when revisions were raised.
    #[serde(default, deserialize_with = "lenient")]
    pub start_revision: Option<i64>,
    /// The revision a backup reaches, of a dry run.
    #[serde(default, deserialize_with = "lenient")]
    pub reaches: Option<i64>,
    /// The identity of the restored cluster, as etcd prints it.
    #[serde(default, deserialize_with = "lenient")]
    pub cluster_id: Option<String>,
    /// The full snapshot that was read.
    #[serde(default, deserialize_with = "lenient")]
    pub base: Option<String>,
    /// The full snapshot that was written.
    #[serde(default, deserialize_with = "lenient")]
    pub snapshot: Option<String>,
    /// The data directory that was used instead of the backup.
    #[serde(default, deserialize_with = "lenient")]
    pub from_data_dir: Option<String>,
    /// What came of the comparison with a live etcd: `equal <HashKV>` or `compacted <HashKV>`.
    #[serde(default, deserialize_with = "lenient")]
    pub hash_kv: Option<String>,
    /// How long it took.
    #[serde(default, deserialize_with = "lenient")]
    pub seconds: Option<f64>,
}

/// A detail of another shape does not make the verdict unreadable.
fn lenient<'de, D, T>(from: D) -> Result<Option<T>, D::Error>
where
    D: serde::Deserializer<'de>,
    T: serde::de::DeserializeOwned,
{
    let value = Option::<Value>::deserialize(from)?;
    Ok(value.and_then(|value| serde_json::from_value(value).ok()))
}

/// Why a termination message says nothing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// It is not a message of `mainstay-restorer`: the end of a log, or what is left of a message that was cut.
    #[error("the termination message is no verdict: {beginning:?}")]
    Foreign {
        /// How it begins.
        beginning: String,
        /// What the parser said.
        source: serde_json::Error,
    },
    /// Another verb left it.
    #[error("the termination message {verdict:?} holds no report of init")]
    NoReport {
        /// Its word.
        verdict: String,
    },
    /// A newer program left it.
    #[error(
        "the report of init has version {version}, and {} is the newest one known here",
        InitReport::VERSION
    )]
    Newer {
        /// Its version.
        version: u64,
    },
    /// Its version is known and its content is not.
    #[error("the report of init cannot be read")]
    Report {
        /// What the parser said.
        source: serde_json::Error,
    },
}

/// How much of a foreign message an error shows.
const BEGINNING: usize = 80;

impl Message {
    /// Reads a termination message.
    pub fn read(text: &str) -> Result<Self, ReadError> {
        serde_json::from_str(text).map_err(|source| ReadError::Foreign {
            beginning: text.chars().take(BEGINNING).collect(),
            source,
        })
    }

    /// The report of `mainstay-restorer init`.
    pub fn init(&self) -> Result<InitReport, ReadError> {
        let Some(report) = &self.init else {
            return Err(ReadError::NoReport {
                verdict: self.verdict.clone(),
            });
        };
        match report.get("version").and_then(Value::as_u64) {
            Some(version) if version > u64::from(InitReport::VERSION) => {
                Err(ReadError::Newer { version })
            }
            _ => InitReport::deserialize(report).map_err(|source| ReadError::Report { source }),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{Backup, Cluster, Data, DataState, Decision, RestoreCause};

    fn report() -> InitReport {
        InitReport {
            version: InitReport::VERSION,
            member: "etcd-main-0".into(),
            decision: Decision::RestoreRequired(RestoreCause::DataMissing),
            data: Data::of(DataState::Missing),
            cluster: Cluster::Unreachable,
            backup: Backup::Present {
                newest_revision: 4711,
            },
        }
    }

    #[test]
    fn what_init_says_is_what_is_read() {
        let text = json!({
            "verdict": "restore-required",
            "reason": "there is no data",
            "init": report(),
        });
        let message = Message::read(&text.to_string()).unwrap();
        assert_eq!(message.verdict, "restore-required");
        assert_eq!(message.init().unwrap(), report());
    }

    #[test]
    fn the_words_on_the_wire_are_an_interface() {
        let text = serde_json::to_value(report()).unwrap();
        let expected = json!({
            "version": 1,
            "member": "etcd-main-0",
            "decision": "restoreRequired",
            "cause": "dataMissing",
            "data": {"state": "missing"},
            "cluster": {"state": "unreachable"},
            "backup": {"state": "present", "newestRevision": 4711},
        });
        assert_eq!(text, expected);
    }

    #[test]
    fn a_newer_report_is_not_guessed_at() {
        let text = json!({"verdict": "ready", "init": {"version": 2, "decision": "dance"}});
        let message = Message::read(&text.to_string()).unwrap();
        let error = message.init().unwrap_err();
        assert!(matches!(error, ReadError::Newer { version: 2 }), "{error}");
    }

    #[test]
    fn fields_of_later_versions_are_ignored() {
        let mut value = serde_json::to_value(report()).unwrap();
        value["data"]["colour"] = "green".into();
        value["mood"] = "good".into();
        let text = json!({"verdict": "ready", "init": value, "more": 1}).to_string();
        assert_eq!(Message::read(&text).unwrap().init().unwrap(), report());
    }

    #[test]
    fn what_a_restore_did_is_read_and_details_of_another_shape_are_left_out() {
        let text = json!({
            "verdict": "restored", "revision": 41, "startRevision": 1_000_000_041_i64,
            "clusterId": "cdf818194e3a8c32", "base": "Full-00000000-00000041-1", "seconds": 1.5,
            "snapshot": {"name": "of a later version"},
        });
        let done = Message::read(&text.to_string()).unwrap().done;
        assert_eq!(
            (done.revision, done.start_revision),
            (Some(41), Some(1_000_000_041))
        );
        assert_eq!(done.cluster_id.as_deref(), Some("cdf818194e3a8c32"));
        assert_eq!((done.seconds, done.snapshot), (Some(1.5), None));
    }

    #[test]
    fn by_whom_a_writer_was_overtaken_is_read_where_it_is_told() {
        let read = |text: &str| Message::read(text).unwrap().overtaken_by;
        let told = r#"{"verdict": "in-use", "reason": "no", "overtakenBy": 1800000000}"#;
        assert_eq!(read(told), Some(1_800_000_000));
        for silent in [
            r#"{"verdict": "in-use"}"#,
            r#"{"verdict": "in-use", "overtakenBy": null}"#,
            r#"{"verdict": "in-use", "overtakenBy": -1}"#,
            r#"{"verdict": "in-use", "overtakenBy": "somebody"}"#,
        ] {
            assert_eq!(read(silent), None, "{silent}");
        }
    }

    #[test]
    fn the_end_of_a_log_and_other_verbs_are_told_apart() {
        let foreign = Message::read("panic: out of memory").unwrap_err();
        assert!(matches!(foreign, ReadError::Foreign { .. }), "{foreign}");
        let other = Message::read(r#"{"verdict": "restored", "revision": 7}"#).unwrap();
        let error = other.init().unwrap_err();
        assert!(matches!(error, ReadError::NoReport { .. }), "{error}");
        let broken = json!({"verdict": "ready", "init": {"version": 1}}).to_string();
        let error = Message::read(&broken).unwrap().init().unwrap_err();
        assert!(matches!(error, ReadError::Report { .. }), "{error}");
    }
}
