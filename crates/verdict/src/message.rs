//! Any termination message: one word, a sentence, what to do, and the report of the verb that left it.

use serde::Deserialize;
use serde_json::Value;

use crate::init::InitReport;

/// A termination message of `steward-restorer`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Message {
    /// One word for how it ended; `docs/exit-codes.md` lists them.
    pub verdict: String,
    /// Why, in words; absent when all is well.
    #[serde(default)]
    pub reason: Option<String>,
    /// What a person can do.
    #[serde(default)]
    pub next_step: Option<String>,
    #[serde(default)]
    init: Option<Value>,
}

/// Why a termination message says nothing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// It is not a message of `steward-restorer`: the end of a log, or what is left of a message that was cut.
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

    /// The report of `steward-restorer init`.
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
