//! Names and exit codes of verdicts: an interface, which `docs/reference/exit-codes.md` documents.

use std::fmt;
use std::process::ExitCode;

use serde::{Deserialize, Serialize};

/// Declares the verdicts once: variant, name in JSON and exit code.
macro_rules! verdicts {
    ($($(#[$doc:meta])* $verdict:ident = $name:literal, $code:literal;)*) => {
        /// Result of a run of `mainstay-restorer`, reported by name and by exit code.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
        pub enum Verdict {
            $($(#[$doc])* #[serde(rename = $name)] $verdict,)*
        }

        impl Verdict {
            /// Every verdict, in the order of the documentation.
            pub const ALL: &[Self] = &[$(Self::$verdict,)*];

            /// Name in JSON output and documentation.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$verdict => $name,)*
                }
            }

            /// Exit code of the process.
            pub const fn code(self) -> u8 {
                match self {
                    $(Self::$verdict => $code,)*
                }
            }
        }
    };
}

verdicts! {
    /// The data directory is valid.
    Valid = "valid", 0;
    /// The backup is intact and reaches the target.
    Restorable = "restorable", 0;
    /// A data directory was restored.
    Restored = "restored", 0;
    /// A chain was compacted into a new full snapshot.
    Compacted = "compacted", 0;
    /// Backups were copied.
    Copied = "copied", 0;
    /// The requested information was printed.
    Shown = "shown", 0;
    /// Nothing had to be done.
    Unchanged = "unchanged", 0;
    /// The preparation succeeded: etcd may start.
    Ready = "ready", 0;
    /// An unexpected error occurred.
    Failed = "failed", 1;
    /// The command line is invalid.
    Usage = "usage", 2;
    /// The data directory is missing.
    Missing = "missing", 10;
    /// The data directory is corrupt.
    Corrupt = "corrupt", 11;
    /// The data directory is valid but older than the backup.
    BehindBackup = "behind-backup", 12;
    /// The volume belongs to another namespace or member.
    WrongVolume = "wrong-volume", 13;
    /// Another process uses the data directory, or a later writer fenced this one off.
    InUse = "in-use", 14;
    /// The data directory is valid, and the backup is newer and of another history.
    HistoryDiverged = "history-diverged", 15;
    /// The data directory is valid, and the backup is newer and of an unknown history.
    HistoryUnknown = "history-unknown", 16;
    /// The store holds no backup.
    NoBackup = "no-backup", 20;
    /// The backup does not contain the requested state.
    Incomplete = "incomplete", 21;
    /// An object of the backup is damaged.
    DamagedBackup = "damaged-backup", 22;
    /// The store cannot be reached or denies access.
    StoreUnavailable = "store-unavailable", 23;
    /// The disk is full or broken.
    Disk = "disk", 30;
    /// The data must be restored before etcd may start.
    RestoreRequired = "restore-required", 40;
    /// The controller or an operator must act before etcd may start.
    Waiting = "waiting", 41;
    /// etcd must not start on this volume.
    Refused = "refused", 42;
}

impl Verdict {
    /// Exit code as the value `main` returns.
    pub fn exit_code(self) -> ExitCode {
        ExitCode::from(self.code())
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Verdict of a termination message, which may come from another version of the restorer.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum ReportedVerdict {
    /// A verdict of this version.
    Known(Verdict),
    /// A name this version does not have. It stays readable: the reason beside it is shown to the operator.
    Unknown(String),
}

impl ReportedVerdict {
    /// Returns the verdict, or `None` for a name of another version.
    pub fn known(&self) -> Option<Verdict> {
        match self {
            Self::Known(verdict) => Some(*verdict),
            Self::Unknown(_) => None,
        }
    }

    /// Name as reported.
    pub fn name(&self) -> &str {
        match self {
            Self::Known(verdict) => verdict.name(),
            Self::Unknown(name) => name,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_and_exit_codes_are_stable() {
        let expected = [
            ("valid", 0),
            ("restorable", 0),
            ("restored", 0),
            ("compacted", 0),
            ("copied", 0),
            ("shown", 0),
            ("unchanged", 0),
            ("ready", 0),
            ("failed", 1),
            ("usage", 2),
            ("missing", 10),
            ("corrupt", 11),
            ("behind-backup", 12),
            ("wrong-volume", 13),
            ("in-use", 14),
            ("history-diverged", 15),
            ("history-unknown", 16),
            ("no-backup", 20),
            ("incomplete", 21),
            ("damaged-backup", 22),
            ("store-unavailable", 23),
            ("disk", 30),
            ("restore-required", 40),
            ("waiting", 41),
            ("refused", 42),
        ];
        let actual: Vec<(&str, u8)> = Verdict::ALL.iter().map(|v| (v.name(), v.code())).collect();
        assert_eq!(actual, expected);
    }

    #[test]
    fn every_failure_has_a_unique_exit_code() {
        let mut codes: Vec<u8> = Verdict::ALL
            .iter()
            .map(|v| v.code())
            .filter(|c| *c > 0)
            .collect();
        let count = codes.len();
        codes.sort_unstable();
        codes.dedup();
        assert_eq!(codes.len(), count);
    }

    #[test]
    fn every_verdict_is_read_as_written() {
        for verdict in Verdict::ALL {
            let text = serde_json::to_value(verdict).unwrap();
            assert_eq!(text, json!(verdict.name()));
            let read: ReportedVerdict = serde_json::from_value(text).unwrap();
            assert_eq!(read, ReportedVerdict::Known(*verdict));
        }
    }

    #[test]
    fn verdict_of_another_version_stays_readable() {
        let read: ReportedVerdict = serde_json::from_value(json!("postponed")).unwrap();
        assert_eq!((read.known(), read.name()), (None, "postponed"));
    }

    #[test]
    fn documentation_lists_every_verdict_with_its_exit_code() {
        let page = include_str!("../../../docs/reference/exit-codes.md");
        for verdict in Verdict::ALL {
            let row = format!("| `{}` | {} |", verdict.name(), verdict.code());
            assert!(
                page.contains(&row),
                "docs/reference/exit-codes.md has no row {row}"
            );
        }
    }
}
