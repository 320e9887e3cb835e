//! Formats the report as text.

use std::fmt;

use mainstay_telemetry::format_bytes;

use super::open::HashState;
use super::report::{InspectReport, LargeKeyReport, MemberReport, PrefixReport};
use crate::outcome::format_table;

/// A line of the first table: label and value.
type LabeledValue = (&'static str, String);

impl fmt::Display for InspectReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sections = [
            self.position_lines(),
            self.size_lines(),
            self.cluster_lines(),
        ];
        let lines = sections.into_iter().flatten();
        let rows: Vec<Vec<String>> = lines
            .map(|(what, value)| vec![what.into(), value])
            .collect();
        writeln!(f, "{}", format_table(&rows))?;
        f.write_str(&format_table(&self.prefix_table()))?;
        if self.keys.other_prefixes > 0 {
            writeln!(
                f,
                "and {} prefixes with fewer bytes",
                self.keys.other_prefixes
            )?;
        }
        writeln!(f)?;
        let mut rows = vec![vec!["LARGEST KEYS".to_owned(), "BYTES".to_owned()]];
        let large = |large: &LargeKeyReport| vec![large.key.clone(), format_bytes(large.bytes)];
        rows.extend(self.keys.largest.iter().map(large));
        f.write_str(&format_table(&rows))
    }
}

fn format_or_none(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "none".to_owned(), |value| value.to_string())
}

impl InspectReport {
    /// Lines about revisions, hashes and versions.
    fn position_lines(&self) -> Vec<LabeledValue> {
        let hash = format!(
            "{} at revision {}, compact revision {}",
            self.hash_kv.hash, self.hash_kv.revision, self.hash_kv.compact_revision
        );
        let status = format!(
            "{}, {} keys, {}",
            self.status.hash_hex,
            self.status.total_key,
            format_bytes(self.status.total_size)
        );
        let mut lines = vec![
            ("source", self.source.clone()),
            ("revision", self.revision.to_string()),
            ("compacted at", format_or_none(self.compact_revision)),
            ("HashKV", hash),
            ("snapshot status", status),
            ("consistent index", format_or_none(self.consistent_index)),
            ("term", format_or_none(self.term)),
            (
                "storage version",
                format_or_none(self.storage_version.as_ref()),
            ),
            (
                "cluster version",
                format_or_none(self.cluster_version.as_ref()),
            ),
        ];
        if self.snapshot_hash == Some(HashState::Absent) {
            lines.push((
                "hash",
                "none: the file was copied from a data directory".into(),
            ));
        }
        lines
    }

    /// Lines about the sizes of database, keys and leases.
    fn size_lines(&self) -> Vec<LabeledValue> {
        let database = format!(
            "{}, {} in use, {} of {} pages free",
            format_bytes(self.database.file_bytes),
            format_bytes(self.database.bytes_in_use),
            self.database.pages_free,
            self.database.pages
        );
        let keys = format!(
            "{} live, {}, {} rows of history",
            self.keys.live,
            format_bytes(self.keys.bytes),
            self.keys.rows
        );
        let leases = format!(
            "{}, {} keys attached",
            self.leases.count, self.leases.attached_keys
        );
        let mut lines = vec![("database", database), ("keys", keys), ("leases", leases)];
        if self.leases.keys_on_unknown_leases > 0 {
            let lost = self.leases.keys_on_unknown_leases;
            lines.push((
                "",
                format!("{lost} keys never expire: their lease does not exist"),
            ));
        }
        lines
    }

    /// Lines about authentication, members and alarms.
    fn cluster_lines(&self) -> Vec<LabeledValue> {
        let switch = if self.auth.is_enabled { "on" } else { "off" };
        let auth = format!(
            "{switch}, {} users, {} roles",
            self.auth.users, self.auth.roles
        );
        let members = self
            .members
            .iter()
            .map(|member| ("member", member.to_string()));
        let alarms = self.alarms.iter();
        let alarms = alarms.map(|alarm| ("alarm", format!("{} of {}", alarm.kind, alarm.member)));
        std::iter::once(("authentication", auth))
            .chain(members)
            .chain(alarms)
            .collect()
    }

    fn prefix_table(&self) -> Vec<Vec<String>> {
        let mut rows = vec![["PREFIX", "KEYS", "BYTES"].map(str::to_owned).to_vec()];
        for PrefixReport {
            prefix,
            keys,
            bytes,
        } in &self.keys.prefixes
        {
            let prefix = if prefix.is_empty() { "(none)" } else { prefix };
            rows.push(vec![
                prefix.to_owned(),
                keys.to_string(),
                format_bytes(*bytes),
            ]);
        }
        rows
    }
}

impl fmt::Display for MemberReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.id, self.name, self.peer_urls.join(","))?;
        f.write_str(if self.is_learner { " (learner)" } else { "" })
    }
}
