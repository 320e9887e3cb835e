//! The recorded answers of the newest API server: every rejection with its fields and messages.
//!
//! `MAINSTAY_UPDATE_CRDS=1` records them again. Other versions of Kubernetes write other messages; there only the
//! expectation of each case counts.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use super::server::Violation;

/// The version whose messages are recorded.
const RECORDED_VERSION: &str = "1.36";
/// Long patterns and values are cut here.
const MAX_LENGTH: usize = 160;

/// Asserts that rejections have the recorded text.
pub(super) fn check(record: &str, version: &str, rejections: &[(String, Vec<Violation>)]) {
    if version != RECORDED_VERSION {
        return;
    }
    let mut text = String::new();
    for (name, violations) in rejections {
        writeln!(text, "{}", cut(name)).unwrap();
        for one in violations {
            writeln!(text, "  {}: {}", one.field, cut(&one.message)).unwrap();
        }
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/live/answers");
    let path = folder.join(record);
    if std::env::var_os("MAINSTAY_UPDATE_CRDS").is_some() {
        fs::create_dir_all(&folder).unwrap();
        fs::write(&path, &text).unwrap();
    }
    let recorded = fs::read_to_string(&path).unwrap_or_default();
    let differ: Vec<_> = text
        .lines()
        .filter(|line| !recorded.contains(line))
        .collect();
    assert!(
        recorded == text,
        "{} is out of date; set MAINSTAY_UPDATE_CRDS=1 to record it again: {differ:#?}",
        path.display()
    );
}

fn cut(text: &str) -> String {
    let short: String = text.chars().take(MAX_LENGTH).collect();
    if short.len() < text.len() {
        short + "…"
    } else {
        short
    }
}
