//! The termination message of any verb: verdict, reason, next step, and the report of the verb.

use serde::Deserialize;
use serde_json::Value;

use crate::init::InitReport;
use crate::verdict::ReportedVerdict;

/// A termination message of `mainstay-restorer`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TerminationMessage {
    /// Code of the result; `docs/reference/exit-codes.md` lists them.
    pub verdict: ReportedVerdict,
    /// Reason of a failure; `None` on success.
    #[serde(default)]
    pub reason: Option<String>,
    /// What an operator can do about a failure; `None` on success or if nothing helps.
    #[serde(default)]
    pub next_step: Option<String>,
    /// Epoch recorded on the volume by the writer that fenced this one off. It is at least the epoch of this writer.
    /// `None` if this writer was not fenced off.
    #[serde(default, deserialize_with = "lenient")]
    pub overtaken_by: Option<u64>,
    /// Results that the verb reports.
    #[serde(flatten)]
    pub details: CommandDetails,
    #[serde(default)]
    init: Option<Value>,
}

/// Results of a restore, compaction, copy or verification.
///
/// Each verb reports some of the fields; the others are `None`. A field of an unexpected type comes from another version
/// and is `None` as well.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CommandDetails {
    /// Newest revision of the state that was restored, written or verified.
    #[serde(default, deserialize_with = "lenient")]
    pub revision: Option<i64>,
    /// Revision etcd starts with: higher than `revision` after `--bump-revision`.
    #[serde(default, deserialize_with = "lenient")]
    pub start_revision: Option<i64>,
    /// Revision the backup reaches, as reported by a dry run.
    #[serde(default, deserialize_with = "lenient")]
    pub reaches: Option<i64>,
    /// Id of the restored cluster in hexadecimal, as etcd prints it.
    #[serde(default, deserialize_with = "lenient")]
    pub cluster_id: Option<String>,
    /// Name of the full snapshot that was read.
    #[serde(default, deserialize_with = "lenient")]
    pub base: Option<String>,
    /// Name of the full snapshot that was written.
    #[serde(default, deserialize_with = "lenient")]
    pub snapshot: Option<String>,
    /// Data directory that was used instead of the backup.
    #[serde(default, deserialize_with = "lenient")]
    pub from_data_dir: Option<String>,
    /// Result of the comparison with a live etcd: `equal <HashKV>` or `compacted <HashKV>`.
    #[serde(default, deserialize_with = "lenient")]
    pub hash_kv: Option<String>,
    /// Duration in seconds.
    #[serde(default, deserialize_with = "lenient")]
    pub seconds: Option<f64>,
}

/// Reads a value of an unexpected type as `None`: the verdict must stay readable if a detail is not.
fn lenient<'de, D, T>(from: D) -> Result<Option<T>, D::Error>
where
    D: serde::Deserializer<'de>,
    T: serde::de::DeserializeOwned,
{
    let value = Option::<Value>::deserialize(from)?;
    Ok(value.and_then(|value| serde_json::from_value(value).ok()))
}

/// Error of parsing a termination message.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TerminationMessageError {
    /// The text was not written by `mainstay-restorer`: the end of a log, or a truncated message.
    #[error("termination message is not a verdict: {beginning:?}")]
    Invalid {
        /// First characters of the message.
        beginning: String,
        /// Error of the JSON parser.
        source: serde_json::Error,
    },
    /// The message was written by another verb than `init`.
    #[error("termination message with verdict {verdict:?} contains no init report")]
    NoInitReport {
        /// Verdict of the message.
        verdict: String,
    },
    /// The message was written by a newer restorer.
    #[error(
        "init report has version {version}, but the newest supported version is {}",
        InitReport::VERSION
    )]
    UnsupportedVersion {
        /// Version of the report.
        version: u64,
    },
    /// The version is supported, but the content is invalid.
    #[error("failed to parse the init report")]
    InvalidInitReport {
        /// Error of the JSON parser.
        source: serde_json::Error,
    },
}

/// Characters of a foreign message that an error quotes.
const MAX_EXCERPT_CHARS: usize = 80;

impl TerminationMessage {
    /// Parses a termination message.
    pub fn parse(text: &str) -> Result<Self, TerminationMessageError> {
        serde_json::from_str(text).map_err(|source| TerminationMessageError::Invalid {
            beginning: text.chars().take(MAX_EXCERPT_CHARS).collect(),
            source,
        })
    }

