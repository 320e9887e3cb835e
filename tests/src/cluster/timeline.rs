//! What happened when: each disaster of the suite tells how long it took until the cluster served again.
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

use mainstay_testkit::place::cache;
use serde::{Deserialize, Serialize};

use super::home::HomeError;

/// Where tests of this machine keep their timelines.
pub fn directory() -> Result<PathBuf, HomeError> {
    let cache = cache().ok_or(HomeError::Nowhere)?;
    Ok(cache.join("recovery"))
}

/// A file of timelines that cannot be written or read.
#[derive(Debug, thiserror::Error)]
#[error("use {}", path.display())]
pub struct TimelineError {
    path: PathBuf,
    source: io::Error,
}

/// A disaster in progress.
#[derive(Debug)]
pub struct Timeline {
    fault: Instant,
    told: Told,
}

/// A disaster as it is written down.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Told {
    case: String,
    fault: String,
    marks: Vec<Mark>,
}

/// Something that happened after the fault.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Mark {
    seconds: f64,
    what: String,
}

impl Timeline {
    /// The clock starts with the fault.
    pub fn start(case: &str, fault: &str) -> Self {
        let told = Told {
            case: case.to_owned(),
            fault: fault.to_owned(),
            marks: Vec::new(),
        };
        Self {
            fault: Instant::now(),
            told,
        }
    }

    /// Something happened now.
    pub fn mark(&mut self, what: &str) {
        self.mark_after(self.fault.elapsed(), what);
    }

    /// Something took so long.
    pub fn mark_after(&mut self, after: Duration, what: &str) {
        self.told.marks.push(Mark {
            seconds: after.as_secs_f64(),
            what: what.to_owned(),
        });
    }

    /// Writes it into a directory of timelines; the same case replaces its earlier one.
    pub fn keep(self, directory: &Path) -> Result<(), TimelineError> {
        let name: String = self
            .told
            .case
            .chars()
            .map(|c| if c.is_alphanumeric() { c } else { '-' })
            .collect();
        let path = directory.join(format!("{name}.json"));
        let written = fs::create_dir_all(directory)
            .and_then(|()| serde_json::to_vec_pretty(&self.told).map_err(io::Error::other))
            .and_then(|text| fs::write(&path, text));
        written.map_err(|source| TimelineError { path, source })
    }
}

/// Where a page has the table of all timelines.
const BEGIN: &str = "<!-- recovery times: written by the end-to-end suite -->\n";
const END: &str = "<!-- end of recovery times -->\n";

/// The page with the table of all timelines of a directory instead of the one it has.
pub fn report(directory: &Path, page: &Path) -> Result<String, TimelineError> {
    let failed = |source| TimelineError {
        path: page.to_owned(),
        source,
    };
    let text = fs::read_to_string(page).map_err(failed)?;
    let table = render(&all(directory)?);
    replaced(&text, &table).ok_or_else(|| failed(io::Error::other("it has no place for the table")))
}

fn replaced(page: &str, table: &str) -> Option<String> {
    let (before, rest) = page.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some([before, BEGIN, table, END, after].concat())
}

fn all(directory: &Path) -> Result<Vec<Told>, TimelineError> {
    let failed = |source| TimelineError {
        path: directory.to_owned(),
        source,
    };
    let mut all: Vec<Told> = Vec::new();
    for entry in fs::read_dir(directory).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let told = fs::read(&path)
            .and_then(|text| serde_json::from_slice(&text).map_err(io::Error::other));
        all.push(told.map_err(|source| TimelineError { path, source })?);
    }
    all.sort_by(|one, other| one.case.cmp(&other.case));
    Ok(all)
}

fn render(all: &[Told]) -> String {
    let mut page = String::from("| disaster | fault | then |\n| --- | --- | --- |\n");
    for Told { case, fault, marks } in all {
        let marks: Vec<String> = marks
            .iter()
            .map(|Mark { seconds, what }| format!("{seconds:.1} s {what}"))
            .collect();
        // A String takes everything.
        writeln!(page, "| {case} | {fault} | {} |", marks.join("; ")).ok();
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timeline(case: &str) -> Timeline {
        let mut timeline = Timeline::start(case, "one volume of three is gone");
        timeline.mark_after(Duration::from_millis(12_340), "serving");
        timeline
    }

    #[test]
    fn the_page_has_a_line_for_each_disaster_in_order() {
        let directory = tempfile::tempdir().unwrap();
        let page = directory.path().join("page.md");
        let text = ["before\n", BEGIN, "old\n", END, "after\n"];
        let timelines = directory.path().join("timelines");
        for case in ["two volumes", "a leader", "a leader"] {
            timeline(case).keep(&timelines).unwrap();
        }
        fs::write(&page, text.concat()).unwrap();
        let written = report(&timelines, &page).unwrap();
        let lines: Vec<&str> = written.lines().collect();
        assert_eq!(
            lines,
            [
                "before",
                BEGIN.trim_end(),
                "| disaster | fault | then |",
                "| --- | --- | --- |",
                "| a leader | one volume of three is gone | 12.3 s serving |",
                "| two volumes | one volume of three is gone | 12.3 s serving |",
                END.trim_end(),
                "after",
            ]
        );
    }

    #[test]
    fn a_page_without_a_place_for_it_is_refused() {
        assert_eq!(replaced("nothing here", "table"), None);
    }
}
