//! Records for each disaster of the test suite how long the recovery took.
//!
//! ```text
//! test ─ Timeline ─► <cache>/recovery/<case>.json ─┐
//! test ─ Timeline ─► …                             ├─ report ─► docs/reference/recovery.md
//! ```

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use mainstay_testkit::paths::cache_dir;
use serde::{Deserialize, Serialize};

use super::home::HomeError;

/// The directory of the timelines of this machine.
pub fn timelines_dir() -> Result<PathBuf, HomeError> {
    let cache = cache_dir().ok_or(HomeError::NotConfigured)?;
    Ok(cache.join("recovery"))
}

/// A timeline or the page could not be read or written.
#[derive(Debug, thiserror::Error)]
#[error("failed to read or write {}", path.display())]
pub struct TimelineError {
    path: PathBuf,
    source: io::Error,
}

/// The timeline of a disaster.
#[derive(Debug)]
pub struct Timeline {
    fault_time: Instant,
    record: TimelineRecord,
}

/// The stored form of a timeline.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct TimelineRecord {
    case: String,
    fault: String,
    marks: Vec<TimelineEvent>,
}

/// An event after the fault.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct TimelineEvent {
    seconds: f64,
    what: String,
}

impl Timeline {
    /// Starts the clock; call it at the fault.
    pub fn start(case: &str, fault: &str) -> Self {
        let record = TimelineRecord {
            case: case.to_owned(),
            fault: fault.to_owned(),
            marks: Vec::new(),
        };
        Self {
            fault_time: Instant::now(),
            record,
        }
    }

    /// Records an event with the current time.
    pub fn record_event(&mut self, what: &str) {
        self.record_event_after(self.fault_time.elapsed(), what);
    }

    /// Records an event with a duration.
    pub fn record_event_after(&mut self, after: Duration, what: &str) {
        self.record.marks.push(TimelineEvent {
            seconds: after.as_secs_f64(),
            what: what.to_owned(),
        });
    }

    /// Stores the timeline in a directory; it replaces an earlier one of the same case.
    pub fn save(self, directory: &Path) -> Result<(), TimelineError> {
        let name: String = self
            .record
            .case
            .chars()
            .map(|c| if c.is_alphanumeric() { c } else { '-' })
            .collect();
        let path = directory.join(format!("{name}.json"));
        let written = fs::create_dir_all(directory)
            .and_then(|()| serde_json::to_vec_pretty(&self.record).map_err(io::Error::other))
            .and_then(|text| fs::write(&path, text));
        written.map_err(|source| TimelineError { path, source })
    }
}

/// Markers of the table in the page.
const TABLE_BEGIN: &str = "<!-- recovery times: written by the end-to-end suite -->\n";
const TABLE_END: &str = "<!-- end of recovery times -->\n";

/// Returns the page with its table replaced by the timelines of a directory.
pub fn render_report(directory: &Path, page: &Path) -> Result<String, TimelineError> {
    let failed = |source| TimelineError {
        path: page.to_owned(),
        source,
    };
    let text = fs::read_to_string(page).map_err(failed)?;
    let table = render_table(&read_all(directory)?);
    replace_table(&text, &table).ok_or_else(|| {
        failed(io::Error::other(
            "the markers of the recovery times are missing",
        ))
    })
}

fn replace_table(page: &str, table: &str) -> Option<String> {
    let (before, rest) = page.split_once(TABLE_BEGIN)?;
    let (_, after) = rest.split_once(TABLE_END)?;
    Some([before, TABLE_BEGIN, table, TABLE_END, after].concat())
}

fn read_all(directory: &Path) -> Result<Vec<TimelineRecord>, TimelineError> {
    let failed = |source| TimelineError {
        path: directory.to_owned(),
        source,
    };
    let mut all: Vec<TimelineRecord> = Vec::new();
    for entry in fs::read_dir(directory).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let told = fs::read(&path)
            .and_then(|text| serde_json::from_slice(&text).map_err(io::Error::other));
        all.push(told.map_err(|source| TimelineError { path, source })?);
    }
    all.sort_by(|one, other| one.case.cmp(&other.case));
    Ok(all)
}

fn render_table(all: &[TimelineRecord]) -> String {
    let mut page = String::from("| disaster | fault | then |\n| --- | --- | --- |\n");
    for TimelineRecord { case, fault, marks } in all {
        let marks: Vec<String> = marks
            .iter()
            .map(|TimelineEvent { seconds, what }| format!("{seconds:.1} s {what}"))
            .collect();
        // Writing to a String does not fail.
        writeln!(page, "| {case} | {fault} | {} |", marks.join("; ")).ok();
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample_timeline(case: &str) -> Timeline {
        let mut timeline = Timeline::start(case, "one volume of three is lost");
        timeline.record_event_after(Duration::from_millis(12_340), "serving");
        timeline
    }

    #[test]
    fn page_has_one_sorted_row_per_disaster() {
        let directory = tempfile::tempdir().unwrap();
        let page = directory.path().join("page.md");
        let text = ["before\n", TABLE_BEGIN, "old\n", TABLE_END, "after\n"];
        let timelines = directory.path().join("timelines");
        for case in ["two volumes", "a leader", "a leader"] {
            sample_timeline(case).save(&timelines).unwrap();
        }
        fs::write(&page, text.concat()).unwrap();
        let written = render_report(&timelines, &page).unwrap();
        let lines: Vec<&str> = written.lines().collect();
        assert_eq!(
            lines,
            [
                "before",
                TABLE_BEGIN.trim_end(),
                "| disaster | fault | then |",
                "| --- | --- | --- |",
                "| a leader | one volume of three is lost | 12.3 s serving |",
                "| two volumes | one volume of three is lost | 12.3 s serving |",
                TABLE_END.trim_end(),
                "after",
            ]
        );
    }

    #[test]
    fn page_without_table_markers_is_refused() {
        assert_eq!(replace_table("nothing here", "table"), None);
    }
}