    /// Returns the report of `mainstay-restorer init`, or an error for messages of other verbs and newer versions.
    pub fn init_report(&self) -> Result<InitReport, TerminationMessageError> {
        let Some(report) = &self.init else {
            return Err(TerminationMessageError::NoInitReport {
                verdict: self.verdict.name().to_owned(),
            });
        };
        // The version is checked before the rest is parsed: a newer report may have another shape.
        match report.get("version").and_then(Value::as_u64) {
            Some(version) if version > u64::from(InitReport::VERSION) => {
                Err(TerminationMessageError::UnsupportedVersion { version })
            }
            _ => InitReport::deserialize(report)
                .map_err(|source| TerminationMessageError::InvalidInitReport { source }),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{
        BackupSummary, ClusterSummary, DataDirSummary, DataState, InitDecision, RestoreCause,
        Verdict,
    };

    fn sample_report() -> InitReport {
        InitReport {
            version: InitReport::VERSION,
            member: "etcd-main-0".into(),
            decision: InitDecision::RestoreRequired(RestoreCause::DataMissing),
            data: DataDirSummary::from_state(DataState::Missing),
            cluster: ClusterSummary::Unreachable,
            backup: BackupSummary::Present {
                newest_revision: 4711,
            },
        }
    }

    #[test]
    fn init_report_is_parsed_as_written() {
        let text = json!({
            "verdict": "restore-required",
            "reason": "data of member etcd-main-0 is missing",
            "init": sample_report(),
        });
        let message = TerminationMessage::parse(&text.to_string()).unwrap();
        assert_eq!(message.verdict.known(), Some(Verdict::RestoreRequired));
        assert_eq!(message.init_report().unwrap(), sample_report());
    }

    #[test]
    fn init_report_json_is_stable() {
        let text = serde_json::to_value(sample_report()).unwrap();
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
    fn report_of_a_newer_version_is_refused() {
        let text = json!({"verdict": "ready", "init": {"version": 2, "decision": "dance"}});
        let message = TerminationMessage::parse(&text.to_string()).unwrap();
        let error = message.init_report().unwrap_err();
        assert!(
            matches!(
                error,
                TerminationMessageError::UnsupportedVersion { version: 2 }
            ),
            "{error}"
        );
    }

    #[test]
    fn fields_of_later_versions_are_ignored() {
        let mut value = serde_json::to_value(sample_report()).unwrap();
        value["data"]["colour"] = "green".into();
        value["mood"] = "good".into();
        let text = json!({"verdict": "ready", "init": value, "more": 1}).to_string();
        assert_eq!(
            TerminationMessage::parse(&text)
                .unwrap()
                .init_report()
                .unwrap(),
            sample_report()
        );
    }

    #[test]
    fn restore_details_are_parsed_and_unknown_formats_are_ignored() {
        let text = json!({
            "verdict": "restored", "revision": 41, "startRevision": 1_000_000_041_i64,
            "clusterId": "cdf818194e3a8c32", "base": "Full-00000000-00000041-1", "seconds": 1.5,
            "snapshot": {"name": "of a later version"},
        });
        let done = TerminationMessage::parse(&text.to_string())
            .unwrap()
            .details;
        assert_eq!(
            (done.revision, done.start_revision),
            (Some(41), Some(1_000_000_041))
        );
        assert_eq!(done.cluster_id.as_deref(), Some("cdf818194e3a8c32"));
        assert_eq!((done.seconds, done.snapshot), (Some(1.5), None));
    }

    #[test]
    fn superseding_epoch_is_parsed_where_present() {
        let read = |text: &str| TerminationMessage::parse(text).unwrap().overtaken_by;
        let reported = r#"{"verdict": "in-use", "reason": "no", "overtakenBy": 1800000000}"#;
        assert_eq!(read(reported), Some(1_800_000_000));
        for absent in [
            r#"{"verdict": "in-use"}"#,
            r#"{"verdict": "in-use", "overtakenBy": null}"#,
            r#"{"verdict": "in-use", "overtakenBy": -1}"#,
            r#"{"verdict": "in-use", "overtakenBy": "somebody"}"#,
        ] {
            assert_eq!(read(absent), None, "{absent}");
        }
    }

    #[test]
    fn log_text_and_reports_of_other_commands_are_distinguished() {
        let foreign = TerminationMessage::parse("panic: out of memory").unwrap_err();
        assert!(
            matches!(foreign, TerminationMessageError::Invalid { .. }),
            "{foreign}"
        );
        let other = TerminationMessage::parse(r#"{"verdict": "restored", "revision": 7}"#).unwrap();
        let error = other.init_report().unwrap_err();
        assert!(
            matches!(error, TerminationMessageError::NoInitReport { .. }),
            "{error}"
        );
        let broken = json!({"verdict": "ready", "init": {"version": 1}}).to_string();
        let error = TerminationMessage::parse(&broken)
            .unwrap()
            .init_report()
            .unwrap_err();
        assert!(
            matches!(error, TerminationMessageError::InvalidInitReport { .. }),
            "{error}"
        );
    }
}
