//! Lists previous data directories by their names.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

use super::swap_target::{PREVIOUS_SUFFIX, TIMESTAMP_FORMAT};

/// A data directory that was replaced and kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreviousDataDir {
    /// Its current path.
    pub path: PathBuf,
    /// Time of the replacement, from its name.
    pub replaced_at: Timestamp,
}

/// Lists the previous data directories of `target`, oldest first. Ignores other names.
///
/// # Errors
///
/// If the parent directory cannot be read. A missing one counts as empty.
pub fn list_previous_data_dirs(target: &Path) -> io::Result<Vec<PreviousDataDir>> {
    let (Some(parent), Some(name)) = (target.parent(), target.file_name()) else {
        return Ok(Vec::new());
    };
    let Some(prefix) = name.to_str().map(|name| format!("{name}{PREVIOUS_SUFFIX}")) else {
        return Ok(Vec::new());
    };
    let parent = if parent.as_os_str().is_empty() {
        Path::new(".")
    } else {
        parent
    };
    let entries = match fs::read_dir(parent) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        let replaced_at = name
            .to_str()
            .and_then(|name| parse_replaced_at(name, &prefix));
        if let Some(replaced_at) =
            replaced_at.filter(|_| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        {
            let path = entry.path();
            found.push(PreviousDataDir { path, replaced_at });
        }
    }
    found.sort_by(|one, other| (one.replaced_at, &one.path).cmp(&(other.replaced_at, &other.path)));
    Ok(found)
}

/// Parses the time in a name, which an optional number follows.
fn parse_replaced_at(name: &str, prefix: &str) -> Option<Timestamp> {
    let rest = name.strip_prefix(prefix)?;
    let (stamp, number) = match rest.split_once('-') {
        Some((stamp, number)) => (stamp, Some(number)),
        None => (rest, None),
    };
    if number.is_some_and(|number| number.parse::<u64>().is_err()) {
        return None;
    }
    let time = DateTime::strptime(TIMESTAMP_FORMAT, stamp).ok()?;
    Some(time.to_zoned(TimeZone::UTC).ok()?.timestamp())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn previous_data_directories_are_listed_oldest_first() {
        let root = tempfile::tempdir().unwrap();
        let names = [
            "data",
            "data.before-20260102T030405Z-1",
            "data.before-20260102T030405Z",
            "data.before-20251231T000000Z",
            "data.before-yesterday",
            "data.before-20260102T030405Z-x",
            "other.before-20260102T030405Z",
        ];
        for name in names {
            fs::create_dir(root.path().join(name)).unwrap();
        }
        fs::write(root.path().join("data.before-20260101T000000Z"), "a file").unwrap();
        let found = list_previous_data_dirs(&root.path().join("data")).unwrap();
        let names: Vec<_> = found
            .iter()
            .map(|one| one.path.file_name().unwrap())
            .collect();
        assert_eq!(
            names,
            [
                "data.before-20251231T000000Z",
                "data.before-20260102T030405Z",
                "data.before-20260102T030405Z-1",
            ]
        );
        assert_eq!(
            found[0].replaced_at,
            "2025-12-31T00:00:00Z".parse().unwrap()
        );
    }

    #[test]
    fn missing_parent_has_no_previous_data_directories() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(
            list_previous_data_dirs(&root.path().join("no/data")).unwrap(),
            []
        );
        assert_eq!(list_previous_data_dirs(Path::new("/")).unwrap(), []);
    }
}
